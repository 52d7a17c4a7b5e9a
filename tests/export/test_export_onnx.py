"""Aligners and gates as ONNX files: onnxruntime computes what PyTorch computes, for every aligner and every gate."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.aligning import learned
from tests.exporting import DIM, GATES, STEPS, aligned, drifted, energy, head_of, run_onnx
from torch import nn

import elign
from elign import export
from elign.export import AlignedLatents, Recording, export_onnx, write_onnx

onnx = pytest.importorskip("onnx")

ALIGNERS = {
    "linear energy": lambda: energy(()),
    "energy of one layer": lambda: energy((64,)),
    "energy of two layers": lambda: energy((64, 64)),
    "half steps, float64": lambda: elign.EnergyAligner(
        hidden=(8, 4, 3), steps=1, half_step=True, iterations=9, learning_rate=1e-2
    ).fit_latents(*(z.double() for z in drifted())),
    "no steps": lambda: energy((4,), steps=0),
    "identity": lambda: elign.Identity().fit_latents(*drifted()),
    "mean shift": lambda: elign.MeanShift().fit_latents(*drifted()),
    "random shift": lambda: elign.RandomShift().fit_latents(*drifted()),
    "ridge": lambda: elign.Ridge().fit_latents(*drifted()),
    "linear map": lambda: elign.GLS().fit_latents(*drifted()),
    "hopfield": lambda: elign.HopfieldShift(top=20).fit_latents(*drifted()),
    "fisher": lambda: elign.FisherShift(head=head_of()).fit_latents(*drifted()),
    "dual": lambda: elign.DualE(experts=3).fit_latents(*drifted()),
    "adversarial": lambda: learned(elign.ADC(step=0.1, norm="image"), *drifted()),
    "network": lambda: elign.MLPMap(width=2, epochs=1).fit_latents(*drifted()),
}
COMBINATIONS = [(aligner, "none") for aligner in ALIGNERS]
COMBINATIONS += [("energy of two layers", gate) for gate in GATES if gate != "none"]
COMBINATIONS += [("mean shift", gate) for gate in GATES if gate not in ("none", "energy")]


class Everything(nn.Module):
    """All combinations side by side: (N, D) to (N, combinations, D)."""

    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, z):
        return torch.stack([part(z) for part in self.parts], dim=1)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """One ONNX file with all combinations, since an export takes seconds; what goes into each; and the latents."""
    made = {name: make() for name, make in ALIGNERS.items()}
    head, z = head_of(), drifted(seed=8)[1]
    pairs = {(a, g): (made[a], GATES[g](made[a])) for a, g in COMBINATIONS}
    module = Everything(
        AlignedLatents(export.deterministic(aligner, drop_noise=False), export.ready_gate(gate), copy.deepcopy(head))
        for aligner, gate in pairs.values()
    )
    expected = torch.stack([aligned(*pair, head, z) for pair in pairs.values()], dim=1)
    path = tmp_path_factory.mktemp("onnx") / "everything.onnx"
    write_onnx(Recording.of(module, (z,), expected, names=("latents", "aligned")), path, opset=18, verify=False)
    return path, pairs, head, z


@pytest.fixture(scope="module")
def served(everything):
    path, _, _, z = everything
    return {rows: run_onnx(path, z[:rows]) for rows in (1, 3, 200)}


@pytest.mark.parametrize("combination", COMBINATIONS, ids=", ".join)
def test_onnxruntime_aligns_as_pytorch_does(everything, served, combination):
    _, pairs, head, z = everything
    aligner, gate = pairs[combination]
    for rows, results in served.items():
        result = results[:, COMBINATIONS.index(combination)]
        torch.testing.assert_close(result, aligned(aligner, gate, head, z[:rows]), rtol=1e-5, atol=1e-5)
    moved = (result != z).any(dim=1)
    if combination[0] not in ("identity", "no steps"):
        assert moved.any()
    if combination[1] in ("prediction", "energy", "probe"):
        assert not moved.all()


def test_the_file_is_a_small_graph_with_named_ends_and_nothing_about_the_machine(tmp_path):
    aligner = energy((64, 64))
    path = tmp_path / "folder" / "aligner.onnx"
    made = export_onnx(aligner, path, gate=GATES["energy"](aligner), example=drifted()[1][:50])
    content = path.read_bytes()
    assert b".py" not in content
    assert str(Path(elign.__file__).parent).encode() not in content
    model = onnx.load_from_string(content)
    assert model.opset_import[0].version == 18
    graph = model.graph
    ends = {
        end.name: [dim.dim_param or dim.dim_value for dim in end.type.tensor_type.shape.dim]
        for end in (*graph.input, *graph.output)
    }
    assert ends == {"latents": ["batch", DIM], "aligned": ["batch", DIM]}
    assert made.nodes == len(graph.node) <= 10 * STEPS + 10
    assert made.difference < 1e-5
    assert list(path.parent.iterdir()) == [made.path]


def test_the_core_imports_without_the_packages_of_the_extra():
    code = (
        "import sys, elign, elign.export; print([n for n in ('onnx', 'onnxscript', 'onnxruntime') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
