"""The summary of runs stays true for all numbers."""

from __future__ import annotations

import pytest

from elign.lab.report.run_report import run_summary

GAINS = {
    "base": [90, 60, 50],
    "eli__oracle": [90, 80, 70],
    "eli__by_probe": [90, 70, 60],
    "eli__all": [90, 50, 40],
    "oracle_mask": [90, 70, 65],
    "ridge__oracle": [90, 65, 60],
    "bias_offset": [90, 65, 55],
    "blend": [90, 75, 66],
}


def test_wording(build_group):
    """The one snapshot of the sentences."""
    assert run_summary(build_group(seeds=2, **GAINS))[1:] == [
        "Base, without any correction, has an average accuracy over the tasks of 67.2 ± 0.7 %. It reaches 50.5 ± 0.7 % "
        "after the last task, 55.5 ± 0.7 % on old classes and 90.0 ± 0.0 % on new ones.",
        "The label-free default (blend) reaches 77.5 ± 0.7 %: 10.3 points more than base, on 2 of 2 seeds.",
        "The best label-free use of ELI, eli/by-probe, reaches 73.8 ± 0.7 %: 6.7 points more than base, on 2 of 2 "
        "seeds. The best label-free baseline, bias-offset, reaches 70.5 ± 0.7 %: 3.3 points less than eli/by-probe, "
        "on 2 of 2 seeds. They were chosen by their results on these test images, so their numbers are optimistic.",
        "An oracle knows of each test image whether its class is old. With it, ELI (eli/oracle) reaches 80.5 ± 0.7 %: "
        "13.3 points more than base, on 2 of 2 seeds. Base with the same knowledge (oracle-mask) reaches 75.5 ± 0.7 %: "
        "5.0 points less than eli/oracle, on 2 of 2 seeds. The best baseline with it, ridge/oracle, reaches "
        "72.2 ± 0.7 %: 8.3 points less than eli/oracle, on 2 of 2 seeds.",
    ]


def test_losses_are_said(build_group):
    losses = {"eli__oracle": [90, 50, 40], "eli__by_probe": [90, 40, 30], "blend": [90, 55, 45]}
    text = " ".join(run_summary(build_group(**{**GAINS, **losses})))
    assert "±" not in text
    assert "The label-free default (blend) reaches 63.3 %: 3.3 points less than base, on the only seed." in text
    assert "reaches 60.0 %: 6.7 points less than base" in text
    assert "15.0 points more than eli/oracle" in text


def test_no_difference_is_said(build_group):
    text = " ".join(run_summary(build_group(**{name: [90, 60, 50] for name in GAINS})))
    assert text.count("the same as") == 6
    assert "0.0 points" not in text


def test_prototypes_moved_by_eli_are_no_baseline(build_group):
    group = build_group(base=[90, 60], eli__oracle=[90, 60], forward__eli=[90, 80], forward__none=[90, 85])
    assert group.best_eli() == "forward/eli"
    assert group.best_baseline() == "forward/none"
    assert group.best_baseline(uses_labels=True) is None


@pytest.mark.parametrize("tasks", [1, 2])
def test_unfinished(build_group, tasks):
    sentences = run_summary(build_group(base=[90, 60][:tasks], eli__oracle=[90, 70][:tasks]))
    assert f"Only {tasks} of 3 tasks are finished so far." in sentences[0]
    assert (len(sentences) == 2) == (tasks == 1)
    assert "nan" not in " ".join(sentences)


def test_detectors(build_group):
    text = " ".join(run_summary(build_group(classifier="detector", **GAINS)))
    assert "average mean average precision over the tasks of 66.7 %" in text
    assert "of each region whether it lies on an old object" in text
    assert "accuracy" not in text
