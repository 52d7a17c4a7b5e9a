"""Attaching, replacing and detaching: what is refused, what may be exchanged, and what is left behind."""

from __future__ import annotations

import pytest
import torch
from tests.aligning import expected_output
from torch import nn

import eli
from eli import AttachError, ByMask, ByProbe, NotFittedError


def test_the_context_manager_detaches_also_after_an_error(net, shift):
    attachment = eli.attach(net, "fc", shift)
    with pytest.raises(ZeroDivisionError), attachment as entered:
        _ = 1 / (entered is not attachment)
    assert not net.fc._forward_pre_hooks


def test_detaching_twice_does_nothing_more(net, shift, x):
    attachment = eli.attach(net, "fc", shift)
    attachment.detach()
    second = eli.attach(net, "fc", shift)
    attachment.detach()
    assert torch.equal(net(x), expected_output(net, shift, x))
    second.detach()


def test_two_aligners_on_one_head_are_refused_unless_one_replaces_the_other(net, shift, short_energy, x):
    eli.attach(net, "fc", shift)
    with pytest.raises(AttachError, match="replace=True"):
        eli.attach(net, "fc", short_energy)
    assert torch.equal(net(x), expected_output(net, shift, x))
    eli.attach(net, "fc", short_energy, replace=True)
    assert torch.equal(net(x), expected_output(net, short_energy, x))
    assert eli.detach(net) == 1


@pytest.mark.parametrize("first", ["aligner", "readout"])
def test_an_aligner_and_a_readout_that_aligns_by_itself_are_not_for_one_head(net, shift, first):
    aligned = eli.Blend([eli.Aligned(shift, eli.HeadScores())], known=2)
    aligned.choose(torch.randn(8, 6), torch.arange(8) % 4, logits=torch.randn(8, 4))
    one, two = (shift, aligned) if first == "aligner" else (aligned, shift)
    eli.attach(net, "fc", one)
    with pytest.raises(AttachError, match="replace=True"):
        eli.attach(net, "fc", two)
    eli.attach(net, "fc", two, replace=True)
    assert eli.detach(net) == 1


def test_a_replacement_leaves_what_goes_with_it(net, shift, short_energy, x):
    eli.attach(net, "fc", shift)
    eli.attach(net, "fc", eli.HeadScores())
    eli.attach(net, "fc", short_energy, replace=True)
    eli.attach(net, "fc", eli.HeadScores(), replace=True)
    assert torch.equal(net(x), expected_output(net, short_energy, x))
    assert eli.detach(net) == 2


def test_what_cannot_be_attached_is_named(net, shift):
    with pytest.raises(AttachError, match="not a Linear"):
        eli.attach(net, "fc", nn.Linear(6, 6))
    with pytest.raises(AttachError, match="got a int"):
        eli.attach(net, "fc", shift, gate=2)
    assert eli.detach(net) == 0


def test_a_refused_replacement_leaves_the_old_one(net, shift):
    eli.attach(net, "fc", shift)
    with pytest.raises(NotFittedError):
        eli.attach(net, "fc", eli.MeanShift(), replace=True)
    assert eli.detach(net) == 1


def test_detach_finds_all_and_leaves_hooks_of_others(net, shift):
    net.other = nn.Linear(6, 2)
    calls = []
    net.fc.register_forward_pre_hook(lambda module, args: calls.append(1))
    eli.attach(net, "fc", shift)
    eli.attach(net, "other", shift)
    assert eli.detach(net) == 2
    assert eli.detach(net) == 0
    net(torch.zeros(1, 5))
    assert calls == [1]


def test_what_is_not_fitted_is_refused(net, shift):
    with pytest.raises(NotFittedError, match="EnergyAligner"):
        eli.attach(net, "fc", eli.EnergyAligner())
    for gate in (ByProbe(), eli.ByEnergy()):
        with pytest.raises(NotFittedError, match=type(gate).__name__):
            eli.attach(net, "fc", shift, gate=gate)
    assert not net.fc._forward_pre_hooks


def test_heads_that_are_not_there_are_refused(net, shift):
    with pytest.raises(AttachError, match="'fc'"):
        eli.attach(net, "fcc", shift)
    with pytest.raises(AttachError, match="not a part"):
        eli.attach(net, nn.Linear(6, 4), shift)


def test_aligner_and_gate_may_be_exchanged(net, shift, x):
    other = eli.Identity().fit_latents(torch.zeros(1, 6), torch.zeros(1, 6))
    plain = net(x)
    with eli.attach(net, "fc", shift) as attachment:
        attachment.aligner = other
        assert torch.equal(net(x), plain)
        attachment.aligner, attachment.gate = shift, ByMask(torch.zeros(9, dtype=torch.bool))
        assert torch.equal(net(x), plain)


def test_an_aligner_of_another_dimension_than_a_linear_head_is_refused(net):
    z = torch.randn(5, net.fc.in_features + 1)
    with pytest.raises(eli.AttachError, match="dimension 6, the aligner's is 7"):
        eli.attach(net, "fc", eli.MeanShift().fit_latents(z, z))


def test_an_aligner_that_was_fitted_forward_is_not_attached(net, pairs):
    with pytest.raises(AttachError, match="fitted forward"):
        eli.attach(net, "fc", eli.MeanShift().fit_latents(*pairs, direction="forward"))
