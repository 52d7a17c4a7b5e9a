"""Gates in attachments: what a gate is asked, what it gets to see, and that the head reads what it decides."""

from __future__ import annotations

import pytest
import torch
from tests.aligning import expected_output
from torch import nn

import elign
from elign import ByMask, ByPrediction, ByProbe, Latents


class Counting(nn.Linear):
    def forward(self, z):
        self.seen = [*getattr(self, "seen", []), z.detach().clone()]
        return super().forward(z)


def test_a_prediction_gate_asks_the_head_once_about_unaligned_latents(net, shift, x):
    net.fc = Counting(6, 4).eval()
    hooks = []
    net.fc.register_forward_pre_hook(lambda module, args: hooks.append(1))
    latents = net.body(x)
    with elign.attach(net, "fc", shift, gate=ByPrediction(2)):
        net(x)
    asked, read = net.fc.seen
    assert torch.equal(asked, latents)
    where = nn.functional.linear(latents, net.fc.weight, net.fc.bias).argmax(dim=1) < 2
    assert torch.equal(read, shift.align(latents, where=where))
    assert hooks == [1]


def test_a_head_that_works_in_place_does_not_spoil_the_latents(net, pairs, x):
    shift = elign.MeanShift().fit_latents(pairs[1], pairs[0])  # by about +2: nothing that the head could cut off
    net.fc = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 4)).eval()
    latents = net.body(x).detach()
    where = net.fc(latents.clone()).argmax(dim=1) < 2
    assert 0 < where.sum() < 9
    expected = net.fc(shift.align(latents, where=where))
    with elign.attach(net, "fc", shift, gate=ByPrediction(2)):
        assert torch.equal(net(x), expected)
        with torch.no_grad():
            assert torch.equal(net(x), expected)


@pytest.mark.parametrize("kind", ["mask", "soft prediction", "probe", "soft probe", "energy"])
def test_every_gate_decides_over_what_the_head_reads(net, short_energy, x, kind):
    latents = net.body(x)
    gates = {
        "mask": lambda: ByMask(torch.arange(9) % 2 == 0),
        "soft prediction": lambda: ByPrediction(2, soft=True),
        "probe": lambda: ByProbe().fit(latents[:4], latents[4:]),
        "soft probe": lambda: ByProbe(soft=True).fit(latents[:4], latents[4:]),
        "energy": lambda: elign.ByEnergy(quantile=0.5).calibrate(short_energy, latents),
    }
    gate = gates[kind]()
    where = gate(latents, head=net.fc, aligner=short_energy)
    assert where.float().std() > 0
    with elign.attach(net, "fc", short_energy, gate=gate):
        assert torch.equal(net(x), expected_output(net, short_energy, x, where=where))


def test_a_gate_sees_latents_head_and_aligner_and_nothing_else(net, shift, x):
    seen = []

    class Nosy(elign.Gate):
        learns = False

        def forward(self, *args, **kwargs):
            seen.append((args, kwargs))
            return torch.ones(len(args[0]), dtype=torch.bool)

    with elign.attach(net, "fc", shift, gate=Nosy()):
        net(x.requires_grad_())
    (((z,), kwargs),) = seen
    assert torch.equal(z, net.body(x))
    assert not z.requires_grad
    assert set(kwargs) == {"head", "aligner"}
    assert kwargs["aligner"] is shift


def test_latents_read_off_an_attached_model_are_the_unaligned_ones_even_with_a_prediction_gate(net, shift, x):
    with elign.attach(net, "fc", shift, gate=ByPrediction(2)):
        assert torch.equal(Latents(net, "fc")(x), net.body(x))
