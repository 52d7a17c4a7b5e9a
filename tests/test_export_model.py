"""A model with a readout in the place of its head's scores, as a graph that gives the same scores."""

from __future__ import annotations

import pytest
import torch

import elign
from elign import Aligned, Blend, Discriminant, EnergyAligner, HeadScores, MeanShift, NearestMean, Prototypes, Readout
from elign.export import export_model_onnx, export_model_torch
from elign.export_tracing import ExportError
from elign.fit_blend import Labelled, blend_exemplars

DIM, CLASSES, KNOWN = 6, 4, 2


@pytest.fixture
def exemplars(net):
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(5))
    return net.body(x).detach(), torch.arange(40) % CLASSES


class FirstOnly(Readout):
    """A readout of one's own."""

    learns = False

    def forward(self, z, *, logits=None):
        return logits * z[..., :1]


def made(name, net, exemplars, aligner):
    z, labels = exemplars
    aligned = Aligned(aligner, NearestMean().add(aligner.align(z), labels))
    if name == "prototypes":
        return Prototypes().add(z, labels)
    if name == "a class without":
        some = labels != 1
        return Prototypes().add(z[some], labels[some])
    if name == "discriminant":
        return Discriminant().fit(z, 2 * labels)
    if name == "aligned":
        return aligned
    if name == "own":
        return FirstOnly()
    fisher = Discriminant().fit(z, labels)
    if name == "one part twice":
        parts = [HeadScores(), fisher, Aligned(MeanShift().fit_latents(z + 1, z), fisher)]
        return Blend(parts, known=KNOWN, caution=float("inf")).choose(z, labels, logits=net.fc(z))
    parts = [HeadScores(), Prototypes().add(z, labels), NearestMean().add(z, labels), fisher, aligned]
    if name == "default":
        # Without the energy's kinks, where rounding alone moves a row.
        shift = MeanShift().fit_latents(z + 1, z)
        return blend_exemplars(shift, net.fc, Labelled(z, labels), known=[1, KNOWN])
    return Blend(parts, known=KNOWN, caution=float("inf")).choose(z, labels, logits=net.fc(z))


NAMES = ["prototypes", "a class without", "discriminant", "aligned", "own", "blend", "default", "one part twice"]


@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_the_same_scores(name, net, exemplars, short_energy, tmp_path):
    elign.attach(net, "fc", made(name, net, exemplars, short_energy))
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(6))
    path = export_model_torch(net, tmp_path / "model.pt2", x[:2]).path
    served = torch.export.load(path).module()
    torch.testing.assert_close(served(x), net(x).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_onnxruntime_gives_the_same_scores(name, net, exemplars, short_energy, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    elign.attach(net, "fc", made(name, net, exemplars, short_energy))
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(6))
    path = export_model_onnx(net, tmp_path / "model.onnx", x[:2]).path
    (served,) = runtime.InferenceSession(path).run(None, {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(served), net(x).detach(), atol=1e-4, rtol=1e-4)


def test_an_aligner_and_a_readout_on_one_head(net, exemplars, shift, tmp_path):
    elign.attach(net, "fc", shift)
    elign.attach(net, "fc", made("prototypes", net, exemplars, shift))
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(6))
    served = torch.export.load(export_model_torch(net, tmp_path / "m.pt2", x[:2]).path).module()
    torch.testing.assert_close(served(x), net(x).detach(), atol=1e-4, rtol=1e-4)


def test_an_aligner_for_some_outputs(net, short_energy, tmp_path):
    elign.attach(net, "fc", short_energy, outputs=elign.OldOutputs(range(KNOWN)))
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(6))
    served = torch.export.load(export_model_torch(net, tmp_path / "m.pt2", x[:2]).path).module()
    torch.testing.assert_close(served(x), net(x).detach(), atol=1e-4, rtol=1e-4)


def test_a_program_holds_what_scores_need_and_nothing_of_the_machine(net, exemplars, tmp_path):
    elign.attach(net, "fc", Discriminant().fit(*exemplars))
    written = export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5))
    program = torch.export.load(written.path)
    held = {name.rpartition(".")[2] for name in program.state_dict if name.startswith("readouts")}
    assert held >= {"weights", "biases"}
    assert not held & {"means", "precision"}
    inner = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    assert len(inner) == 2, "without operations inside of others this says nothing"
    assert written.nodes == sum(node.op == "call_function" for part in inner for node in part.graph.nodes)
    assert b'.py\\"' not in written.path.read_bytes()


def test_noise_inside_a_readout_is_named(net, exemplars, pairs, tmp_path):
    noisy = EnergyAligner(hidden=(4,), iterations=3, steps=2, noise=0.1).fit_latents(*pairs)
    elign.attach(net, "fc", made("aligned", net, exemplars, noisy))
    with pytest.raises(ExportError, match="drop_noise"):
        export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5))
    assert export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5), drop_noise=True).path.exists()
    elign.detach(net)
    silent = made("blend", net, exemplars, noisy)
    silent.weights = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0])
    elign.attach(net, "fc", silent)
    assert export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5)).path.exists()
    elign.detach(net)
    with pytest.raises(ExportError, match="no aligner or readout"):
        export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5))
