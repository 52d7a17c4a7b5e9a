"""Langevin descent on energies other than the package's own: they are differentiated, in blocks of rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elign import EnergyModel, LatentError, descend


def test_an_energy_of_any_kind_is_differentiated():
    class Bowl(nn.Module):
        def forward(self, z):
            return 0.5 * z.square().sum(dim=1, keepdim=True)

    torch.testing.assert_close(descend(Bowl(), torch.ones(2, 3), steps=2, step_size=0.5), torch.full((2, 3), 0.25))


def test_an_energy_that_mixes_rows_is_refused():
    class Mean(nn.Module):
        def forward(self, z):
            return z.mean()

    with pytest.raises(LatentError, match="one value per row"):
        descend(Mean(), torch.ones(2, 3))


def test_a_subclass_with_an_energy_of_its_own_is_differentiated_not_taken_for_its_parent():
    class Bowl(EnergyModel):
        def forward(self, z):
            return z.square().sum(dim=-1)

    z = torch.randn(5, 4)
    assert torch.allclose(descend(Bowl(4), z, steps=3, step_size=0.1), z * 0.8**3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_foreign_energy_runs_in_the_precision_of_its_own_weights(dtype):
    energy = torch.nn.Linear(4, 1).to(dtype)
    moved = descend(energy, torch.zeros(3, 4), steps=2, step_size=0.5)
    assert moved.dtype == torch.float32
    assert torch.allclose(moved, -energy.weight.float().expand(3, 4), atol=1e-2)


def test_a_foreign_energy_sees_blocks_of_rows():
    seen = []

    class Bowl(torch.nn.Module):
        def forward(self, z):
            seen.append(len(z))
            return z.square().sum(dim=-1)

    z = torch.randn(5000, 2)
    moved = descend(Bowl(), z, steps=1)
    assert sum(seen) == 5000
    assert max(seen) == 2048
    assert torch.equal(moved, descend(Bowl(), z, steps=1, block_rows=7))
