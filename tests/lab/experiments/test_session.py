"""Whole runs on the embedded digits: each learner, going on after interruptions, evaluations, wrong folders."""

import dataclasses
import json
import shutil
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from elign import Voting
from elign.lab.evaluation.results import read_results
from elign.lab.experiments import classification
from elign.lab.experiments.run_config import ConfigError
from elign.lab.experiments.run_folder import RunError, RunFolder
from elign.lab.experiments.session import begin, go_on, read_again
from elign.lab.tensor_file import DamagedRunError

QUICK = (
    "data=digits",
    "preset=smoke",
    "protocol.first=4",
    "protocol.increment=3",
    "data.limit=30",
    "train.first_epochs=4",
    "train.epochs=3",
    "train.batch_size=32",
    "aligner.iterations=20",
    "aligner.steps=5",
)


@pytest.fixture
def console():
    return Console(quiet=True)


def rows(folder):
    return read_results(folder.path / "results.jsonl").rows


def accuracies(folder, reading="base", classifier="fc"):
    return [row.accuracy for row in rows(folder) if (row.reading, row.classifier) == (reading, classifier)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return begin([*QUICK, "learner=aanet", f"out={tmp_path_factory.mktemp('runs') / 'aanet'}"], Console(quiet=True))


@pytest.mark.parametrize("learner", ["finetune", "joint", "icarl", "lucir", "aanet-implicit"])
def test_every_learner_learns_and_is_read_beside_its_controls(tmp_path, console, learner):
    folder = begin([*QUICK, f"learner={learner}", f"out={tmp_path / 'run'}"], console)
    names = {row.reading for row in rows(folder) if row.task == 3}
    assert {"base", "eli/oracle", "eli/all", "oracle-mask", "previous-model", "ridge/all", "bias-offset"} <= names
    first, *_, last = accuracies(folder)
    assert first > 0.5
    assert last > 0.15
    assert {row.classifier for row in rows(folder)} == {"fc", "nearest-mean", "prototypes", "blend"}
    for number, ends in ((1, [4]), (2, [4, 7])):
        assert (folder.task(number) / "aligners" / "eli.safetensors").is_file()
        assert Voting.load(folder.task(number) / "aligners" / "blend.safetensors").task_boundaries == ends
    assert (folder.path / "results.csv").read_text().startswith("task,")
    facts = read_results(folder.path / "results.jsonl")
    assert facts.facts["environment"]["torch"] == torch.__version__
    assert all({"train", "extract", "fit", "readings"} <= task["seconds"].keys() for task in facts.tasks)


def test_joint_training_is_the_upper_bound(tmp_path, console):
    longer = [text for text in QUICK if "epochs" not in text]
    longer += ["train.first_epochs=12", "train.epochs=12", "memory=none"]
    joint = begin([*longer, "learner=joint", f"out={tmp_path / 'joint'}"], console)
    tuned = begin([*longer, "learner=finetune", f"out={tmp_path / 'tuned'}"], console)
    assert accuracies(joint)[-1] > 0.75
    assert accuracies(tuned)[-1] < 0.6


def test_without_exemplars_there_is_no_nearest_mean(tmp_path, console):
    folder = begin([*QUICK, "learner=icarl", "memory=none", f"out={tmp_path / 'run'}"], console)
    assert {row.classifier for row in rows(folder)} == {"fc", "prototypes", "blend"}
    assert "bias-offset" not in {row.reading for row in rows(folder)}


def test_equal_seeds_give_equal_runs_and_others_do_not(tmp_path, console):
    short = [*QUICK, "learner=lucir"]
    one, two, three = (
        begin([*short, f"seed={seed}", f"out={tmp_path / name}"], console)
        for seed, name in ((1, "a"), (1, "b"), (2, "c"))
    )
    assert rows(one) == rows(two)
    assert rows(one) != rows(three)


class StopError(Exception):
    pass


@pytest.mark.parametrize("moment", ["epoch", "model", "latents", "aligners", "results"])
def test_a_run_that_is_broken_off_goes_on_to_the_same_numbers(tmp_path, console, monkeypatch, undisturbed, moment):
    overrides = [*QUICK, "learner=aanet", "train.checkpoint_minutes=0", f"out={tmp_path / 'run'}"]
    with monkeypatch.context() as patch:
        _break_at(moment, patch)
        with pytest.raises(StopError):
            begin(overrides, console)
    folder = RunFolder(tmp_path / "run")
    assert not (folder.task(2)).exists()
    if moment == "epoch":
        assert folder.progress(1)[1]["epoch"] == 1
    go_on(folder, console)
    assert rows(folder) == rows(undisturbed)
    assert not (folder.path / "progress.safetensors").exists()


def _break_at(moment, patch):
    """Raise in the second task, right after the file of this moment was written, or before it in the last two."""
    if moment == "epoch":
        save = RunFolder.save_progress

        def stop(self, number, state, facts):
            save(self, number, state, facts)
            if (number, facts["epoch"], facts["step"]) == (1, 1, 2):
                raise StopError

        patch.setattr(RunFolder, "save_progress", stop)
    elif moment == "model":
        kind = dataclasses.replace(classification.KIND, read=lambda *args, **kwargs: _stop_at_second(args, kwargs))
        patch.setattr(classification, "KIND", kind)
    else:
        name = {"latents": "evaluate_task", "aligners": "write_tensors", "results": "write_results"}[moment]
        target = f"elign.lab.experiments.reading.{name}"
        original = getattr(sys.modules["elign.lab.experiments.reading"], name)

        def stop(*args, **kwargs):
            if "task-01" in str(args[0]) or len(kwargs.get("task_sizes", ())) == 2:
                raise StopError
            return original(*args, **kwargs)

        patch.setattr(target, stop)


_read_task = classification.KIND.read


def _stop_at_second(args, kwargs):
    if args[3] == 1:
        raise StopError
    return _read_task(*args, **kwargs)


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_numbers(tmp_path, undisturbed, kill_elign_when):
    folder = RunFolder(tmp_path / "run")
    overrides = [*QUICK, "learner=aanet", "train.checkpoint_minutes=0", "train.threads=1", f"out={folder.path}"]
    words = ["run", *overrides]
    for file in ("progress.safetensors", "task-01/model.safetensors", "task-02/latents.safetensors"):
        kill_elign_when(folder.path / file, *words)
        assert not (folder.task(2) / "results.jsonl").exists()
        words = ["resume", str(folder.path)]
    command = [sys.executable, "-m", "elign.lab.cli", *words]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "eli/oracle" in finished.stdout
    assert rows(folder) == rows(undisturbed)


def test_the_same_command_again_changes_nothing(undisturbed, console):
    before = {file: file.stat().st_mtime_ns for file in undisturbed.path.glob("**/model.safetensors")}
    overrides = undisturbed.facts()["overrides"]
    assert begin(overrides, console).path == undisturbed.path
    assert {file: file.stat().st_mtime_ns for file in undisturbed.path.glob("**/model.safetensors")} == before


def test_circumstances_may_change_when_a_run_goes_on(tmp_path, undisturbed, console, monkeypatch):
    shutil.copytree(undisturbed.path, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    monkeypatch.chdir(tmp_path)
    begin([*QUICK, "learner=aanet", "out=run", "data.data_dir=elsewhere"], console)
    facts = RunFolder("run").facts()
    assert facts["config"]["data"]["data_dir"] == str(tmp_path / "elsewhere")
    assert facts["threads"] == torch.get_num_threads()


def test_another_run_in_the_same_folder_is_refused(undisturbed, console):
    with pytest.raises(RunError, match=r"holds another run .* out=DIR"):
        begin([*QUICK, "learner=aanet", "seed=7", f"out={undisturbed.path}"], console)


def test_a_damaged_model_is_named_and_can_be_made_again(tmp_path, console):
    overrides = [*QUICK, "learner=finetune", f"out={tmp_path / 'run'}"]
    folder = begin(overrides, console)
    # Copies: what is loaded may lie in the file itself.
    before = {name: value.clone() for name, value in folder.load_model(1)[0].items()}
    file = folder.task(1) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(DamagedRunError, match=r"task-01/model\.safetensors is damaged"):
        go_on(folder, console)
    file.unlink()
    go_on(folder, console)
    after = folder.load_model(1)[0]
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["latents.safetensors", "prototypes.safetensors", "results.jsonl"])
def test_every_damaged_file_is_named_and_made_again(tmp_path, console, undisturbed, name):
    shutil.copytree(undisturbed.path, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    folder = RunFolder(tmp_path / "run")
    shutil.rmtree(folder.task(2))
    file = folder.task(1) / name
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(DamagedRunError, match=rf"task-01/{name}.* is damaged.*Remove this file"):
        go_on(folder, console)
    file.unlink()
    go_on(folder, console)
    assert rows(folder) == rows(undisturbed)


class TestStartFrom:
    def test_takes_over_the_first_task(self, tmp_path, console, undisturbed):
        overrides = [*QUICK, "learner=lucir", f"start_from={undisturbed.path}", f"out={tmp_path / 'run'}"]
        folder = begin(overrides, console)
        mine, theirs = folder.load_model(0)[0], undisturbed.load_model(0)[0]
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        alone = begin([*QUICK, "learner=lucir", f"out={tmp_path / 'alone'}"], console)
        assert rows(folder) == rows(alone)

    def test_refuses_a_run_that_begins_otherwise_and_names_the_keys(self, tmp_path, console, undisturbed):
        overrides = [
            *QUICK,
            "seed=4",
            "train.momentum=0.8",
            f"start_from={undisturbed.path}",
            f"out={tmp_path / 'run'}",
        ]
        with pytest.raises(RunError, match=r"another first task: seed, train\.momentum differ"):
            begin(overrides, console)
        assert not (tmp_path / "run").exists()

    def test_counts_the_time_of_the_training_that_was_taken_over(self, tmp_path, console, undisturbed):
        overrides = [*QUICK, "learner=finetune", f"start_from={undisturbed.path}", f"out={tmp_path / 'run'}"]
        folder = begin(overrides, console)
        assert folder.load_model(0)[2]["seconds"] >= undisturbed.load_model(0)[2]["seconds"]


class TestEvaluation:
    def test_reads_the_same_models_with_other_aligners(self, undisturbed, console):
        stamp = (undisturbed.task(2) / "model.safetensors").stat().st_mtime_ns
        target = read_again(undisturbed, ["aligner.steps=9"], console)
        assert target.path.parent.name == "evaluations"
        assert accuracies(target) == accuracies(undisturbed)
        assert target.facts()["config"]["aligner"]["steps"] == 9
        one, two = (f.task(1) / "aligners" / "eli.safetensors" for f in (target, undisturbed))
        assert one.read_bytes() != two.read_bytes()
        assert (undisturbed.task(2) / "model.safetensors").stat().st_mtime_ns == stamp

    def test_the_same_options_give_the_same_readings(self, undisturbed, console):
        target = read_again(undisturbed, ["aligner.steps=5"], console, name="same")
        assert rows(target) == rows(undisturbed)

    def test_mixup_extracts_other_pairs(self, undisturbed, console):
        target = read_again(undisturbed, ["aligner.mixup=0.3", "aligner.passes=2"], console, name="mixed")
        assert (target.task(1) / "pairs.safetensors").is_file()
        assert accuracies(target, "ridge/all") != accuracies(undisturbed, "ridge/all")

    def test_logits_can_be_aligned_instead(self, undisturbed, console):
        target = read_again(undisturbed, ["aligner=logits"], console)
        assert {row.classifier for row in rows(target)} == {"fc"}
        assert len(accuracies(target, "eli/oracle")) == 2

    def test_is_no_run_itself(self, undisturbed, console):
        target = read_again(undisturbed, ["aligner.steps=2"], console, name="two")
        with pytest.raises(RunError, match=r"is an evaluation of the run .*'elign evaluate"):
            go_on(target, console)
        with pytest.raises(RunError, match="is an evaluation of the run"):
            read_again(target, ["aligner.steps=3"], console)

    @pytest.mark.parametrize("name", ["../x", "a/b", ".."])
    def test_stays_below_its_run(self, undisturbed, console, name):
        with pytest.raises(RunError, match="name of one folder"):
            read_again(undisturbed, ["aligner.steps=2"], console, name=name)

    def test_refuses_what_would_need_training(self, undisturbed, console):
        with pytest.raises(ConfigError, match=r"train\.epochs cannot change"):
            read_again(undisturbed, ["train.epochs=9"], console)

    def test_refuses_a_name_that_is_taken(self, undisturbed, console):
        read_again(undisturbed, ["aligner.steps=4"], console, name="taken")
        with pytest.raises(RunError, match="another --name"):
            read_again(undisturbed, ["aligner.steps=3"], console, name="taken")

    def test_refuses_a_run_that_learned_nothing(self, tmp_path, undisturbed, console):
        empty = RunFolder(tmp_path)
        empty.write_facts(undisturbed.facts())
        with pytest.raises(RunError, match="not learned a task yet"):
            read_again(empty, ["aligner.steps=4"], console)


def test_run_json_says_what_was_run(undisturbed):
    facts = json.loads((undisturbed.path / "run.json").read_text())
    assert facts["sizes"] == [4, 3, 3]
    assert facts["speed"] == {"precision": "32", "channels_last": False}
    assert len(facts["classes"]) == 10
