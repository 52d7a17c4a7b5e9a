"""The energy model: its shape, its initial weights and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from elign import EnergyModel, LatentError, OptionError


@pytest.mark.parametrize("hidden", [(), (5,), (5, 3), (4, 4, 2)])
def test_it_is_the_mlp_that_it_says_it_is(hidden):
    energy = EnergyModel(7, hidden, slope=0.3)
    layers: list[nn.Module] = []
    for number, (weight, bias) in enumerate(energy.linear_maps()):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight, linear.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        layers += [linear] if number == 0 else [nn.LeakyReLU(0.3), linear]
    for shape in ((7,), (0, 7), (9, 7), (2, 3, 7)):
        z = torch.randn(shape)
        torch.testing.assert_close(energy(z), nn.Sequential(*layers)(z).squeeze(-1))


@pytest.mark.parametrize("shape", [(), (6,), (3, 8), (7, 3)])
def test_refuses_latents_of_another_dimension(shape):
    with pytest.raises(LatentError, match="dimension 7"):
        EnergyModel(7)(torch.zeros(shape))


def test_initial_weights_are_uniform_within_one_over_root_fan_in():
    energy = EnergyModel(100, (400, 50), generator=torch.Generator().manual_seed(0))
    for weight, bias in energy.linear_maps():
        bound = 1 / math.sqrt(weight.shape[1])
        assert weight.abs().max() <= bound
        assert bias.abs().max() <= bound
    weight, _ = energy.linear_maps()[0]
    assert weight.max() > 0.099
    assert weight.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.02)


def test_a_generator_decides_the_weights_and_leaves_the_global_random_state_alone(untouched_random_state):
    one, same, other = (EnergyModel(5, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("option", "values"),
    [("dim", [0, -1, 2.0]), ("hidden", [(0,), (4, -1), (4.5,)]), ("slope", [-0.1, math.nan, math.inf])],
)
def test_refuses_options_out_of_range(option, values):
    for value in values:
        with pytest.raises(OptionError, match=option):
            EnergyModel(**{"dim": 3, option: value})


def test_repr_names_its_options():
    assert "dim=3, hidden=(4,), slope=0.2" in repr(EnergyModel(3, (4,)))
