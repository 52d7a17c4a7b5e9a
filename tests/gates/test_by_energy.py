"""`ByEnergy`: rows of low energy are aligned, below a threshold that is fitted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.aligning import Z

import elign
from elign import ByEnergy, LatentError, NotFittedError, OptionError
from elign.gates.by_energy import _best_threshold


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.5, 1.0])
def test_the_threshold_is_a_quantile_of_new_energies(short_energy, pairs, quantile):
    gate = ByEnergy(quantile=quantile).fit(short_energy, pairs[1])
    assert gate(pairs[1], aligner=short_energy).float().mean().item() == pytest.approx(quantile, abs=0.0051)


def test_low_energies_are_aligned(short_energy, pairs):
    gate = ByEnergy(quantile=0.3).fit(short_energy, pairs[1])
    chosen = gate(pairs[1], aligner=short_energy)
    with torch.no_grad():
        energies = short_energy.energy(pairs[1])
    assert energies[chosen].max() < energies[~chosen].min()


def test_with_old_latents_the_threshold_tells_the_two_apart(short_energy, pairs):
    z_old, z_new = pairs
    gate = ByEnergy().fit(short_energy, z_new, z_old[:30])
    caught = gate(z_old, aligner=short_energy).float().mean() - gate(z_new, aligner=short_energy).float().mean()
    assert caught > 0.5


VALUES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=8)


@given(old=VALUES, new=VALUES)
def test_no_other_threshold_is_better(old, new):
    """Few distinct values: with many ties, which a threshold cannot split."""
    old, new = torch.tensor(old), torch.tensor(new)

    def quality(threshold):
        return (old < threshold).double().mean() + (new >= threshold).double().mean()

    found = quality(_best_threshold(old, new))
    assert all(found >= quality(at) - 1e-9 for at in torch.arange(-4, 5, 0.5))


@pytest.mark.parametrize(("old", "new"), [([1.0, 2.0], [1.0, 2.0]), ([3.0], [1.0, 2.0]), ([5.0] * 3, [5.0] * 7)])
def test_energies_that_do_not_tell_old_from_new_align_nothing(old, new):
    assert _best_threshold(torch.tensor(old), torch.tensor(new)) == -math.inf


def test_one_old_among_many_new_is_told_apart_in_half_precision():
    threshold = _best_threshold(torch.tensor([-1.0]).half(), torch.linspace(0, 1, 100_000).half())
    assert -1 < threshold <= 0


def test_neighbouring_numbers_are_told_apart():
    low = torch.tensor([1.0])
    high = torch.nextafter(low, torch.tensor([2.0]))
    threshold = _best_threshold(low, high)
    assert low < threshold <= high


def test_energies_of_an_aligner_in_double_precision(pairs):
    z_prev, z_cur = (z.double() for z in pairs)
    aligner = elign.EnergyAligner(hidden=(4,), iterations=3).fit_latents(z_prev, z_cur)
    for z in (z_cur, z_cur.float(), z_cur.bfloat16()):
        gate = ByEnergy(quantile=0.5).fit(aligner, z)
        assert gate(z, aligner=aligner).float().mean().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_energies_of_a_converted_aligner(short_energy, pairs, dtype):
    gate = ByEnergy(quantile=0.5).fit(short_energy.to(dtype), pairs[1])
    assert gate(pairs[1], aligner=short_energy).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_energies_need_an_energy_aligner_that_is_fitted(shift, pairs, short_energy):
    for aligner in (shift, elign.EnergyAligner()):
        with pytest.raises(NotFittedError):
            ByEnergy().fit(aligner, pairs[1])
    with pytest.raises(NotFittedError, match="ByEnergy"):
        ByEnergy()(Z, aligner=short_energy)
    with pytest.raises(OptionError, match="aligner"):
        ByEnergy().fit(short_energy, pairs[1])(Z)


@pytest.mark.parametrize("bad", [torch.zeros(0, 6), torch.full((2, 6), math.nan), torch.zeros(2, 5), torch.zeros(6)])
def test_a_fit_refuses_latents_that_cannot_be_used_and_stays_as_it_was(short_energy, pairs, bad):
    gate = ByEnergy()
    with pytest.raises(LatentError):
        gate.fit(short_energy, bad)
    with pytest.raises(LatentError):
        gate.fit(short_energy, pairs[1], bad)
    assert not gate.fitted


@pytest.mark.parametrize("quantile", [-0.1, 1.1, math.nan])
def test_a_quantile_out_of_range_is_an_error(quantile):
    with pytest.raises(OptionError, match="quantile"):
        ByEnergy(quantile=quantile)
