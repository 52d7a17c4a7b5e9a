"""Sweeps as they are planned, shown and done one run at a time: all of it without Ray."""

import sys
from unittest.mock import patch

import pytest
import torch
from hydra.core.config_store import ConfigStore
from hypothesis import given
from hypothesis import strategies as st

from elign.lab.cli import main
from elign.lab.experiments.config_errors import ConfigError
from elign.lab.experiments.run_folder import RunError, RunFolder
from elign.lab.learners import LEARNERS, REGISTERED, register_learner
from elign.lab.sweep.cluster import Resources, _check_room
from elign.lab.sweep.plan import plan_sweep, split_list
from elign.lab.sweep.table import Lines
from elign.lab.sweep.worker import do_run

QUICK = ("data=digits", "preset=smoke", "protocol.first=5", "protocol.increment=5", "data.limit=20")
QUICK += ("train.first_epochs=2", "train.epochs=2", "aligner.iterations=20", "aligner.steps=3")


@given(st.lists(st.sampled_from(["0", "icarl", "[64,64]", "[]", "{a: 1, b: 2}", "1e-3"]), unique=True))
def test_commas_part_values_but_not_those_in_brackets(values):
    assert split_list(",".join(values)) == tuple(values)


def test_every_combination_is_a_run(tmp_path):
    texts = ["learner=icarl,lucir", "seed=0,1,2", "aligner.hidden=[64,64],[]", "data=digits", f"out={tmp_path}"]
    out, cells = plan_sweep(texts)
    assert out == tmp_path
    assert len(cells) == len({cell.folder.path for cell in cells}) == 12
    assert cells[0].label == "learner=icarl seed=0 aligner.hidden=[64,64]"
    assert {cell.run.config.aligner.hidden for cell in cells} == {(64, 64), ()}
    assert all(cell.folder.path.parent == tmp_path / "runs" for cell in cells)


def test_equal_runs_are_one(tmp_path):
    assert len(plan_sweep(["data=digits", "seed=3,3", "protocol=half-5,b50-5", f"out={tmp_path}"])[1]) == 1


def test_paths_are_not_parted_and_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, cells = plan_sweep(["data=folder", "data.path=a,b", "seed=0,1", "out=x,y"])
    assert {cell.run.config.data.path for cell in cells} == {str(tmp_path / "a,b")}
    assert {cell.folder.path.parent for cell in cells} == {tmp_path / "x,y" / "runs"}
    assert f"data.path={tmp_path / 'a,b'}" in cells[0].run.overrides


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learner=icarl,lucri", "lucir"),
        ("lerner=icarl", "learner"),
        ("seed=0,x", "seed"),
        ("seed", "key=value"),
        ("seed=", "seed"),
        ("start_from=a", "by themselves"),
        ("train.devices=2", "--gpus"),
    ],
)
def test_mistakes_are_named_before_anything_runs(text, message):
    with pytest.raises(ConfigError, match=message):
        plan_sweep(["data=digits", text])


def test_a_run_is_done_once_and_then_skipped(tmp_path):
    texts = [*QUICK, "seed=0,1", f"out={tmp_path}"]
    out, (first, second) = plan_sweep(texts)
    threads = torch.get_num_threads()
    assert do_run(str(out), first.run.kind, first.run.overrides, threads, {}) is None
    assert RunFolder(first.folder.path).facts()["threads"] == threads
    _, cells = plan_sweep(texts)
    assert [cell.job.done for cell in cells] == [True, False]
    assert cells[0].folder.path == first.folder.path
    assert not second.folder.path.exists()


def test_what_fails_is_told_in_one_line(tmp_path):
    _, (cell,) = plan_sweep(["data=folder", f"data.path={tmp_path / 'nothing'}", "protocol=equal-2", f"out={tmp_path}"])
    assert "nothing" in do_run(str(tmp_path), cell.run.kind, cell.run.overrides, torch.get_num_threads(), {})


def test_a_worker_takes_a_learner_of_ones_own_again_and_again(tmp_path):
    class Own(LEARNERS["finetune"]):
        """Nothing new but its name."""

    repository = ConfigStore.instance().repo
    with patch.dict(LEARNERS), patch.dict(REGISTERED), patch.dict(repository):
        register_learner("own", Own)
        out, cells = plan_sweep([*QUICK, "learner=own", "seed=0,1", f"out={tmp_path}"])
        known = {"own": dict(REGISTERED["own"])}
    with patch.dict(LEARNERS), patch.dict(REGISTERED), patch.dict(repository):
        for cell in cells:
            assert do_run(str(out), cell.run.kind, cell.run.overrides, torch.get_num_threads(), known) is None
            assert cell.folder.facts()["config"]["learner"]["name"] == "own"


def test_the_table_follows_the_folders(tmp_path):
    said = []
    _, cells = plan_sweep([*QUICK, "seed=0,1,2", f"out={tmp_path}"])
    lines = Lines(cells, said.append)
    for cell in cells[:2]:
        with cell.folder.locked():
            pass
    lines.look()
    lines.look()
    lines.ended(cells[0], None)
    lines.ended(cells[1], "the disk is full")
    assert said == ["seed=0: started", "seed=1: started", "seed=0: finished", "seed=1: failed (the disk is full)"]
    assert lines.failed == {"seed=1": "the disk is full"}
    assert str(lines.table().title) == "1 finished, 1 failed, 1 waiting"


def test_a_run_that_is_begun_again_counts_twice(tmp_path):
    said = []
    _, (cell,) = plan_sweep([*QUICK, f"out={tmp_path}"])
    lines = Lines([cell], said.append)
    with cell.folder.locked():
        lines.look()
    with cell.folder.locked():
        lines.look()
    # However seldom somebody looks, and whoever else asks for it meanwhile.
    with cell.folder.locked(), pytest.raises(RunError, match="another process"), cell.folder.locked():
        pass
    with cell.folder.locked():
        pass
    lines.ended(cell, None)
    again = [f"started, time {number}" for number in (2, 3, 4)]
    assert [text.rpartition(": ")[2] for text in said] == ["started", *again, "finished"]


def test_what_this_machine_cannot_give_is_refused():
    _check_room({"CPU": 4.0}, Resources(cpus=4))
    for wanted in (Resources(cpus=5), Resources(gpus=0.5)):
        with pytest.raises(ValueError, match="this machine has 4 processors and 0 GPUs"):
            _check_room({"CPU": 4.0}, wanted)


def test_the_plan_is_shown_without_ray(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sweep", "--plan", *QUICK, "learner=icarl,lucir", f"out={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "2 runs in" in out
    assert "learner=lucir" in out
    assert main(["sweep", *QUICK, f"out={tmp_path}"]) == 1
    assert "pip install 'elign[lab,ray]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", ["--cpus 0", "--gpus -1", "--gpus nan", "--retries x", "--kind other"])
def test_wrong_options_end_with_code_2(option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["sweep", *option.split()])
    assert stop.value.code == 2
    assert option.split()[0] in capsys.readouterr().err
