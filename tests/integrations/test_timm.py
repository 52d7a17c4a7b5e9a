"""The recipe for timm models against timm itself: how heads are named, and that a repair fits them."""

from __future__ import annotations

import copy
import json

import pytest
import safetensors.torch
import torch
from torch import nn

import elign
from elign.lab.cli.main import main

# timm's own tiny models: one of each kind of head.
MODELS = {
    "test_resnet": {},
    "test_vit": {"img_size": 32},
    "test_convnext": {},
    "test_efficientnet": {},
}


@pytest.fixture
def images():
    torch.manual_seed(0)
    centers = torch.randn(4, 1, 32, 32)

    def make(classes, n=12):
        labels = torch.tensor(classes).repeat(n)
        return centers[labels] + 0.3 * torch.randn(len(labels), 1, 32, 32), labels

    return make


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_the_configuration_names_the_head(timm, name, images):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=4, in_chans=1, **MODELS[name]).eval()
    head = model.pretrained_cfg["classifier"]
    assert model.get_submodule(head) is model.get_classifier()
    statistics = elign.ClassStatistics.from_data(model, head, [images([0, 1])])
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for layer in changed.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.weight += 0.02 * layer.weight.std() * torch.randn_like(layer.weight)
    repair = elign.Repair(head, force=True).fit(model, changed, [images([2, 3])], statistics=statistics)
    x, labels = images([0, 1, 2, 3])
    with torch.no_grad():
        plain = changed(x)
        with repair.attach(changed):
            repaired = changed(x)
    assert repaired.shape == plain.shape
    assert (repaired.argmax(dim=1) == labels).float().mean() > 0.9
    assert torch.equal(changed(x), plain)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "size"), [("test_efficientnet", 160), ("test_vit", 160)])
def test_the_command_repairs_a_timm_model(timm, name, size, tmp_path, capsys, class_pictures):
    torch.manual_seed(0)
    for file, outputs in (("old", 2), ("new", 4)):
        model = timm.create_model(name, pretrained=False, num_classes=outputs)
        safetensors.torch.save_file(model.state_dict(), tmp_path / f"{file}.safetensors")
    old, new = class_pictures(tmp_path)
    command = ["--model", f"timm:{name}", "--json"]
    given = ["--weights", tmp_path / "old.safetensors", "--data", old, "--out", tmp_path / "classes.safetensors"]
    assert main(["remember", *command, *map(str, given)]) == 0
    given = ["--previous", tmp_path / "old.safetensors", "--current", tmp_path / "new.safetensors", "--new", new]
    given += ["--statistics", tmp_path / "classes.safetensors", "--out", tmp_path / "out"]
    capsys.readouterr()
    assert main(["repair", *command, *map(str, given), "--force"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"]["head"] == model.pretrained_cfg["classifier"]
    assert report["model"]["outputs"] == 4
    assert report["model"]["pictures"].startswith("timm: ")
    assert f'"input_size": [3, {size}, {size}]' in report["model"]["pictures"]
    assert report["mode"] == "classifier"
    assert "model.onnx" in report["files"]
    repaired = elign.Repair.load(tmp_path / "out" / "repair.safetensors")
    x = torch.randn(2, 3, size, size)
    with torch.no_grad(), repaired.attach(model.eval()):
        assert torch.allclose(model(x).exp().sum(dim=1), torch.ones(2), atol=1e-4)
