import io

from rich.console import Console

from elign.lab.experiments.loop import Moment
from elign.lab.run_progress import describe, watch_run


def test_time_left_counts_from_where_the_training_went_on():
    moment = Moment(1, 5, 8, 10, 10, 1.0, 0.5, 60.0, first_epoch=4)
    assert describe(moment, 6) == "task 2/6  epoch 6/8  loss 1.000  accuracy 50.0 %  left in this task 0:01:00"


def test_a_log_has_a_line_for_each_epoch_and_event():
    stream = io.StringIO()
    with watch_run(Console(file=stream, width=200), 2) as (show, say):
        for step in (1, 2, 3):
            show(Moment(0, 0, 2, step, 3, 1.0, 0.5, 1.0))
        say("task 1: fitting")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("task 1/2  epoch 1/2")
    assert lines[1] == "task 1: fitting"


def test_a_terminal_keeps_one_line_up_to_date():
    stream = io.StringIO()
    with watch_run(Console(file=stream, width=200, force_terminal=True), 2) as (show, say):
        say("task 1: fitting")
        show(Moment(0, 0, 2, 1, 3, 1.0, 0.5, 1.0))
    assert "epoch 1/2" in stream.getvalue()
