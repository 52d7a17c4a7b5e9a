import importlib.util
import io
import sys

import pytest
from rich.console import Console

from elign.lab.cli.main import main
from elign.lab.runs.launch import progress_text, show_run
from elign.lab.training.trainer import TrainingProgress


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


QUICK = ("data=digits", "protocol.first=5", "protocol.increment=5", "data.limit=20", "train.first_epochs=3")
QUICK += ("train.epochs=2", "aligner.iterations=20", "aligner.steps=3")


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="the extra tensorboard is not installed")
def test_epochs_and_methods_are_on_the_board(tmp_path):
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
