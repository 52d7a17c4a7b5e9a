"""The controls: each is the closed form that it says it is."""

from __future__ import annotations

import math

import pytest
import torch

from elign import EnergyAligner, Identity, MeanShift, OptionError, RandomShift, Ridge


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


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_ridge_works_with_fewer_rows_than_dimensions_and_with_rows_all_alike(rows):
    z_prev = torch.randn(rows, 6)
    z_cur = z_prev[:1].expand(rows, 6) + 1
    aligner = Ridge().fit_latents(z_prev, z_cur)
    assert aligner.align(z_cur).isfinite().all()
    torch.testing.assert_close(aligner.align(z_cur).mean(dim=0), z_prev.mean(dim=0), atol=1e-4, rtol=0)


def test_ridge_says_when_its_penalty_cannot_decide():
    z = torch.randn(3, 6, dtype=torch.float64)
    with pytest.raises(OptionError, match="penalty"):
        Ridge(penalty=1e-300).fit_latents(z, z.flip(0) * 1e3)


def test_ridge_is_as_exact_for_half_precision_latents_as_they_allow(pairs):
    z_prev, z_cur = pairs
    aligner = Ridge(penalty=1e-3).fit_latents(z_prev, z_cur)
    half = z_cur.half()
    assert torch.equal(aligner.align(half), aligner.align(half.float()).half())


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (RandomShift, {"norm": -1.0}),
        (RandomShift, {"norm": math.inf}),
        (RandomShift, {"norm": math.nan}),
        (RandomShift, {"seed": -1}),
        (RandomShift, {"seed": 0.5}),
        (Ridge, {"penalty": 0.0}),
        (Ridge, {"penalty": -1.0}),
        (Ridge, {"penalty": math.inf}),
        (Ridge, {"penalty": math.nan}),
    ],
)
def test_refuses_options_out_of_range(make, option):
    with pytest.raises(OptionError, match=next(iter(option))):
        make(**option)
