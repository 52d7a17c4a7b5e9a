"""ELI itself: it undoes drift, energies fall, seeds decide everything, options are checked."""

from __future__ import annotations

import copy
import inspect
import math

import pytest
import torch

import elign
from elign import EnergyAligner, EnergyModel, LatentError, descend


def test_defaults_are_the_papers_and_all_options_are_keywords():
    parameters = dict(inspect.signature(EnergyAligner).parameters)
    assert {name: p.default for name, p in parameters.items()} == {
        "hidden": (64, 64),
        "iterations": 1500,
        "learning_rate": 1e-4,
        "batch_size": 128,
        "steps": 30,
        "step_size": 0.1,
        "noise": 0.0,
        "half_step": False,
        "ema_decay": 0.89,
        "seed": 0,
    }
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("hidden", [(), (16,), (32, 32)])
def test_undoes_part_of_a_simple_drift_and_energy_has_the_right_sign(pairs, hidden):
    z_prev, z_cur = pairs
    aligner = EnergyAligner(hidden=hidden, iterations=300, learning_rate=1e-3).fit_latents(z_prev, z_cur)
    report, aligned = aligner.report, aligner.align(z_cur)
    with torch.no_grad():
        walk = aligner.energy(aligner.trajectory(z_cur)).mean(dim=1)
        previous, moved = (aligner.energy(z).mean().item() for z in (z_prev, aligned))
    assert (walk.diff() < 0).all()
    assert report.energy_previous < report.energy_current
    assert report.energy_aligned < report.energy_current
    assert report.drift_after < 0.8 * report.drift_before
    # The report says what happened.
    assert (report.rows, report.dim, len(report.loss)) == (200, 6, 300)
    assert report.seconds > 0
    assert report.energy_previous == pytest.approx(previous, rel=1e-5)
    assert report.energy_aligned == pytest.approx(moved, rel=1e-5)
    assert report.drift_before == pytest.approx((z_cur - z_prev).norm(dim=1).mean().item(), rel=1e-5)
    assert report.drift_after == pytest.approx((aligned - z_prev).norm(dim=1).mean().item(), rel=1e-5)
    assert report == report


def test_another_seed_gives_other_weights(pairs):
    one, other = (EnergyAligner(hidden=(8,), iterations=5, seed=seed).fit_latents(*pairs) for seed in (1, 2))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    "options",
    [{}, {"steps": 5}, {"step_size": 0.3}, {"half_step": True}, {"noise": 0.5}, {"noise": 0.5, "half_step": True}],
    ids=str,
)
def test_align_descends_the_averaged_energy_with_its_own_options(pairs, options):
    aligner = EnergyAligner(hidden=(4,), iterations=3, **options).fit_latents(*pairs)
    aligned = aligner.align(pairs[1], generator=torch.Generator().manual_seed(1))
    expected = descend(aligner.energy, pairs[1], generator=torch.Generator().manual_seed(1), **options)
    assert torch.equal(aligned, expected)


def test_a_trajectory_ends_where_align_does(pairs, short_energy):
    _, z_cur = pairs
    walk = short_energy.trajectory(z_cur)
    assert walk.shape == (6, 200, 6)
    assert torch.equal(walk[0], z_cur)
    torch.testing.assert_close(walk[-1], short_energy.align(z_cur))


def test_a_trajectory_needs_a_fit_and_finite_latents(short_energy):
    with pytest.raises(elign.NotFittedError):
        EnergyAligner().trajectory(torch.zeros(1, 6))
    with pytest.raises(LatentError):
        short_energy.trajectory(torch.full((1, 6), math.nan))
    with pytest.raises(LatentError):
        short_energy.trajectory(torch.zeros(1, 5))


def test_noise_of_transport_is_independent_of_the_samples():
    z = torch.randn(3000, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    statistics = elign.ClassStatistics().update(z, torch.zeros(3000, dtype=torch.long))
    options = {"hidden": (8,), "iterations": 1, "learning_rate": 1e-12, "steps": 1, "step_size": 1.0, "noise": 1.0}
    aligner = EnergyAligner(**options).fit_latents(z, z, direction="forward")
    # The energy is all but linear: the variance grows by that of the noise, which is 1.
    grown = aligner.transport(statistics).covariance_of(0).diagonal() - statistics.covariance_of(0).diagonal()
    torch.testing.assert_close(grown, torch.ones_like(grown), atol=0.3, rtol=0)


def test_making_one_draws_no_random_numbers(untouched_random_state):
    EnergyAligner()


def test_a_learning_rate_that_diverges_is_an_error():
    z = torch.randn(20, 4)
    with pytest.raises(LatentError, match="learning_rate"):
        EnergyAligner(hidden=(8, 8), iterations=20, learning_rate=1e25).fit_latents(z - 1, z)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_another_precision_still_align(pairs, short_energy, dtype):
    _, z_cur = pairs
    expected = short_energy.align(z_cur)
    converted = short_energy.to(dtype)
    assert converted.align(z_cur).dtype == torch.float32
    # Rounded weights bend at slightly other places, which matters to single latents but not on average.
    assert (converted.align(z_cur) - expected).abs().mean() < 0.02


# --- Training: the same numbers as a plain loop with torch's own optimizers and autograd.


ITERATIONS = 40


def plain_training(aligner, z_prev, z_cur):
    """The authors' loop: SGD on z for the chain, RMSprop on the weights, a moving average beside it."""
    batches = torch.Generator().manual_seed(aligner.seed)
    energy = EnergyModel(z_cur.shape[1], aligner.hidden, generator=batches).to(z_cur.dtype)
    averaged = copy.deepcopy(energy)
    optimizer = torch.optim.RMSprop(energy.parameters(), lr=aligner.learning_rate, alpha=0.99)
    size, left, losses = min(len(z_cur), aligner.batch_size), [], []
    for _ in range(aligner.iterations):
        if not left:
            order = torch.randperm(len(z_cur), generator=batches)
            left = list(order[: len(z_cur) // size * size].split(size))
        rows = left.pop()
        z = z_cur[rows].clone().requires_grad_()
        sampler = torch.optim.SGD([z], lr=aligner.step_size / 2 if aligner.half_step else aligner.step_size)
        for _ in range(aligner.steps):
            sampler.zero_grad()
            energy(z).sum().backward()
            sampler.step()
        optimizer.zero_grad()
        loss = energy(z_prev[rows]).mean() - energy(z.detach()).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            for average, weight in zip(averaged.parameters(), energy.parameters(), strict=True):
                average.mul_(aligner.ema_decay).add_(weight, alpha=1 - aligner.ema_decay)
    return averaged, torch.tensor(losses, dtype=z_cur.dtype)


def problem(dtype, rows=70, dim=9):
    generator = torch.Generator().manual_seed(1)
    z_prev = torch.randn(rows, dim, generator=generator, dtype=dtype)
    return z_prev, z_prev @ torch.randn(dim, dim, generator=generator, dtype=dtype) / 3 + 1


LAYOUTS = [(), (16,), (16, 16), (5, 12, 7)]
STEPS = [{"step_size": 0.1}, {"step_size": 0.5, "half_step": True}]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        *[({"hidden": hidden, **steps}, 70) for hidden in LAYOUTS for steps in STEPS],
        *[({"hidden": (6,)}, rows) for rows in (1, 5, 16, 17, 33)],  # around the batch size
    ],
    ids=str,
)
def test_equals_the_plain_loop_in_double_precision(options, rows):
    z_prev, z_cur = problem(torch.float64, rows)
    aligner = EnergyAligner(**options, iterations=ITERATIONS, batch_size=16, steps=10, seed=5)
    aligner.fit_latents(z_prev, z_cur)
    expected, losses = plain_training(aligner, z_prev, z_cur)
    probe = torch.randn(50, 9, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(aligner.energy(probe), expected(probe), rtol=0, atol=1e-8)
    for weight, plain in zip(aligner.energy.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight, plain, rtol=0, atol=1e-8)
    assert len(aligner.report.loss) == ITERATIONS
    torch.testing.assert_close(aligner.report.loss, losses, rtol=0, atol=1e-8)


def test_progress_is_told_now_and_then_and_at_the_end():
    told = []
    z_prev, z_cur = problem(torch.float32)
    EnergyAligner(hidden=(4,), iterations=120, steps=1).fit_latents(
        z_prev, z_cur, progress=lambda done, of, loss: told.append((done, of, loss))
    )
    assert [done for done, _, _ in told] == [50, 100, 120]
    assert {of for _, of, _ in told} == {120}
    assert all(isinstance(loss, float) for _, _, loss in told)


@pytest.mark.parametrize(("dim", "hidden"), [(4, (6,)), (8, (3,)), (8, (3, 5))])
def test_the_gradient_of_a_noisy_batch_is_that_of_its_loss(dim, hidden):
    """One iteration on one pair: RMSprop's first step has the sign of the gradient, here of the plain noisy chain."""
    generator = torch.Generator().manual_seed(2)
    z_prev, z_cur = torch.randn(2, 64, dim, generator=generator, dtype=torch.float64)
    aligner = EnergyAligner(hidden=hidden, iterations=1, steps=4, noise=1.0, ema_decay=0.0, batch_size=64)
    aligner.fit_latents(z_prev, z_cur)

    # The weights are drawn first, then the batch's order, then the chain's noise, from one generator.
    source = torch.Generator().manual_seed(0)
    start = EnergyModel(dim, hidden, generator=source).double()
    order = torch.randperm(64, generator=source)
    z = descend(start, z_cur[order], steps=4, noise=1.0, generator=source)
    (start(z_prev[order]).mean() - start(z).mean()).backward()
    for before, after in zip(start.parameters(), aligner.energy.parameters(), strict=True):
        step = -1e-4 * before.grad / (before.grad.abs() * 0.1 + 1e-8)
        torch.testing.assert_close(after - before, step, rtol=1e-6, atol=1e-10)
