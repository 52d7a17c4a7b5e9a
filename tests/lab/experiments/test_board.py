import sys

import pytest

from elign.lab.cli import main

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
QUICK = ("data=digits", "protocol.first=5", "protocol.increment=5", "data.limit=20", "train.first_epochs=3")
QUICK += ("train.epochs=2", "aligner.iterations=20", "aligner.steps=3")


def test_epochs_and_readings_are_on_the_board(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["run", *QUICK, "--tensorboard", f"out={tmp_path / 'run'}"]) == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    names = set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss/task 1")] == [1, 2, 3]
    assert len(events.Scalars("training accuracy/task 2")) == 2
    assert [event.step for event in events.Scalars("accuracy (fc)/base")] == [1, 2]
    assert {"old (fc)/eli oracle", "new (nearest-mean)/eli all"} <= names


def test_without_tensorboard_the_message_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["run", *QUICK, "--tensorboard", f"out={tmp_path / 'run'}"]) == 1
    assert "elign[lab,tensorboard]" in capsys.readouterr().err
