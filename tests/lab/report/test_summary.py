"""The sentences are true for good, mixed and bad results."""

from __future__ import annotations

from dataclasses import replace

from elign.lab.report.summary import best_control, mean_and_spread_text, toy_summary


def test_eli_is_best(build):
    text = " ".join(toy_summary(build()))
    assert "fell from 99.1 % to 24.0 %" in text
    assert "ELI brought it back to 83.5 ± 0.8 % (mean ± sample standard deviation over 3 seeds)" in text
    assert "a gain of 59.5 points or 79 % of what was lost, better on 3 of 3 seeds" in text
    assert "The best control, ridge, reached 71.0 ± 0.8 %: 12.5 points below ELI (lower on 3 of 3 seeds)" in text
    assert "Task identity is given to every row alike" in text
    assert "97.3 % in every row" in text


def test_a_control_is_better(build):
    result = build({"mean-shift": 90.0})
    text = " ".join(toy_summary(result))
    assert best_control(result) == "mean-shift"
    assert "The best control, mean-shift, reached 90.0 ± 0.8 %: 6.5 points better than ELI" in text
    assert "the simpler correction is the better one" in text
    assert "below ELI" not in text


def test_eli_is_harmful(build):
    text = " ".join(toy_summary(build({"eli": 20.0})))
    assert "ELI made it worse: 20.0 ± 0.8 %" in text
    assert "a loss of 4.0 points, worse on 3 of 3 seeds" in text
    assert "brought it back" not in text
    assert "better than ELI" in text


def test_no_change_no_forgetting_and_ties(build):
    text = " ".join(toy_summary(build({"base": 99.1, "eli": 99.1, "ridge": 99.1})))
    assert "did not fall" in text
    assert "ELI did not change it" in text
    assert "the energy model adds nothing over it" in text


def test_gain_without_forgetting_is_no_share_of_a_loss(build):
    text = " ".join(toy_summary(build({"base": 99.1, "eli": 99.6})))
    assert "raised it to 99.6" in text
    assert "of what was lost" not in text


def test_a_difference_within_its_spread_says_so(build):
    result = build({"eli": 25.0})
    gains = zip(result.seeds, (-4, 1, 6), strict=True)
    seeds = [replace(seed, readings={**seed.readings, "eli": seed.readings["base"] + gain}) for seed, gain in gains]
    text = " ".join(toy_summary(replace(result, seeds=tuple(seeds))))
    assert "smaller than its spread between seeds" in text
    assert "better on 2 of 3 seeds" in text


def test_single_seed_has_no_spread(build):
    result = build(seeds=1)
    assert mean_and_spread_text(result, "eli") == "83.5"
    text = " ".join(toy_summary(result))
    assert "one seed, so no spread can be given" in text
    assert "better on the only seed" in text
    assert "±" not in text
