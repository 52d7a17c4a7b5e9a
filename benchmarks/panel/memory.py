"""Draw accuracy against what is kept of each old class, from measured/panel and measured/rivals.

    python benchmarks/panel/memory.py --out docs/images/memory.svg

The three small networks of the panel (CIFAR-100, latents of dimension 64), means over models and training seeds. A
stored image has 3,072 bytes; bytes of statistics are those that rivals.py measured.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from evaluate import EXEMPLARS, read
from matplotlib import pyplot

IMAGE = 32 * 32 * 3
Row = dict[str, str]
POINTS = {
    "nothing": (6, 4),
    "WA": (6, -12),
    "LDC in closed form, nearest mean": (6, -4),
    "DPCR: projected linear map, ridge head": (-38, -4),
}
"""Of rivals.py, each with the place of its name beside the point."""
LINES = {
    "nearest mean": ("nearest mean of images", False, -3),
    "retrained head": ("retrained head", False, -9),
    "Repair, exemplars": ("Repair, images alone", False, 1),
    "Repair, both": ("Repair, statistics and images", True, 2),
}
"""Of evaluate.py: name on the picture, whether statistics are kept beside the images, and how high the name stands."""


def rows_of(folder: str, last: str) -> list[Row]:
    """Return the rows of the small networks but for the development seed."""
    files = sorted(Path("measured", folder).glob("small-*.csv"))
    return [row for file in files for row in read(file, last) if row["seed"] != "0"]


def mean(rows: list[Row], which: Callable[[Row], bool], what: str = "all") -> float:
    """Return the mean of a column over some rows."""
    return statistics.mean(float(row[what]) for row in rows if which(row))


def draw(out: Path) -> None:
    """Write the picture."""
    panel, rivals = rows_of("panel", "seconds"), rows_of("rivals", "microseconds")
    figure, axes = pyplot.subplots(figsize=(8, 4.6))
    kept = {row["method"]: float(row["bytes"]) / 1000 for row in rivals}
    for name, place in {**POINTS, "Repair": (-118, -4)}.items():
        hero = name == "Repair"
        x, y = kept[name], mean(rivals, lambda row, name=name: row["method"] == name)  # type: ignore[misc]
        axes.plot(x, y, "o", color="#0b6e4f" if hero else "#777777", markersize=9 if hero else 5)
        shown = "Repair, statistics" if hero else name.replace(":", " ").split()[0]
        axes.annotate(shown, (x, y), place, textcoords="offset points", weight="bold" if hero else "normal")
    for name, (shown, both, up) in LINES.items():
        x = [(kept["Repair"] if both else 0) + count * IMAGE / 1000 for count in EXEMPLARS]
        y = [mean(panel, lambda r, n=name, c=c: (r["method"], r["exemplars"]) == (n, str(c))) for c in EXEMPLARS]  # type: ignore[misc]
        colour = "#0b6e4f" if both else "#3a86c8" if name.startswith("Repair") else "#999999"
        axes.plot(x, y, "o-", color=colour, markersize=5)
        axes.annotate(shown, (x[-1], y[-1]), (6, up), textcoords="offset points", color=colour)
    bound = mean(rivals, lambda row: row["method"].startswith("oracle"))
    axes.axhline(bound, color="#bbbbbb", linestyle=":")
    axes.annotate("oracle statistics", (0, bound), (4, 3), textcoords="offset points", color="#777777")
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(-0.02, 3000)
    ticks = [0, 0.1, 1, 10, 100]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(xlabel="kB kept of each old class", ylabel="balanced accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/memory.svg"))
    draw(parser.parse_args().out)
