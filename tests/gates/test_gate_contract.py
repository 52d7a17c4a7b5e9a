"""Gates: which rows are aligned. None sees a label. What holds for all, and `Always` and `ByMask`."""

from __future__ import annotations

import pytest
import torch
from tests.aligning import Z

import elign
from elign import Always, ByEnergy, ByMask, ByPrediction, ByProbe, FixedStrength, Gate, LatentError, OptionError


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


def test_what_is_chosen_under_inference_mode_can_be_loaded_into(gates, short_energy, pairs):
    with torch.inference_mode():
        inside = made(short_energy, [z.clone() for z in pairs])
    for gate, expected in zip(inside, gates, strict=True):
        gate.load_state_dict(expected.state_dict())
        assert not any(value.is_inference() for value in gate.state_dict().values())


def test_the_default_device_does_not_matter(gates, short_energy, pairs):
    with torch.device("meta"):
        found = [gate(pairs[1], head=lambda z: z[..., :3], aligner=short_energy) for gate in made(short_energy, pairs)]
    for weights, gate in zip(found, gates, strict=True):
        assert torch.equal(weights, gate(pairs[1], head=lambda z: z[..., :3], aligner=short_energy))


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
    class Bare(Gate):
        learns = False

    with pytest.raises(NotImplementedError):
        Bare()(Z)
    with pytest.raises(elign.NotFittedError):
        Gate()(Z)


def test_each_gate_says_how_it_is_fitted():
    with pytest.raises(elign.NotFittedError, match=r"call fit\(\.\.\.\) first"):
        elign.ByEnergy()(torch.zeros(1, 2))
    with pytest.raises(elign.NotFittedError, match=r"call fit\(\.\.\.\) first"):
        elign.ByProbe()(torch.zeros(1, 2))


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
