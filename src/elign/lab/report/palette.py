"""The colours of every figure and page, once, for a light and a dark background.

Figures name a colour (`"@class-0"`), the page resolves the name for the theme in use, and the README picture takes the
light column.

The class colours follow Okabe and Ito's set, which stays distinguishable under the common kinds of colour blindness;
the dark column lightens them to keep the contrast.
"""

from __future__ import annotations

from collections.abc import Mapping

PALETTE: Mapping[str, tuple[str, str]] = {
    # name: (light, dark)
    "page": ("#ffffff", "#14171c"),
    "panel": ("#f6f7f9", "#1c2027"),
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#59636e", "#a3adb8"),
    "grid": ("#dfe3e8", "#333a44"),
    "accent": ("#0067a3", "#5ab0f0"),
    "control": ("#7f8fa3", "#7f90a6"),
    "reference": ("#c3cbd5", "#4c5663"),
    "new": ("#8d959e", "#7b858f"),
    "mark": ("#1b1f24", "#ffffff"),
    "before": ("#d55e00", "#ff8f50"),
    "aligned": ("#0067a3", "#5ab0f0"),
    "previous": ("#009e73", "#35c9a2"),
    "low": ("#0b62a4", "#6bb8f5"),
    "middle": ("#f7f7f7", "#22262d"),
    "high": ("#b5460f", "#ff9a5c"),
    "class-0": ("#0072b2", "#4da6e8"),
    "class-1": ("#e69f00", "#f2b84b"),
    "class-2": ("#009e73", "#2fc7a0"),
    "class-3": ("#d55e00", "#ff8347"),
    "class-4": ("#b85c94", "#e69cc8"),
    "class-5": ("#56b4e9", "#a6dcff"),
    "class-6": ("#8a7a00", "#e6d94a"),
    "class-7": ("#3d3d3d", "#f2f2f2"),
}

CLASS_COLOURS = sum(name.startswith("class-") for name in PALETTE)


def class_colour(position: int) -> str:
    """Name of the colour of the class at this position among the old classes; they repeat after eight."""
    return f"class-{position % CLASS_COLOURS}"


def light(name: str) -> str:
    """The colour for a white background, for figures that cannot follow a theme."""
    return PALETTE[name][0]


def palette_css() -> str:
    """Style rules that define each colour as a variable.

    The system's preference decides; `data-theme` on the root element (set by the page's button) overrules it.
    """
    day = "".join(f"--{name}:{colours[0]};" for name, colours in PALETTE.items()) + "color-scheme:light;"
    night = "".join(f"--{name}:{colours[1]};" for name, colours in PALETTE.items()) + "color-scheme:dark;"
    return (
        f":root{{{day}}}\n"
        f"@media (prefers-color-scheme: dark){{:root:not([data-theme=light]){{{night}}}}}\n"
        f":root[data-theme=dark]{{{night}}}\n"
    )
