"""Gates: which rows are aligned. None sees a label."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eli
from eli import Always, ByEnergy, ByMask, ByPrediction, ByProbe, Dose, Gate, LatentError, NotFittedError, OptionError
from eli.gates import _best_threshold, logits_of

LOGITS = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 1.0, 0.5], [-1.0, -2.0, -3.0]])
Z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def gates(short_energy, pairs):
    """One of each that can be saved, ready to use."""
    z_old, z_new = pairs[0][:20], pairs[1]
    return [
        Always(),
        ByPrediction(2),
        ByPrediction([0, 2], soft=True),
        ByEnergy(quantile=0.3).calibrate(short_energy, z_new),
        ByEnergy().calibrate(short_energy, z_new, z_old),
        ByProbe().fit(z_old, z_new),
        ByProbe(soft=True, penalty=0.5).fit(z_old, z_new),
        Dose(shares=[0.3]).choose(short_energy, lambda z: z, z_new, torch.arange(len(z_new)) % 6, known=3),
    ]


def test_every_gate_of_the_package_is_in_this_battery(gates):
    public = {thing for thing in vars(eli).values() if isinstance(thing, type) and issubclass(thing, Gate)}
    assert public - {type(gate) for gate in gates} == {Gate, ByMask}


@pytest.mark.parametrize("shape", [(6,), (0, 6), (5, 6), (2, 3, 6)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_gate_gives_one_weight_per_row(gates, short_energy, shape, dtype):
    z = torch.randn(shape).to(dtype)
    for gate in gates:
        weights = gate(z, head=lambda z: z[..., :3], aligner=short_energy)
        assert weights.shape == shape[:-1]
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


def test_modes_of_the_caller_do_not_matter(gates, short_energy, pairs):
    z = torch.cat(pairs).repeat(10, 1) * torch.linspace(0.5, 1.5, 4000).unsqueeze(1)  # some are close to any threshold
    for gate in gates:
        ask = lambda g=gate: g(z, head=lambda z: z[..., :3], aligner=short_energy)  # noqa: E731
        expected = ask()
        for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
            with mode:
                assert torch.equal(ask(), expected)


def test_a_gate_carries_no_gradient(gates, short_energy):
    z = Z.clone().requires_grad_()
    for gate in gates:
        assert not gate(z, head=lambda z: z[..., :3] * 2, aligner=short_energy).requires_grad


def test_the_base_class_says_what_a_subclass_must_write():
    with pytest.raises(NotImplementedError):
        Gate()(Z)


def test_always_takes_all_rows():
    assert Always()(torch.zeros(2, 3, 5)).all()
    assert Always().fitted


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


# --- ByPrediction ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (1, [True, False, False, True]),
        (2, [True, False, True, True]),
        (3, [True] * 4),
        ([2], [False, True, False, False]),
        ((0, 2), [True, True, False, True]),
        (torch.tensor([1]), [False, False, True, False]),
        (np.array([1]), [False, False, True, False]),
        (range(1), [True, False, False, True]),
    ],
    ids=str,
)
def test_rows_whose_top_class_is_old(known, expected):
    gate = ByPrediction(known)
    assert gate(Z, head=lambda z: LOGITS).tolist() == expected
    json.dumps(gate.config())
    assert ByPrediction(**gate.config())(Z, head=lambda z: LOGITS).tolist() == expected


def test_a_soft_prediction_is_the_probability_of_the_old_classes():
    torch.testing.assert_close(ByPrediction(2, soft=True)(Z, head=lambda z: LOGITS), LOGITS.softmax(1)[:, :2].sum(1))
    assert (ByPrediction(3, soft=True)(Z, head=lambda z: LOGITS.half()) <= 1).all()


@pytest.mark.parametrize("known", [0, -1, [], [-1], [0.5], 1.5, None, "2"], ids=str)
def test_known_out_of_range_is_an_error(known):
    with pytest.raises(OptionError, match="known"):
        ByPrediction(known)


@pytest.mark.parametrize("known", [4, [3], [0, 7]], ids=str)
def test_known_beyond_the_heads_outputs_is_an_error(known):
    with pytest.raises(OptionError, match="3 outputs"):
        ByPrediction(known)(Z, head=lambda z: LOGITS)


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


@pytest.mark.parametrize(
    "output",
    [LOGITS, {"loss": 1, "logits": LOGITS}, {"scores": LOGITS}, (LOGITS, 1), [LOGITS]],
    ids=["tensor", "logits", "only", "tuple", "list"],
)
def test_logits_are_found_in_what_heads_return(output):
    assert logits_of(output) is LOGITS


@pytest.mark.parametrize("output", [None, "x", ("x", LOGITS), {"logits": 3}], ids=str)
def test_logits_that_cannot_be_found_are_an_error(output):
    with pytest.raises(OptionError, match="logits="):
        logits_of(output)


# --- ByEnergy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.5, 1.0])
def test_the_threshold_is_a_quantile_of_new_energies(short_energy, pairs, quantile):
    gate = ByEnergy(quantile=quantile).calibrate(short_energy, pairs[1])
    assert gate(pairs[1], aligner=short_energy).float().mean().item() == pytest.approx(quantile, abs=0.0051)


def test_low_energies_are_aligned(short_energy, pairs):
    gate = ByEnergy(quantile=0.3).calibrate(short_energy, pairs[1])
    chosen = gate(pairs[1], aligner=short_energy)
    with torch.no_grad():
        energies = short_energy.energy(pairs[1])
    assert energies[chosen].max() < energies[~chosen].min()


def test_with_old_latents_the_threshold_tells_the_two_apart(short_energy, pairs):
    z_old, z_new = pairs
    gate = ByEnergy().calibrate(short_energy, z_new, z_old[:30])
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


def test_neighbouring_numbers_are_told_apart():
    low = torch.tensor([1.0])
    high = torch.nextafter(low, torch.tensor([2.0]))
    threshold = _best_threshold(low, high)
    assert low < threshold <= high


def test_energies_of_an_aligner_in_double_precision(pairs):
    z_prev, z_cur = (z.double() for z in pairs)
    aligner = eli.EnergyAligner(hidden=(4,), iterations=3).fit_latents(z_prev, z_cur)
    for z in (z_cur, z_cur.float(), z_cur.bfloat16()):
        gate = ByEnergy(quantile=0.5).calibrate(aligner, z)
        assert gate(z, aligner=aligner).float().mean().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_energies_of_a_converted_aligner(short_energy, pairs, dtype):
    gate = ByEnergy(quantile=0.5).calibrate(short_energy.to(dtype), pairs[1])
    assert gate(pairs[1], aligner=short_energy).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_energies_need_an_energy_aligner_that_is_fitted(shift, pairs, short_energy):
    for aligner in (shift, eli.EnergyAligner()):
        with pytest.raises(NotFittedError):
            ByEnergy().calibrate(aligner, pairs[1])
    with pytest.raises(NotFittedError, match="ByEnergy"):
        ByEnergy()(Z, aligner=short_energy)
    with pytest.raises(OptionError, match="aligner"):
        ByEnergy().calibrate(short_energy, pairs[1])(Z)


@pytest.mark.parametrize("bad", [torch.zeros(0, 6), torch.full((2, 6), math.nan), torch.zeros(2, 5), torch.zeros(6)])
def test_calibration_refuses_latents_that_cannot_be_used_and_stays_as_it_was(short_energy, pairs, bad):
    gate = ByEnergy()
    with pytest.raises(LatentError):
        gate.calibrate(short_energy, bad)
    with pytest.raises(LatentError):
        gate.calibrate(short_energy, pairs[1], bad)
    assert not gate.fitted


@pytest.mark.parametrize("quantile", [-0.1, 1.1, math.nan])
def test_a_quantile_out_of_range_is_an_error(quantile):
    with pytest.raises(OptionError, match="quantile"):
        ByEnergy(quantile=quantile)


# --- ByProbe ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [(1, 1), (1, 300), (300, 1), (5, 1000)])
def test_a_probe_learns_from_few_and_from_unbalanced_latents(old, new):
    generator = torch.Generator().manual_seed(0)
    z_old, z_new = torch.randn(old, 6, generator=generator) + 4, torch.randn(new, 6, generator=generator) - 4
    gate = ByProbe().fit(z_old, z_new)
    assert gate(z_old).all()
    assert not gate(z_new).any()
    soft = ByProbe(soft=True).fit(z_old, z_new)
    assert torch.equal(soft(z_new) > 0.5, gate(z_new))


def test_a_probe_says_yes_from_one_half_on(pairs):
    z = torch.cat(pairs)
    hard, soft = (ByProbe(soft=soft).fit(pairs[0] + 1.5, pairs[1])(z) for soft in (False, True))
    assert ((soft > 0.4) & (soft < 0.6)).sum() > 5
    assert torch.equal(hard, soft > 0.5)


def test_a_probe_of_latents_all_alike_has_no_opinion():
    soft = ByProbe(soft=True).fit(torch.ones(3, 6), torch.ones(9, 6))
    torch.testing.assert_close(soft(torch.randn(4, 6)), torch.full((4,), 0.5), atol=1e-4, rtol=0)


def test_a_probe_learns_under_autocast_and_inference_mode_as_outside(pairs):
    expected = ByProbe().fit(pairs[0], pairs[1])
    for mode in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with mode:
            gate = ByProbe().fit(pairs[0], pairs[1])
        assert torch.equal(gate.weight, expected.weight)


def test_a_probe_may_be_fitted_again_with_another_dimension(pairs):
    gate = ByProbe().fit(torch.randn(5, 3), torch.randn(5, 3)).fit(*pairs)
    assert gate(pairs[0]).shape == (200,)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (torch.zeros(0, 6), torch.zeros(3, 6)),
        (torch.zeros(3, 6), torch.zeros(0, 6)),
        (torch.zeros(3, 6), torch.zeros(3, 5)),
        (torch.zeros(6), torch.zeros(6)),
        (torch.full((3, 6), math.inf), torch.zeros(3, 6)),
        (torch.zeros(3, 6, dtype=torch.int32), torch.zeros(3, 6)),
    ],
)
def test_a_probe_refuses_latents_that_cannot_be_used(old, new):
    gate = ByProbe()
    with pytest.raises(LatentError):
        gate.fit(old, new)
    assert not gate.fitted


def test_a_probe_must_be_fitted_and_meet_its_dimension(pairs):
    with pytest.raises(NotFittedError):
        ByProbe()(Z)
    with pytest.raises(LatentError, match="dimension 6"):
        ByProbe().fit(*pairs)(torch.zeros(3, 5))


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.nan, math.inf])
def test_a_penalty_out_of_range_is_an_error(penalty):
    with pytest.raises(OptionError, match="penalty"):
        ByProbe(penalty=penalty)


@pytest.mark.parametrize("output", [{"boxes": torch.zeros(2, 4), "scores": torch.zeros(2, 3)}, {}, (), []])
def test_output_without_clear_logits_asks_for_a_function(output):
    with pytest.raises(eli.OptionError, match="give logits="):
        eli.ByPrediction(known=1)(torch.zeros(2, 3), head=lambda z: output)


@pytest.mark.parametrize("known", [np.int64(2), torch.tensor(2), 2])
def test_numbers_of_numpy_and_torch_count_classes(known):
    assert eli.ByPrediction(known=known).known == 2


def test_a_truth_value_is_no_number_of_classes():
    with pytest.raises(eli.OptionError, match="known"):
        eli.ByPrediction(known=True)


def test_each_gate_says_how_it_is_fitted():
    with pytest.raises(eli.NotFittedError, match="calibrate"):
        eli.ByEnergy()(torch.zeros(1, 2))
    with pytest.raises(eli.NotFittedError, match=r"call fit\(\.\.\.\) first"):
        eli.ByProbe()(torch.zeros(1, 2))
