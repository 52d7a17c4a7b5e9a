"""A model with an aligner in front of its head, as one graph from input to scores."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from tests.exporting import DIM, GATES, STEPS, drifted, energy, run_onnx
from torch import nn

import elign
from elign.export import ExportError, export_model_onnx, export_model_torch

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


class Conv(nn.Module):
    """Pictures to a dictionary with logits; the head gets its latent by name."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, DIM, 3, stride=2), nn.BatchNorm2d(DIM), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1)
        )
        self.fc = nn.Linear(DIM, 4)

    def forward(self, x):
        return {"logits": self.fc(input=self.body(x).flatten(1))}


@pytest.fixture
def conv():
    torch.manual_seed(3)
    return Conv().eval()


PICTURES = torch.randn(9, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def test_a_whole_model_in_onnx(conv, tmp_path):
    with torch.no_grad():
        z = conv.body(PICTURES).flatten(1)
        plain = conv(PICTURES)["logits"]
    aligner = elign.EnergyAligner(hidden=(8, 8), steps=STEPS, step_size=2.0, iterations=30, learning_rate=1e-2)
    aligner.fit_latents(z, z + 1)
    old = [int(plain[0].argmax())]
    elign.attach(conv, "fc", aligner, gate=elign.ByPrediction(old_classes=old), argument="input")
    state, conv.body[3].training = copy.deepcopy(conv.state_dict()), True
    made = export_model_onnx(conv, tmp_path / "model.onnx", PICTURES[:1])
    assert conv.body[3].training
    assert all(torch.equal(state[name], tensor) for name, tensor in conv.state_dict().items())
    assert isinstance(next(iter(conv.fc._forward_pre_hooks.values())).what, elign.EnergyAligner)
    conv.eval()
    for rows in (1, 3, 9):
        with torch.no_grad():
            expected = conv(PICTURES[:rows])["logits"]
        torch.testing.assert_close(run_onnx(made.path, PICTURES[:rows]), expected, rtol=1e-5, atol=1e-5)
    changed = (expected != plain).any(dim=1)
    assert torch.equal(changed, plain.argmax(dim=1) == old[0])
    assert changed.any()


def test_torch_export_of_a_model_whose_head_reads_several_latents_per_input(tmp_path):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Unflatten(1, (5, 4)), nn.Linear(4, DIM), nn.Linear(DIM, 4)).eval()
    elign.attach(model, "2", energy((8,)), gate=GATES["soft probe"](None))
    x = torch.randn(7, 20)
    made = export_model_torch(nn.DataParallel(model), tmp_path / "model.pt2", x.double())
    program = torch.export.load(made.path).module()
    for rows in (1, 7):
        torch.testing.assert_close(program(x[:rows]), model(x[:rows]).detach(), rtol=1e-5, atol=1e-5)


def test_models_that_cannot_be_exported_say_so(tmp_path, net, shift):
    with pytest.raises(ExportError, match="attach"):
        export_model_torch(net, tmp_path / "a.pt2", torch.zeros(2, 5))
    attachment = elign.attach(net, "fc", shift, gate=elign.ByMask(torch.ones(2, dtype=torch.bool)))
    with pytest.raises(ExportError, match="ByMask"):
        export_model_torch(net, tmp_path / "a.pt2", torch.zeros(2, 5))
    attachment.gate = elign.Always()
    with pytest.raises(elign.LatentError, match="batch"):
        export_model_torch(net, tmp_path / "a.pt2", torch.zeros(5))
    whole = nn.Sequential(net, nn.Flatten(0))
    with pytest.raises(elign.AttachError, match="one per input"):
        export_model_torch(whole, tmp_path / "a.pt2", torch.zeros(2, 5))


def test_the_page_runs_as_it_is_printed(conv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    repairing, making, serving = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(serving.strip().splitlines()) <= 17

    class Classifier(Conv):
        def forward(self, x):
            return self.fc(self.body(x).flatten(1))

    model = Classifier().eval()
    model.fc = nn.Linear(DIM, 60).eval()
    pairs, labels = drifted(), torch.arange(len(drifted()[0])) % 4
    statistics = elign.ClassStatistics().update(pairs[0], labels)
    repair = elign.Repair("fc", force=True).fit_latents(*pairs, labels + 4, head=model.fc, statistics=statistics)
    exec(repairing, {"model": model, "repair": repair, "images": PICTURES})
    with torch.no_grad(), repair.attach(model):
        expected = model(PICTURES).argmax(dim=1)
    names = {"pictures": PICTURES.numpy()}
    exec(serving, names)
    assert names["classes"].tolist() == expected.tolist()
    assert (tmp_path / "model.pt2").exists()
    exec(making, {"model": model, "aligner": elign.MeanShift().fit_latents(*pairs), "images": PICTURES})
    names = {"pictures": PICTURES.numpy()}
    exec(serving, names)
    assert names["classes"].tolist() == model(PICTURES).argmax(dim=1).tolist()
    assert (tmp_path / "aligner.onnx").exists()
