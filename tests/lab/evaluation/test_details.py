import io

from rich.console import Console

from elign.lab.evaluation.details import details
from elign.lab.evaluation.results import Results
from elign.lab.evaluation.scoring import Row


def row(task, reading, accuracy, by_task, classifier="fc", **others):
    parts = {"old": None, "new": None, "among_old": None, "gate_accuracy": None, "aligned_share": 0.0}
    parts |= {"label_free": reading == "base", "classifier": classifier}
    return Row(task=task, reading=reading, accuracy=accuracy, by_task=by_task, **(parts | others))


def shown(results, **options):
    stream = io.StringIO()
    console = Console(file=stream, width=120)
    for table in details(results, **options):
        console.print(table)
    return " ".join(stream.getvalue().split())


def test_every_task_the_matrix_and_the_drift_are_shown():
    rows = [
        row(1, "base", 0.9, (0.9,)),
        row(2, "base", 0.5, (0.4, 0.6)),
        row(2, "eli/oracle", 0.6, (0.6, 0.6)),
        row(2, "oracle-mask", 0.7, (0.8, 0.6)),
    ]
    drift = {"base": {"distance": 4.0}, "eli": {"distance": 3.25}}
    text = shown(Results(facts={}, rows=rows, tasks=[{"task": 1, "drift": {}}, {"task": 2, "drift": drift}]))
    assert "base 90.0 50.0" in text
    assert "eli/oracle 90.0 60.0" in text
    # (0.6 - 0.5) / (0.7 - 0.5) = one half is recovered; base fell by one half.
    assert "eli/oracle 60.0 -30.0 50.0" in text
    assert "2 40.0 60.0" in text
    assert "eli 3.25" in text


def test_a_run_of_one_task_has_no_drift():
    text = shown(Results(facts={}, rows=[row(1, "base", 0.9, (0.9,))], tasks=[{"task": 1, "drift": {}}]))
    assert "distance" not in text
    assert "base 90.0" in text


def test_detectors_have_average_precisions():
    rows = [row(1, "base", 0.9, (0.9,), "detector"), row(2, "base", 0.5, (0.4, 0.6), "detector")]
    tasks = [{"task": 1, "drift": {}}, {"task": 2, "drift": {}}]
    text = shown(Results(facts={}, rows=rows, tasks=tasks), classifier="detector")
    assert "mean average precision after each task, in %" in text
    assert "base: mean average precision on the classes of each task, in %" in text
    assert "accuracy" not in text
    assert "test images" not in text
