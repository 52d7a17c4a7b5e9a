import copy

import pytest
import torch

from elign.lab.models import BACKBONES, make_backbone
from elign.lab.models.classifier import CifarResNet, ResNet18, SmallConv
from elign.utils.errors import OptionError

LATENTS = {"resnet32": 64, "resnet20": 64, "resnet14": 64, "resnet18": 512, "conv": 64}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", BACKBONES)
def test_gives_latents_of_the_size_it_says(name, channels):
    net = make_backbone(name, image_shape=(channels, 32, 32)).eval()
    with torch.inference_mode():
        z = net(torch.randn(2, channels, 32, 32))
    assert z.shape == (2, net.latent_dim) == (2, LATENTS[name])


@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet18", (3, 31, 32)), ("conv", (28, 28, 1)), ("resnet32", (0, 32, 32)), ("conv", (8, 8))],
)
def test_images_that_do_not_fit_are_named(name, shape):
    with pytest.raises(OptionError, match=rf"\(channels, height, width\).* for '{name}'"):
        make_backbone(name, image_shape=shape)


@pytest.mark.parametrize("name", BACKBONES)
def test_copies_and_loaded_states_give_the_same_latents(name):
    net, other = (make_backbone(name, image_shape=(1, 32, 32)) for _ in range(2))
    x = torch.rand(4, 1, 32, 32)
    with torch.inference_mode():
        net(x)  # moves the batch norm statistics, which the state must carry too
        z = net.eval()(x)
        assert torch.equal(copy.deepcopy(net)(x), z)
        assert not torch.equal(other.eval()(x), z)
        other.load_state_dict(net.state_dict())
        assert torch.equal(other(x), z)
    assert (z < 0).any()
    assert (z > 0).any()


def test_the_names_of_states_are_those_of_old_checkpoints():
    names = {name: list(make_backbone(name, image_shape=(3, 32, 32)).state_dict()) for name in ("conv", "resnet14")}
    assert names["conv"][:2] == ["layers.0.weight", "layers.1.weight"]
    assert names["resnet14"][:2] == ["conv1.weight", "bn1.weight"]
    assert {"blocks.2.shortcut.0.weight", "blocks.5.bn2.running_var"} < set(names["resnet14"])


def test_impossible_sizes_are_named():
    with pytest.raises(OptionError, match="depth must be 6 n"):
        CifarResNet(18)


def test_sizes_by_hand():
    def size(net):
        return sum(p.numel() for p in net.parameters())

    # 464 (stem) + 23,360 + 88,768 + 353,664 (stages, with 1 x 1 shortcuts), without a head.
    assert size(CifarResNet(32)) == 466_256
    # The usual ResNet-18 has 11,689,512 parameters, of which its head of 1000 classes has 513 * 1000.
    assert size(ResNet18()) == 11_689_512 - 513_000
    # Convolutions: 9 (16 + 16 * 32 + 32 * 64 + 64 * 10); batch norm: two for each of 16 + 32 + 64 + 10 channels.
    assert size(SmallConv(latent_dim=10)) == 9 * 3216 + 2 * 122


def test_resnet18_leaves_7_of_224_pixels():
    net, shapes = ResNet18().eval(), []
    net.blocks[0].register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    net.blocks[-1].register_forward_hook(lambda module, args, maps: shapes.append(tuple(maps.shape)))
    with torch.inference_mode():
        net(torch.zeros(1, 3, 224, 224))
    assert shapes == [(1, 64, 56, 56), (1, 512, 7, 7)]
