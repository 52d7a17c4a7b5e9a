import pytest
import torch
from torch import nn

from elign import ElignError, OptionError
from elign.lab.models import BACKBONES, UnknownBackboneError, make_backbone
from elign.lab.models.cifar_resnet import CifarResNet

LATENTS = {"resnet32": 64, "resnet20": 64, "resnet14": 64, "resnet18": 512, "conv": 64}


def test_every_name_is_known():
    assert set(BACKBONES) == set(LATENTS)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("name", BACKBONES)
def test_gives_latents_of_the_size_it_says(name, channels):
    net = make_backbone(name, image_shape=(channels, 32, 32)).eval()
    with torch.inference_mode():
        z = net(torch.randn(2, channels, 32, 32))
    assert z.shape == (2, net.latent_dim) == (2, LATENTS[name])


@pytest.mark.parametrize("depth", [14, 20, 32])
def test_resnets_have_the_depth_of_their_name(depth):
    net = make_backbone(f"resnet{depth}", image_shape=(3, 32, 32))
    assert isinstance(net, CifarResNet)
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in net.modules()) == depth - 1


def test_every_call_gives_a_new_one():
    one, two = (make_backbone("conv", image_shape=(1, 8, 8)) for _ in range(2))
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


@pytest.mark.parametrize(("typo", "meant"), [("resnet-32", "resnet32"), ("ResNet18", "resnet18"), (" CONV", "conv")])
def test_a_typo_gets_the_nearest_name(typo, meant):
    with pytest.raises(UnknownBackboneError, match=f"{typo!r}. Did you mean {meant!r}"):
        make_backbone(typo, image_shape=(3, 32, 32))


def test_a_name_like_no_other_gets_the_list_and_can_be_caught_widely():
    for kind in (ValueError, ElignError):
        with pytest.raises(kind, match=r"'zzz'\. Choose from: resnet32, resnet20, resnet14, resnet18, conv\."):
            make_backbone("zzz", image_shape=(3, 32, 32))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet18", (3, 31, 32)), ("conv", (28, 28, 1)), ("resnet32", (0, 32, 32)), ("conv", (8, 8))],
)
def test_images_that_do_not_fit_are_named(name, shape):
    with pytest.raises(OptionError, match=rf"\(channels, height, width\).* for '{name}'; got"):
        make_backbone(name, image_shape=shape)
