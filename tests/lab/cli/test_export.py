"""`elign export` as a person meets it."""

import warnings

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.fuzzing import bounded, damaged, fuzz
from torch import nn

import elign
from elign.lab.cli.main import main

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture
def latents():
    return torch.randn(60, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def saved(tmp_path, latents):
    return elign.MeanShift().fit_latents(latents, latents + 1).save(tmp_path / "aligner.safetensors")


def test_an_aligner_and_its_gate_as_onnx(tmp_path, latents, saved, capsys):
    gate = elign.ByProbe().fit(latents[:30], latents[30:] + 1)
    out = tmp_path / "aligner.onnx"
    assert main(["export", str(saved), str(out), "--gate", str(gate.save(tmp_path / "gate.safetensors"))]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "MeanShift with ByProbe" in printed
    assert "latents (batch, 5) -> aligned (batch, 5)" in printed
    assert str(out) in printed
    assert "of PyTorch's result" in printed
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    result = torch.from_numpy(session.run(["aligned"], {"latents": latents.numpy()})[0])
    torch.testing.assert_close(result, elign.Aligner.load(saved).align(latents, where=gate(latents)))


@pytest.mark.parametrize("arguments", [["aligner.pt2"], ["aligner.bin", "--format", "torch"]])
def test_the_ending_or_an_option_says_the_format(tmp_path, latents, saved, arguments):
    name, *options = arguments
    assert main(["export", str(saved), str(tmp_path / name), *options]) == 0
    program = torch.export.load(tmp_path / name)
    torch.testing.assert_close(program.module()(latents), elign.Aligner.load(saved).align(latents))


def test_noise_has_to_be_dropped_by_name(tmp_path, latents, capsys):
    aligner = elign.EnergyAligner(hidden=(4,), noise=1.0, steps=1, iterations=2).fit_latents(latents, latents + 1)
    command = ["export", str(aligner.save(tmp_path / "noisy.safetensors")), str(tmp_path / "noisy.pt2")]
    assert main(command) == 1
    assert "drop_noise" in capsys.readouterr().err
    assert main([*command, "--drop-noise"]) == 0


def test_gates_that_ask_the_head_are_for_python(tmp_path, saved, capsys):
    gate = elign.ByPrediction(old_classes=2).save(tmp_path / "gate.safetensors")
    assert main(["export", str(saved), str(tmp_path / "a.onnx"), "--gate", str(gate)]) == 1
    message = capsys.readouterr().err
    assert "export_onnx(aligner, path, gate=gate, head=model.fc)" in message
    assert not (tmp_path / "a.onnx").exists()


with torch.random.fork_rng():
    torch.manual_seed(0)
    HEAD = nn.Linear(5, 4)
LABELS = torch.arange(60) % 2


def voting(z):
    """A classifier that asks for the logits of the head."""
    labels = torch.arange(60) % 4
    aligned = elign.Aligned(elign.Ridge().fit_latents(z, z + 1), elign.NearestMean().fit(z=z, labels=labels))
    return elign.Voting([elign.HeadLogits(), aligned], task_boundaries=2, standard_errors=float("inf")).fit(
        z=z, labels=labels, logits=HEAD(z).detach()
    )


def repair(z, which):
    """A repair in one of its modes: classes 0 and 1 are old, 2 and 3 are new."""
    drift = z.roll(1, dims=1) + 2 * LABELS[:, None]
    known = {
        "statistics": {"statistics": elign.ClassStatistics().update(z, LABELS)},
        "exemplars": {"exemplars": (drift[:20], LABELS[:20])},
        "nothing": {},
        "no drift": {"statistics": elign.ClassStatistics().update(z, LABELS)},
    }[which]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = elign.Repair("fc", force=which in ("statistics", "exemplars"))
        return made.fit_latents(z, z if which == "no drift" else drift, LABELS + 2, head=HEAD, **known)


def served(path, inputs):
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(*inputs.values())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["scores"], {name: each.numpy() for name, each in inputs.items()})[0])


@pytest.mark.parametrize(
    ("which", "mode", "suffix"),
    [
        ("voting", None, "onnx"),
        ("statistics", "classifier", "onnx"),
        ("exemplars", "classifier", "pt2"),
        ("nothing", "weights", "pt2"),
        ("no drift", "head", "onnx"),
    ],
)
def test_classifiers_and_repairs_in_every_mode(tmp_path, latents, which, mode, suffix, capsys):
    """The exported file gives what the loaded object gives."""
    made = voting(latents) if which == "voting" else repair(latents, which)
    assert getattr(made, "mode", None) == mode
    inputs = {"latents": latents}
    if which != "statistics":
        inputs["logits"] = HEAD(latents).detach()
    out, saved = tmp_path / f"out.{suffix}", made.save(tmp_path / "saved.safetensors")
    assert main(["export", str(saved), str(out)]) == 0
    printed = capsys.readouterr().out
    ends = [f"{name} (batch, {each.shape[1]})" for name, each in inputs.items()]
    assert f"{', '.join(ends)} -> scores (batch, 4)" in printed
    assert ("leaves the head" in printed) == (mode == "head")
    for rows in (1, 60):
        given = {name: each[:rows] for name, each in inputs.items()}
        with torch.no_grad():
            expected = elign.LatentClassifier.load(saved)(given["latents"], logits=given.get("logits"))
        torch.testing.assert_close(served(out, given), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (lambda z: elign.ClassStatistics().update(z, LABELS), [], "holds a ClassStatistics"),
        (lambda z: elign.ByProbe().fit(z, z + 1), [], "--gate"),
        (lambda z: elign.NearestMean().fit(z=z, labels=LABELS), ["--gate", "gate.safetensors"], "leave out --gate"),
        (lambda z: elign.HeadLogits(), [], "which dimension"),
    ],
)
def test_what_cannot_be_exported_says_so(tmp_path, latents, make, options, says, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elign.ByProbe().fit(latents, latents + 1).save("gate.safetensors")
    make(latents).save("saved.safetensors")
    assert main(["export", "saved.safetensors", "out.onnx", *options]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["aligner.safetensors", "aligner.bin"], "--format"),
        (["nothing.safetensors", "aligner.onnx"], "no such file"),
        (["aligner.safetensors", "aligner.onnx", "--gate", "aligner.safetensors"], "MeanShift, not a Gate"),
    ],
)
def test_mistakes_are_one_clear_message(tmp_path, saved, names, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *names]) == 1
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["aligner.safetensors"]


@pytest.fixture(scope="module", params=["aligner", "repair"])
def whole(tmp_path_factory, request):
    z = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    made = elign.MeanShift().fit_latents(z - 1, z) if request.param == "aligner" else repair(z, "statistics")
    return made.save(tmp_path_factory.mktemp("whole") / "saved").read_bytes()


@fuzz(40)
@given(data=st.data(), as_gate=st.booleans())
def test_a_damaged_file_or_gate_is_named_and_nothing_is_written(whole, tmp_path, capsys, data, as_gate):
    (tmp_path / "good").write_bytes(whole)
    bad = data.draw(damaged((whole,))) + b"\0"
    # One byte more is always damage, unless it was just cut off.
    assume(bad != whole)
    (tmp_path / "bad").write_bytes(bad)
    files = [str(tmp_path / "good"), "--gate", str(tmp_path / "bad")] if as_gate else [str(tmp_path / "bad")]
    with bounded():
        assert main(["export", *files, str(tmp_path / "out.onnx")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("elign: ")
    assert said.count("\n") == 1
    assert "bad" in said
    assert not (tmp_path / "out.onnx").exists()
