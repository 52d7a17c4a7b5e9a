"""What lies behind the summary of a detection run: the average precision of each class, COCO's numbers, the unknown.

For the terminal; imported by commands. Works on the results as they were written, so it needs no detector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from elign.lab.evaluation.details import percent, plain_table
from elign.lab.evaluation.results import Results
from elign.lab.evaluation.table import marked

_SHOWN = ("base", "eli/oracle", "eli/by-prediction")
COCO = ("AP", "AP50", "AP75")
"""COCO's numbers that are shown, in their order."""
UNKNOWN = "How well objects of classes to come are told from known ones: area under the ROC curve, in %"
"""What the numbers of ORE's rule for the unknown are."""


def class_details(results: Results, classes: Sequence[Any]) -> Iterator[Table]:
    """Tables of one run: each class after its last finished task and, where there are any, COCO's numbers; the unknown.

    Args:
        results: Of the run.
        classes: The names of all classes, in the order of arrival.
    """
    last = results.tasks[-1]
    coco: Mapping[str, Mapping[str, Any]] = last.get("coco", {})
    after = f"after task {last['task']}, in %"
    yield _by_class(f"average precision of each class {after}", last["average_precision"], classes)
    if coco:
        yield _by_class(f"COCO's AP of each class {after}", {name: coco[name]["by_class"] for name in coco}, classes)
        table = plain_table(f"COCO's AP, means over classes {after}", ["reading", *COCO])
        for name, values in coco.items():
            table.add_row(marked(name), *(percent(values[part]) for part in COCO))
        yield table
    told = [task for task in results.tasks if "unknown" in task]
    if told:
        names = list(told[0]["unknown"]["area_under_roc"])
        table = plain_table(UNKNOWN, ["after task", *names])
        for task in told:
            table.add_row(str(task["task"]), *(percent(task["unknown"]["area_under_roc"][name]) for name in names))
        yield table


def _by_class(title: str, precisions: Mapping[str, Sequence[float | None]], classes: Sequence[Any]) -> Table:
    shown = [name for name in _SHOWN if name in precisions]
    table = plain_table(title, ["class", *map(marked, shown)])
    for label in range(len(precisions["base"])):
        # Text: square brackets in the name of a class are no markup.
        table.add_row(Text(str(classes[label])), *(percent(precisions[name][label]) for name in shown))
    return table
