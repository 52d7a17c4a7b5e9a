"""Langevin descent: the fast path is the plain one, and nothing leaks into the caller."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.plain_descent import Plain, by_hand

from elign import EnergyModel, LatentError, OptionError, descend
from elign.langevin import Schedule, compute_dtype

LAYOUTS = st.sampled_from([(), (1,), (5,), (4, 7), (6, 3, 5)])


@st.composite
def problems(draw):
    seed = draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    dim, rows = draw(st.integers(1, 9)), draw(st.integers(0, 12))
    energy = EnergyModel(dim, draw(LAYOUTS), slope=draw(st.sampled_from([0.0, 0.2, 1.0, 1.7])), generator=generator)
    # Large weights make a chain cross many kinks, where alone the slope of this energy changes.
    scale = draw(st.sampled_from([1.0, 4.0]))
    with torch.no_grad():
        for weight, bias in energy.linear_maps():
            weight.mul_(scale)
            bias.mul_(scale)
    options = {
        "steps": draw(st.integers(0, 12)),
        "step_size": draw(st.sampled_from([1e-3, 0.1, 1.0])),
        "half_step": draw(st.booleans()),
    }
    return energy, torch.randn(rows, dim, generator=generator), options


@given(problem=problems(), trajectory=st.booleans())
def test_the_fast_path_is_plain_gradient_descent_in_double_precision(problem, trajectory):
    energy, z, options = problem
    energy, z = energy.double(), z.double()
    walk = by_hand(energy, z, **options)
    expected = walk if trajectory else walk[-1]
    torch.testing.assert_close(descend(energy, z, trajectory=trajectory, **options), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(descend(Plain(energy), z, trajectory=trajectory, **options), expected, rtol=0, atol=1e-9)


@given(problem=problems())
def test_the_fast_path_is_plain_gradient_descent_in_single_precision(problem):
    energy, z, options = problem
    fast, plain = descend(energy, z, **options), descend(Plain(energy), z, **options)
    # Where a hidden unit is zero but for rounding, the two may take different slopes from there on: rare, not never.
    off = (fast - plain).abs().amax(dim=1) > 1e-4 * (1 + plain.abs().amax(dim=1))
    assert off.sum() <= 1


@given(problem=problems(), block_rows=st.sampled_from([1, 7, 256, 10**9]))
def test_block_size_does_not_matter(problem, block_rows):
    energy, z, options = problem
    energy, z = energy.double(), z.double().repeat(2, 1)
    for trajectory in (False, True):
        torch.testing.assert_close(
            descend(energy, z, block_rows=block_rows, trajectory=trajectory, **options),
            descend(energy, z, trajectory=trajectory, **options),
            rtol=0,
            atol=1e-10,
        )


def test_more_rows_than_one_default_block_are_all_moved():
    energy = EnergyModel(3, (2048,)).double()  # 256 rows in a block
    z = torch.randn(600, 3, dtype=torch.float64)
    torch.testing.assert_close(
        descend(energy, z, steps=2), by_hand(energy, z, steps=2, step_size=0.1, half_step=False)[-1]
    )


@given(
    seed=st.integers(0, 10_000),
    hidden=st.sampled_from([(5,), (8, 8), (4, 4, 4)]),
)
def test_energy_never_rises_on_a_descent_with_small_steps(seed, hidden):
    generator = torch.Generator().manual_seed(seed)
    energy = EnergyModel(6, hidden, generator=generator).double()
    z = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        energies = energy(descend(energy, z, steps=40, step_size=1e-3, trajectory=True))
    # A step across a kink may overshoot by something of second order in the step.
    assert (energies.diff(dim=0) <= 1e-6).all()
    assert (energies[-1] < energies[0]).all()


@pytest.mark.parametrize("dim", [1, 5])
def test_a_linear_energy_shifts_all_latents_by_the_same_vector(dim):
    energy = EnergyModel(dim, ()).double()
    z = torch.randn(30, dim, dtype=torch.float64)
    weight = energy.linear_maps()[0][0].detach()
    torch.testing.assert_close(descend(energy, z, steps=30, step_size=0.1) - z, (-3.0 * weight).expand_as(z))


def test_no_steps_leave_latents_as_they_are():
    z = torch.randn(4, 5)
    assert torch.equal(descend(EnergyModel(5), z, steps=0), z)
    assert descend(EnergyModel(5), z, steps=0, trajectory=True).shape == (1, 4, 5)


def test_the_walk_starts_at_the_latents_and_ends_at_the_result():
    energy, z = EnergyModel(5), torch.randn(2, 3, 5)
    walk = descend(energy, z, steps=4, trajectory=True)
    assert walk.shape == (5, 2, 3, 5)
    assert torch.equal(walk[0], z)
    torch.testing.assert_close(walk[-1], descend(energy, z, steps=4))


@pytest.mark.parametrize("shape", [(5,), (0, 5), (3, 5), (2, 0, 5), (2, 3, 4, 5)])
def test_keeps_the_shape(shape):
    assert descend(EnergyModel(5), torch.randn(shape)).shape == shape
    assert descend(Plain(EnergyModel(5)), torch.randn(shape), steps=2).shape == shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wrap", [lambda e: e, Plain], ids=["fast", "autograd"])
def test_keeps_the_dtype_and_computes_in_at_least_single_precision(dtype, wrap):
    z = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        energy = EnergyModel(5)
    if dtype == torch.float64:
        energy = energy.double()
    result = descend(wrap(energy), z)
    assert result.dtype == dtype
    expected = descend(energy.float(), z.float())
    torch.testing.assert_close(result, expected.to(dtype), rtol=1e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-4)
    assert compute_dtype(z) == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
@pytest.mark.parametrize("wrap", [lambda e: e, Plain], ids=["fast", "autograd"])
def test_modes_of_the_caller_do_not_matter(mode, wrap):
    energy, z = wrap(EnergyModel(5)), torch.randn(8, 5)
    expected = descend(energy, z)
    with mode():
        result = descend(energy, z)
        result_of_a_copy = descend(energy, z.clone())
    assert torch.equal(result, expected)
    assert torch.equal(result_of_a_copy, expected)
    assert not result.is_inference()
    assert all(p.grad is None for p in energy.parameters())


def test_the_result_carries_no_gradient_and_latents_are_not_changed():
    energy, z = EnergyModel(5), torch.randn(8, 5, requires_grad=True)
    before = z.detach().clone()
    assert not descend(energy, z).requires_grad
    assert torch.equal(z, before)


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_latents_need_not_be_contiguous(layout):
    z = {
        "transposed": torch.randn(5, 8).t(),
        "strided": torch.randn(16, 10)[::2, ::2],
        "expanded": torch.randn(1, 5).expand(8, 5),
    }[layout]
    energy = EnergyModel(5)
    torch.testing.assert_close(descend(energy, z), descend(energy, z.contiguous()))


@pytest.mark.parametrize("z", [torch.zeros(3, 4), torch.zeros(3, 5, dtype=torch.int64), torch.tensor(1.0)])
def test_refuses_latents_that_do_not_fit(z):
    with pytest.raises(LatentError):
        descend(EnergyModel(5), z)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": -1},
        {"steps": 1.5},
        {"step_size": 0.0},
        {"step_size": -0.1},
        {"step_size": math.nan},
        {"step_size": math.inf},
        {"noise": -1.0},
        {"noise": math.nan},
        {"noise": math.inf},
        {"block_rows": 0},
        {"block_rows": 2.0},
    ],
)
def test_refuses_options_out_of_range(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        descend(EnergyModel(5), torch.zeros(3, 5), **options)


def test_whole_numbers_may_be_numpys_or_torchs():
    energy, z = EnergyModel(5), torch.randn(8, 5)
    counted = descend(energy, z, steps=np.int64(3), block_rows=torch.tensor(4))
    torch.testing.assert_close(counted, descend(energy, z, steps=3))
    with pytest.raises(OptionError, match="steps"):
        descend(energy, z, steps=True)


def test_the_schedule_is_the_papers_equation_four():
    schedule = Schedule.checked(10, 0.16, 1.0, True)
    assert (schedule.steps, schedule.step) == (10, 0.08)
    assert schedule.kick == pytest.approx(0.4)
