"""What tests of exports share: latents, aligners and gates to export, and what a file should compute.

Without the packages of `elign[export]`, the files that use this are skipped.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import elign

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

DIM = 6
# Steps multiply the graph, and torch needs a while for each of its operations: a few show what many would.
STEPS = 2


def drifted(rows=200, seed=7):
    z_prev = torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))
    return z_prev, z_prev.roll(1, dims=1) + 0.5


def energy(hidden, **options):
    options = {"iterations": 30, "learning_rate": 1e-2, "steps": STEPS, "step_size": 0.5} | options
    return elign.EnergyAligner(hidden=hidden, **options).fit_latents(*drifted())


GATES = {
    "none": lambda aligner: elign.Always(),
    "prediction": lambda aligner: elign.ByPrediction(old_classes=[0, 2]),
    "soft prediction": lambda aligner: elign.ByPrediction(old_classes=2, soft=True),
    "energy": lambda aligner: elign.ByEnergy(quantile=0.5).fit(aligner, drifted()[1]),
    "probe": lambda aligner: elign.ByProbe().fit(*drifted()),
    "soft probe": lambda aligner: elign.ByProbe(soft=True).fit(*drifted()),
}


def head_of(classes=4):
    torch.manual_seed(5)
    return nn.Linear(DIM, classes).eval()


def run_onnx(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def aligned(aligner, gate, head, z):
    with torch.no_grad():
        return aligner.align(z, where=gate(z, head=head, aligner=aligner))
