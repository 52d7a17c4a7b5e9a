"""Readouts in the place of a head, whatever that returns; and latents that are aligned before they are read."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import elign
from elign import Aligned, AttachError, MeanShift, NearestMean, NotFittedError, Prototypes, Readout
from elign.head_outputs import logits_of


class Sum(Readout):
    """The head's logits plus the first coordinate of the latent."""

    learns = False

    def forward(self, z, *, logits=None):
        return logits + z[..., :1]


def test_prototypes_take_the_place_of_a_head(net, x):
    z = net.body(x).detach()
    prototypes = Prototypes().add(z, torch.arange(9) % 4)
    before = net(x)
    with elign.attach(net, "fc", prototypes) as attachment:
        assert attachment.readout is prototypes
        assert torch.equal(net(x), prototypes(z))
        net.fc.train()
        assert torch.equal(net(x), before)
        net.fc.eval()
    assert torch.equal(net(x), before)


def test_a_readout_reads_aligned_latents_and_the_logits_of_these(net, x, shift):
    with elign.attach(net, "fc", shift), elign.attach(net, "fc", Sum()):
        moved = shift.align(net.body(x))
        torch.testing.assert_close(net(x), net.fc.forward(moved) + moved[:, :1])
        assert elign.detach(net) == 2
    assert not net.fc._forward_hooks
    assert not net.fc._forward_pre_hooks


class Result(NamedTuple):
    logits: Tensor
    extra: str


class Wrapped(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.linear = nn.Linear(6, 4)

    def forward(self, z):
        return self.form(self.linear(z))


@pytest.mark.parametrize(
    "form",
    [
        lambda y: y,
        lambda y: (y, "extra"),
        lambda y: [y, "extra"],
        lambda y: Result(y, "extra"),
        lambda y: {"logits": y, "extra": 1},
        lambda y: {"only": y},
        lambda y: OrderedDict(logits=y, extra=1),
    ],
)
def test_what_a_head_returns_keeps_its_form(form):
    model = nn.Sequential(nn.Linear(5, 6), Wrapped(form)).eval()
    before = model(torch.ones(2, 5))
    with elign.attach(model, "1", Sum()):
        after = model(torch.ones(2, 5))
    assert type(after) is type(before)
    plain, changed = (logits_of(output) for output in (before, after))
    torch.testing.assert_close(changed, plain + model[0](torch.ones(2, 5))[:, :1])
    if not isinstance(before, torch.Tensor):
        assert len(after) == len(before)


def test_one_readout_on_a_head_at_a_time_and_no_gate(net):
    elign.attach(net, "fc", Sum())
    with pytest.raises(AttachError, match=r"already carries .*ReadoutAttachment"):
        elign.attach(net, "fc", Sum())
    other = Sum()
    assert elign.attach(net, "fc", other, replace=True).readout is other
    assert elign.detach(net) == 1
    with pytest.raises(AttachError, match="no use for either"):
        elign.attach(net, "fc", Sum(), gate=elign.Always())
    with pytest.raises(NotFittedError):
        elign.attach(net, "fc", Prototypes())
    small = Prototypes().add(torch.ones(1, 3), torch.tensor([0]))
    for readout in (small, Aligned(MeanShift().fit_latents(torch.ones(1, 3), torch.ones(1, 3)), small)):
        with pytest.raises(AttachError, match="dimension 6, the readout's is 3"):
            elign.attach(net, "fc", readout)


def test_aligned_reads_what_the_aligner_makes_of_latents(pairs):
    z, _ = pairs
    labels = torch.arange(len(z)) % 4
    aligner = MeanShift().fit_latents(z + 3, z)
    made = Aligned(aligner, Prototypes().add(z + 3, labels))
    torch.testing.assert_close(made(z), Prototypes().add(z + 3, labels)(z + 3), atol=1e-5, rtol=1e-5)
    means = NearestMean().add(z + 3, labels)
    expected = means.left_out(z + 3, labels)
    torch.testing.assert_close(Aligned(aligner, means).left_out(z, labels), expected, atol=1e-5, rtol=1e-5)
    assert not Aligned(MeanShift(), Prototypes()).fitted
    with pytest.raises(NotFittedError, match="of its aligner"):
        Aligned(MeanShift(), Prototypes()).require_fitted()
