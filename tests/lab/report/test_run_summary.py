"""The summary of runs stays true and honest whatever the numbers are."""

from __future__ import annotations

import pytest

from elign.lab.report.palette import PALETTE
from elign.lab.report.run_readings import FREE_CONTROLS, FREE_ELI, best, lines
from elign.lab.report.run_summary import run_summary


def text_of(experiment):
    return " ".join(run_summary(experiment))


def test_a_gain_over_everything(build_experiment):
    text = text_of(
        build_experiment(
            seeds=2,
            base=[90, 60, 50],
            eli__oracle=[90, 80, 70],
            eli__by_probe=[90, 70, 60],
            eli__all=[90, 50, 40],
            oracle_mask=[90, 70, 65],
            ridge__oracle=[90, 65, 60],
            bias_offset=[90, 65, 55],
            blend=[90, 75, 66],
        )
    )
    assert "over 2 seeds (seeds 0, 1)" in text
    assert "default (blend), the same models reach 77.5 ± 0.7 %: 10.3 points more than base (on 2 of 2 seeds)" in text
    assert "3.0 points less than ELI with the oracle below (on 2 of 2 seeds)" in text
    assert "reaches 67.2 ± 0.7 % on average over the tasks and 50.5 ± 0.7 % after the last one" in text
    assert "ELI gains 13.3 points, better on 2 of 2 seeds" in text
    assert "5.0 points below ELI (lower on 2 of 2 seeds), so ELI adds" in text
    assert "the best, ridge/oracle, reaches 72.2 ± 0.7 %: 8.3 points below ELI" in text
    assert "the best way to use ELI, eli/by-probe, reaches 73.8 ± 0.7 %: 6.7 points more than base" in text
    assert "control, bias-offset, reaches 70.5 ± 0.7 %, 3.3 points less" in text
    assert "apart better by 20.0 points" in text


def test_losses_are_said(build_experiment):
    text = text_of(
        build_experiment(
            base=[90, 60, 50],
            eli__oracle=[90, 50, 40],
            eli__all=[90, 40, 30],
            oracle_mask=[90, 70, 65],
            mean_shift__oracle=[90, 65, 60],
            bias_offset=[90, 65, 55],
            blend=[90, 55, 45],
        )
    )
    assert "3.3 points less than base (on the only seed), and 3.3 points more than ELI with the oracle" in text
    assert "one seed, so no spread can be given (seed 0)" in text
    assert "±" not in text
    assert "ELI loses 6.7 points, worse on the only seed" in text
    assert "more than with ELI (higher on the only seed), so who knows which images are old does better here" in text
    assert "points better than ELI (higher on the only seed), so here the simpler one is better" in text
    assert "13.3 points less than base" in text
    assert "bias-offset, reaches 70.0 %, 16.7 points more" in text
    assert "apart worse by 10.0 points" in text


def test_no_difference_is_said(build_experiment):
    same = [90, 60, 50]
    names = ("base", "eli__oracle", "eli__all", "oracle_mask", "ridge__oracle", "bias_offset")
    text = text_of(build_experiment(**dict.fromkeys(names, same)))
    for words in ("ELI changes nothing", "adds nothing to that knowledge", "adds nothing over it", "no change against"):
        assert words in text
    assert "0.0 points" not in text


def test_prototypes_moved_by_eli_are_measured_against_those_that_stay(build_experiment):
    readings = {"base": [90, 60, 50], "eli__oracle": [90, 60, 50], "forward__eli": [90, 80, 70]}
    readings |= {"forward__none": [90, 85, 75]}
    experiment = build_experiment(**readings)
    assert best(experiment, FREE_ELI) == "forward/eli"
    assert best(experiment, FREE_CONTROLS) == "forward/none"
    assert "The best label-free control, forward/none, reaches 83.3 %, 3.3 points more" in text_of(experiment)
    # Said once, and also where another control is the best.
    assert text_of(experiment).count("forward/none") == 1
    other = build_experiment(**readings, bias_offset=[90, 88, 80])
    assert "The same prototypes without ELI, forward/none, reach 83.3 %." in text_of(other)


@pytest.mark.parametrize("tasks", [1, 2])
def test_unfinished(build_experiment, tasks):
    experiment = build_experiment(base=[90, 60][:tasks], eli__oracle=[90, 70][:tasks])
    text = text_of(experiment)
    assert f"Only {tasks} of 3 tasks are finished so far." in text
    assert ("nothing to say about ELI yet" in text) == (tasks == 1)
    assert "nan" not in text
    assert [line.reading for line in lines(experiment)] == (["base"] if tasks == 1 else ["base", "eli/oracle"])


def test_no_two_lines_of_the_figure_look_alike(build_experiment):
    readings = {
        "base": [90, 60, 50],
        "eli__oracle": [90, 80, 70],
        "eli__all": [90, 50, 40],
        "bias_offset": [90, 65, 55],
        "blend": [90, 75, 66],
        "oracle_mask": [90, 70, 65],
        "previous_model": [90, 70, 60],
    }
    found = lines(build_experiment(**readings))
    assert len(found) == 7
    assert len({PALETTE[line.colour][0] for line in found}) == 7
