"""Whole runs on the embedded digits: each learner, going on after interruptions, evaluations, wrong folders."""

import importlib.util
import io
import json
import shutil
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from tests.lab.starting import QUIET, reevaluate, rows, start

from elign import Voting
from elign.lab.cli.main import main
from elign.lab.config import ConfigError
from elign.lab.runs import run_dir
from elign.lab.runs.experiment import Classification
from elign.lab.runs.launch import open_run, progress_text, resume_run, show_run
from elign.lab.runs.run_dir import RunDir, RunError, read_results
from elign.lab.storage import DamagedRunError
from elign.lab.training.device import Precision
from elign.lab.training.trainer import TrainingProgress

QUICK = ("data=digits", "preset=smoke", "protocol.first=4", "protocol.increment=3", "data.limit=30")
QUICK += ("train.first_epochs=4", "train.epochs=3", "train.batch_size=32", "aligner.iterations=20", "aligner.steps=5")


def accuracies(folder, method="base", classifier="fc"):
    return [row.accuracy for row in rows(folder) if (row.method, row.classifier) == (method, classifier)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return start([*QUICK, "learner=aanet", f"out={tmp_path_factory.mktemp('runs') / 'aanet'}"])


@pytest.mark.parametrize("learner", ["lwf", "aanet-implicit"])  # the others run below
def test_every_learner_learns_and_is_evaluated_beside_its_baselines(tmp_path, learner):
    folder = start([*QUICK, f"learner={learner}", f"out={tmp_path / 'run'}"])
    names = {row.method for row in rows(folder) if row.task == 3}
    assert {"base", "eli/oracle", "eli/all", "oracle-mask", "previous-model", "ridge/all", "bias-offset"} <= names
    first, *_, last = accuracies(folder)
    assert first > 0.5
    assert last > 0.15
    assert {row.classifier for row in rows(folder)} == {"fc", "nearest-mean", "prototypes", "blend", "own"}
    for number, ends in ((1, [4]), (2, [4, 7])):
        assert (folder.task(number) / "aligners" / "eli.safetensors").is_file()
        assert Voting.load(folder.task(number) / "aligners" / "blend.safetensors").task_boundaries == ends
    assert (folder.path / "results.csv").read_text().startswith("task,")
    metadata = read_results(folder.path / "results.jsonl")
    assert metadata.metadata["environment"]["torch"] == torch.__version__
    assert all({"train", "extract", "fit", "methods"} <= task["seconds"].keys() for task in metadata.tasks)


def test_joint_training_is_the_upper_bound(tmp_path):
    longer = [text for text in QUICK if "epochs" not in text]
    longer += ["train.first_epochs=12", "train.epochs=12", "memory=none"]
    joint = start([*longer, "learner=joint", f"out={tmp_path / 'joint'}"])
    tuned = start([*longer, "learner=finetune", f"out={tmp_path / 'tuned'}"])
    assert accuracies(joint)[-1] > 0.75
    assert accuracies(tuned)[-1] < 0.6


def test_without_exemplars_there_is_no_nearest_mean(tmp_path):
    folder = start([*QUICK, "learner=icarl", "memory=none", f"out={tmp_path / 'run'}"])
    assert {row.classifier for row in rows(folder)} == {"fc", "prototypes", "blend", "own"}
    assert "bias-offset" not in {row.method for row in rows(folder)}


def test_an_uninterrupted_run_loads_no_model_and_reads_no_results(tmp_path, monkeypatch):
    loads, reads = [], []
    load, read = RunDir.load_model, read_results
    monkeypatch.setattr(RunDir, "load_model", lambda self, number: loads.append(number) or load(self, number))
    monkeypatch.setattr(run_dir, "read_results", lambda path: reads.append(path) or read(path))
    folder = start([*QUICK, "learner=icarl", f"out={tmp_path / 'run'}"])
    assert (loads, reads) == ([], [])
    shutil.rmtree(folder.task(2))
    resume_run(folder, QUIET)
    # Each finished task once, and once the file that repeats them.
    assert loads == [0, 1]
    assert [path.relative_to(folder.path).as_posix() for path in reads] == [
        "task-00/results.jsonl",
        "task-01/results.jsonl",
        "results.jsonl",
    ]


class StopError(Exception):
    pass


@pytest.mark.parametrize("moment", ["epoch", "model", "latents", "aligners", "results"])
def test_a_run_that_is_broken_off_goes_on_to_the_same_numbers(tmp_path, monkeypatch, undisturbed, moment):
    overrides = [*QUICK, "learner=aanet", "train.checkpoint_minutes=0", f"out={tmp_path / 'run'}"]
    with monkeypatch.context() as patch:
        _break_at(moment, patch)
        with pytest.raises(StopError):
            start(overrides)
    folder = RunDir(tmp_path / "run")
    assert not (folder.task(2)).exists()
    if moment == "epoch":
        assert folder.progress(1)[1]["epoch"] == 1
    resume_run(folder, QUIET)
    assert rows(folder) == rows(undisturbed)
    assert not (folder.path / "progress.safetensors").exists()


def _break_at(moment, patch):
    """Raise in the second task, right after the file of this moment was written, or before it in the last two."""
    if moment == "epoch":
        save = RunDir.save_progress

        def stop(self, number, state, metadata):
            save(self, number, state, metadata)
            if (number, metadata["epoch"], metadata["step"]) == (1, 1, 2):
                raise StopError

        patch.setattr(RunDir, "save_progress", stop)
        return
    owner, name = {
        "model": (Classification, "extract"),
        "latents": (Classification, "evaluate"),
        "aligners": (sys.modules["elign.lab.runs.experiment"], "write_tensors"),
        "results": (RunDir, "write_task_results"),
    }[moment]
    original = getattr(owner, name)

    def stop(*args, **kwargs):
        if 1 in args or "task-01" in str(args[0]):
            raise StopError
        return original(*args, **kwargs)

    patch.setattr(owner, name, stop)


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_numbers(tmp_path, undisturbed, kill_elign_when):
    folder = RunDir(tmp_path / "run")
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


def test_the_same_command_again_changes_nothing(undisturbed):
    metadata = json.loads((undisturbed.path / "run.json").read_text())
    assert (metadata["sizes"], len(metadata["classes"])) == ([4, 3, 3], 10)
    assert (metadata["precision"], metadata["channels_last"], metadata["threads"]) == ("32", False, 1)
    before = {file: file.stat().st_mtime_ns for file in undisturbed.path.glob("**/model.safetensors")}
    # Settings that do not decide results may change.
    again = [*QUICK, "learner=aanet", f"out={undisturbed.path}", "data.data_dir=elsewhere"]
    assert start(again).path == undisturbed.path
    assert undisturbed.metadata()["config"]["data"]["data_dir"].endswith("elsewhere")
    assert {file: file.stat().st_mtime_ns for file in undisturbed.path.glob("**/model.safetensors")} == before


def test_another_run_in_the_same_folder_is_refused(undisturbed):
    with pytest.raises(RunError, match=r"holds another run .* out=DIR"):
        start([*QUICK, "learner=aanet", "seed=7", f"out={undisturbed.path}"])


@pytest.mark.parametrize(
    "name", ["model.safetensors", "latents.safetensors", "prototypes.safetensors", "results.jsonl"]
)
def test_every_damaged_file_is_named_and_made_again(tmp_path, undisturbed, name):
    shutil.copytree(undisturbed.path, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    folder = RunDir(tmp_path / "run")
    shutil.rmtree(folder.task(2))
    file = folder.task(1) / name
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(DamagedRunError, match=rf"task-01/{name}.* is damaged.*Remove this file"):
        resume_run(folder, QUIET)
    file.unlink()
    resume_run(folder, QUIET)
    assert rows(folder) == rows(undisturbed)


class TestStartFrom:
    def test_takes_over_the_first_task(self, tmp_path, undisturbed):
        overrides = [*QUICK, "learner=lucir", f"start_from={undisturbed.path}", f"out={tmp_path / 'run'}"]
        folder = start(overrides)
        mine, theirs = folder.load_model(0)[0], undisturbed.load_model(0)[0]
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        assert folder.load_model(0)[2]["seconds"] >= undisturbed.load_model(0)[2]["seconds"]
        alone = start([*QUICK, "learner=lucir", f"out={tmp_path / 'alone'}"])
        assert rows(folder) == rows(alone)
        other = start([*QUICK, "learner=lucir", "seed=1", f"out={tmp_path / 'other'}"])
        assert rows(other) != rows(alone)

    def test_refuses_a_run_that_begins_otherwise_and_names_the_keys(self, tmp_path, undisturbed):
        overrides = [*QUICK, "seed=4", "train.momentum=0.8", f"start_from={undisturbed.path}"]
        with pytest.raises(RunError, match=r"another first task: seed, train\.momentum differ"):
            start([*overrides, f"out={tmp_path / 'run'}"])
        assert not (tmp_path / "run").exists()


class TestEvaluation:
    def test_evaluates_the_same_models_with_other_aligners(self, undisturbed):
        stamp = (undisturbed.task(2) / "model.safetensors").stat().st_mtime_ns
        target = reevaluate(undisturbed, ["aligner.steps=9"])
        assert target.path.parent.name == "evaluations"
        assert accuracies(target) == accuracies(undisturbed)
        assert target.metadata()["config"]["aligner"]["steps"] == 9
        one, two = (f.task(1) / "aligners" / "eli.safetensors" for f in (target, undisturbed))
        assert one.read_bytes() != two.read_bytes()
        assert (undisturbed.task(2) / "model.safetensors").stat().st_mtime_ns == stamp

    def test_mixup_extracts_other_pairs(self, undisturbed):
        target = reevaluate(undisturbed, ["aligner.mixup=0.3", "aligner.passes=2"], name="mixed")
        assert (target.task(1) / "pairs.safetensors").is_file()
        assert accuracies(target, "ridge/all") != accuracies(undisturbed, "ridge/all")

    def test_logits_can_be_aligned_instead(self, undisturbed):
        target = reevaluate(undisturbed, ["aligner=logits"])
        assert {row.classifier for row in rows(target)} == {"fc"}
        assert len(accuracies(target, "eli/oracle")) == 2

    def test_is_no_run_itself(self, undisturbed):
        target = reevaluate(undisturbed, ["aligner.steps=5"], name="same")
        assert rows(target) == rows(undisturbed)
        with pytest.raises(RunError, match="another --name"):
            reevaluate(undisturbed, ["aligner.steps=3"], name="same")
        with pytest.raises(RunError, match=r"is an evaluation of the run .*'elign evaluate"):
            resume_run(target, QUIET)
        with pytest.raises(RunError, match="is an evaluation of the run"):
            reevaluate(target, ["aligner.steps=3"])

    @pytest.mark.parametrize("name", ["../x", "a/b", ".."])
    def test_stays_below_its_run(self, undisturbed, name):
        with pytest.raises(RunError, match="name of one folder"):
            reevaluate(undisturbed, ["aligner.steps=2"], name=name)

    def test_refuses_what_would_need_training_and_a_run_that_learned_nothing(self, tmp_path, undisturbed):
        with pytest.raises(ConfigError, match=r"train\.epochs cannot change"):
            reevaluate(undisturbed, ["train.epochs=9"])
        empty = RunDir(tmp_path)
        empty.write_metadata(undisturbed.metadata())
        with pytest.raises(RunError, match="not learned a task yet"):
            reevaluate(empty, ["aligner.steps=4"])


def test_a_run_of_version_0_1_resumes_with_the_precision_and_threads_it_recorded(tmp_path, undisturbed):
    shutil.copytree(undisturbed.path, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    folder = RunDir(tmp_path / "run")
    old = {**folder.metadata(), "kind": "classification", "speed": {"precision": "32", "channels_last": True}}
    for name in ("format", "benchmark", "precision", "channels_last", "training_digest"):
        del old[name]
    del old["config"]["train"]["fast"]
    old["config"]["train"] |= {"precision": "auto", "layout": "auto", "threads": None}
    folder.write_metadata({**old, "threads": 2})
    metadata = folder.metadata()
    assert metadata["config"]["train"]["threads"] == 2
    before = torch.get_num_threads()
    try:
        assert open_run(metadata).engine.precision == Precision("32", channels_last=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_time_left_counts_from_where_the_training_went_on():
    progress = TrainingProgress(1, 5, 8, 10, 10, 1.0, 0.5, 60.0, first_epoch=4)
    assert progress_text(progress, 6) == "task 2/6  epoch 6/8  loss 1.000  accuracy 50.0 %  left in this task 0:01:00"


def test_a_log_has_a_line_for_each_epoch_and_event():
    stream = io.StringIO()
    with show_run(Console(file=stream, width=200), 2) as display:
        for step in (1, 2, 3):
            display.show(TrainingProgress(0, 0, 2, step, 3, 1.0, 0.5, 1.0))
        display.say("task 1: fitting")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("task 1/2  epoch 1/2")
    assert lines[1] == "task 1: fitting"


def test_a_terminal_keeps_one_line_up_to_date():
    stream = io.StringIO()
    with show_run(Console(file=stream, width=200, force_terminal=True), 2) as display:
        display.say("task 1: fitting")
        display.show(TrainingProgress(0, 0, 2, 1, 3, 1.0, 0.5, 1.0))
    assert "epoch 1/2" in stream.getvalue()


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="the extra tensorboard is not installed")
def test_epochs_and_methods_are_on_the_board(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["run", *QUICK, "--tensorboard", f"out={tmp_path / 'run'}"]) == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    names = set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss/task 1")] == [1, 2, 3, 4]
    assert len(events.Scalars("training accuracy/task 2")) == 3
    assert [event.step for event in events.Scalars("accuracy (fc)/base")] == [1, 2, 3]
    assert {"old (fc)/eli oracle", "new (nearest-mean)/eli all"} <= names


def test_without_tensorboard_the_message_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["run", *QUICK, "--tensorboard", f"out={tmp_path / 'run'}"]) == 1
    assert "elign[lab,tensorboard]" in capsys.readouterr().err
