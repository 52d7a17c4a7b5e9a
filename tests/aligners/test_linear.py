"""Affine aligners: each is the closed form that it says it is; leaving out pairs chooses the penalty of `Ridge`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elign import EnergyAligner, Identity, LatentError, MeanShift, OptionError, RandomShift, Ridge
from elign.aligners import linear


def test_identity_moves_nothing_but_returns_a_copy(pairs):
    z_prev, z_cur = pairs
    aligner = Identity().fit_latents(z_prev, z_cur)
    aligned = aligner.align(z_cur)
    assert torch.equal(aligned, z_cur)
    aligned.zero_()
    assert z_cur.abs().sum() > 0
    assert aligner.report.drift_after == aligner.report.drift_before


def test_mean_shift_adds_the_difference_of_means(pairs):
    z_prev, z_cur = pairs
    moved = MeanShift().fit_latents(z_prev, z_cur).align(z_cur) - z_cur
    torch.testing.assert_close(moved, (z_prev.mean(dim=0) - z_cur.mean(dim=0)).expand_as(moved), atol=1e-5, rtol=0)


def test_a_linear_energy_shifts_in_the_direction_of_mean_shift(pairs):
    """It is the gradient of the linear energy's loss, up to RMSprop's scaling of each number."""
    z_prev, z_cur = pairs
    linear = EnergyAligner(hidden=(), iterations=400, learning_rate=1e-2).fit_latents(z_prev, z_cur)
    moved = (linear.align(z_cur) - z_cur)[0]
    assert torch.equal(moved.sign(), MeanShift().fit_latents(z_prev, z_cur).shift.sign())


@pytest.mark.parametrize("norm", [0.0, 2.5])
def test_random_shift_has_the_given_length(pairs, norm):
    z_prev, z_cur = pairs
    moved = RandomShift(norm=norm).fit_latents(z_prev, z_cur).align(z_cur) - z_cur
    torch.testing.assert_close(moved.norm(dim=1), torch.full((200,), norm), atol=1e-5, rtol=1e-5)


def test_random_shift_is_by_default_as_long_as_mean_shift_in_a_direction_of_its_seed(pairs, untouched_random_state):
    one, same, other = (RandomShift(seed=seed).fit_latents(*pairs).shift for seed in (1, 1, 2))
    mean = MeanShift().fit_latents(*pairs).shift
    assert torch.equal(one, same)
    for shift in (one, other):
        assert shift.norm().item() == pytest.approx(mean.norm().item(), rel=1e-5)
    assert torch.nn.functional.cosine_similarity(one, other, dim=0) < 0.99
    assert torch.nn.functional.cosine_similarity(one, mean, dim=0) < 0.99


def test_ridge_minimises_what_it_says(pairs):
    z_prev, z_cur = (z.double() for z in pairs)
    aligner = Ridge(penalty=0.3).fit_latents(z_prev, z_cur)
    centre = z_cur.mean(dim=0)
    strength = 0.3 * (z_cur - centre).square().mean() * len(z_cur)

    def objective(matrix, shift):
        residual = z_prev - z_cur - (z_cur - centre) @ matrix - shift
        return residual.square().sum() + strength * matrix.square().sum()

    matrix, shift = (t.clone().requires_grad_() for t in (aligner.matrix, aligner.shift))
    objective(matrix, shift).backward()
    assert matrix.grad.abs().max() < 1e-8
    assert shift.grad.abs().max() < 1e-8
    torch.testing.assert_close(aligner.align(z_cur), z_cur + (z_cur - centre) @ aligner.matrix + aligner.shift)


def test_ridge_undoes_a_linear_drift_and_a_large_penalty_makes_it_mean_shift(pairs):
    z_prev, z_cur = pairs
    assert Ridge(penalty=1e-6).fit_latents(z_prev, z_cur).report.drift_after < 1e-3
    torch.testing.assert_close(
        Ridge(penalty=1e9).fit_latents(z_prev, z_cur).align(z_cur), MeanShift().fit_latents(z_prev, z_cur).align(z_cur)
    )


def test_ridge_says_when_its_penalty_cannot_decide():
    z = torch.randn(3, 6, dtype=torch.float64)
    with pytest.raises(OptionError, match="penalty"):
        Ridge(penalty=1e-300).fit_latents(z, z.flip(0) * 1e3)


def drifted(seed=0, *, rows=30, dim=4, noise=0.5):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, dim, generator=generator, dtype=torch.float64) * torch.arange(1, dim + 1) + 5
    turn = torch.eye(dim).double() + 0.3 * torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    return z, z @ turn + 1 + noise * torch.randn(rows, dim, generator=generator, dtype=torch.float64)


def left_out_error(z_prev, z_cur, penalty):
    """The mean squared error of pairs that were left out, by as many fits; the penalty's unit stays that of all."""
    unit = len(z_cur) * (z_cur - z_cur.mean(dim=0)).square().mean()
    errors = []
    for place in range(len(z_cur)):
        rest = torch.arange(len(z_cur)) != place
        center, shift = z_cur[rest].mean(dim=0), (z_prev - z_cur)[rest].mean(dim=0)
        x, y = z_cur[rest] - center, (z_prev - z_cur)[rest] - shift
        slope = torch.linalg.solve(x.t() @ x + penalty * unit * torch.eye(x.shape[1]).double(), x.t() @ y)
        moved = z_cur[place] + (z_cur[place] - center) @ slope + shift
        errors.append((moved - z_prev[place]).square().sum())
    return float(torch.stack(errors).mean())


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 1.0, 10.0]))
def test_the_chosen_penalty_has_the_smallest_left_out_error(seed, noise):
    z_prev, z_cur = drifted(seed, rows=12, noise=noise)
    aligner = Ridge().fit_latents(z_prev, z_cur)
    errors = {penalty: left_out_error(z_prev, z_cur, penalty) for penalty in linear._PENALTIES}
    chosen = float(aligner.chosen_penalty)
    assert errors[min(errors, key=lambda p: abs(p - chosen))] == pytest.approx(min(errors.values()), rel=1e-9)
    # What was chosen is used as if it had been given.
    given_ = Ridge(penalty=chosen).fit_latents(z_prev, z_cur)
    assert torch.equal(given_.matrix, aligner.matrix)
    assert torch.equal(given_.chosen_penalty, aligner.chosen_penalty)


def test_noise_asks_for_a_stronger_penalty():
    clean, noisy = (
        float(Ridge().fit_latents(*drifted(noise=noise), direction="forward").chosen_penalty) for noise in (0.0, 20.0)
    )
    assert clean == pytest.approx(1e-4)
    assert noisy > 0.1


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_or_equal_pairs_choose_a_penalty_too(rows):
    z = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    aligner = Ridge().fit_latents(z + 1, z)
    torch.testing.assert_close(aligner.align(z), z + 1)
    assert aligner.chosen_penalty == 10
    same = Ridge().fit_latents(torch.ones(5, 4), torch.zeros(5, 4))
    torch.testing.assert_close(same.align(torch.zeros(1, 4)), torch.ones(1, 4))


def test_of_many_pairs_some_are_left_out(monkeypatch):
    z_prev, z_cur = drifted(rows=300)
    every = Ridge().fit_latents(z_prev, z_cur)
    monkeypatch.setattr(linear, "_SCAN_ROWS", 100)
    some = Ridge().fit_latents(z_prev, z_cur)
    errors = [left_out_error(z_prev, z_cur, float(aligner.chosen_penalty)) for aligner in (every, some)]
    assert errors[0] <= errors[1] < 1.05 * errors[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [MeanShift, RandomShift, Ridge, lambda: Ridge(penalty=0.1)])
def test_the_largest_numbers_never_give_nan(make, dtype):
    z = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    most = torch.finfo(dtype).max
    signs = most * torch.where(torch.arange(200).reshape(40, 5) % 3 == 0, -1.0, 1.0).to(dtype)
    assert not make().fit_latents(100 * z, z).align(signs).isnan().any()
    large, aligner = z.abs() / z.abs().max() * most, make()
    with pytest.raises(LatentError, match="too large"):
        aligner.fit_latents(large, -large)
    assert not aligner.fitted
