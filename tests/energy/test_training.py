"""Training of the energy: the same numbers as a plain loop with torch's own optimizers and autograd."""

from __future__ import annotations

import copy

import pytest
import torch

from elign import EnergyAligner, EnergyModel

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


@pytest.mark.parametrize("hidden", [(), (16,), (16, 16), (5, 12, 7)])
@pytest.mark.parametrize(("half_step", "step_size"), [(False, 0.1), (True, 0.5)])
def test_equals_the_plain_loop_in_double_precision(hidden, half_step, step_size):
    z_prev, z_cur = problem(torch.float64)
    aligner = EnergyAligner(
        hidden=hidden, iterations=ITERATIONS, batch_size=16, steps=10, step_size=step_size, half_step=half_step, seed=5
    ).fit_latents(z_prev, z_cur)
    expected, losses = plain_training(aligner, z_prev, z_cur)
    probe = torch.randn(50, 9, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(aligner.energy(probe), expected(probe), rtol=0, atol=1e-8)
    for weight, plain in zip(aligner.energy.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight, plain, rtol=0, atol=1e-8)
    assert len(aligner.report.loss) == ITERATIONS
    torch.testing.assert_close(aligner.report.loss, losses, rtol=0, atol=1e-8)


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 33])
def test_row_counts_around_the_batch_size_equal_the_plain_loop(rows):
    z_prev, z_cur = problem(torch.float64, rows=rows)
    aligner = EnergyAligner(hidden=(6,), iterations=7, batch_size=16, steps=3).fit_latents(z_prev, z_cur)
    expected, _ = plain_training(aligner, z_prev, z_cur)
    for weight, plain in zip(aligner.energy.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight, plain, rtol=0, atol=1e-10)


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
    from elign import descend

    z = descend(start, z_cur[order], steps=4, noise=1.0, generator=source)
    (start(z_prev[order]).mean() - start(z).mean()).backward()
    for before, after in zip(start.parameters(), aligner.energy.parameters(), strict=True):
        step = -1e-4 * before.grad / (before.grad.abs() * 0.1 + 1e-8)
        torch.testing.assert_close(after - before, step, rtol=1e-6, atol=1e-10)
