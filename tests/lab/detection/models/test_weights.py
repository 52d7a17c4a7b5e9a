import copy
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import _api, resnet18

from elign import ElignError, OptionError
from elign.lab.detection.models import WeightsError, make_detector, settings_of
from elign.lab.detection.models.weights import load_weights


@pytest.fixture(scope="module")
def trained():
    """A classification network with statistics in its batch normalisation."""
    torch.manual_seed(5)
    net = resnet18(weights=None)
    for name, value in net.state_dict().items():
        if "running_mean" in name:
            value.normal_(std=0.1)
    return net.eval()


def _write(path, state, how):
    if how == "safetensors":
        save_file(state, path)
    else:
        torch.save(state if how == "plain" else {"epoch": 3, how: state}, path)


@pytest.mark.parametrize("how", ["safetensors", "plain", "state_dict", "model"])
@torch.no_grad()
def test_a_file_of_weights_gives_the_networks_own_features(trained, tmp_path, how):
    path = tmp_path / ("weights.safetensors" if how == "safetensors" else "weights.pth")
    _write(path, trained.state_dict(), how)
    detector = make_detector("resnet18-c4", weights=path).eval()
    image = torch.rand(1, 3, 64, 64)
    features = detector.features(image)
    latents = detector.roi_heads.box_head(features)
    logits = trained.fc(latents)
    torch.testing.assert_close(logits, trained(image), rtol=1e-3, atol=1e-4)


def test_with_weights_stem_and_first_stage_are_frozen(trained, tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(trained.state_dict(), path)
    detector = make_detector("resnet18-c4", weights=str(path))
    frozen = {name.partition(".")[0] for name, value in detector.backbone.named_parameters() if not value.requires_grad}
    assert frozen == {"conv1", "layer1"}
    free = make_detector("resnet18-c4", weights=path, settings=settings_of("resnet18-c4", frozen_stages=0))
    assert all(value.requires_grad for value in free.backbone.parameters())
    # Batch normalisation is frozen everywhere: it has no parameters at all.
    assert not any("bn" in name for name, _ in detector.named_parameters())


def test_files_that_hold_something_else_are_named(trained, tmp_path):
    def message(content, suffix=".pth"):
        path = tmp_path / f"weights{suffix}"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        with pytest.raises(WeightsError) as caught:
            load_weights(net, "resnet18", path)
        assert path.name in str(caught.value)
        return str(caught.value)

    state, net = trained.state_dict(), copy.deepcopy(trained)
    assert "cannot be read as weights" in message(b"not a file of weights")
    assert "cannot be read as weights" in message(b"not a file of weights", ".safetensors")
    assert "cannot be read as weights" in message(pickle.dumps(pytest.raises, protocol=2))
    assert "cannot be read as weights" in message(b"")
    assert "holds no state dict" in message([1, 2])
    assert "holds no state dict" in message({"epoch": 3})
    assert "lacks" in message({name: value for name, value in state.items() if "layer3" not in name})
    assert "of other names" in message({**state, "more": torch.zeros(1)})
    assert "conv1.weight" in message({**state, "conv1.weight": torch.zeros(3)})
    with pytest.raises(ElignError, match="There is no file of weights"):
        make_detector("resnet18-c4", weights=tmp_path / "nowhere.pth")


def test_weights_of_torchvision_are_downloaded(trained, monkeypatch):
    asked = []

    def download(url, **options):
        asked.append(url)
        return trained.state_dict()

    monkeypatch.setattr(_api, "load_state_dict_from_url", download)
    detector = make_detector("resnet18-c4", weights="torchvision")
    assert len(asked) == 1
    assert "resnet18" in asked[0]
    assert torch.equal(detector.backbone.conv1.weight, trained.conv1.weight)


def test_a_download_that_fails_says_what_to_fetch(monkeypatch):
    def download(url, **options):
        raise OSError("no route to host")

    monkeypatch.setattr(_api, "load_state_dict_from_url", download)
    with pytest.raises(WeightsError, match=r"https://.*resnet50.*no route to host.*give its path"):
        make_detector("resnet50-c4", weights="torchvision")


def test_networks_that_take_no_weights_say_so():
    with pytest.raises(OptionError, match="trained from scratch"):
        make_detector("tiny-c4", weights="torchvision")
    with pytest.raises(OptionError, match="normalisation=frozen"):
        make_detector("resnet18-c4", weights="torchvision", settings=settings_of("resnet18-c4", normalisation="group"))
