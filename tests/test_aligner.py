"""One battery for all aligners: whatever was learned, aligning keeps to the contract of `Aligner`."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.aligning import MAKERS, MOVING, seeded
from torch import nn

import elign
from elign import Aligner, FitReport, LatentError, NotFittedError


def test_every_aligner_of_the_package_is_in_this_battery():
    made = {type(maker()) for maker in MAKERS.values()}
    public = {getattr(elign, name) for name in elign.__all__}
    aligners = {thing for thing in public if isinstance(thing, type) and issubclass(thing, Aligner)}
    assert aligners - made == {Aligner}


# --- aligning --------------------------------------------------------------------------------------------


def test_an_aligner_that_is_not_fitted_says_so(make_aligner, tmp_path):
    for use in (lambda a: a.align(torch.zeros(1, 6)), lambda a: a(torch.zeros(1, 6)), lambda a: a.save(tmp_path / "x")):
        with pytest.raises(NotFittedError, match="fit"):
            use(make_aligner())
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (6, 3)])
def test_a_wrong_dimension_is_an_error(fitted, shape):
    with pytest.raises(LatentError, match="dimension 6"):
        fitted.align(torch.zeros(shape))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_numbers_to_align_are_an_error(fitted, bad):
    z = torch.zeros(4, 6)
    z[1:3, 0] = bad
    with pytest.raises(LatentError, match="2 rows"):
        fitted.align(z)


def test_arrays_and_lists_are_refused_by_name():
    z = np.zeros((4, 3), dtype=np.float32)
    aligner = elign.Identity().fit_latents(torch.zeros(4, 3), torch.zeros(4, 3))
    for call in (lambda: elign.MeanShift().fit_latents(z, z), lambda: aligner.align(z)):
        with pytest.raises(elign.LatentError, match="from_numpy"):
            call()
    with pytest.raises(elign.LatentError, match="where must be a torch tensor"):
        aligner.align(torch.zeros(2, 3), where=[True, False])


@pytest.mark.parametrize("shape", [(6,), (0, 6), (1, 6), (9, 6), (3, 4, 6), (2, 0, 6), (2, 3, 4, 6)])
def test_any_shape_is_aligned_row_by_row(fitted, shape):
    z = torch.randn(shape)
    aligned = seeded(fitted, z)
    assert aligned.shape == shape
    torch.testing.assert_close(aligned, seeded(fitted, z.reshape(-1, 6)).reshape(shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_the_dtype_is_kept_and_values_are_those_of_single_precision(fitted, pairs, dtype, masked):
    z = pairs[1].to(dtype)
    where = torch.rand(len(z)) if masked else None
    aligned = seeded(fitted, z, where=where)
    assert aligned.dtype == dtype
    if not (dtype == torch.float64 and getattr(fitted, "noise", 0)):  # double precision draws other noise
        expected = seeded(fitted, z.float(), where=where)
        tolerance = {torch.float16: 5e-3, torch.bfloat16: 5e-2}.get(dtype, 1e-4)
        # Latents on a kink of the energy may go elsewhere by rounding.
        off = (aligned.float() - expected).abs().amax(dim=1) > tolerance * (1 + expected.abs().amax(dim=1))
        assert off.float().mean() < 0.02


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference", "bf16"],
)
@pytest.mark.parametrize("masked", [False, True])
def test_modes_of_the_caller_do_not_change_the_result(fitted, pairs, mode, masked):
    where = torch.arange(200) % 3 > 0 if masked else None
    expected = seeded(fitted, pairs[1], where=where)
    with mode():
        assert torch.equal(seeded(fitted, pairs[1].clone(), where=where), expected)


def test_aligning_does_not_change_the_latents_nor_share_memory_with_them(fitted, pairs):
    z = pairs[1].clone()
    for where in (None, torch.zeros(200, dtype=torch.bool), torch.zeros(200)):
        aligned = seeded(fitted, z, where=where)
        aligned.fill_(7)
        assert torch.equal(z, pairs[1])


def test_forward_is_align(fitted, pairs):
    torch.manual_seed(0)
    expected = fitted.align(pairs[1])
    torch.manual_seed(0)
    assert torch.equal(nn.Sequential(fitted)(pairs[1]), expected)


def test_the_global_random_state_is_untouched_by_aligning(make_aligner, pairs, untouched_random_state):
    seeded(make_aligner().fit_latents(*pairs), pairs[1])


def test_gradients_pass_straight_through(fitted, pairs):
    z = pairs[1].clone().requires_grad_()
    pull = torch.randn(200, 6)
    for where in (None, torch.arange(200) % 2 == 0, torch.rand(200)):
        z.grad = None
        aligned = seeded(fitted, z, where=where)
        assert torch.equal(aligned, seeded(fitted, pairs[1], where=where))
        (aligned * pull).sum().backward()
        assert torch.equal(z.grad, pull)
    assert all(p.grad is None for p in fitted.parameters())


# --- where -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bool", "float32", "float64", "bfloat16"])
def test_rows_that_are_not_chosen_come_back_bit_for_bit(fitted, pairs, kind):
    z = pairs[1] * 1.1
    chosen = torch.arange(200) % 3 == 0
    aligned = seeded(fitted, z, where=chosen if kind == "bool" else chosen.to(getattr(torch, kind)))
    assert torch.equal(aligned[~chosen], z[~chosen])
    # Weights of one are a mask; and each row's result is its own, whichever rows it is together with.
    torch.testing.assert_close(aligned[chosen], seeded(fitted, z[chosen]))


@pytest.mark.parametrize("name", MOVING)
def test_chosen_rows_move(name, pairs):
    aligner = MAKERS[name]().fit_latents(*pairs)
    chosen = torch.arange(200) % 3 == 0
    assert (seeded(aligner, pairs[1], where=chosen) != pairs[1]).any(dim=1)[chosen].all()


@given(seed=st.integers(0, 10_000), shape=st.sampled_from([(7,), (2, 3), ()]))
@pytest.mark.parametrize("name", [name for name in MAKERS if name != "energy-noise"])
def test_weights_blend_linearly(name, seed, shape):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(*shape, 4, generator=generator, dtype=torch.float64)
    weights = torch.rand(shape, generator=generator, dtype=torch.float64)
    train = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    aligner = MAKERS[name]().fit_latents(train - 1, train)
    expected = z + weights.unsqueeze(-1) * (aligner.align(z) - z)
    torch.testing.assert_close(aligner.align(z, where=weights), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "where",
    [
        torch.ones(3, dtype=torch.bool),
        torch.ones(4, 1),
        torch.ones(4, dtype=torch.int64),
        torch.tensor([0.0, -0.5, 1.0, 1.0]),
        torch.tensor([0.0, float("nan"), 1.0, 1.0]),
        torch.tensor([0.0, float("inf"), 1.0, 1.0]),
    ],
    ids=["rows", "shape", "integers", "negative", "nan", "inf"],
)
def test_weights_that_make_no_sense_are_an_error(fitted, where):
    with pytest.raises(LatentError, match="where"):
        fitted.align(torch.zeros(4, 6), where=where)


# --- an aligner of one's own -----------------------------------------------------------------------------


def test_the_base_class_says_what_a_subclass_must_write():
    with pytest.raises(NotImplementedError):
        Aligner().fit_latents(torch.zeros(1, 2), torch.zeros(1, 2))


def test_an_aligner_of_ones_own_needs_two_methods(tmp_path):
    class Negate(Aligner):
        def _learn(self, z_prev, z_cur, progress):
            return FitReport(rows=len(z_cur), dim=z_cur.shape[1])

        def _move(self, rows, generator):
            return -rows

    aligner = Negate().fit_latents(torch.zeros(1, 2), torch.ones(1, 2))
    assert aligner.report.drift_after == pytest.approx(2**0.5)
    path = aligner.save(tmp_path / "negate")
    with contextlib.closing(path.open("rb")):
        assert isinstance(Aligner.load(path), Negate)


def test_an_aligner_of_ones_own_need_not_learn():
    class Double(elign.Aligner):
        learns = False

        def _move(self, rows, generator):
            return rows * 2

    assert torch.equal(Double().align(torch.ones(2, 3)), torch.full((2, 3), 2.0))
