"""Aligners and gates that cannot be exported say so. Missing packages are named, or done without."""

from __future__ import annotations

import re

import pytest
import torch
from tests.exporting import DIM, GATES, energy, head_of
from torch import nn
from torch.nn import functional as F

import elign
from elign import export
from elign.export import ExportError, export_model_torch, export_onnx, export_torch


def test_an_energy_of_ones_own_is_refused(tmp_path):
    class Own(elign.EnergyModel):
        def forward(self, z):
            return super().forward(z) ** 2

    aligner = energy((4,))
    aligner.energy = Own(DIM, (4,))
    with pytest.raises(ExportError, match="Own"):
        export_torch(aligner, tmp_path / "a.pt2")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gate": elign.ByMask(torch.ones(3, dtype=torch.bool))}, ExportError, "ByMask"),
        ({"gate": elign.ByPrediction(2)}, elign.OptionError, "head="),
        ({"gate": elign.ByPrediction(9), "head": head_of()}, elign.OptionError, "old_classes=9"),
        ({"gate": elign.ByPrediction(2), "head": head_of().forward}, elign.OptionError, "module"),
        ({"gate": elign.ByProbe()}, elign.NotFittedError, "ByProbe"),
        ({"example": torch.zeros(0, DIM)}, elign.LatentError, "empty"),
        ({"example": torch.zeros(3, DIM + 1)}, elign.LatentError, "dimension"),
        ({"opset": 9}, elign.OptionError, "opset"),
        ({"gate": GATES["energy"](energy((4,)))}, elign.NotFittedError, "other aligners have no energy"),
        ({"aligner": elign.Ridge()}, elign.NotFittedError, "Ridge"),
        ({"aligner": nn.Linear(6, 4)}, elign.OptionError, "export_model_onnx"),
        ({"aligner": elign.Always()}, elign.OptionError, "export_model_onnx"),
    ],
)
def test_what_cannot_be_exported_says_so(tmp_path, shift, options, error, message):
    with pytest.raises(error, match=message):
        export_onnx(path=tmp_path / "a.onnx", **{"aligner": shift, **options})
    assert not list(tmp_path.iterdir())


class Odd(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.fc, self.compute = nn.Linear(DIM, 4), compute

    def forward(self, x):
        return self.compute(self.fc, x)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda fc, x: F.linear(x, fc.weight, fc.bias), "does not call 'fc'"),
        (lambda fc, x: fc(x.reshape(len(x), DIM)), r"x\.shape\[0\] can be recorded"),
    ],
    ids=["the head is never called", "the number of rows is fixed"],
)
def test_models_that_cannot_be_recorded_are_told_why(tmp_path, shift, compute, message):
    model = Odd(compute).eval()
    elign.attach(model, "fc", shift)
    with pytest.raises(ExportError, match=message):
        export_model_torch(model, tmp_path / "a.pt2", torch.zeros(3, DIM))
    assert not list(tmp_path.iterdir())


def test_what_torch_says_last_is_kept_and_its_colours_are_not():
    error = RuntimeError("\n".join(["\x1b[96mit failed\x1b[0m", *"abcdefg", "", "because of this"]))
    said = export._first_lines(error)
    assert said.startswith("it failed\n")
    assert said.endswith("\nbecause of this")


def test_missing_packages_are_named_with_the_command(tmp_path, shift, monkeypatch):
    monkeypatch.setattr(export, "_installed", lambda name: name != "onnxscript")
    with pytest.raises(ExportError, match=re.escape("needs onnxscript: pip install 'elign[export]'")):
        export_onnx(shift, tmp_path / "a.onnx")


def test_without_a_runtime_nothing_is_compared(tmp_path, shift, monkeypatch):
    monkeypatch.setattr(export, "_installed", lambda name: name != "onnxruntime")
    assert export_onnx(shift, tmp_path / "a.onnx").difference is None
