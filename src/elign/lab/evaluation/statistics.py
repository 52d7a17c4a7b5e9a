"""Statistics over seeds, as pure functions: mean and standard deviation, paired differences with an interval; as text.

Values may be in any unit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import t as student_t  # type: ignore[import-untyped]

from elign.lab.evaluation.inputs import EvaluationError

CONFIDENCE = 0.95
ONE_SEED = "one seed, no interval"
SMALLEST_SHOWN = 0.05
"""Half of the last printed digit: smaller differences would be shown as "0.0 points"."""

Agreement = Literal["yes", "yes, 0 in interval", "no, 0 in interval", "no"]


@dataclass(frozen=True)
class MeanStd:
    """Values over seeds.

    Args:
        mean: Their mean.
        std: Their sample standard deviation (n - 1 in the denominator); None for a single value.
        count: Number of values.
    """

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """A paired difference over seeds.

    Args:
        mean: Mean of the differences.
        std: Their sample standard deviation; None for a single pair.
        interval: Confidence interval of the mean difference; None for a single pair.
        count: Number of pairs.
    """

    mean: float
    std: float | None
    interval: tuple[float, float] | None
    count: int

    @property
    def excludes_zero(self) -> bool | None:
        """Whether the interval lies on one side of 0; None without an interval."""
        return None if self.interval is None else self.interval[0] > 0 or self.interval[1] < 0


def mean_std(values: Sequence[float]) -> MeanStd:
    """Return mean and sample standard deviation.

    Raises:
        EvaluationError: There is no value.

    Example:
        >>> mean_std([1.0, 2.0, 3.0])
        MeanStd(mean=2.0, std=1.0, count=3)
    """
    if not values:
        raise EvaluationError("there is no value to average")
    return MeanStd(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for a single value, which has none."""
    return mean_std(values).std or 0.0


def student_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return `mean ± t · s / √n` with Student's t for n - 1 degrees of freedom; None for a single value.

    It assumes that the values are independent and about normal, which a few seeds cannot show.

    Raises:
        EvaluationError: There is no value, or the confidence is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise EvaluationError(f"a confidence is between 0 and 1, not {confidence}")
    found = mean_std(values)
    if found.std is None:
        return None
    reach = float(student_t.ppf((1 + confidence) / 2, found.count - 1)) * found.std / math.sqrt(found.count)
    return found.mean - reach, found.mean + reach


def paired_difference(
    values: Sequence[float], reference: Sequence[float], *, confidence: float = CONFIDENCE
) -> Difference:
    """Return how far values lie above their reference, pair by pair.

    A pair is of one checkpoint, so that what makes one seed easier than another does not count.

    Args:
        values: One for each seed.
        reference: Of the same seeds in the same order.
        confidence: Of the interval.

    Raises:
        EvaluationError: The numbers of values differ, or there are none.

    Example:
        >>> paired_difference([61.0, 64.0], [60.0, 61.0]).mean
        2.0
    """
    if len(values) != len(reference):
        raise EvaluationError(f"{len(values)} values cannot be paired with {len(reference)}")
    differences = [one - other for one, other in zip(values, reference, strict=True)]
    found = mean_std(differences)
    return Difference(found.mean, found.std, student_interval(differences, confidence=confidence), found.count)


def same_sign(printed: float | None, ours: Difference) -> Agreement | None:
    """Say whether a gain has the sign that was printed, and whether that is more than chance between seeds.

    Returns:
        None where nothing was printed. A gain of exactly 0 has no sign, hence never the printed one.
    """
    if printed is None:
        return None
    unsure = ours.excludes_zero is False
    if printed * ours.mean > 0:
        return "yes, 0 in interval" if unsure else "yes"
    return "no, 0 in interval" if unsure else "no"


def mean_text(values: Sequence[float], digits: int = 1) -> str:
    """Return `83.4 ± 1.2` for several values, `83.4` for a single one."""
    found = mean_std(values)
    mean = f"{found.mean:.{digits}f}"
    return mean if found.std is None else f"{mean} ± {found.std:.{digits}f}"


def seeds_text(count: int) -> str:
    """Return how numbers were averaged."""
    if count == 1:
        return "one seed, so no standard deviation can be given"
    return f"mean ± sample standard deviation over {count} seeds"


def difference_text(ones: Sequence[float], others: Sequence[float]) -> tuple[float, str]:
    """Return the mean of the per-seed differences, and on how many seeds the difference has the sign of the mean."""
    differences = [one - other for one, other in zip(ones, others, strict=True)]
    found = mean_std(differences)
    if found.std is None:
        return found.mean, "on the only seed"
    agreeing = sum(difference * found.mean > 0 for difference in differences)
    text = f"on {agreeing} of {found.count} seeds"
    if abs(found.mean) <= found.std:
        text += ", but the difference is smaller than its standard deviation between seeds"
    return found.mean, text


def printed_text(value: float | None) -> str:
    """Return a number that the paper prints, with its digits."""
    return "–" if value is None else f"{value:.2f}"


def gain_text(value: float | None) -> str:
    """Return a difference with its sign, and with as many digits as the paper prints."""
    return "–" if value is None else f"{value:+.2f}"


def interval_text(gain: Difference) -> str:
    """Return `[+1.21, +3.40]`, or that there is none."""
    return ONE_SEED if gain.interval is None else f"[{gain.interval[0]:+.2f}, {gain.interval[1]:+.2f}]"


def gain_over(values: Sequence[float], base: Sequence[float]) -> tuple[float, str]:
    """Return a paired gain, and its text with the interval where there is one: `+7.6 [+6.9, +8.3]`."""
    gain = paired_difference(values, base)
    text = f"{gain.mean:+.1f}"
    return gain.mean, text if gain.interval is None else f"{text} [{gain.interval[0]:+.1f}, {gain.interval[1]:+.1f}]"
