"""Runs are found, read without being changed, grouped and named apart; every method is in every format of table."""

from __future__ import annotations

import csv
import io
import json
import shutil
import statistics
from dataclasses import replace

import pytest
from rich.console import Console

from elign.lab.evaluation.methods import DEFAULT, METHODS
from elign.lab.evaluation.metrics import mean_text
from elign.lab.report.run_groups import (
    FORMATS,
    NEAREST_MEAN,
    TABLES,
    RunGroup,
    comparison_table,
    detection_tables,
    durations_table,
    find_runs,
    measure_of,
    methods_table,
    metric_notes,
    read_runs,
    task_tables,
)
from elign.lab.report.table import Table
from elign.lab.runs.run_dir import RunDir, RunError
from elign.lab.storage import read_object, write_object


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_seeds_are_grouped_and_nothing_is_written(run_folders):
    before = contents(run_folders)
    groups, problems = read_runs(find_runs([run_folders]))
    assert [(each.name, each.seeds, each.tasks) for each in groups] == [
        ("icarl on digits, 4+3", [0, 1], 3),
        ("lucir on digits, 4+3", [0], 3),
    ]
    assert problems == []
    assert contents(run_folders) == before


def test_numbers_are_those_of_the_results(run_folders):
    (group,) = read_runs([RunDir(run_folders / "lucir")])[0]
    lines = (run_folders / "lucir" / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    base = [row for row in rows if row.get("method") == "base" and row["classifier"] == "fc"]
    assert group.curves("base") == [[pytest.approx(100 * row["accuracy"]) for row in base]]
    assert group.matrix("base")[2] == [pytest.approx(100 * value) for value in base[2]["by_task"]]
    assert group.values("base", "last") == [pytest.approx(100 * base[2]["accuracy"])]
    assert group.values("base", "gate_accuracy") == []
    assert set(group.drift()) == {"base", "eli", "mean-shift", "ridge", "random-shift", "untrained"}
    assert len(group.drift()["eli"][0]) == 2


def test_groups_that_differ_in_a_setting_are_told_apart(run_folders, tmp_path):
    shutil.copytree(run_folders / "lucir", tmp_path / "other")
    metadata = read_object(tmp_path / "other" / "run.json")
    metadata["config"]["train"]["learning_rate"] = 0.5
    write_object(tmp_path / "other" / "run.json", metadata)
    groups, _ = read_runs(find_runs([run_folders / "lucir", tmp_path]))
    assert [each.name for each in groups] == [
        "lucir on digits, 4+3, train.learning_rate=0.1",
        "lucir on digits, 4+3, train.learning_rate=0.5",
    ]


def test_a_run_that_is_less_far_is_not_averaged(run_folders, tmp_path):
    shutil.copytree(run_folders / "icarl-1", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "task-02")
    (group,) = read_runs([RunDir(tmp_path / "run"), RunDir(run_folders / "icarl-0")])[0]
    assert group.seeds == [0]
    assert "(seed 1) has finished 2 of 3 tasks" in group.remarks[0]


def test_what_cannot_be_read_is_named(run_folders, tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    shutil.copytree(run_folders / "lucir", tmp_path / "empty", ignore=shutil.ignore_patterns("task-*"))
    with pytest.raises(RunError, match="no results yet"):
        read_runs(find_runs([tmp_path]))
    groups, problems = read_runs(find_runs([tmp_path, run_folders / "lucir"]))
    assert len(groups) == 1
    assert "damaged" in problems[0]
    assert "has no results yet" in problems[1]
    with pytest.raises(RunError, match="there is no run in"):
        find_runs([tmp_path / "nowhere"])


DOTS = {"base": [50, 40, 30], "eli__oracle": [50, 45, 40], "eli__all": [50, 42, 33], "oracle_mask": [50, 48, 44]}


@pytest.fixture(scope="module")
def groups(run_folders):
    return read_runs(find_runs([run_folders]))[0]


def records(table):
    """The rows by their first cell, each as texts by column."""
    return {
        row.cells[0].text: {column.title: cell.text for column, cell in zip(table.columns, row.cells, strict=True)}
        for row in table.rows
    }


def printed(table, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width).print(table.to_rich())
    return stream.getvalue()


def test_methods(groups):
    table = methods_table(groups[0])
    # The default first and marked, the others in the order of the registry.
    names = [row.cells[0].text.removesuffix(" †") for row in table.rows]
    assert names == sorted(groups[0].methods(), key=lambda name: name != DEFAULT)
    for row, name in zip(table.rows, names, strict=True):
        assert row.group == METHODS[name].group
        assert row.style == ("mark" if name == DEFAULT else "soft" if METHODS[name].uses_labels else "")
        assert ("†" in row.cells[0].text) == METHODS[name].uses_labels
    cells = records(table)["eli/by-energy"]
    for metric, heading in (("average", "average"), ("old", "old"), ("gate_accuracy", "gate"), ("last", "last")):
        values = groups[0].values("eli/by-energy", metric)
        assert cells[heading] == f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"
    assert records(table)["base"]["gate"] == records(table)["base"]["gain"] == "–"
    assert "over 2 seeds" in table.caption[0]


def test_methods_fit_a_terminal(groups):
    for group in groups:
        text = printed(methods_table(group, title="[b]x[/b]"))
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        assert "[b]x[/b]" in text
        for name in group.methods():
            (line,) = (line for line in text.splitlines() if line.split()[:1] == [name])
            assert line.count(".") >= 5


def test_a_method_that_a_run_lacks_has_no_mean(groups):
    first, second = groups[0].runs
    fewer = replace(second, rows=[row for row in second.rows if row.method != "eli/by-probe"])
    table = methods_table(RunGroup("x", (first, fewer)))
    cells = records(table)["eli/by-probe"]
    assert {cells[column.title] for column in table.columns if column.align == "right"} == {"–"}


def test_nearest_means_have_a_table_of_their_own(groups):
    table = records(methods_table(groups[0], NEAREST_MEAN))
    assert "bias-offset" not in table
    assert table["base"]["average"] == mean_text(groups[0].values("base", classifiers=NEAREST_MEAN))


def test_comparison(build_group):
    with_default = build_group(2, **DOTS, blend=[50, 47, 44])
    without = build_group(2, name="another", **DOTS)
    table = comparison_table([with_default, without])
    place = [column.title for column in table.columns].index("blend (default)")
    assert [row.cells[place].text for row in table.rows] == ["47.5 ± 0.7", "–"]
    assert table.rows[0].cells[place + 1].text.startswith("+7.0")
    assert table.columns[place + 2].title == "eli/oracle †"
    assert not any("blend" in column.title for column in comparison_table([without]).columns)


def test_task_tables(build_group):
    group = build_group(base=[90, 50], eli__oracle=[90, 60], oracle_mask=[90, 70])
    curves, others, *matrices, drift = task_tables(group)
    assert [cell.text for cell in curves.rows[1].cells] == ["eli/oracle", "90.0", "60.0"]
    # (60 - 50) / (70 - 50) is one half.
    assert [cell.text for cell in others.rows[1].cells] == ["eli/oracle", "60.0", "-30.0", "50.0"]
    assert [table.title.split(":")[0] for table in matrices] == ["base", "eli/oracle"]
    assert [cell.text for cell in matrices[0].rows[0].cells] == ["1", "90.0", ""]
    assert [[cell.text for cell in row.cells] for row in drift.rows] == [["base", "2"], ["eli", "2"]]
    assert len(list(task_tables(build_group(base=[90])))) == 3


PRECISIONS = {"base": [0.25, None, 0.5], "eli/oracle": [0.75, None, 0.4], "mean-shift/all": [0.1, None, 0.1]}


def detector(build_group, **last):
    group = build_group(base=[50, 40], eli__oracle=[50, 45], classifier="detector")
    group.runs[0].metadata["classes"] = ["cat", "dog", "[bold]cow", "not seen yet"]
    group.runs[0].metadata["sizes"] = [2, 1, 1]
    group.runs[0].tasks[-1].update({"average_precision": PRECISIONS, **last})
    return group


def test_every_class_after_the_last_task(build_group):
    (table,) = detection_tables(detector(build_group))
    assert [column.title for column in table.columns] == ["class", "task", "base", "eli/oracle †"]
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["cat", "1", "25.0", "75.0"],
        ["dog", "1", "–", "–"],
        ["[bold]cow", "2", "50.0", "40.0"],
    ]
    assert list(detection_tables(build_group(base=[50]))) == []


def test_cocos_numbers_and_unknown_objects(build_group):
    part = {"AP": 0.2, "AP50": 0.3, "AP75": 0.1, "by_class": [0.1, None, 0.3]}
    coco = {"base": part, "eli/by-prediction": part, "mean-shift/all": {**part, "AP": 0.15}}
    unknown = {"area_under_roc": {"energy": 0.75, "output": 0.5}}
    _, by_class, means, roc = detection_tables(detector(build_group, coco=coco, unknown=unknown))
    assert [*records(by_class)["[bold]cow"].values()] == ["[bold]cow", "2", "30.0", "30.0"]
    assert [*records(means)["mean-shift/all"].values()] == ["mean-shift/all", "15.0", "30.0", "10.0"]
    assert [cell.text for cell in roc.rows[0].cells] == ["2", "75.0", "50.0"]


def test_detectors_have_average_precisions(build_group):
    group = detector(build_group)
    assert measure_of([group, build_group(base=[50])]) == "mean average precision or accuracy"
    texts = [methods_table(group).caption[0], *(table.title for table in task_tables(group))]
    assert not any("accuracy" in text or "test images of" in text for text in texts)
    assert "of each region" in methods_table(group).footnotes[0]
    assert metric_notes([group])[-1].endswith("mean average precision")
    assert not any("precision" in text for text in metric_notes([build_group(base=[50])]))


def test_durations(build_group):
    (row,) = records(durations_table(build_group(base=[50, 40]))).values()
    assert (row["tasks"], row["training (s)"], row["all (s)"]) == ("2 of 3", "2.0", "2.0")


def test_every_table_is_in_markdown_and_latex(groups):
    text = FORMATS["markdown"](groups)
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert f"| eli/oracle † | {mean_text(groups[0].values('eli/oracle'))} |" in text
    assert "Experiments compared" not in FORMATS["markdown"](groups[:1])
    text = FORMATS["latex"](groups)
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 3
    rows = [line for line in text.splitlines() if line.startswith("eli/oracle $^\\dagger$ & ")]
    assert rows[0].count("&") == 9
    assert text.isascii()


def test_csv_has_every_method_and_number(groups):
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](groups))))
    (oracle,) = (
        row for row in rows if (row["experiment"], row["method"], row["classifier"])
        == (groups[0].name, "eli/oracle", "fc")
    )  # fmt: skip
    assert (oracle["uses_test_labels"], oracle["runs"]) == ("yes", "2")
    values = groups[0].values("eli/oracle")
    assert float(oracle["average"]) == pytest.approx(sum(values) / 2, abs=1e-4)
    gains = [one - other for one, other in zip(values, groups[0].values("base"), strict=True)]
    assert float(oracle["gain"]) == pytest.approx(sum(gains) / 2, abs=1e-4)
    # Student's t with one degree of freedom: 12.706 standard errors on either side.
    reach = 12.706 * abs(gains[0] - gains[1]) / 2
    assert float(oracle["gain_low"]) == pytest.approx(sum(gains) / 2 - reach, abs=1e-2)
    assert float(oracle["gain_high"]) == pytest.approx(sum(gains) / 2 + reach, abs=1e-2)
    assert oracle["average_std"]
    assert {"fc", "nearest-mean"} < {row["classifier"] for row in rows}
    assert all(row["average_std"] == "" for row in rows if row["runs"] == "1")


def test_registered_tables_appear_in_all_formats(build_group, monkeypatch):
    monkeypatch.setattr(TABLES, "_found", {})
    group = build_group(base=[50])

    @TABLES.register("mine")
    def mine(groups):
        return None if groups[0] is group else Table("My table", ["number"])

    other = build_group(base=[50])
    for form in ("markdown", "latex"):
        assert "My table" in FORMATS[form]([other])
        assert "My table" not in FORMATS[form]([group])
