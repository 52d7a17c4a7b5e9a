"""One battery for all aligners: whatever was learned, aligning keeps to the contract of `Aligner`."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.aligning import MAKERS, learned, seeded
from torch import nn

import elign
from elign import (
    Aligner,
    ClassStatistics,
    EnergyAligner,
    LatentError,
    MeanShift,
    NotFittedError,
    OptionError,
)
from elign.aligners.affine import AffineAligner

MODES = pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference", "bf16"],
)


def rows_of(aligner, given):
    """How many pairs it should have learned from."""
    return len(aligner.pairs.labels) if aligner.needs_images else given


def skip_if_it_needs_images(make_aligner, why):
    if make_aligner().needs_images:
        pytest.skip(why)


def equal_states(one, two):
    state, other = one.state_dict(), two.state_dict()
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)


def test_every_aligner_of_the_package_is_in_this_battery():
    made = {type(maker()) for maker in MAKERS.values()}
    public = {getattr(elign, name) for name in elign.__all__}
    aligners = {thing for thing in public if isinstance(thing, type) and issubclass(thing, Aligner)}
    # FisherShift needs a head that fits the latents; its own tests are in test_drift_maps.py.
    assert aligners - made == {Aligner, elign.FisherShift}


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


def test_bad_numbers_to_align_are_an_error(fitted):
    z = torch.zeros(4, 6)
    z[1, 0], z[2, 0] = torch.nan, torch.inf
    with pytest.raises(LatentError, match="2 rows"):
        fitted.align(z)
    with pytest.raises(LatentError, match="floating point"):
        fitted.align(torch.zeros(5, 6, dtype=torch.int64))


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


@MODES
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


@given(seed=st.integers(0, 10_000), shape=st.sampled_from([(7,), (2, 3), ()]))
@pytest.mark.parametrize("name", [name for name in MAKERS if name != "energy-noise"])
def test_weights_blend_linearly(name, seed, shape):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(*shape, 4, generator=generator, dtype=torch.float64)
    weights = torch.rand(shape, generator=generator, dtype=torch.float64)
    train = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    aligner = learned(MAKERS[name](), train - 1, train)
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


def test_an_aligner_of_ones_own_need_not_learn():
    class Double(elign.Aligner):
        learns = False

        def _move(self, rows, generator):
            return rows * 2

    assert torch.equal(Double().align(torch.ones(2, 3)), torch.full((2, 3), 2.0))


# --- Fitting, for all aligners: what is learned from, what is refused, and in which direction.


def test_fitting_returns_the_aligner_itself_with_a_report(make_aligner, pairs):
    aligner = make_aligner()
    assert not aligner.fitted
    assert aligner.report is None
    assert learned(aligner, *pairs) is aligner
    assert aligner.fitted
    assert (aligner.report.rows, aligner.report.dim) == (rows_of(aligner, 200), 6)
    assert aligner.report.drift_before > 0


def test_two_fits_are_equal_bit_for_bit(make_aligner, pairs, untouched_random_state):
    before = [z.clone() for z in pairs]
    one, two = (learned(make_aligner(), *pairs) for _ in range(2))
    assert equal_states(one, two)
    assert torch.equal(seeded(one, pairs[1]), seeded(two, pairs[1]))
    assert all(torch.equal(a, b) for a, b in zip(before, pairs, strict=True))
    assert one.report.drift_after == two.report.drift_after


def test_the_report_speaks_of_all_rows_not_of_the_first_ones():
    z_prev = torch.zeros(20_000, 2)
    z_cur = torch.cat([torch.zeros(10_000, 2), torch.full((10_000, 2), 3.0)])
    report = elign.Identity().fit_latents(z_prev, z_cur).report
    assert report.drift_before == pytest.approx(4.243 / 2, rel=0.01)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_few_rows_are_enough(make_aligner, rows):
    z = torch.randn(rows, 6)
    aligner = learned(make_aligner(), z, z + 1)
    assert seeded(aligner, z).isfinite().all()
    assert aligner.report.rows == rows_of(aligner, rows)


def with_number(number, place):
    """Pairs with one such number, among the previous (0) or the current (1) latents."""
    z = torch.zeros(2, 5, 6)
    z[place, 3, 2] = number
    return tuple(z)


@pytest.mark.parametrize(
    ("z_prev", "z_cur"),
    [
        *[(torch.zeros(shape), torch.zeros(shape)) for shape in ((0, 6), (3, 0), (6,), (2, 5, 6), ())],
        (torch.zeros(5, 6), torch.zeros(4, 6)),
        (torch.zeros(5, 6), torch.zeros(5, 7)),
        *[with_number(number, place) for number in (torch.nan, torch.inf, -torch.inf) for place in (0, 1)],
        *[(torch.zeros(5, 6).to(dtype),) * 2 for dtype in (torch.int64, torch.bool, torch.complex64)],
        (torch.full((3, 6), 1e300, dtype=torch.float64), torch.zeros(3, 6)),
    ],
)
def test_latents_that_cannot_be_learned_from_are_an_error(z_prev, z_cur):
    aligner = MeanShift()
    with pytest.raises(LatentError):
        aligner.fit_latents(z_prev, z_cur)
    assert not aligner.fitted


@MODES
def test_modes_of_the_caller_do_not_change_what_is_learned(make_aligner, pairs, mode):
    expected = learned(make_aligner(), *pairs)
    with mode():
        inside = [z.clone() for z in pairs]
        aligner = learned(make_aligner(), *inside)
    assert equal_states(aligner, expected)
    # Latents that were made in this mode, and those that require gradients, are as good as others.
    assert equal_states(learned(make_aligner(), *inside), expected)
    graph = learned(make_aligner(), *(z.clone().requires_grad_() * 1 for z in pairs))
    assert equal_states(graph, expected)
    assert all(value.grad_fn is None for value in graph.state_dict(keep_vars=True).values())
    # What was made in inference mode can still be changed outside.
    assert not any(value.is_inference() for value in aligner.state_dict().values())
    aligner.load_state_dict(expected.state_dict())
    learned(aligner, *pairs)


def test_learning_uses_the_device_of_the_latents_not_the_default_one(make_aligner, fitted, pairs):
    skip_if_it_needs_images(make_aligner, "it learns while its models run, and these have a device of their own")
    aligner = make_aligner()
    aligner._build(6)
    with torch.device("meta"):
        aligner._learn(*pairs, None)
    assert equal_states(aligner, fitted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_learns_from_half_precision_as_from_the_same_numbers_in_single(make_aligner, pairs, dtype):
    skip_if_it_needs_images(make_aligner, "changed images go through models in half precision; see test_adc.py")
    half = [z.to(dtype) for z in pairs]
    one, two = learned(make_aligner(), *half), learned(make_aligner(), *(z.float() for z in half))
    assert equal_states(one, two)


def test_fits_anew_from_the_start_also_with_another_dimension(make_aligner, fitted, pairs, tmp_path):
    aligner = learned(make_aligner(), torch.randn(30, 9), torch.randn(30, 9))
    loaded = Aligner.load(aligner.save(tmp_path / "a.safetensors"))
    for again in (aligner, loaded):
        learned(again, *pairs)
        assert torch.equal(seeded(again, pairs[1]), seeded(fitted, pairs[1]))
        assert again.require_fitted() == 6


def test_a_fit_that_is_broken_off_leaves_no_half_fitted_aligner(pairs):
    def stop(*_):
        raise KeyboardInterrupt

    aligner = EnergyAligner(hidden=(4,), iterations=60, steps=1).fit_latents(*pairs)
    with pytest.raises(KeyboardInterrupt):
        learned(aligner, *pairs, progress=stop)
    assert not aligner.fitted
    assert aligner.report is None
    with pytest.raises(NotFittedError):
        aligner.align(pairs[1])
    assert learned(aligner, *pairs).fitted


# --- direction -------------------------------------------------------------------------------------------


def test_forward_is_backward_with_the_two_models_exchanged(make_aligner, pairs):
    skip_if_it_needs_images(make_aligner, "images follow the previous model in both directions; see test_adc.py")
    z_prev, z_cur = pairs
    forward, exchanged = (
        learned(make_aligner(), z_prev, z_cur, direction="forward"),
        learned(make_aligner(), z_cur, z_prev),
    )
    assert (forward.direction, exchanged.direction) == ("forward", "backward")
    assert torch.equal(seeded(forward, z_prev), seeded(exchanged, z_prev))
    assert forward.report.drift_before == exchanged.report.drift_before
    assert forward.report.drift_after == exchanged.report.drift_after
    # Which energies are whose is said of the models, not of the direction.
    assert forward.report.energy_previous == exchanged.report.energy_current


def test_an_aligner_that_needs_images_refuses_latents_alone(make_aligner, pairs):
    aligner = make_aligner()
    if aligner.needs_images:
        with pytest.raises(OptionError, match="needs images"):
            aligner.fit_latents(*pairs)
        assert not aligner.fitted
    else:
        assert aligner.fit_latents(*pairs).fitted


def test_an_unknown_direction_is_refused(pairs):
    with pytest.raises(OptionError, match="direction must be one of backward, forward, got 'sideways'"):
        MeanShift().fit_latents(*pairs, direction="sideways")


# --- options ---------------------------------------------------------------------------------------------


ENERGY_OUT_OF_RANGE = {
    "hidden": [64, (0,), (8, -1), (8.0,), "64"],
    "iterations": [0, 1.5],
    "learning_rate": [0.0, -1e-4, math.nan, math.inf],
    "batch_size": [0, 12.5],
    "steps": [-1, 2.5],
    "step_size": [0.0, -1.0, math.inf],
    "noise": [-0.1, math.nan],
    "ema_decay": [-0.1, 1.0, math.nan],
    "seed": [-1, 1.0, 2**63, None],
}


@pytest.mark.parametrize(
    ("make", "option", "values"),
    [
        *[(EnergyAligner, option, values) for option, values in ENERGY_OUT_OF_RANGE.items()],
        (elign.RandomShift, "norm", [-1.0, math.inf, math.nan, "1"]),
        (elign.RandomShift, "seed", [-1, 0.5]),
        (elign.Ridge, "penalty", [0, -1.0, math.inf, math.nan, "best"]),
        (elign.LocalShift, "bandwidth", [1e-22, 0.0, -1.0, math.nan]),
        (elign.LocalShift, "anchors", [0]),
        (elign.LDC, "solver", ["newton"]),
        (elign.LDC, "epochs", [10**9]),
        (elign.GLS, "rho", [0.0]),
        (elign.SLDC, "tau", [0.0]),
        (elign.DPCR, "tolerance", [1.0]),
        (elign.HopfieldShift, "share", [2.0]),
        (elign.FisherShift, "width", [math.nan]),
        (elign.FisherShift, "head", ["fc"]),
        (elign.MLPMap, "width", [10**6]),
        (elign.DualE, "experts", [0]),
        (elign.DualE, "rank", [0.0]),
        (elign.DualE, "statistics", ["all"]),
    ],
)
def test_options_out_of_range_are_refused_by_name(make, option, values):
    for value in values:
        with pytest.raises(OptionError, match=option):
            make(**{option: value})


# --- The state of a fitted aligner, for all aligners: copies, files, state dicts and threads keep every bit.


def test_a_deep_copy_is_independent(fitted, pairs):
    expected = seeded(fitted, pairs[1])
    copied = copy.deepcopy(fitted)
    assert torch.equal(seeded(copied, pairs[1]), expected)
    learned(copied, pairs[1], pairs[0] * 3)
    assert torch.equal(seeded(fitted, pairs[1]), expected)


@pytest.mark.parametrize("direction", ["backward", "forward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_files_and_states_change_no_bit(make_aligner, pairs, tmp_path, dtype, direction):
    pairs = [z.to(dtype) for z in pairs]
    aligner = learned(make_aligner(), *pairs, direction=direction)
    path = aligner.save(tmp_path / "some" / "aligner.safetensors")
    copied = make_aligner().eval()
    state = aligner.state_dict()
    if direction == "backward":
        del state["is_forward"]  # as files were before there were two directions
    copied.load_state_dict(state)
    for loaded in (Aligner.load(path), type(aligner).load(str(path)), copied):
        assert type(loaded) is type(aligner)
        assert loaded.config() == aligner.config()
        assert loaded.direction == direction
        assert torch.equal(seeded(loaded, pairs[1]), seeded(aligner, pairs[1]))
        assert not loaded.training
    assert learned(aligner, *pairs).direction == "backward"


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("before", [None, 6, 9])
def test_a_state_dict_loads_into_another_aligner_fresh_or_fitted(make_aligner, fitted, pairs, nested, before):
    other = make_aligner()
    if before:
        learned(other, torch.randn(20, before), torch.randn(20, before))
    source, target = (nn.ModuleDict({"a": m, "b": nn.Linear(2, 2)}) if nested else m for m in (fitted, other))
    target.load_state_dict(source.state_dict())
    assert torch.equal(seeded(other, pairs[1]), seeded(fitted, pairs[1]))


def test_moving_to_a_device_and_dtype_keeps_it_fitted(fitted, pairs):
    expected = seeded(fitted, pairs[1])
    torch.testing.assert_close(seeded(fitted.to("cpu").double(), pairs[1]), expected, rtol=1e-4, atol=1e-4)


def test_what_is_made_under_inference_mode_can_be_loaded_into(make_aligner, fitted, pairs):
    for state in (fitted.state_dict(), make_aligner().state_dict()):
        with torch.inference_mode():
            fresh = make_aligner()
        fresh.load_state_dict(state)
        assert all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())


# --- transport -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", ["full", "low-rank", "diagonal", "none"])
def test_statistics_are_moved_as_their_latents_are(make_aligner, pairs, covariance):
    z_prev, _ = pairs
    labels = torch.arange(len(z_prev)) % 3
    aligner = learned(make_aligner(), *pairs, direction="forward")
    statistics = ClassStatistics(covariance=covariance).update(z_prev, labels)
    before = {name: value.clone() for name, value in statistics.state_dict().items()}
    found = aligner.transport(statistics)
    assert all(torch.equal(value, before[name]) for name, value in statistics.state_dict().items())
    assert torch.equal(found.classes, statistics.classes)
    assert torch.equal(found.counts, statistics.counts)
    assert found.form == statistics.form
    expected = ClassStatistics(covariance=covariance).update(seeded(aligner, z_prev), labels)
    if aligner.affine() is not None:
        # An affine map is followed exactly.
        torch.testing.assert_close(found.means, expected.means, atol=1e-4, rtol=1e-4)
        if covariance == "full":
            for label in range(3):
                moved = expected.covariance_of(label)
                torch.testing.assert_close(found.covariance_of(label), moved, atol=1e-3, rtol=1e-3)
    elif covariance == "none":
        # There is nothing to draw samples from: the means themselves are moved.
        torch.testing.assert_close(found.means, seeded(aligner, statistics.means))
    else:
        # Any other one through samples, which are not the latents themselves.
        drift = (expected.means - statistics.means).norm(dim=1).mean()
        assert (found.means - expected.means).norm(dim=1).mean() < 0.2 * drift + 0.2
    again = aligner.transport(statistics)
    assert torch.equal(found.means, again.means)
    assert torch.equal(statistics.transport(aligner).means, found.means)


def test_an_affine_map_is_what_alignment_does(make_aligner, pairs):
    for direction in ("backward", "forward"):
        z_prev, z_cur = pairs
        aligner = learned(make_aligner(), z_prev, z_cur, direction=direction)
        map_ = aligner.affine()
        linear = isinstance(aligner, elign.Identity | MeanShift | elign.RandomShift | elign.Ridge | AffineAligner)
        assert (map_ is not None) == linear
        if map_ is not None:
            matrix, offset = map_
            assert matrix.dtype == offset.dtype == torch.float64
            torch.testing.assert_close(
                (z_cur.double() @ matrix + offset).float(), seeded(aligner, z_cur), atol=1e-4, rtol=1e-4
            )


def test_statistics_are_moved_by_what_was_fitted_forward_only(make_aligner, pairs):
    statistics = ClassStatistics().update(pairs[0], torch.zeros(200, dtype=torch.long))
    with pytest.raises(OptionError, match="forward"):
        learned(make_aligner(), *pairs).transport(statistics)
    with pytest.raises(NotFittedError):
        make_aligner().transport(statistics)
