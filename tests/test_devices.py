"""The same on an accelerator as on the CPU; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

import elign

DEVICES = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}


@pytest.fixture(params=DEVICES)
def device(request):
    if not DEVICES[request.param]():
        pytest.skip(f"there is no {request.param} device on this machine")
    return request.param


def test_alignment_is_that_of_the_cpu(device, pairs):
    z_prev, z_cur = pairs
    for aligner in (elign.EnergyAligner(iterations=50), elign.MeanShift(), elign.Ridge(), elign.RandomShift()):
        expected = aligner.fit_latents(z_prev, z_cur).align(z_cur)
        for one in (aligner, aligner.to(device), aligner.fit_latents(z_prev.to(device), z_cur.to(device))):
            moved = one.align(z_cur.to(device))
            assert moved.device.type == device
            assert torch.allclose(moved.cpu(), expected, atol=1e-3)


def test_noise_takes_a_generator_of_either_device(device):
    energy, z = elign.EnergyModel(8).to(device), torch.zeros(5, 8, device=device)
    for place in ("cpu", device):
        one, two = (elign.descend(energy, z, noise=1.0, generator=torch.Generator(place).manual_seed(0)) for _ in "ab")
        assert torch.equal(one, two)


def test_gates_and_attachments_follow_the_model(device, net, short_energy, pairs):
    z_cur = pairs[1].to(device)
    net.to(device)
    probe = elign.ByProbe().fit(z_cur + 1, z_cur)
    energy = elign.ByEnergy().fit(short_energy.to(device), z_cur, z_cur - 1)
    for gate in (elign.Always(), probe, energy, elign.ByPrediction(old_classes=2)):
        with elign.attach(net, "fc", short_energy, gate=gate), torch.inference_mode():
            assert net(torch.randn(4, 5, device=device)).device.type == device
