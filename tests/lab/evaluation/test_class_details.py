import io

from rich.console import Console

from elign.lab.evaluation.class_details import class_details
from elign.lab.evaluation.results import Results

PRECISIONS = {"base": [0.25, None, 0.5], "eli/oracle": [0.75, None, 0.4], "mean-shift/all": [0.1, None, 0.1]}
CLASSES = ["cat", "dog", "[bold]cow", "not seen yet"]


def shown(*, width=80, **last):
    tasks = [{"task": 1, "average_precision": {"base": [0.9]}}, {"task": 2, "average_precision": PRECISIONS, **last}]
    stream = io.StringIO()
    for table in class_details(Results(facts={}, rows=[], tasks=tasks), CLASSES):
        Console(file=stream, width=width).print(table)
    return " ".join(stream.getvalue().split())


def test_every_class_after_the_last_task():
    text = shown()
    # Readings that a run does not have, or that are not of the few, have no column.
    assert "class base eli/oracle † ───" in text
    assert "after task 2" in text
    assert "cat 25.0 75.0 dog – – [bold]cow 50.0 40.0" in text
    assert "not seen yet" not in text
    assert "COCO" not in text


def test_cocos_numbers():
    part = {"AP": 0.2, "AP50": 0.3, "AP75": 0.1, "by_class": [0.1, None, 0.3]}
    text = shown(coco={"base": part, "eli/by-prediction": part, "mean-shift/all": {**part, "AP": 0.15}})
    assert "COCO's AP of each class after task 2, in % class base eli/by-prediction ───" in text
    assert "cat 10.0 10.0 dog – – [bold]cow 30.0 30.0" in text
    assert "reading AP AP50 AP75" in text
    assert "base 20.0 30.0 10.0" in text
    assert "mean-shift/all 15.0 30.0 10.0" in text


def test_the_unknown_after_every_task_that_has_classes_to_come():
    areas = {"energy": 0.75, "output": 0.5}
    text = shown(unknown={"area_under_roc": areas, "objects": {"known": 3, "unknown": 2}})
    assert "after task energy output" in text
    assert "2 75.0 50.0" in text
    assert "ROC" not in shown()
