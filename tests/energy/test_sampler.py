"""Langevin descent: the fast path is the plain one, and nothing leaks into the caller."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.plain_descent import Plain, by_hand
from torch import nn

from elign import EnergyModel, LatentError, OptionError, descend
from elign.energy.sampler import HiddenChain, Schedule
from elign.utils.tensors import compute_dtype

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
def test_the_fast_path_is_plain_gradient_descent(problem, trajectory):
    energy, z, options = problem
    energy, z = energy.double(), z.double()
    walk = by_hand(energy, z, **options)
    expected = walk if trajectory else walk[-1]
    torch.testing.assert_close(descend(energy, z, trajectory=trajectory, **options), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(descend(Plain(energy), z, trajectory=trajectory, **options), expected, rtol=0, atol=1e-9)
    # In single precision, where a hidden unit is zero but for rounding, the two may take different slopes from there
    # on: rare, not never.
    fast, plain = descend(energy.float(), z.float(), **options), descend(Plain(energy.float()), z.float(), **options)
    off = (fast - plain).abs().amax(dim=1) > 1e-4 * (1 + plain.abs().amax(dim=1))
    assert off.sum() <= 1


def test_more_rows_than_one_default_block_are_all_moved_a_block_at_a_time(monkeypatch):
    energy, seen, enter = EnergyModel(3, (2048,)).double(), [], HiddenChain.enter
    monkeypatch.setattr(HiddenChain, "enter", lambda self, z: (seen.append(len(z)), enter(self, z))[1])
    z = torch.randn(600, 3, dtype=torch.float64)
    expected = by_hand(energy, z, steps=2, step_size=0.1, half_step=False)[-1]
    torch.testing.assert_close(descend(energy, z, steps=2), expected)
    assert seen == [256, 256, 88]


@given(seed=st.integers(0, 10_000), hidden=st.sampled_from([(5,), (8, 8), (4, 4, 4)]))
def test_energy_never_rises_on_a_descent_with_small_steps(seed, hidden):
    generator = torch.Generator().manual_seed(seed)
    energy = EnergyModel(6, hidden, generator=generator).double()
    z = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        energies = energy(descend(energy, z, steps=40, step_size=1e-3, trajectory=True))
    # A step across a kink may overshoot by something of second order in the step.
    assert (energies.diff(dim=0) <= 1e-6).all()
    assert (energies[-1] < energies[0]).all()


def test_the_schedule_is_the_papers_equation_four():
    schedule = Schedule.checked(10, 0.16, 1.0, True)
    assert (schedule.steps, schedule.step) == (10, 0.08)
    assert schedule.kick == pytest.approx(0.4)


@pytest.mark.parametrize("shape", [(5,), (0, 5), (3, 5), (2, 0, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("steps", [0, 4])
def test_walks_of_any_shape_start_at_the_latents_and_end_at_the_result(shape, steps):
    energy, z = EnergyModel(5), torch.randn(shape)
    walk = descend(energy, z, steps=steps, trajectory=True)
    assert walk.shape == (steps + 1, *shape)
    assert torch.equal(walk[0], z)
    torch.testing.assert_close(walk[-1], descend(energy, z, steps=steps))
    assert descend(Plain(energy), z, steps=steps).shape == shape


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
    energy, z = wrap(EnergyModel(5)), torch.randn(8, 5, requires_grad=True)
    before = [tensor.detach().clone() for tensor in (z, *energy.parameters())]
    expected = descend(energy, z)
    with mode():
        result = descend(energy, z)
        result_of_a_copy = descend(energy, z.clone())
    assert torch.equal(result, expected)
    assert torch.equal(result_of_a_copy, expected)
    assert not result.is_inference()
    assert not expected.requires_grad
    assert all(p.grad is None for p in energy.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, (z, *energy.parameters()), strict=True))


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
    ("option", "values"),
    [
        ("steps", [-1, 1.5, True]),
        ("step_size", [0.0, -0.1, math.nan, math.inf]),
        ("noise", [-1.0, math.nan, math.inf]),
    ],
)
def test_refuses_options_out_of_range(option, values):
    for value in values:
        with pytest.raises(OptionError, match=option):
            descend(EnergyModel(5), torch.zeros(3, 5), **{option: value})


# --- Langevin descent on energies other than the package's own: they are differentiated, in blocks of rows.


def test_an_energy_that_mixes_rows_is_refused():
    class Mean(nn.Module):
        def forward(self, z):
            return z.mean()

    with pytest.raises(LatentError, match="one value per row"):
        descend(Mean(), torch.ones(2, 3))


def test_a_subclass_with_an_energy_of_its_own_is_differentiated_in_blocks_not_taken_for_its_parent():
    seen = []

    class Bowl(EnergyModel):
        def forward(self, z):
            seen.append(len(z))
            return z.square().sum(dim=-1, keepdim=True)

    z = torch.randn(5000, 4)
    torch.testing.assert_close(descend(Bowl(4), z, steps=3, step_size=0.1), z * 0.8**3)
    assert sum(seen) == 3 * 5000
    assert max(seen) == 2048


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_foreign_energy_runs_in_the_precision_of_its_own_weights(dtype):
    energy = torch.nn.Linear(4, 1).to(dtype)
    moved = descend(energy, torch.zeros(3, 4), steps=2, step_size=0.5)
    assert moved.dtype == torch.float32
    assert torch.allclose(moved, -energy.weight.float().expand(3, 4), atol=1e-2)


# --- Noise of a Langevin descent: where its random numbers come from, and that it has the right law.


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
