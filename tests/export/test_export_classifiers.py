"""A model with a classifier in the place of its head's scores, as a graph that gives the same scores."""

from __future__ import annotations

import pytest
import torch

import elign
from elign import (
    Aligned,
    EnergyAligner,
    Gaussian,
    HeadLogits,
    LatentClassifier,
    LinearHead,
    MeanShift,
    NearestMean,
    Voting,
    WeightAligned,
)
from elign.export import ExportError, export_model_onnx, export_model_torch, export_torch

DIM, CLASSES, KNOWN = 6, 4, 2


@pytest.fixture
def exemplars(net):
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(5))
    return net.body(x).detach(), torch.arange(40) % CLASSES


def directions(z, labels, **options):
    return Gaussian(shared=1.0, shrinkage=0.1, normalize=True).fit(z=z, labels=labels, **options)


def aligned(net, z, labels, aligner):
    return Aligned(aligner, NearestMean().fit(z=aligner.align(z), labels=labels))


def a_class_without(net, z, labels, aligner):
    some = labels != 1
    return NearestMean(normalize=False).fit(z=z[some], labels=labels[some])


def voting(parts, net, z, labels, boundaries=KNOWN):
    """All of them vote."""
    equal = Voting(parts, task_boundaries=boundaries, standard_errors=float("inf"))
    return equal.fit(z=z, labels=labels, logits=net.fc(z))


def all_kinds(net, z, labels, aligner):
    means = [NearestMean(normalize=each).fit(z=z, labels=labels) for each in (False, True)]
    parts = [HeadLogits(), *means, directions(z, labels), aligned(net, z, labels, aligner)]
    return voting(parts, net, z, labels)


def one_part_twice(net, z, labels, aligner):
    fisher = directions(z, labels)
    shifted = Aligned(MeanShift().fit_latents(z + 1, z), fisher)
    return voting([HeadLogits(), fisher, shifted, shifted, Aligned(shifted.aligner, shifted)], net, z, labels)


def several_tasks(net, z, labels, aligner):
    # Without the energy's kinks, where rounding alone moves a row.
    shift = MeanShift().fit_latents(z + 1, z)
    moved = Aligned(shift, directions(shift.align(z), labels, classes=CLASSES))
    return voting([HeadLogits(), moved], net, z, labels, boundaries=[1, KNOWN])


MAKERS = {
    "means": lambda net, z, labels, aligner: NearestMean(normalize=False).fit(z=z, labels=labels),
    "a class without": a_class_without,
    "directions": lambda net, z, labels, aligner: directions(z, 2 * labels),
    "linear": lambda net, z, labels, aligner: Gaussian(shared=1.0).fit(z=z, labels=labels, classes=CLASSES + 1),
    "quadratic": lambda net, z, labels, aligner: Gaussian(shared=0.5).fit(z=z, labels=labels, classes=CLASSES + 1),
    "linear head": lambda net, z, labels, aligner: LinearHead().fit(z=z, labels=labels, head=net.fc),
    "weights": lambda net, z, labels, aligner: WeightAligned().fit(head=net.fc, old_classes=KNOWN),
    "bic": lambda net, z, labels, aligner: elign.BiC().fit(z, labels, head=net.fc, old_classes=KNOWN),
    "il2m": lambda net, z, labels, aligner: elign.IL2M().fit(
        z, labels, head=net.fc, old_classes=KNOWN, birth=dict.fromkeys(range(KNOWN), (0.9, 0.8))
    ),
    "ridge head": lambda net, z, labels, aligner: elign.RidgeHead(penalty=1.0).fit(z=z, labels=labels),
    "random features": lambda net, z, labels, aligner: elign.RandomFeatures(width=60).fit(z=z, labels=labels),
    "fecam": lambda net, z, labels, aligner: elign.FeCAM(power=0.5).fit(z=z, labels=labels),
    "aligned": aligned,
    "voting": all_kinds,
    "several tasks": several_tasks,
    "one part twice": one_part_twice,
}


def made(name, net, exemplars, aligner):
    return MAKERS[name](net, *exemplars, aligner)


def test_every_classifier_of_the_package_is_in_this_battery(net, exemplars, shift):
    there = {type(part) for name in MAKERS for part in made(name, net, exemplars, shift).modules()}
    public = {thing for thing in vars(elign).values() if isinstance(thing, type)}
    assert {thing for thing in public if issubclass(thing, LatentClassifier)} - there == {
        LatentClassifier,
        elign.Repair,
    }


@pytest.mark.parametrize("name", MAKERS)
def test_onnxruntime_gives_the_same_scores(name, net, exemplars, short_energy, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    elign.attach(net, "fc", made(name, net, exemplars, short_energy))
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(6))
    path = export_model_onnx(net, tmp_path / "model.onnx", x[:2]).path
    (served,) = runtime.InferenceSession(path).run(None, {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(served), net(x).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["aligner and classifier", "some outputs"])
def test_other_attachments_of_one_head(net, exemplars, shift, tmp_path, kind):
    if kind == "some outputs":
        elign.attach(net, "fc", shift, outputs=elign.SplitOutputs(range(KNOWN)))
    else:
        elign.attach(net, "fc", shift)
        elign.attach(net, "fc", made("means", net, exemplars, shift))
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(6))
    served = torch.export.load(export_model_torch(net, tmp_path / "m.pt2", x[:2]).path).module()
    torch.testing.assert_close(served(x), net(x).detach(), atol=1e-4, rtol=1e-4)


def test_a_program_holds_what_scores_need_and_nothing_of_the_machine(net, exemplars, tmp_path):
    elign.attach(net, "fc", Gaussian(shared=1.0).fit(None, *exemplars))
    written = export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5))
    program = torch.export.load(written.path)
    held = {name.rpartition(".")[2] for name in program.state_dict if name.startswith("parts.")}
    assert held >= {"weights", "biases"}
    assert not held & {"means", "whitening"}
    inner = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    assert len(inner) == 2, "without operations inside of others this says nothing"
    assert written.nodes == sum(node.op == "call_function" for part in inner for node in part.graph.nodes)
    assert b'.py\\"' not in written.path.read_bytes()


def test_noise_inside_a_classifier_is_named(net, exemplars, pairs, tmp_path):
    noisy = EnergyAligner(hidden=(4,), iterations=3, steps=2, noise=0.1).fit_latents(*pairs)
    elign.attach(net, "fc", made("aligned", net, exemplars, noisy))
    with pytest.raises(ExportError, match="drop_noise"):
        export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5))
    assert export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5), drop_noise=True).path.exists()
    elign.detach(net)
    silent = made("voting", net, exemplars, noisy)
    silent.weights = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0])
    elign.attach(net, "fc", silent)
    assert export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5)).path.exists()
    elign.detach(net)
    with pytest.raises(ExportError, match="nothing is attached"):
        export_model_torch(net, tmp_path / "m.pt2", torch.randn(2, 5))


@pytest.mark.parametrize("name", MAKERS)
def test_a_classifier_without_its_model(name, net, exemplars, short_energy, tmp_path):
    z = exemplars[0][:9]
    classifier, logits = made(name, net, exemplars, short_energy), net.fc(z).detach()
    written = export_torch(classifier, tmp_path / "classifier.pt2", example=(z[:1], logits[:1]))
    served = torch.export.load(written.path).module()
    asks = classifier.needs_logits
    assert written.signature.startswith(
        "latents (batch, 6), logits (batch, 4) -> " if asks else "latents (batch, 6) ->"
    )
    with torch.no_grad():
        expected = classifier(z, logits=logits)
    torch.testing.assert_close(served(z, logits) if asks else served(z), expected, atol=1e-4, rtol=1e-4)


def test_what_a_file_does_not_say_comes_from_the_example(net, exemplars, tmp_path):
    z, logits = exemplars[0], net.fc(exemplars[0]).detach()
    for example in (None, z):
        with pytest.raises(elign.OptionError, match="how many classes"):
            export_torch(HeadLogits(), tmp_path / "a.pt2", example=example)
    with pytest.raises(elign.LatentError, match="40 latents and 3 rows"):
        export_torch(HeadLogits(), tmp_path / "a.pt2", example=(z, logits[:3]))
    program = torch.export.load(export_torch(HeadLogits(), tmp_path / "a.pt2", example=(z, logits)).path)
    assert torch.equal(program.module()(z, logits), logits)
    # Logits of a classifier that says how many classes there are are made up.
    written = export_torch(WeightAligned().fit(head=net.fc, old_classes=KNOWN), tmp_path / "a.pt2", example=z)
    assert written.signature == "latents (batch, 6), logits (batch, 4) -> scores (batch, 4)"


def test_a_classifier_alone_refuses_what_does_not_go_with_it(exemplars, tmp_path):
    means = NearestMean().fit(None, *exemplars)
    for wrong in ({"gate": elign.Always()}, {"head": torch.nn.Linear(DIM, 4)}):
        with pytest.raises(elign.OptionError, match="with an aligner"):
            export_torch(means, tmp_path / "a.pt2", **wrong)
    for example, says in ((torch.zeros(3, DIM + 1), "dimension"), ((1, 2, 3), "torch tensor")):
        with pytest.raises(elign.LatentError, match=says):
            export_torch(means, tmp_path / "a.pt2", example=example)
    with pytest.raises(elign.NotFittedError):
        export_torch(NearestMean(), tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())
