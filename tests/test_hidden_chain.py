"""The chain in hidden space: what its two users, sampling and training, rely on."""

from __future__ import annotations

import pytest
import torch

from elign import EnergyModel
from elign.hidden_chain import HiddenChain, standard_normal


def chain_of(energy, step=0.1):
    return HiddenChain(energy, step=step, device=torch.device("cpu"), dtype=torch.float64)


@pytest.mark.parametrize("hidden", [(4,), (4, 3)])
def test_entering_is_the_first_layer(hidden):
    energy = EnergyModel(5, hidden).double()
    z = torch.randn(6, 5, dtype=torch.float64)
    weight, bias = energy.linear_maps()[0]
    torch.testing.assert_close(chain_of(energy).enter(z), (z @ weight.t() + bias).detach())


def test_a_chain_keeps_the_weights_it_was_made_with_out_of_reach():
    energy = EnergyModel(5, (4, 3)).double()
    before = [p.clone() for p in energy.parameters()]
    chain_of(energy).run(torch.randn(6, 5, dtype=torch.float64), 10)
    assert all(torch.equal(a, b) for a, b in zip(before, energy.parameters(), strict=True))


def test_runs_may_be_repeated():
    chain, z = chain_of(EnergyModel(5, (4, 3)).double()), torch.randn(6, 5, dtype=torch.float64)
    assert torch.equal(chain.run(z, 10), chain.run(z, 10))


def test_results_are_ordinary_tensors_inside_inference_mode():
    chain, z = chain_of(EnergyModel(5, (4,)).double()), torch.randn(6, 5, dtype=torch.float64)
    with torch.inference_mode():
        result = chain.run(z, 3)
    assert not result.is_inference()
    result.requires_grad_().sum().backward()


def test_working_memory_does_not_grow_with_the_number_of_rows(monkeypatch):
    """No block has more rows than the default one, whatever the number of latents."""
    chain = chain_of(EnergyModel(3, (1024,)).double())
    seen = []
    enter = HiddenChain.enter
    monkeypatch.setattr(HiddenChain, "enter", lambda self, z: (seen.append(len(z)), enter(self, z))[1])
    chain.run(torch.randn(1000, 3, dtype=torch.float64), 1)
    assert sum(seen) == 1000
    assert max(seen) <= 256


def test_standard_normal_takes_dtype_from_its_model_and_numbers_from_its_generator():
    like = torch.zeros(1, dtype=torch.float64)
    draws = [standard_normal((3, 2), like, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert draws[0].dtype == torch.float64
    assert torch.equal(*draws)
