"""Attaching, replacing and detaching: what is refused, what may be exchanged, and what is left behind."""

from __future__ import annotations

import pytest
import torch
from tests.aligning import expected_output
from torch import nn

import elign
from elign import AttachError, ByMask, ByProbe, NotFittedError


def test_the_context_manager_detaches_also_after_an_error(net, shift):
    attachment = elign.attach(net, "fc", shift)
    with pytest.raises(ZeroDivisionError), attachment as entered:
        _ = 1 / (entered is not attachment)
    assert not net.fc._forward_pre_hooks


def test_detaching_twice_does_nothing_more(net, shift, x):
    attachment = elign.attach(net, "fc", shift)
    attachment.detach()
    second = elign.attach(net, "fc", shift)
    attachment.detach()
    assert torch.equal(net(x), expected_output(net, shift, x))
    second.detach()


def test_two_aligners_on_one_head_are_refused_unless_one_replaces_the_other(net, shift, short_energy, x):
    elign.attach(net, "fc", shift)
    with pytest.raises(AttachError, match="replace=True"):
        elign.attach(net, "fc", short_energy)
    assert torch.equal(net(x), expected_output(net, shift, x))
    elign.attach(net, "fc", short_energy, replace=True)
    assert torch.equal(net(x), expected_output(net, short_energy, x))
    assert elign.detach(net) == 1


@pytest.mark.parametrize("first", ["aligner", "readout"])
def test_an_aligner_and_a_readout_that_aligns_by_itself_are_not_for_one_head(net, shift, first):
    aligned = elign.Blend([elign.Aligned(shift, elign.HeadScores())], known=2)
    aligned.choose(torch.randn(8, 6), torch.arange(8) % 4, logits=torch.randn(8, 4))
    one, two = (shift, aligned) if first == "aligner" else (aligned, shift)
    elign.attach(net, "fc", one)
    with pytest.raises(AttachError, match="replace=True"):
        elign.attach(net, "fc", two)
    elign.attach(net, "fc", two, replace=True)
    assert elign.detach(net) == 1


def test_a_replacement_leaves_what_goes_with_it(net, shift, short_energy, x):
    elign.attach(net, "fc", shift)
    elign.attach(net, "fc", elign.HeadScores())
    elign.attach(net, "fc", short_energy, replace=True)
    elign.attach(net, "fc", elign.HeadScores(), replace=True)
    assert torch.equal(net(x), expected_output(net, short_energy, x))
    assert elign.detach(net) == 2


def test_what_cannot_be_attached_is_named(net, shift):
    with pytest.raises(AttachError, match="not a Linear"):
        elign.attach(net, "fc", nn.Linear(6, 6))
    with pytest.raises(AttachError, match="got a int"):
        elign.attach(net, "fc", shift, gate=2)
    assert elign.detach(net) == 0


def test_a_refused_replacement_leaves_the_old_one(net, shift):
    elign.attach(net, "fc", shift)
    with pytest.raises(NotFittedError):
        elign.attach(net, "fc", elign.MeanShift(), replace=True)
    assert elign.detach(net) == 1


def test_detach_finds_all_and_leaves_hooks_of_others(net, shift):
    net.other = nn.Linear(6, 2)
    calls = []
    net.fc.register_forward_pre_hook(lambda module, args: calls.append(1))
    elign.attach(net, "fc", shift)
    elign.attach(net, "other", shift)
    assert elign.detach(net) == 2
    assert elign.detach(net) == 0
    net(torch.zeros(1, 5))
    assert calls == [1]


def test_what_is_not_fitted_is_refused(net, shift):
    with pytest.raises(NotFittedError, match="EnergyAligner"):
        elign.attach(net, "fc", elign.EnergyAligner())
    for gate in (ByProbe(), elign.ByEnergy()):
        with pytest.raises(NotFittedError, match=type(gate).__name__):
            elign.attach(net, "fc", shift, gate=gate)
    assert not net.fc._forward_pre_hooks


def test_heads_that_are_not_there_are_refused(net, shift):
    with pytest.raises(AttachError, match="'fc'"):
        elign.attach(net, "fcc", shift)
    with pytest.raises(AttachError, match="not a part"):
        elign.attach(net, nn.Linear(6, 4), shift)


def test_aligner_and_gate_may_be_exchanged(net, shift, x):
    other = elign.Identity().fit_latents(torch.zeros(1, 6), torch.zeros(1, 6))
    plain = net(x)
    with elign.attach(net, "fc", shift) as attachment:
        attachment.aligner = other
        assert torch.equal(net(x), plain)
        attachment.aligner, attachment.gate = shift, ByMask(torch.zeros(9, dtype=torch.bool))
        assert torch.equal(net(x), plain)


def test_an_aligner_of_another_dimension_than_a_linear_head_is_refused(net):
    z = torch.randn(5, net.fc.in_features + 1)
    with pytest.raises(elign.AttachError, match="dimension 6, the aligner's is 7"):
        elign.attach(net, "fc", elign.MeanShift().fit_latents(z, z))


def test_an_aligner_that_was_fitted_forward_is_not_attached(net, pairs):
    with pytest.raises(AttachError, match="fitted forward"):
        elign.attach(net, "fc", elign.MeanShift().fit_latents(*pairs, direction="forward"))
