"""Heads that are copied, saved and loaded."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from elign.lab.models.heads import CosineHead, LinearHead, SplitCosineHead

HEADS = [lambda: LinearHead(3, 4), lambda: CosineHead(3, 4), lambda: SplitCosineHead(3, 2, 2)]


@pytest.mark.parametrize("make", HEADS)
def test_a_deep_copy_is_equal_and_apart(make):
    head, z = make(), torch.randn(2, 3)
    twin = copy.deepcopy(head)
    before = head(z)
    assert torch.equal(twin(z), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(torch.rand_like(parameter))
    assert torch.equal(head(z), before)
    assert not torch.equal(twin(z), before)


@pytest.mark.parametrize("make", HEADS)
def test_state_dict_round_trip(make):
    head, other, z = make(), make(), torch.randn(2, 3)
    assert not torch.equal(other(z), head(z))
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(z), head(z))


def test_a_grown_head_has_its_state_in_one_of_the_same_size():
    grown, fresh, z = LinearHead(3, 2).grow(4), LinearHead(3, 4), torch.randn(2, 3)
    fresh.load_state_dict(grown.state_dict())
    assert torch.equal(fresh(z), grown(z))


def test_split_head_through_safetensors(tmp_path):
    head, z = SplitCosineHead.after(CosineHead(4, 3), 2), torch.randn(3, 4)
    nn.init.constant_(head.sigma, 3.5)
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    other = SplitCosineHead(4, 3, 2)
    other.load_state_dict(load_file(tmp_path / "head.safetensors"))
    assert other.sigma.item() == 3.5
    assert torch.equal(other(z), head(z))
