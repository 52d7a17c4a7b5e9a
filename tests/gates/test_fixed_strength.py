"""`FixedStrength`: one share of the way for all latents, chosen on training data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import elign
from elign import FixedStrength, LatentError, MeanShift, NotFittedError, OptionError

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
    with pytest.raises(NotFittedError, match="fit"):
        FixedStrength()(z)
    with pytest.raises(LatentError, match="no label from 9 on"):
        FixedStrength().fit(aligner, nn.Identity(), z, labels, old_classes=9)
    with pytest.raises(LatentError, match="no label from 257 on"):
        FixedStrength().fit(aligner, nn.Identity(), z, labels.to(torch.uint8), old_classes=257)
    with pytest.raises(LatentError, match="200 whole numbers"):
        FixedStrength().fit(aligner, nn.Identity(), z, labels[:3], old_classes=2)
    with pytest.raises(OptionError, match="old_classes must be a whole number"):
        FixedStrength().fit(aligner, nn.Identity(), z, labels, old_classes=[1, 2])
    with pytest.raises(LatentError, match="the head has"):
        FixedStrength().fit(aligner, nn.Linear(z.shape[1], 2), z, labels, old_classes=1)
    forward = MeanShift().fit_latents(z, z + 1, direction="forward")
    with pytest.raises(OptionError, match="backward"):
        FixedStrength().fit(forward, nn.Identity(), z, labels, old_classes=2)
    assert FixedStrength(shares=torch.tensor([0.0, 0.5])).shares == (0.0, 0.5)
    for options in (
        {"shares": None},
        {"shares": ["a"]},
        {"shares": []},
        {"shares": [-1.0]},
        {"shares": [1.5]},
        {"tolerance": 2.0},
    ):
        with pytest.raises(OptionError):
            FixedStrength(**options)
