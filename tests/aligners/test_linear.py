"""Affine aligners: the maps that they say they are, and the penalty that leaving out pairs chooses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elign import Aligner, Identity, LatentError, LocalShift, MeanShift, OptionError, RandomShift, Ridge
from elign.aligners import linear


def drifted(seed=0, *, rows=30, dim=4, noise=0.5):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, dim, generator=generator, dtype=torch.float64) * torch.arange(1, dim + 1) + 5
    turn = torch.eye(dim).double() + 0.3 * torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    return z, z @ turn + 1 + noise * torch.randn(rows, dim, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("make", [Identity, MeanShift, RandomShift, Ridge, lambda: Ridge(penalty=0.3)])
@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_an_affine_aligner_says_which_map_it_is(make, direction):
    z_prev, z_cur = drifted()
    aligner = make().fit_latents(z_prev, z_cur, direction=direction)
    matrix, offset = aligner.affine()
    torch.testing.assert_close(aligner.align(z_cur), z_cur @ matrix + offset)


def test_an_aligner_that_is_not_affine_says_so():
    assert LocalShift().fit_latents(*drifted()).affine() is None


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


def test_the_choice_is_saved(tmp_path):
    z_prev, z_cur = drifted()
    aligner = Ridge().fit_latents(z_prev.float(), z_cur.float(), direction="forward")
    loaded = Aligner.load(aligner.save(tmp_path / "ridge.safetensors"))
    assert loaded.config() == {"penalty": "auto"}
    assert torch.equal(loaded.chosen_penalty, aligner.chosen_penalty)
    assert torch.equal(loaded.align(z_cur.float()), aligner.align(z_cur.float()))


@pytest.mark.parametrize("penalty", [0, -1.0, float("inf"), "best"])
def test_refuses_what_is_no_penalty(penalty):
    with pytest.raises(OptionError, match="penalty"):
        Ridge(penalty=penalty)


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
