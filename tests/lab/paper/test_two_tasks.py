"""The two-task experiment on the embedded digits, with short trainings."""

from __future__ import annotations

import json

import pytest
import torch
from rich.console import Console

from elign.lab.cli.main import main
from elign.lab.config.composition import ConfigError
from elign.lab.paper.comparison import numbers
from elign.lab.paper.two_tasks import METHOD_TEXTS, TwoTaskExperiment, run_seeds, task1_accuracy, two_task_table
from elign.lab.report.latent_space import run_walk
from elign.lab.report.run_groups import read_runs
from elign.lab.runs.launch import resume_run
from elign.lab.runs.run_dir import RunDir, RunError

QUIET = Console(quiet=True)
SHORT = ("model.latent_dim=8", "train.first_epochs=6", "train.epochs=6", "aligner.iterations=100")

# Accuracies of version 0.1, whose store and runner were its own: seed 3 with these settings.
EXPECTED = {
    "paper": {
        "previous model": 96.309963,
        "base": 56.457565,
        "eli": 56.826568,
        "ridge": 78.228782,
        "mean-shift": 84.132841,
        "random-shift": 57.195572,
    },
    "trained": {
        "previous model": 96.309963,
        "base": 44.280443,
        "eli": 47.232472,
        "ridge": 88.560886,
        "mean-shift": 65.313653,
        "random-shift": 45.018450,
    },
}
OTHERS = {"paper": (0.7286245, 0.7323420, 22.703913), "trained": (0.9553903, 0.9591078, 20.243256)}


def config(heads="paper", *words):
    return TwoTaskExperiment.compose([*SHORT, f"learner.heads={heads}", *words])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return {heads: run_seeds(config(heads), [3], folder / heads, QUIET)[0] for heads in EXPECTED}


@pytest.mark.parametrize("heads", EXPECTED)
def test_numbers_are_those_of_version_one(made, heads):
    results = made[heads].gather()
    assert {name: task1_accuracy(results.rows, name) for name in METHOD_TEXTS} == pytest.approx(EXPECTED[heads])
    rows = {row.method: row for row in results.rows if row.task == 2}
    new, aligned_new, distance = OTHERS[heads]
    assert rows["base"].new == rows["eli/oracle"].new == pytest.approx(new, abs=1e-6)
    assert rows["eli/all"].new == pytest.approx(aligned_new, abs=1e-6)
    assert results.tasks[1]["drift"]["base"]["distance"] == pytest.approx(distance, rel=1e-4)


def test_only_the_papers_variant_leaves_the_second_head_at_its_start(made):
    for heads, moved in (("paper", False), ("trained", True)):
        weights = [made[heads].load_model(task)[0]["model.head.1.weight"][5:] for task in (0, 1)]
        assert torch.equal(*weights) is not moved


def test_a_run_that_stops_between_tasks_resumes_with_the_same_numbers(made, tmp_path, monkeypatch):
    save = RunDir.save_model

    def stop(self, number, *arguments):
        if number:
            raise KeyboardInterrupt
        save(self, number, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "save_model", stop)
        with pytest.raises(KeyboardInterrupt):
            run_seeds(config(), [3], tmp_path, QUIET)
    before = torch.get_rng_state()
    resume_run(RunDir(tmp_path / "seed-3"), QUIET)
    assert torch.equal(torch.get_rng_state(), before)
    assert RunDir(tmp_path / "seed-3").gather().rows == made["paper"].gather().rows


def test_other_seeds_differ_and_other_settings_are_refused(made, tmp_path):
    (other,) = run_seeds(config(), [4], tmp_path, QUIET)
    assert task1_accuracy(other.gather().rows, "base") != pytest.approx(EXPECTED["paper"]["base"])
    with pytest.raises(RunError, match="holds another run"):
        run_seeds(config("trained"), [4], tmp_path, QUIET)


def test_the_map_of_latents_knows_the_task_as_the_numbers_do(made):
    (group,), _ = read_runs([made["paper"]])
    walk = run_walk(group.runs[0])
    # All test images of task 1 are measured.
    assert 100 * walk.correct[0].mean() == pytest.approx(EXPECTED["paper"]["base"])
    assert 100 * walk.correct[-1].mean() == pytest.approx(EXPECTED["paper"]["eli"])


def test_settings_are_the_papers_where_it_has_some():
    small, large = (TwoTaskExperiment.compose(["data=mnist", f"model.latent_dim={dim}"]) for dim in (32, 512))
    assert (small.aligner.iterations, small.aligner.ema_decay, small.train.epochs) == (17100, 0.99, 10)
    assert (large.aligner.iterations, large.aligner.ema_decay, large.aligner.hidden) == (8500, 0.89, (64,))
    for wrong in ("data=cifar100", "model.latent_dim=x", "learner.heads=both"):
        with pytest.raises(ConfigError, match="Two tasks need"):
            TwoTaskExperiment.compose([wrong])


def test_printed_numbers_stand_beside_the_same_experiment_alone(made):
    (group,), _ = read_runs([made["paper"]])
    assert [column.title for column in two_task_table([group]).columns] == ["method", "accuracy (%)", "what it is"]
    metadata = group.runs[0].metadata["config"]
    metadata["data"]["name"], metadata["model"]["latent_dim"] = "mnist", 32
    table = two_task_table([group])
    assert [row.cells[2].text for row in table.rows] == ["99.16", "20.88", "83.44", "–", "–", "–"]
    assert numbers()["toy_mnist"]["paper"]["32"]["task1_after_task2"] == 20.88


def test_the_command_keeps_finished_seeds_and_foreign_files(small_maps, tmp_path, kill_elign_when, capsys):
    out, other, page = tmp_path / "out", tmp_path / "other", tmp_path / "page.md"
    words = ["toy", "--seeds", "2", "--iterations", "50", "--latent-dim", "8", "--out", str(out)]
    kill_elign_when(out / "seed-0" / "task-01" / "results.jsonl", *words)
    assert not (out / "report.html").exists()
    kept = (out / "seed-0" / "task-01" / "model.safetensors").stat().st_mtime_ns
    name = "toy-digits-8-paper-50"
    page.write_text(f"<!-- begin {name} -->\n<!-- end {name} -->\n")
    assert main([*words, "--results", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "ridge" in printed
    assert str(out / "report.html") in printed.replace("\n", "")
    assert "| ridge |" in page.read_text()
    assert (out / "seed-0" / "task-01" / "model.safetensors").stat().st_mtime_ns == kept
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "Accuracy on task 1" in report
    assert "Latent space before and after alignment" in report
    assert json.loads((out / "seed-1" / "run.json").read_text())["benchmark"] == "two-task"
    # A folder with something else is refused and left alone; a page without markers is named before anything runs.
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert main([*words[:-1], str(other)]) == 1
    assert "something else" in capsys.readouterr().err
    assert [file.name for file in other.iterdir()] == ["notes.txt"]
    page.write_text("nothing here")
    assert main([*words[:-1], str(tmp_path / "new"), "--results", str(page)]) == 1
    assert name in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
