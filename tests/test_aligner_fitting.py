"""Fitting, for all aligners: what is learned from, what is refused, and in which direction."""

from __future__ import annotations

import pytest
import torch
from tests.aligning import seeded

import elign
from elign import Aligner, EnergyAligner, LatentError, MeanShift, NotFittedError, OptionError


def test_fitting_returns_the_aligner_itself_with_a_report(make_aligner, pairs):
    aligner = make_aligner()
    assert not aligner.fitted
    assert aligner.report is None
    assert aligner.fit_latents(*pairs) is aligner
    assert aligner.fitted
    assert (aligner.report.rows, aligner.report.dim) == (200, 6)
    assert aligner.report.drift_before > 0


def test_two_fits_are_equal_bit_for_bit(make_aligner, pairs, untouched_random_state):
    one, two = (make_aligner().fit_latents(*pairs) for _ in range(2))
    assert one.state_dict().keys() == two.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert torch.equal(seeded(one, pairs[1]), seeded(two, pairs[1]))
    assert one.report.drift_after == two.report.drift_after


def test_fitting_does_not_change_the_latents(make_aligner, pairs):
    before = [z.clone() for z in pairs]
    make_aligner().fit_latents(*pairs)
    assert all(torch.equal(a, b) for a, b in zip(before, pairs, strict=True))


def test_the_report_speaks_of_all_rows_not_of_the_first_ones():
    z_prev = torch.zeros(20_000, 2)
    z_cur = torch.cat([torch.zeros(10_000, 2), torch.full((10_000, 2), 3.0)])
    report = elign.Identity().fit_latents(z_prev, z_cur).report
    assert report.drift_before == pytest.approx(4.243 / 2, rel=0.01)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_few_rows_are_enough(make_aligner, rows):
    z = torch.randn(rows, 6)
    aligner = make_aligner().fit_latents(z, z + 1)
    assert seeded(aligner, z).isfinite().all()
    assert aligner.report.rows == rows


@pytest.mark.parametrize("shape", [(0, 6), (3, 0), (0, 0)])
def test_nothing_to_learn_from_is_an_error(make_aligner, shape):
    with pytest.raises(LatentError, match="empty"):
        make_aligner().fit_latents(torch.zeros(shape), torch.zeros(shape))


@pytest.mark.parametrize(
    ("prev", "cur"), [((5, 6), (4, 6)), ((5, 6), (5, 7)), ((6,), (6,)), ((2, 5, 6), (2, 5, 6)), ((), ())]
)
def test_latents_that_are_no_pairs_are_an_error(make_aligner, prev, cur):
    aligner = make_aligner()
    with pytest.raises(LatentError):
        aligner.fit_latents(torch.zeros(prev), torch.zeros(cur))
    assert not aligner.fitted


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("side", [0, 1])
def test_bad_numbers_are_an_error(make_aligner, bad, side):
    z = [torch.zeros(5, 6), torch.zeros(5, 6)]
    z[side][3, 2] = bad
    with pytest.raises(LatentError, match="1 rows"):
        make_aligner().fit_latents(*z)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_numbers_that_are_not_floating_point_are_an_error(make_aligner, fitted, dtype):
    z = torch.zeros(5, 6, dtype=dtype)
    with pytest.raises(LatentError, match="floating point"):
        make_aligner().fit_latents(z, z)
    with pytest.raises(LatentError, match="floating point"):
        fitted.align(z)


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference", "bf16"],
)
def test_modes_of_the_caller_do_not_change_what_is_learned(make_aligner, pairs, mode):
    expected = make_aligner().fit_latents(*pairs)
    with mode():
        aligner = make_aligner().fit_latents(*(z.clone() for z in pairs))
    for name, value in aligner.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name]), name
    # What was made in inference mode can still be changed outside.
    assert not any(value.is_inference() for value in aligner.state_dict().values())
    aligner.load_state_dict(expected.state_dict())
    aligner.fit_latents(*pairs)


def test_learning_uses_the_device_of_the_latents_not_the_default_one(make_aligner, fitted, pairs):
    aligner = make_aligner().fit_latents(*pairs)
    with torch.device("meta"):
        aligner._learn(*pairs, None)
    for name, value in aligner.state_dict().items():
        assert torch.equal(value, fitted.state_dict()[name]), name


def test_latents_made_in_inference_mode_are_accepted(make_aligner, pairs):
    with torch.inference_mode():
        inside = [z.clone() for z in pairs]
    one, two = make_aligner().fit_latents(*pairs), make_aligner().fit_latents(*inside)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_latents_that_require_gradients_are_accepted_and_keep_no_graph(make_aligner, pairs):
    z_prev, z_cur = (z.clone().requires_grad_() for z in pairs)
    aligner = make_aligner().fit_latents(z_prev * 1, z_cur * 1)
    assert all(value.grad_fn is None for value in aligner.state_dict(keep_vars=True).values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_learns_from_half_precision_as_from_the_same_numbers_in_single(make_aligner, pairs, dtype):
    half = [z.to(dtype) for z in pairs]
    one, two = make_aligner().fit_latents(*half), make_aligner().fit_latents(*(z.float() for z in half))
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_fits_anew_from_the_start_also_with_another_dimension(make_aligner, pairs):
    aligner = make_aligner().fit_latents(torch.randn(30, 9), torch.randn(30, 9))
    aligner.fit_latents(*pairs)
    fresh = make_aligner().fit_latents(*pairs)
    assert torch.equal(seeded(aligner, pairs[1]), seeded(fresh, pairs[1]))
    assert aligner.require_fitted() == 6


def test_fits_after_loading(make_aligner, pairs, tmp_path):
    make_aligner().fit_latents(torch.randn(30, 9), torch.randn(30, 9)).save(tmp_path / "a.safetensors")
    aligner = Aligner.load(tmp_path / "a.safetensors").fit_latents(*pairs)
    assert torch.equal(seeded(aligner, pairs[1]), seeded(make_aligner().fit_latents(*pairs), pairs[1]))


def test_a_fit_that_is_broken_off_leaves_no_half_fitted_aligner(pairs):
    def stop(*_):
        raise KeyboardInterrupt

    aligner = EnergyAligner(hidden=(4,), iterations=60, steps=1).fit_latents(*pairs)
    with pytest.raises(KeyboardInterrupt):
        aligner.fit_latents(*pairs, progress=stop)
    assert not aligner.fitted
    assert aligner.report is None
    with pytest.raises(NotFittedError):
        aligner.align(pairs[1])
    assert aligner.fit_latents(*pairs).fitted


def test_a_previous_latent_too_large_for_the_current_ones_precision_is_an_error(make_aligner):
    with pytest.raises(LatentError, match="z_prev"):
        make_aligner().fit_latents(torch.full((3, 6), 1e300, dtype=torch.float64), torch.zeros(3, 6))


# --- direction -------------------------------------------------------------------------------------------


def test_forward_is_backward_with_the_two_models_exchanged(make_aligner, pairs):
    z_prev, z_cur = pairs
    forward, exchanged = (
        make_aligner().fit_latents(z_prev, z_cur, direction="forward"),
        make_aligner().fit_latents(z_cur, z_prev),
    )
    assert (forward.direction, exchanged.direction) == ("forward", "backward")
    assert torch.equal(seeded(forward, z_prev), seeded(exchanged, z_prev))
    assert forward.report.drift_before == exchanged.report.drift_before
    assert forward.report.drift_after == exchanged.report.drift_after
    # Which energies are whose is said of the models, not of the direction.
    assert forward.report.energy_previous == exchanged.report.energy_current


def test_an_unknown_direction_is_refused(pairs):
    with pytest.raises(OptionError, match="direction must be one of backward, forward, got 'sideways'"):
        MeanShift().fit_latents(*pairs, direction="sideways")
