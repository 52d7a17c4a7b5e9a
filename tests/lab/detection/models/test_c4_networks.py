"""Detectors by name, their settings and their weights."""

from __future__ import annotations

import copy
import io
import os
import pickle
from unittest import mock

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.fuzzing import answer, damaged, fuzz
from torch import nn
from torchvision.models import _api, resnet18

from elign import ElignError, OptionError
from elign.lab.config.composition import ConfigError
from elign.lab.detection.c4_networks import DETECTORS, WeightsError, load_weights, settings_of
from elign.lab.detection.detector import make_detector, roi_losses

SMALL = {"min_size": 64, "max_size": 96, "anchors": (16, 32), "proposals_train": (50, 10), "proposals_test": (50, 6)}
# Width of the latents, stride of the features, last convolution of the box head.
NETWORKS = {
    "resnet50-c4": (2048, 16, "stage.2.conv3"),
    "resnet18-c4": (512, 16, "stage.1.conv2"),
    "tiny-c4": (128, 8, "stage.0.conv2"),
}


@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_learns_and_detects(name):
    latent_dim, stride, last = NETWORKS[name]
    torch.manual_seed(0)
    # From scratch, so with group normalisation: frozen statistics of no data let a ResNet's latents explode.
    detector = make_detector(name, **SMALL, rois=8, normalisation="group")
    detector.grow(2)
    images = [torch.rand(3, 64, 64)]
    targets = [{"boxes": torch.tensor([[8.0, 8.0, 40.0, 40.0]]), "labels": torch.tensor([2])}]
    look = detector.look(images, targets)
    assert look.features.shape[-1] * stride == look.images.tensors.shape[-1] == 64
    losses = {**look.region_losses, **roi_losses(look)}
    sum(losses.values()).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    (weight,) = detector.warp_parameters()
    assert weight is detector.roi_heads.box_head.get_parameter(f"{last}.weight")
    assert weight.grad.any()
    with torch.inference_mode():
        regions = detector.eval().regions(images)
    assert regions.latents.shape[1] == detector.latent_dim == latent_dim
    assert (regions.latents >= 0).all()
    assert regions.latents.any()


def test_frozen_stages_are_counted_from_the_stem():
    names = {}
    for count in (None, 0, 1, 3):
        # Without memory behind it: nothing is drawn, which takes most of the time.
        with torch.device("meta"):
            detector = make_detector("resnet18-c4", frozen_stages=count)
        frozen = [name for name, value in detector.backbone.named_parameters() if not value.requires_grad]
        names[count] = {name.partition(".")[0] for name in frozen}
    assert names == {None: set(), 0: set(), 1: {"conv1"}, 3: {"conv1", "layer1", "layer2"}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_size", 0),
        ("min_size", ()),
        ("max_size", 100),
        ("anchors", (16, -1)),
        ("anchor_ratios", (float("nan"),)),
        ("proposals_train", (10, 20)),
        ("proposals_test", (10, 0)),
        ("pool_samples", -1),
        ("score_threshold", 1.0),
        ("nms", -0.1),
        ("normalisation", "batch"),
        ("frozen_stages", 5),
    ],
)
def test_a_number_outside_its_range_is_named(name, value):
    with pytest.raises(ConfigError, match=rf"^{name}[.\d]* must"):
        settings_of("tiny-c4", **{name: value})
    with pytest.raises(ConfigError, match="no setting 'roiz'"):
        settings_of("tiny-c4", roiz=3)


@pytest.fixture(scope="module")
def trained():
    """A classification network with statistics in its batch normalisation."""
    torch.manual_seed(5)
    net = resnet18(weights=None)
    for name, value in net.state_dict().items():
        if "running_mean" in name:
            value.normal_(std=0.1)
    return net.eval()


@pytest.mark.parametrize("how", ["safetensors", "plain", "state_dict", "model"])
@torch.no_grad()
def test_a_file_of_weights_gives_the_networks_own_features(trained, tmp_path, how):
    path, state = tmp_path / f"weights.{how}", trained.state_dict()
    if how == "safetensors":
        save_file(state, path)
    else:
        torch.save(state if how == "plain" else {"epoch": 3, how: state}, path)
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
    free = make_detector("resnet18-c4", weights=path, frozen_stages=0)
    assert all(value.requires_grad for value in free.backbone.parameters())
    # Batch normalisation is frozen everywhere: it has no parameters at all.
    assert not any("bn" in name for name, _ in detector.named_parameters())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"not a file of weights", "cannot be read as weights"),
        (b"", "cannot be read as weights"),
        ([1, 2], "holds no state dict"),
        ({"epoch": 3}, "holds no state dict"),
        (lambda state: {name: value for name, value in state.items() if "layer3" not in name}, "lacks"),
        (lambda state: {**state, "more": torch.zeros(1)}, "of other names"),
        (lambda state: {**state, "conv1.weight": torch.zeros(3)}, "conv1.weight"),
    ],
)
def test_files_that_hold_something_else_are_named(trained, tmp_path, content, problem):
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content(trained.state_dict()) if callable(content) else content, path)
    with pytest.raises(WeightsError, match=rf"weights.pth.*{problem}"):
        load_weights(copy.deepcopy(trained), "resnet18", path)
    with pytest.raises(ElignError, match="There is no file of weights"):
        make_detector("resnet18-c4", weights=tmp_path / "nowhere.pth")


def test_weights_of_torchvision_are_downloaded(trained, monkeypatch):
    asked = []
    monkeypatch.setattr(_api, "load_state_dict_from_url", lambda url, **_: asked.append(url) or trained.state_dict())
    detector = make_detector("resnet18-c4", weights="torchvision")
    (url,) = asked
    assert "resnet18" in url
    assert torch.equal(detector.backbone.conv1.weight, trained.conv1.weight)


def test_a_download_that_fails_says_what_to_fetch(monkeypatch):
    monkeypatch.setattr(_api, "load_state_dict_from_url", mock.Mock(side_effect=OSError("no route to host")))
    with pytest.raises(WeightsError, match=r"https://.*resnet50.*no route to host.*give its path"):
        make_detector("resnet50-c4", weights="torchvision")


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("tiny-c4", {"weights": "torchvision"}, "trained from scratch"),
        ("resnet18-c4", {"weights": "torchvision", "normalisation": "group"}, "normalisation=frozen"),
        ("resnet18-c4", {"min_size": 32}, "min_size must be at least 64 for features of stride 16, got 32"),
    ],
)
def test_what_does_not_fit_a_network_is_named(name, options, problem):
    with pytest.raises(OptionError, match=problem):
        make_detector(name, **options)


STATE = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}


def saved(**options) -> bytes:
    buffer = io.BytesIO()
    torch.save(STATE, buffer, **options)
    return buffer.getvalue()


WHOLE = {
    "x.pth": (saved(), saved(_use_new_zipfile_serialization=False)),
    "x.safetensors": (safetensors.torch.save(STATE),),
}


@pytest.mark.filterwarnings("ignore")
@fuzz(120)
@given(data=st.data(), name=st.sampled_from(list(WHOLE)))
def test_damaged_files_give_weights_or_are_named(tmp_path, data, name):
    path = tmp_path / name
    path.write_bytes(data.draw(damaged(WHOLE[name])))
    answer(lambda: load_weights(nn.Linear(3, 2), "resnet50", path), names=path)


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_in_a_file_is_run(tmp_path, protocol):
    mark = tmp_path / "mark"
    torch.save({"weight": Evil(str(mark))}, tmp_path / "x.pth", pickle_protocol=protocol)
    (tmp_path / "y.pth").write_bytes(pickle.dumps(Evil(str(mark)), protocol=protocol))
    for name in ("x.pth", "y.pth"):
        with pytest.raises(WeightsError, match="cannot be read as weights"):
            load_weights(nn.Linear(3, 2), "resnet50", tmp_path / name)
    assert not mark.exists()
