import pytest

from elign.lab.training.schedule import one_cycle, steps


def test_one_cycle_starts_low_peaks_at_30_per_cent_and_ends_at_zero():
    assert one_cycle(0.0) == pytest.approx(0.04)
    assert one_cycle(0.3) == pytest.approx(1.0)
    assert one_cycle(0.15) == pytest.approx(0.52)
    assert one_cycle(0.65) == pytest.approx(0.5)
    assert one_cycle(1.0) == pytest.approx(0.0)


def test_one_cycle_rises_and_then_falls():
    values = [one_cycle(n / 100) for n in range(101)]
    peak = values.index(max(values))
    assert values[: peak + 1] == sorted(values[: peak + 1])
    assert values[peak:] == sorted(values[peak:], reverse=True)


def test_steps_are_the_published_ones():
    rates = [steps(epoch, 160, milestones=(0.5, 0.75), gamma=0.1) for epoch in range(160)]
    assert rates[:79] == [1.0] * 79
    assert rates[79:119] == pytest.approx([0.1] * 40)
    assert rates[119:] == pytest.approx([0.01] * 41)
