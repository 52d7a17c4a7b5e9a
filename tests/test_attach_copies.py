"""Models with an attached aligner, copied, pickled, replicated or wrapped: they align too."""

from __future__ import annotations

import copy
import io

import torch
from tests.aligning import expected_output
from torch import nn

import elign
from elign import ByPrediction


def test_a_deep_copy_aligns_too_and_is_independent(net, shift, x):
    attachment = elign.attach(net, "fc", shift)
    aligned = net(x)
    copied = copy.deepcopy(net)
    assert torch.equal(copied(x), aligned)
    assert elign.detach(copied) == 1
    assert not torch.allclose(copied(x), aligned)
    assert torch.equal(net(x), aligned)
    other = copy.deepcopy(net)
    attachment.detach()
    assert not torch.allclose(net(x), aligned)
    assert torch.equal(other(x), aligned)
    shift.shift.zero_()
    assert torch.equal(other(x), aligned)


def test_a_pickled_model_aligns_and_can_be_detached(net, short_energy, x):
    elign.attach(net, "fc", short_energy, gate=ByPrediction(2))
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(x), net(x))
    assert elign.detach(loaded) == 1
    assert elign.detach(net) == 1
    assert torch.equal(loaded(x), net(x))


def test_replicas_align_with_their_own_weights(net, shift, x):
    elign.attach(net, "fc", shift, gate=ByPrediction(2))
    expected = net(x)
    replica = net._replicate_for_data_parallel()
    replica.body = net.body
    replica.fc = net.fc._replicate_for_data_parallel()
    replica.fc.weight, replica.fc.bias = net.fc.weight * 1, net.fc.bias * 1
    assert torch.equal(replica(x), expected)
    replica.fc.bias = net.fc.bias + 1
    assert torch.equal(net(x), expected)


def test_data_parallel_aligns(net, shift, x):
    elign.attach(net, "fc", shift)
    assert torch.equal(nn.DataParallel(net)(x), net(x))


def test_attaching_through_a_wrapper(net, shift, x):
    wrapped = nn.DataParallel(net)
    with elign.attach(wrapped, "module.fc", shift):
        assert torch.equal(wrapped(x), expected_output(net, shift, x))
