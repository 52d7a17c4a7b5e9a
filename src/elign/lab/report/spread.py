"""Means with their spread between runs, and differences of readings on the same runs, as they are printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from elign.lab.evaluation.statistics import Difference
from elign.lab.evaluation.statistics import paired_difference as differences_of

CONFIDENCE = 0.95
ONE_SEED = "one seed, no interval"

# Differences below half of the last printed digit would read as "0.0 points".
SMALLEST_SHOWN = 0.05


def percent(value: float) -> str:
    """An accuracy as it is printed everywhere: one decimal and the sign."""
    return f"{value:.1f} %"


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 for a single value, which has none."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def mean_text(values: Sequence[float], digits: int = 1) -> str:
    """`83.4 ± 1.2` for several values, `83.4` for a single one (which has no spread)."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {deviation(values):.{digits}f}" if len(values) > 1 else mean


def seeds_text(count: int) -> str:
    """How numbers were averaged."""
    if count == 1:
        return "one seed, so no spread can be given"
    return f"mean ± sample standard deviation over {count} seeds"


def paired_difference(ones: Sequence[float], others: Sequence[float]) -> tuple[float, str]:
    """Mean of the per-seed differences, and on how many seeds the difference has the sign of the mean.

    Args:
        ones: Values of one reading, for each seed.
        others: Values of another, for the same seeds.
    """
    differences = [first - second for first, second in zip(ones, others, strict=True)]
    mean = statistics.fmean(differences)
    count = len(differences)
    if count == 1:
        return mean, "on the only seed"
    agreeing = sum(difference * mean > 0 for difference in differences)
    text = f"on {agreeing} of {count} seeds"
    if abs(mean) <= statistics.stdev(differences):
        text += ", but the difference is smaller than its spread between seeds"
    return mean, text


def printed_text(value: float | None) -> str:
    """A printed number, with the digits it has."""
    return "–" if value is None else f"{value:.2f}"


def gain_text(value: float | None) -> str:
    """A difference with its sign, and with as many digits as the paper prints."""
    return "–" if value is None else f"{value:+.2f}"


def interval_text(gain: Difference) -> str:
    """`[+1.21, +3.40]`, or that there is none."""
    return ONE_SEED if gain.interval is None else f"[{gain.interval[0]:+.2f}, {gain.interval[1]:+.2f}]"


def gain_over(values: Sequence[float], base: Sequence[float]) -> tuple[float, str]:
    """A paired gain, and its text with the interval where there is one: `+7.6 [+6.9, +8.3]`.

    Args:
        values: Of a reading, one for each seed.
        base: Of the same seeds.
    """
    gain = differences_of(values, base, confidence=CONFIDENCE)
    text = f"{gain.mean:+.1f}"
    return gain.mean, text if gain.interval is None else f"{text} [{gain.interval[0]:+.1f}, {gain.interval[1]:+.1f}]"
