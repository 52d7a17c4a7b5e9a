import pytest
import torch

from elign import ElignError, OptionError
from elign.lab.detection.models import DETECTORS, UnknownDetectorError, make_detector, roi_losses, settings_of

SMALL = {
    "min_size": 64,
    "max_size": 96,
    "anchors": (16, 32),
    "proposals_train": (50, 10),
    "proposals_test": (50, 6),
    "rois": 8,
}
LATENTS = {"resnet50-c4": 2048, "resnet18-c4": 512, "tiny-c4": 128}
LAST = {"resnet50-c4": "stage.2.conv3", "resnet18-c4": "stage.1.conv2", "tiny-c4": "stage.0.conv2"}
STRIDES = {"resnet50-c4": 16, "resnet18-c4": 16, "tiny-c4": 8}


def test_every_name_is_known():
    assert set(DETECTORS) == set(LATENTS)


@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_learns_and_detects(name):
    torch.manual_seed(0)
    # From scratch, so with group normalisation: frozen statistics of no data let a ResNet's latents explode.
    detector = make_detector(name, settings=settings_of(name, **SMALL, normalisation="group"))
    detector.grow(2)
    images = [torch.rand(3, 64, 64)]
    targets = [{"boxes": torch.tensor([[8.0, 8.0, 40.0, 40.0]]), "labels": torch.tensor([2])}]
    look = detector.look(images, targets)
    assert look.features.shape[-1] * STRIDES[name] == look.images.tensors.shape[-1] == 64
    losses = {**look.region_losses, **roi_losses(look)}
    sum(losses.values()).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    (weight,) = detector.warp_parameters()
    assert weight is detector.roi_heads.box_head.get_parameter(f"{LAST[name]}.weight")
    assert weight.grad.any()
    with torch.inference_mode():
        regions = detector.eval().regions(images)
    assert regions.latents.shape[1] == detector.latent_dim == LATENTS[name]
    assert (regions.latents >= 0).all()
    assert regions.latents.any()


def test_defaults_are_used_when_nothing_is_said():
    assert make_detector("tiny-c4").settings == settings_of("tiny-c4")


@pytest.mark.parametrize(("typo", "meant"), [("resnet50", "resnet50-c4"), ("Tiny-C4", "tiny-c4")])
def test_a_typo_gets_the_nearest_name(typo, meant):
    with pytest.raises(UnknownDetectorError, match=f"{typo!r}. Did you mean {meant!r}"):
        make_detector(typo)


def test_a_name_like_no_other_gets_the_list():
    for ask in (make_detector, settings_of):
        with pytest.raises(ElignError, match=r"'zzz'\. Choose from: resnet50-c4, resnet18-c4, tiny-c4\."):
            ask("zzz")


def test_images_too_small_for_the_stride_are_an_error():
    with pytest.raises(OptionError, match="min_size must be at least 64 for features of stride 16, got 32"):
        make_detector("resnet18-c4", settings=settings_of("resnet18-c4", min_size=32))


def test_frozen_stages_are_counted_from_the_stem():
    names = {}
    for count in (None, 0, 1, 3):
        settings = settings_of("resnet18-c4", frozen_stages=count)
        # Without memory behind it: nothing is drawn, which takes most of the time.
        with torch.device("meta"):
            detector = make_detector("resnet18-c4", settings=settings)
        frozen = [name for name, value in detector.backbone.named_parameters() if not value.requires_grad]
        names[count] = {name.partition(".")[0] for name in frozen}
    assert names == {None: set(), 0: set(), 1: {"conv1"}, 3: {"conv1", "layer1", "layer2"}}
