"""What a `Repair` says of itself: estimated accuracies beside the simple alternatives, drift, and a verdict."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from elign.utils.tensors import balanced_accuracy

_SOURCES = {
    "exemplars": "estimated on the exemplars and training images of new classes; a model that was trained on the "
    "exemplars looks better here than it is",
    "samples": "estimated on samples of the statistics and training images of new classes: a comparison, no forecast; "
    "real images are harder, and the map may fail far from the new classes",
    "none": "nothing is known of the old classes, so that nothing can be estimated",
}
_NAMES = {"repair": "this repair", "nothing": "nothing (the head alone)"}


@dataclass(frozen=True)
class Estimate:
    """Estimated accuracies on old, new and all classes, every class weighing the same."""

    old: float
    new: float
    balanced: float

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, old: Tensor) -> Estimate:
        """Score labelled rows; `old` says which rows are of old classes."""
        labels = labels.cpu()
        right = scores.argmax(dim=1).cpu() == labels
        on_old, on_new = (
            balanced_accuracy(right[rows], labels[rows]) if bool(rows.any()) else 0.0 for rows in (old, ~old)
        )
        return cls(on_old, on_new, balanced_accuracy(right, labels))


@dataclass(frozen=True)
class RepairReport:
    """The report of a `Repair`; `print` it, or show it in a notebook.

    Attributes:
        rows: Estimates by name: `repair`, `nothing`, `bias offset`, `retrained head`.
        source: What they were estimated on: `exemplars`, `samples`, or `none`.
        drift: Root mean square drift of the new latents, relative to their spread.
        warnings: What to look at.
        mode: How the repair predicts: `classifier`, `weights` (WA) or `head` (nothing is changed).
        seconds: Time of the fit, without the extraction of latents.

    Example:
        >>> from elign.repair_report import Estimate, RepairReport
        >>> rows = {"nothing": Estimate(0.1, 0.9, 0.5), "repair": Estimate(0.8, 0.8, 0.8)}
        >>> RepairReport(rows, source="samples", drift=1.2).verdict
        'Worth it: 80.0 % balanced accuracy on samples, best alternative nothing (the head alone) 50.0 %.'
    """

    rows: Mapping[str, Estimate]
    source: str
    drift: float
    warnings: tuple[str, ...] = ()
    mode: str = "classifier"
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """One sentence: what to expect."""
        if self.mode == "weights":
            return "Only the head's weights were aligned: nothing is known of the old classes."
        if self.mode == "head":
            return "The head stays: the models hardly differ, or the estimate says that nothing is won."
        repair = self.rows.get("repair")
        if repair is None or len(self.rows) < 2:
            return "Repaired; nothing of the old classes is at hand to estimate it on."
        others = {name: row for name, row in self.rows.items() if name != "repair"}
        best = max(others, key=lambda name: others[name].balanced)
        gain = 100 * (repair.balanced - others[best].balanced)
        beside = f"{_NAMES.get(best, best)} {100 * others[best].balanced:.1f} %"
        word = "Worth it" if gain > 0 else "No better than a simpler way"
        return f"{word}: {100 * repair.balanced:.1f} % balanced accuracy on {self.source}, best alternative {beside}."

    def table(self) -> list[tuple[str, str, str, str]]:
        """Return the rows as text, this repair first."""
        rows = sorted(self.rows.items(), key=lambda row: row[0] != "repair")
        return [
            (_NAMES.get(name, name), f"{100 * row.balanced:.1f}", f"{100 * row.old:.1f}", f"{100 * row.new:.1f}")
            for name, row in rows
        ]

    def __str__(self) -> str:
        lines = [self.verdict]
        if self.rows:
            lines += ["", f"{'estimated accuracy, %':<26}{'all':>7}{'old':>7}{'new':>7}"]
            lines += [f"{name:<26}{balanced:>7}{old:>7}{new:>7}" for name, balanced, old, new in self.table()]
        lines += ["", f"({_SOURCES[self.source]})", f"drift of new latents: {self.drift:.2f} of their spread"]
        return "\n".join([*lines, *(f"note: {line}" for line in self.warnings)])

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        head = "<tr><th>estimated accuracy, %</th><th>all</th><th>old</th><th>new</th></tr>"
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self.table()]
        table = f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in rows)}</table>" if rows else ""
        notes = "".join(f"<li>{html.escape(line)}</li>" for line in self.warnings)
        return (
            f"<p><b>{html.escape(self.verdict)}</b></p>{table}<p><small>{html.escape(_SOURCES[self.source])}; drift of "
            f"new latents: {self.drift:.2f} of their spread</small></p><ul>{notes}</ul>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        found = asdict(self) | {"verdict": self.verdict, "warnings": list(self.warnings)}
        found["estimates"] = found.pop("rows")
        return found
