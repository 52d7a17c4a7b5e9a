"""Statistics over seeds, as pure functions: spread, and paired differences with a confidence interval.

Values may be in any unit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import t as student_t  # type: ignore[import-untyped]

from elign.lab.evaluation.errors import EvaluationError

Agreement = Literal["yes", "yes, 0 in interval", "no, 0 in interval", "no"]


@dataclass(frozen=True)
class Spread:
    """Values over seeds.

    Args:
        mean: Their mean.
        std: Their sample standard deviation (n - 1 in the denominator); None for a single value.
        count: How many they are.
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
        count: How many pairs.
    """

    mean: float
    std: float | None
    interval: tuple[float, float] | None
    count: int

    @property
    def excludes_zero(self) -> bool | None:
        """Whether the interval lies on one side of 0; None without an interval."""
        return None if self.interval is None else self.interval[0] > 0 or self.interval[1] < 0


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation.

    Raises:
        EvaluationError: There is no value.

    Example:
        >>> spread([1.0, 2.0, 3.0])
        Spread(mean=2.0, std=1.0, count=3)
    """
    if not values:
        raise EvaluationError("there is no value to average")
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, len(values))


def student_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float] | None:
    """`mean ± t · s / √n` with Student's t for n - 1 degrees of freedom; None for a single value.

    Right if the values are independent and about normal; with a few seeds that is an assumption, not a finding.

    Args:
        values: One for each seed.
        confidence: Of the interval, between 0 and 1.

    Raises:
        EvaluationError: There is no value, or no such confidence.
    """
    if not 0 < confidence < 1:
        raise EvaluationError(f"a confidence is between 0 and 1, not {confidence}")
    found = spread(values)
    if found.std is None:
        return None
    reach = float(student_t.ppf((1 + confidence) / 2, found.count - 1)) * found.std / math.sqrt(found.count)
    return found.mean - reach, found.mean + reach


def paired_difference(values: Sequence[float], reference: Sequence[float], *, confidence: float = 0.95) -> Difference:
    """How far values lie above their reference, pair by pair.

    Pairs are of one checkpoint: what makes one seed easier than another drops out of their difference.

    Args:
        values: One for each seed.
        reference: Of the same seeds in the same order.
        confidence: Of the interval.

    Raises:
        EvaluationError: There are not as many of both, or none.

    Example:
        >>> paired_difference([61.0, 64.0], [60.0, 61.0]).mean
        2.0
    """
    if len(values) != len(reference):
        raise EvaluationError(f"{len(values)} values cannot be paired with {len(reference)}")
    differences = [one - other for one, other in zip(values, reference, strict=True)]
    found = spread(differences)
    return Difference(found.mean, found.std, student_interval(differences, confidence=confidence), found.count)


def same_sign(printed: float | None, ours: Difference) -> Agreement | None:
    """Whether a gain has the sign that was printed, and whether that is more than chance between seeds.

    Returns:
        None where nothing was printed. A gain of exactly 0 has no sign, hence never the printed one.
    """
    if printed is None:
        return None
    agrees = printed * ours.mean > 0
    unsure = ours.excludes_zero is False
    if agrees:
        return "yes, 0 in interval" if unsure else "yes"
    return "no, 0 in interval" if unsure else "no"
