"""Aligners and gates that cannot be exported say so. Missing packages are named, or done without."""

from __future__ import annotations

import re

import pytest
import torch
from tests.exporting import DIM, GATES, energy, head_of

import eli
from eli import export_files
from eli.export import ExportError, export_onnx, export_torch


def test_an_energy_of_ones_own_is_refused(tmp_path):
    class Own(eli.EnergyModel):
        def forward(self, z):
            return super().forward(z) ** 2

    aligner = energy((4,))
    aligner.energy = Own(DIM, (4,))
    with pytest.raises(ExportError, match="Own"):
        export_torch(aligner, tmp_path / "a.pt2")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gate": eli.ByMask(torch.ones(3, dtype=torch.bool))}, ExportError, "ByMask"),
        ({"gate": eli.ByPrediction(2)}, eli.OptionError, "head="),
        ({"gate": eli.ByPrediction(9), "head": head_of()}, eli.OptionError, "known=9"),
        ({"gate": eli.ByPrediction(2), "head": head_of().forward}, eli.OptionError, "module"),
        ({"gate": eli.ByProbe()}, eli.NotFittedError, "ByProbe"),
        ({"example": torch.zeros(0, DIM)}, eli.LatentError, "empty"),
        ({"example": torch.zeros(3, DIM + 1)}, eli.LatentError, "dimension"),
        ({"opset": 9}, eli.OptionError, "opset"),
    ],
)
def test_what_cannot_be_exported_says_so(tmp_path, shift, options, error, message):
    with pytest.raises(error, match=message):
        export_onnx(shift, tmp_path / "a.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_an_energy_gate_needs_an_energy(tmp_path, shift):
    with pytest.raises(ExportError, match="MeanShift"):
        export_onnx(shift, tmp_path / "a.onnx", gate=GATES["energy"](energy((4,))))


def test_what_is_no_fitted_aligner_says_so(tmp_path, net):
    with pytest.raises(eli.NotFittedError):
        export_onnx(eli.Ridge(), tmp_path / "a.onnx")
    with pytest.raises(eli.OptionError, match="export_model_onnx"):
        export_onnx(net, tmp_path / "a.onnx")


def test_missing_packages_are_named_with_the_command(tmp_path, shift, monkeypatch):
    monkeypatch.setattr(export_files, "_installed", lambda name: name != "onnxscript")
    with pytest.raises(ExportError, match=re.escape("needs onnxscript: pip install 'eli[export]'")):
        export_onnx(shift, tmp_path / "a.onnx")


def test_without_a_runtime_nothing_is_compared(tmp_path, shift, monkeypatch):
    monkeypatch.setattr(export_files, "_installed", lambda name: name != "onnxruntime")
    assert export_onnx(shift, tmp_path / "a.onnx").difference is None
