"""Statistics over seeds, against numbers worked out by hand and from tables of Student's t."""

import math

import pytest

from elign.lab.evaluation.inputs import EvaluationError
from elign.lab.evaluation.metrics import Difference, mean_std, paired_difference, same_sign, student_interval


def test_mean_and_deviation_by_hand():
    found = mean_std([2.0, 4.0, 9.0])  # mean 5, squares of differences 9 + 1 + 16 = 26, over n - 1 = 2
    assert (found.mean, found.count) == (5.0, 3)
    assert found.std == pytest.approx(math.sqrt(13))


def test_one_value_has_no_deviation_and_no_interval():
    assert mean_std([3.0]).std is None
    assert student_interval([3.0]) is None
    assert paired_difference([3.0], [1.0]) == Difference(2.0, None, None, 1)


@pytest.mark.parametrize(
    ("count", "confidence", "quantile"),
    [(2, 0.95, 12.706), (3, 0.95, 4.303), (5, 0.95, 2.776), (3, 0.99, 9.925), (3, 0.90, 2.920)],
)
def test_interval_has_the_tabled_quantile(count, confidence, quantile):
    values = [float(value) for value in range(count)]
    mean, std = (count - 1) / 2, mean_std(values).std
    low, high = student_interval(values, confidence=confidence)
    assert high - mean == pytest.approx(quantile * std / math.sqrt(count), rel=1e-3)
    assert mean - low == pytest.approx(high - mean)


def test_pairs_drop_what_seeds_have_in_common():
    base = [10.0, 50.0, 90.0]
    found = paired_difference([11.0, 52.0, 93.0], base)
    assert (found.mean, found.std) == (2.0, 1.0)
    low, high = found.interval
    assert low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-3)
    assert high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-3)
    assert found.excludes_zero is False
    assert paired_difference([11.0, 51.0, 91.0], base).excludes_zero is True


@pytest.mark.parametrize(
    ("printed", "mean", "interval", "answer"),
    [
        (6.7, 3.0, (1.0, 5.0), "yes"),
        (6.7, 3.0, (-1.0, 7.0), "yes, 0 in interval"),
        (6.7, -3.0, (-5.0, -1.0), "no"),
        (-1.9, 0.5, (-1.0, 2.0), "no, 0 in interval"),
        (-1.9, -0.5, None, "yes"),
        (6.7, 0.0, None, "no"),
        (None, 3.0, (1.0, 5.0), None),
    ],
)
def test_sign_of_a_gain_beside_the_printed_one(printed, mean, interval, answer):
    assert same_sign(printed, Difference(mean, None, interval, 3)) == answer


def test_mistakes_are_errors():
    with pytest.raises(EvaluationError, match="no value"):
        mean_std([])
    with pytest.raises(EvaluationError, match="cannot be paired"):
        paired_difference([1.0], [1.0, 2.0])
