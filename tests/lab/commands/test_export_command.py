"""`elign export` as a person meets it."""

import pytest
import torch

import elign
from elign.lab.cli import main

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
    assert "MeanShift with ByProbe for latents of dimension 5" in printed
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


def test_a_readout_goes_with_its_model(tmp_path, latents, capsys):
    path = elign.NearestMean().fit(z=latents, labels=torch.arange(60) % 3).save(tmp_path / "prototypes.safetensors")
    assert main(["export", str(path), str(tmp_path / "a.onnx")]) == 1
    assert "holds a NearestMean" in (message := capsys.readouterr().err)
    assert "export_model_onnx" in message


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
