"""An aligner attached for some outputs of a head: the head is read twice, in evaluation mode only."""

import copy

import pytest
import torch
from torch import nn

import elign
from elign import AttachError, OldOutputs

OLD = OldOutputs(range(2))


def expected(net, aligner, x):
    with torch.no_grad():
        z = net.body(x)
        return OLD.read(net.fc.forward(z), net.fc.forward(aligner.align(z)))


def test_old_outputs_come_from_aligned_latents(net, shift, x):
    plain = net(x)
    wanted = expected(net, shift, x)
    with elign.attach(net, "fc", shift, outputs=OLD) as attachment:
        torch.testing.assert_close(net(x), wanted)
        torch.testing.assert_close(copy.deepcopy(net)(x), wanted)
        attachment.outputs = OldOutputs(range(3))
        assert not torch.allclose(net(x), wanted)
        net.fc.train()
        torch.testing.assert_close(net(x), plain)
        net.eval()
    torch.testing.assert_close(net(x), plain)


def test_the_latent_may_be_any_argument(shift):
    class Head(nn.Linear):
        def forward(self, scale, *, latents):
            return scale * super().forward(latents)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = Head(6, 4)

        def forward(self, z):
            return self.fc(2.0, latents=z)

    model, z = Model().eval(), torch.randn(3, 6)
    wanted = OLD.read(model.fc.forward(2.0, latents=z), model.fc.forward(2.0, latents=shift.align(z)))
    elign.attach(model, "fc", shift, outputs=OLD, argument="latents")
    torch.testing.assert_close(model(z), wanted)


def test_there_is_one_aligner_on_a_head(net, shift):
    elign.attach(net, "fc", shift, outputs=OLD)
    with pytest.raises(AttachError, match="already carries"):
        elign.attach(net, "fc", shift)
    with pytest.raises(AttachError, match="already carries"):
        elign.attach(net, "fc", shift, outputs=OLD)
    elign.attach(net, "fc", shift, replace=True)
    elign.attach(net, "fc", shift, outputs=OLD, replace=True)
    assert elign.detach(net) == 1


def test_a_readout_and_outputs_are_not_for_one_head(net, shift):
    elign.attach(net, "fc", shift, outputs=OLD)
    with pytest.raises(AttachError, match="OutputsAttachment"):
        elign.attach(net, "fc", elign.HeadScores())
    elign.attach(net, "fc", elign.HeadScores(), replace=True)
    with pytest.raises(AttachError, match="ReadoutAttachment"):
        elign.attach(net, "fc", shift, outputs=OLD)
    elign.attach(net, "fc", shift, outputs=OLD, replace=True)
    assert elign.detach(net) == 1


def test_a_gate_or_outputs_but_not_both(net, shift, pairs):
    with pytest.raises(AttachError, match="not both"):
        elign.attach(net, "fc", shift, gate=elign.Always(), outputs=OLD)
    with pytest.raises(AttachError, match="OldOutputs, such as"):
        elign.attach(net, "fc", shift, outputs=range(2))
    with pytest.raises(AttachError, match="no use for either"):
        elign.attach(net, "fc", elign.HeadScores(), outputs=OLD)
    forward = elign.MeanShift().fit_latents(*pairs, direction="forward")
    with pytest.raises(AttachError, match="fitted forward"):
        elign.attach(net, "fc", forward, outputs=OLD)
