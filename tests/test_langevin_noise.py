"""Noise of a Langevin descent: where its random numbers come from, and that it has the right law."""

from __future__ import annotations

import math

import pytest
import torch
from tests.plain_descent import Plain, by_hand

from elign import EnergyModel, descend


@pytest.mark.parametrize("trajectory", [False, True])
@pytest.mark.parametrize("wrap", [lambda e: e, Plain], ids=["fast", "autograd"])
def test_noise_comes_from_the_generator_alone(wrap, trajectory, untouched_random_state):
    generator = torch.Generator().manual_seed(0)
    energy = wrap(EnergyModel(9, (4,), generator=generator))
    z = torch.randn(20, 9, generator=generator)

    def walk(seed):
        return descend(
            energy, z, steps=3, noise=1.0, trajectory=trajectory, generator=torch.Generator().manual_seed(seed)
        )

    assert torch.equal(walk(1), walk(1))
    assert not torch.equal(walk(1), walk(2))


def test_without_a_generator_noise_comes_from_the_global_random_state():
    energy, z = EnergyModel(5, (4,)), torch.randn(20, 5)
    torch.manual_seed(1)
    one, next_one = (descend(energy, z, noise=1.0, steps=2) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(descend(energy, z, noise=1.0, steps=2), one)
    assert not torch.equal(one, next_one)


@pytest.mark.parametrize("block_rows", [1, 7, 256, 10**9])
def test_noise_does_not_depend_on_block_size(block_rows):
    energy, z = EnergyModel(9, (4,)), torch.randn(600, 9)
    one, other = (
        descend(energy, z, noise=1.0, steps=3, generator=torch.Generator().manual_seed(5), block_rows=b)
        for b in (None, block_rows)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize(("dim", "hidden"), [(4, ()), (4, (6,)), (8, (3,)), (8, (3, 3))])
@pytest.mark.parametrize("trajectory", [False, True])
def test_noise_of_a_flat_energy_is_white_with_variance_step_size_times_steps(dim, hidden, trajectory):
    energy = EnergyModel(dim, hidden)
    with torch.no_grad():
        energy.linear_maps()[-1][0].zero_()
    z = torch.randn(20_000, dim)
    result = descend(
        energy,
        z,
        steps=4,
        step_size=0.25,
        noise=2.0,
        trajectory=trajectory,
        generator=torch.Generator().manual_seed(0),
    )
    moved = (result[-1] if trajectory else result) - z
    torch.testing.assert_close(moved.mean(dim=0), torch.zeros(dim), rtol=0, atol=0.07)
    torch.testing.assert_close(moved.t().cov(), 4.0 * torch.eye(dim), rtol=0, atol=0.2)
    if trajectory:
        torch.testing.assert_close((result[1] - z).t().cov(), torch.eye(dim), rtol=0, atol=0.06)


@pytest.mark.parametrize(("dim", "hidden"), [(3, ()), (7, ())])
def test_noise_around_a_linear_energy_has_the_shift_as_its_mean(dim, hidden):
    energy = EnergyModel(dim, hidden)
    z = torch.randn(20_000, dim)
    result = descend(energy, z, steps=9, step_size=0.04, noise=1.0, generator=torch.Generator().manual_seed(0))
    moved = result - descend(energy, z, steps=9, step_size=0.04)
    torch.testing.assert_close(moved.mean(dim=0), torch.zeros(dim), rtol=0, atol=0.025)
    torch.testing.assert_close(moved.t().cov(), 0.36 * torch.eye(dim), rtol=0, atol=0.03)


@pytest.mark.parametrize("hidden", [(3,), (3, 5)])
def test_few_noise_directions_do_what_noise_in_all_of_latent_space_would(hidden):
    """With more latent than hidden dimensions: a plain chain, driven by the same random numbers, ends there too."""
    energy = EnergyModel(8, hidden, generator=torch.Generator().manual_seed(0)).double()
    first = energy.linear_maps()[0][0].detach()
    basis = torch.linalg.svd(first, full_matrices=False)[2]
    steps, step_size, noise = 6, 0.3, 1.5
    kick = noise * math.sqrt(step_size)
    z = torch.randn(40, 8, dtype=torch.float64)

    source = torch.Generator().manual_seed(9)
    plain = z
    for _ in range(steps):
        draw = torch.randn(len(z), len(basis), generator=source, dtype=torch.float64)
        plain = by_hand(energy, plain, steps=1, step_size=step_size, half_step=True)[-1] + kick * draw @ basis
    rest = torch.randn(z.shape, generator=source, dtype=torch.float64) * math.sqrt(steps)
    plain = plain + kick * (rest - rest @ basis.t() @ basis)

    fast = descend(
        energy,
        z,
        steps=steps,
        step_size=step_size,
        noise=noise,
        half_step=True,
        generator=torch.Generator().manual_seed(9),
    )
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-9)


@pytest.mark.parametrize("trajectory", [False, True])
def test_noise_in_no_more_latent_than_hidden_dimensions_is_that_of_the_plain_chain(trajectory):
    energy = EnergyModel(4, (6, 5), generator=torch.Generator().manual_seed(0)).double()
    z = torch.randn(20, 4, dtype=torch.float64)
    options = {"steps": 5, "step_size": 0.2, "noise": 1.0, "trajectory": trajectory}
    fast, plain = (
        descend(e, z, generator=torch.Generator().manual_seed(2), **options) for e in (energy, Plain(energy))
    )
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-9)


def test_a_noisy_chain_has_the_law_of_the_plain_chain():
    energy = EnergyModel(8, (3, 4), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        for weight, _ in energy.linear_maps():
            weight.mul_(3)
    z = torch.randn(1, 8).expand(20_000, 8)
    options = {"steps": 5, "step_size": 0.3, "noise": 0.7}
    fast, plain = (
        descend(e, z, generator=torch.Generator().manual_seed(seed), **options)
        for e, seed in ((energy, 1), (Plain(energy), 2))
    )
    torch.testing.assert_close(fast.mean(dim=0), plain.mean(dim=0), rtol=0, atol=0.06)
    torch.testing.assert_close(fast.t().cov(), plain.t().cov(), rtol=0.05, atol=0.06)
