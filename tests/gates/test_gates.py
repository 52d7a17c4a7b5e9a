"""Gates: which rows are aligned. None sees a label. First what holds for all, with `Always` and `ByMask`."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.aligning import Z
from torch import nn

import elign
from elign import (
    Always,
    ByEnergy,
    ByMask,
    ByPrediction,
    ByProbe,
    FixedStrength,
    Gate,
    LatentError,
    MeanShift,
    NotFittedError,
    OptionError,
)
from elign.gates import _best_threshold, fit_logistic


def made(short_energy, pairs):
    z_old, z_new = pairs[0][:20], pairs[1]
    return [
        Always(),
        ByPrediction(2),
        ByPrediction([0, 2], soft=True),
        ByEnergy(quantile=0.3).fit(short_energy, z_new),
        ByEnergy().fit(short_energy, z_new, z_old),
        ByProbe().fit(z_old, z_new),
        ByProbe(soft=True, penalty=0.5).fit(z_old, z_new),
        FixedStrength(shares=[0.3]).fit(
            short_energy, lambda z: z, z_new, torch.arange(len(z_new), device="cpu") % 6, old_classes=3
        ),
    ]


@pytest.fixture
def gates(short_energy, pairs):
    """One of each that can be saved, ready to use."""
    return made(short_energy, pairs)


def test_every_gate_of_the_package_is_in_this_battery(gates):
    public = {thing for thing in vars(elign).values() if isinstance(thing, type) and issubclass(thing, Gate)}
    assert public - {type(gate) for gate in gates} == {Gate, ByMask}


@pytest.mark.parametrize("shape", [(6,), (0, 6), (5, 6), (2, 3, 6)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_gate_gives_one_weight_per_row(gates, short_energy, shape, dtype):
    z = torch.randn(shape).to(dtype).requires_grad_()
    for gate in gates:
        weights = gate(z, head=lambda z: z[..., :3] * 2, aligner=short_energy)
        assert weights.shape == shape[:-1]
        assert not weights.requires_grad
        if weights.dtype != torch.bool:
            assert ((weights >= 0) & (weights <= 1)).all()
        assert short_energy.align(z, where=weights).shape == shape


def test_saving_and_loading_a_gate_changes_no_bit(gates, short_energy, pairs, tmp_path):
    for gate in gates:
        path = gate.save(tmp_path / "gate.safetensors")
        loaded = Gate.load(path)
        assert type(loaded) is type(gate)
        assert loaded.config() == gate.config()
        one, two = (g(pairs[1], head=lambda z: z[..., :3], aligner=short_energy) for g in (gate, loaded))
        assert one.dtype == two.dtype
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    "mode",
    [torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta")],
    ids=["inference mode", "autocast", "default device"],
)
def test_modes_of_the_caller_do_not_change_what_is_chosen(gates, short_energy, pairs, mode):
    with mode:
        inside = made(short_energy, [z.clone() for z in pairs])
    for gate, expected in zip(inside, gates, strict=True):
        state = expected.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in gate.state_dict().items())
        assert not any(value.is_inference() for value in gate.state_dict().values())
        gate.load_state_dict(state)


def test_modes_of_the_caller_do_not_matter(gates, short_energy, pairs):
    z = torch.cat(pairs).repeat(10, 1) * torch.linspace(0.5, 1.5, 4000).unsqueeze(1)  # some are close to any threshold
    for gate in gates:
        ask = lambda g=gate: g(z, head=lambda z: z[..., :3], aligner=short_energy)  # noqa: E731
        expected = ask()
        for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
            with mode:
                assert torch.equal(ask(), expected)


@pytest.mark.parametrize(
    ("make", "option", "values"),
    [
        (ByEnergy, "quantile", [-0.1, 1.1, torch.nan]),
        (ByProbe, "penalty", [0.0, -1.0, torch.nan, torch.inf]),
        (FixedStrength, "shares", [None, "a", ["a"], [], [-1.0], [1.5]]),
        (FixedStrength, "tolerance", [2.0]),
    ],
)
def test_options_out_of_range_are_an_error(make, option, values):
    for value in values:
        with pytest.raises(OptionError, match=option):
            make(**{option: value})
    with pytest.raises(elign.NotFittedError, match=r"call fit\(\.\.\.\) first"):
        make()(torch.zeros(1, 2))


def test_the_base_class_says_what_a_subclass_must_write():
    class Bare(Gate):
        learns = False

    with pytest.raises(NotImplementedError):
        Bare()(Z)
    with pytest.raises(elign.NotFittedError):
        Gate()(Z)


# --- ByMask ----------------------------------------------------------------------------------------------


def test_a_mask_is_passed_on_and_may_be_set_anew():
    gate = ByMask(torch.tensor([True, False]))
    assert gate(Z[:2]).tolist() == [True, False]
    gate.mask = torch.tensor([0.0, 0.5, 1.0])
    assert gate(Z[:3]).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("shape", [(3,), (5,), (4, 1), ()])
def test_a_mask_for_another_batch_is_an_error(shape):
    with pytest.raises(LatentError, match=r"set gate\.mask"):
        ByMask(torch.ones(shape, dtype=torch.bool))(Z)


def test_a_mask_cannot_be_saved(tmp_path):
    with pytest.raises(OptionError, match="one batch"):
        ByMask(torch.ones(2)).save(tmp_path / "x")
    assert not list(tmp_path.iterdir())


# --- `ByPrediction`: rows that the head takes for an old class.


LOGITS = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 1.0, 0.5], [-1.0, -2.0, -3.0]])


@pytest.mark.parametrize(
    ("old_classes", "expected"),
    [
        (1, [True, False, False, True]),
        (2, [True, False, True, True]),
        (3, [True] * 4),
        ([2], [False, True, False, False]),
        ((0, 2), [True, True, False, True]),
        (torch.tensor([1]), [False, False, True, False]),
        (np.array([1]), [False, False, True, False]),
        (range(1), [True, False, False, True]),
        (np.int64(1), [True, False, False, True]),
        (torch.tensor(1), [True, False, False, True]),
    ],
    ids=str,
)
def test_rows_whose_top_class_is_old(old_classes, expected):
    gate = ByPrediction(old_classes)
    assert gate(Z, head=lambda z: LOGITS).tolist() == expected
    json.dumps(gate.config())
    assert ByPrediction(**gate.config())(Z, head=lambda z: LOGITS).tolist() == expected


def test_a_soft_prediction_is_the_probability_of_the_old_classes():
    torch.testing.assert_close(ByPrediction(2, soft=True)(Z, head=lambda z: LOGITS), LOGITS.softmax(1)[:, :2].sum(1))
    assert (ByPrediction(3, soft=True)(Z, head=lambda z: LOGITS.half()) <= 1).all()
    once, twice = (ByPrediction(old, soft=True)(Z, head=lambda z: LOGITS) for old in ([0, 1], [0, 1, 0]))
    assert torch.equal(once, twice), "a class that is named twice counts once"


@pytest.mark.parametrize("old_classes", [0, -1, [], [-1], [0.5], 1.5, None, "2", True], ids=str)
def test_old_classes_out_of_range_is_an_error(old_classes):
    with pytest.raises(OptionError, match="old_classes"):
        ByPrediction(old_classes)


@pytest.mark.parametrize("old_classes", [4, [3], [0, 7]], ids=str)
def test_old_classes_beyond_the_heads_outputs_is_an_error(old_classes):
    with pytest.raises(OptionError, match="3 outputs"):
        ByPrediction(old_classes)(Z, head=lambda z: LOGITS)


def test_a_prediction_needs_a_head_with_a_row_per_latent():
    with pytest.raises(OptionError, match="head"):
        ByPrediction(2)(Z)
    with pytest.raises(LatentError, match="one row per latent"):
        ByPrediction(2)(Z, head=lambda z: LOGITS[:3])


def test_logits_may_be_taken_out_by_a_function_which_no_file_can_hold(tmp_path):
    gate = ByPrediction(2, logits=lambda output: output["deep"][1])
    assert gate(Z, head=lambda z: {"deep": (0, LOGITS)}).tolist() == [True, False, True, True]
    with pytest.raises(OptionError, match="logits"):
        gate.save(tmp_path / "x")


# --- `ByEnergy`: rows of low energy, below a threshold that is fitted.


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.5, 1.0])
def test_low_energies_are_aligned_up_to_a_quantile_of_the_new_ones(short_energy, pairs, quantile):
    chosen = ByEnergy(quantile=quantile).fit(short_energy, pairs[1])(pairs[1], aligner=short_energy)
    assert chosen.float().mean().item() == pytest.approx(quantile, abs=0.0051)
    with torch.no_grad():
        energies = short_energy.energy(pairs[1])
    assert energies.where(chosen, -math.inf).max() < energies.where(~chosen, math.inf).min()


def test_with_old_latents_the_threshold_tells_the_two_apart(short_energy, pairs):
    z_old, z_new = pairs
    gate = ByEnergy().fit(short_energy, z_new, z_old[:30])
    caught = gate(z_old, aligner=short_energy).float().mean() - gate(z_new, aligner=short_energy).float().mean()
    assert caught > 0.5


VALUES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=8)


@given(old=VALUES, new=VALUES)
def test_no_other_threshold_is_better(old, new):
    """Few distinct values: with many ties, which a threshold cannot split."""
    old, new = torch.tensor(old), torch.tensor(new)

    def quality(threshold):
        return (old < threshold).double().mean() + (new >= threshold).double().mean()

    found = quality(_best_threshold(old, new))
    assert all(found >= quality(at) - 1e-9 for at in torch.arange(-4, 5, 0.5))


@pytest.mark.parametrize(("old", "new"), [([1.0, 2.0], [1.0, 2.0]), ([3.0], [1.0, 2.0]), ([5.0] * 3, [5.0] * 7)])
def test_energies_that_do_not_tell_old_from_new_align_nothing(old, new):
    assert _best_threshold(torch.tensor(old), torch.tensor(new)) == -math.inf


def test_one_old_among_many_new_is_told_apart_in_half_precision():
    threshold = _best_threshold(torch.tensor([-1.0]).half(), torch.linspace(0, 1, 100_000).half())
    assert -1 < threshold <= 0


def test_neighbouring_numbers_are_told_apart():
    low = torch.tensor([1.0])
    high = torch.nextafter(low, torch.tensor([2.0]))
    threshold = _best_threshold(low, high)
    assert low < threshold <= high


def test_energies_of_an_aligner_in_double_precision(pairs):
    z_prev, z_cur = (z.double() for z in pairs)
    aligner = elign.EnergyAligner(hidden=(4,), iterations=3).fit_latents(z_prev, z_cur)
    for z in (z_cur, z_cur.float(), z_cur.bfloat16()):
        gate = ByEnergy(quantile=0.5).fit(aligner, z)
        assert gate(z, aligner=aligner).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_energies_need_an_energy_aligner_that_is_fitted(shift, pairs, short_energy):
    for aligner in (shift, elign.EnergyAligner()):
        with pytest.raises(NotFittedError):
            ByEnergy().fit(aligner, pairs[1])
    with pytest.raises(NotFittedError, match="ByEnergy"):
        ByEnergy()(Z, aligner=short_energy)
    with pytest.raises(OptionError, match="aligner"):
        ByEnergy().fit(short_energy, pairs[1])(Z)


# --- `ByProbe`: rows that a fitted logistic probe takes for old ones.


@pytest.mark.parametrize(("old", "new"), [(1, 1), (1, 300), (300, 1), (5, 1000)])
def test_a_probe_learns_from_few_and_from_unbalanced_latents(old, new):
    generator = torch.Generator().manual_seed(0)
    z_old, z_new = torch.randn(old, 6, generator=generator) + 4, torch.randn(new, 6, generator=generator) - 4
    gate = ByProbe().fit(z_old, z_new)
    assert gate(z_old).all()
    assert not gate(z_new).any()
    soft = ByProbe(soft=True).fit(z_old, z_new)
    assert torch.equal(soft(z_new) > 0.5, gate(z_new))


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(0, 6),
        torch.zeros(3, 5),
        torch.zeros(6),
        torch.full((3, 6), math.nan),
        torch.full((3, 6), math.inf),
        torch.zeros(3, 6, dtype=torch.int32),
    ],
)
def test_fits_refuse_latents_that_cannot_be_used_and_leave_a_gate_as_it_was(short_energy, pairs, bad):
    energy, probe, z = ByEnergy(), ByProbe(), pairs[1]
    for fit in (
        lambda: energy.fit(short_energy, bad),
        lambda: energy.fit(short_energy, z, bad),
        lambda: probe.fit(bad, z),
        lambda: probe.fit(z, bad),
    ):
        with pytest.raises(LatentError):
            fit()
    assert not energy.fitted
    assert not probe.fitted


def test_a_probe_must_meet_its_dimension(pairs):
    with pytest.raises(LatentError, match="dimension 6"):
        ByProbe().fit(*pairs)(torch.zeros(3, 5))


# --- The logistic probe: it is at the minimum of what it says it minimises, on any data.


def gradient_at(z_old, z_new, weight, bias, penalty):
    """Of the documented objective, by automatic differentiation, in standardised coordinates."""
    z = torch.cat([z_old, z_new]).double()
    center, scale = z.mean(dim=0), z.std(dim=0, correction=0)
    v = (weight.double() * scale).requires_grad_()
    c = (bias.double() + (weight.double() * center).sum()).requires_grad_()
    old, new = (((g.double() - center) / scale) @ v + c for g in (z_old, z_new))
    soft = torch.nn.functional.softplus
    loss = 0.5 * soft(-old).mean() + 0.5 * soft(new).mean() + penalty / 2 * v.square().sum()
    return torch.autograd.grad(loss, [v, c])


@given(
    seed=st.integers(0, 10_000),
    old=st.integers(1, 30),
    new=st.integers(1, 200),
    dim=st.integers(1, 6),
    gap=st.sampled_from([0.0, 1.0, 30.0]),
    penalty=st.sampled_from([1e-4, 1e-2, 1.0]),
)
def test_it_is_at_the_minimum_for_small_unbalanced_and_separable_data(seed, old, new, dim, gap, penalty):
    generator = torch.Generator().manual_seed(seed)
    z_old = torch.randn(old, dim, generator=generator) + gap
    z_new = torch.randn(new, dim, generator=generator) * 2
    weight, bias = fit_logistic(z_old, z_new, penalty=penalty)
    assert weight.isfinite().all()
    assert bias.isfinite()
    for slope in gradient_at(z_old, z_new, weight, bias, penalty):
        assert slope.abs().max() < 1e-4


@pytest.mark.parametrize("value", [0.0, 0.1, 1000.1, 1e6 / 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_dimension_gets_no_weight(value, dtype):
    generator = torch.Generator().manual_seed(0)
    z_old = torch.randn(7, 3, generator=generator, dtype=dtype) + 1
    z_new = torch.randn(52, 3, generator=generator, dtype=dtype)
    z_old[:, 1] = z_new[:, 1] = value
    weight, bias = fit_logistic(z_old, z_new, penalty=0.01)
    assert weight[1] == 0
    assert weight[[0, 2]].abs().min() > 0
    assert bias.isfinite()


def test_data_that_are_all_alike_give_no_opinion():
    weight, bias = fit_logistic(torch.ones(3, 4), torch.ones(9, 4), penalty=0.01)
    assert weight.abs().max() == 0
    assert bias.abs() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_result_is_single_precision_not_rounded_to_that_of_the_latents(dtype):
    z_old, z_new = (torch.randn(20, 3) + 1).to(dtype), torch.randn(30, 3).to(dtype)
    weight, bias = fit_logistic(z_old, z_new, penalty=0.1)
    expected = fit_logistic(z_old.double(), z_new.double(), penalty=0.1)
    assert weight.dtype == bias.dtype == torch.float32
    torch.testing.assert_close((weight, bias), expected)


# --- `FixedStrength`: one share of the way for all latents, chosen on training data.


BACK = torch.tensor([0.0, 0.0, 1.0, 1.0])


@pytest.fixture
def world():
    """Four classes, each its own direction; drift adds to the new ones' coordinates, so that old samples look new."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(50)
    z = 2 * torch.eye(4)[labels] + 0.1 * torch.randn(200, 4, generator=generator)
    # It goes three times as far as it should, so that a third of the way is right.
    return z + 3 * BACK, labels, MeanShift().fit_latents(z - 6 * BACK, z + 3 * BACK)


def accuracy(aligner, z, labels, share):
    return float((aligner.align(z, where=torch.full((len(z),), share)).argmax(dim=1) == labels).double().mean())


def test_with_exemplars_it_is_the_best_share_and_the_smallest_of_equals(world):
    z, labels, aligner = world
    gate = FixedStrength().fit(aligner, nn.Identity(), z, labels, old_classes=2)
    found = {share: accuracy(aligner, z, labels, share) for share in gate.shares}
    best = max(found.values())
    assert float(gate.strength) == pytest.approx(min(share for share, value in found.items() if value == best))
    assert 0 < float(gate.strength) < 1


def test_without_them_it_is_the_largest_that_costs_new_classes_nearly_nothing(world):
    z, labels, aligner = world
    new = labels >= 2
    shares = [number / 12 for number in range(13)]
    gate = FixedStrength(shares=shares, tolerance=0.1).fit(aligner, nn.Identity(), z[new], labels[new], old_classes=2)
    found = {share: accuracy(aligner, z[new], labels[new], share) for share in shares}
    assert float(gate.strength) == pytest.approx(max(share for share, value in found.items() if value >= 0.9))
    assert found[max(found)] < 0.9, "the largest share must be too much, or this says nothing"


def test_classes_weigh_the_same_however_many_samples_they_have(world):
    z, labels, aligner = world
    few = torch.cat([(labels == label).nonzero()[: 2 if label < 2 else 50, 0] for label in range(4)])
    one = FixedStrength().fit(aligner, nn.Identity(), z, labels, old_classes=2)
    other = FixedStrength().fit(aligner, nn.Identity(), z[few], labels[few], old_classes=2)
    assert abs(float(one.strength) - float(other.strength)) <= 0.11


def test_it_is_the_weight_of_every_row_also_when_attached(net, shift, tmp_path):
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
    z = net.body(x).detach()
    gate = FixedStrength(shares=[0.5]).fit(shift, net.fc, z, torch.full((9,), 3), old_classes=2)
    assert gate(z.reshape(3, 3, -1)).tolist() == [[0.5] * 3] * 3
    loaded = FixedStrength.load(gate.save(tmp_path / "gate"))
    with elign.attach(net, "fc", shift, gate=loaded):
        torch.testing.assert_close(net(x), net.fc.forward((z + shift.align(z)) / 2))


def test_what_cannot_be_is_said(world):
    z, labels, aligner = world
    forward = MeanShift().fit_latents(z, z + 1, direction="forward")
    for error, says, changed in (
        (LatentError, "no label from 9 on", {"old_classes": 9}),
        (LatentError, "no label from 257 on", {"labels": labels.to(torch.uint8), "old_classes": 257}),
        (LatentError, "200 whole numbers", {"labels": labels[:3]}),
        (OptionError, "old_classes must be a whole number", {"old_classes": [1, 2]}),
        (LatentError, "the head has", {"head": nn.Linear(z.shape[1], 2), "old_classes": 1}),
        (OptionError, "backward", {"aligner": forward}),
    ):
        options = {"aligner": aligner, "head": nn.Identity(), "z": z, "labels": labels, "old_classes": 2} | changed
        with pytest.raises(error, match=says):
            FixedStrength().fit(**options)
    assert FixedStrength(shares=torch.tensor([0.0, 0.5])).shares == (0.0, 0.5)
