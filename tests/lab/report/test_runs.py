"""Runs are found, read without being changed, grouped by experiment and named apart."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from elign.aligners.energy import EnergyAligner
from elign.lab.cli import main
from elign.lab.experiments.run_folder import RunError, RunFolder
from elign.lab.json_file import read_object, write_object
from elign.lab.report.run_latents import run_picture
from elign.lab.report.runs import find_runs, read_run, read_runs


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_seeds_are_grouped_and_nothing_is_written(run_folders):
    before = contents(run_folders)
    experiments, problems = read_runs(find_runs([run_folders]))
    assert [(each.name, each.seeds, each.tasks) for each in experiments] == [
        ("icarl on digits, 4+3", [0, 1], 3),
        ("lucir on digits, 4+3", [0], 3),
    ]
    assert problems == []
    assert contents(run_folders) == before


def test_numbers_are_those_of_the_results(run_folders):
    (experiment,) = read_runs([RunFolder(run_folders / "lucir")])[0]
    lines = (run_folders / "lucir" / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    base = [row for row in rows if row.get("reading") == "base" and row["classifier"] == "fc"]
    assert experiment.curves("base") == [[pytest.approx(100 * row["accuracy"]) for row in base]]
    assert experiment.matrix("base")[2] == [pytest.approx(100 * value) for value in base[2]["by_task"]]
    assert experiment.values("base", "last") == [pytest.approx(100 * base[2]["accuracy"])]
    assert experiment.values("base", "gate_accuracy") is None
    assert set(experiment.drift()) == {"base", "eli", "mean-shift", "ridge", "random-shift", "untrained"}
    assert len(experiment.drift()["eli"][0]) == 2


def test_experiments_that_differ_in_a_setting_are_told_apart(run_folders, tmp_path):
    shutil.copytree(run_folders / "lucir", tmp_path / "other")
    facts, _ = read_object(tmp_path / "other" / "run.json")
    facts["config"]["train"]["learning_rate"] = 0.5
    write_object(tmp_path / "other" / "run.json", facts)
    experiments, _ = read_runs(find_runs([run_folders / "lucir", tmp_path]))
    assert [each.name for each in experiments] == [
        "lucir on digits, 4+3, train.learning_rate=0.1",
        "lucir on digits, 4+3, train.learning_rate=0.5",
    ]


def test_a_run_that_is_less_far_is_not_averaged(run_folders, tmp_path):
    shutil.copytree(run_folders / "icarl-1", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "task-02")
    (experiment,) = read_runs([RunFolder(tmp_path / "run"), RunFolder(run_folders / "icarl-0")])[0]
    assert experiment.seeds == [0]
    assert "(seed 1) has finished 2 of 3 tasks" in experiment.remarks[0]


def test_what_cannot_be_read_is_named(run_folders, tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    shutil.copytree(run_folders / "lucir", tmp_path / "empty", ignore=shutil.ignore_patterns("task-*"))
    with pytest.raises(RunError, match="no results yet"):
        read_runs(find_runs([tmp_path]))
    experiments, problems = read_runs(find_runs([tmp_path, run_folders / "lucir"]))
    assert len(experiments) == 1
    assert "damaged" in problems[0]
    assert "has no results yet" in problems[1]
    with pytest.raises(RunError, match="there is no run in"):
        find_runs([tmp_path / "nowhere"])


def test_an_evaluation_has_the_latents_of_its_run(run_folders, tmp_path):
    shutil.copytree(run_folders / "lucir", tmp_path / "run")
    for name, option in (("logits", "aligner=logits"), ("six", "aligner.steps=6")):
        assert main(["evaluate", str(tmp_path / "run"), option, "aligner.iterations=5", "--name", name]) == 0
    assert len(find_runs([tmp_path])) == 1
    folder = tmp_path / "run" / "evaluations"
    experiments, _ = read_runs([RunFolder(tmp_path / "run"), *find_runs([folder / "six", folder / "logits"])])
    assert [each.name for each in experiments] == [
        "lucir on digits, 4+3",
        "lucir on digits, 4+3, aligner.steps=6, aligner.iterations=5",
        "lucir on digits, 4+3, aligner=logits, aligner.iterations=5",
    ]
    assert run_picture(experiments[1].runs[0]).map.old_trajectory.shape[0] == 7
    # Aligned are the logits of the seven old classes.
    assert run_picture(experiments[2].runs[0]).map.old_trajectory.shape[2] == 7


@pytest.mark.parametrize("name", ["icarl-0", "lucir"])
def test_the_picture_agrees_with_the_readings(run_folders, name):
    run = read_run(RunFolder(run_folders / name))
    picture = run_picture(run).measured
    last = {row.reading: row for row in run.rows if row.task == 3 and row.classifier == "fc"}
    assert picture.correct[0].mean() == pytest.approx(last["base"].old)
    assert picture.correct[-1].mean() == pytest.approx(last["eli/oracle"].old)
    moved = np.linalg.norm(picture.old_trajectory[0] - picture.old_previous, axis=1).mean()
    assert moved == pytest.approx(run.tasks[2]["drift"]["base"]["distance"], rel=1e-4)
    after = np.linalg.norm(picture.old_trajectory[-1] - picture.old_previous, axis=1).mean()
    assert after == pytest.approx(run.tasks[2]["drift"]["eli"]["distance"], rel=1e-4)


def test_a_linear_head_is_read_too(tmp_path, run_folders):
    options = ("data=digits", "protocol.first=5", "protocol.increment=5", "data.limit=10", "train.first_epochs=1")
    options += ("train.epochs=1", "aligner.iterations=5", "aligner.steps=2", "learner.head=linear")
    assert main(["run", *options, f"out={tmp_path / 'run'}"]) == 0
    run = read_run(RunFolder(tmp_path / "run"))
    (base,) = (row for row in run.rows if (row.task, row.reading, row.classifier) == (2, "base", "fc"))
    assert run_picture(run).measured.correct[0].mean() == pytest.approx(base.old)


def test_the_map_shows_at_most_eight_classes(run_folders, monkeypatch):
    monkeypatch.setattr("elign.lab.report.run_latents.CLASS_COLOURS", 3)
    picture = run_picture(read_run(RunFolder(run_folders / "lucir")))
    assert sorted(set(picture.map.old_labels.tolist())) == [0, 3, 6]
    assert len(set(picture.measured.old_labels.tolist())) == 7


def test_another_kind_of_aligner_is_refused(run_folders, tmp_path):
    shutil.copytree(run_folders / "lucir", tmp_path / "run")
    aligners = tmp_path / "run" / "task-02" / "aligners"
    shutil.copy(aligners / "ridge.safetensors", aligners / "eli.safetensors")
    with pytest.raises(Exception, match="not an energy aligner"):
        run_picture(read_run(RunFolder(tmp_path / "run")))
    z = torch.randn(8, 64)
    EnergyAligner(iterations=1, steps=4).fit_latents(z, z + 1).save(aligners / "eli.safetensors")
    assert len(run_picture(read_run(RunFolder(tmp_path / "run"))).map.old_trajectory) == 5
