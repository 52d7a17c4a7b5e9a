import copy

import pytest
import torch
from torch import nn

from elign.lab.models.resnet18 import ResNet18


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return ResNet18().eval()


def test_has_its_known_size(net):
    # The usual ResNet-18 has 11,689,512 parameters, of which its head of 1000 classes has 513 * 1000.
    assert sum(p.numel() for p in net.parameters()) == 11_689_512 - 513_000


def test_has_17_layers_and_3_shortcuts_before_the_head(net):
    sizes = [m.kernel_size[0] for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert (sizes.count(7), sizes.count(3), sizes.count(1)) == (1, 16, 3)


@pytest.mark.parametrize("size", [(32, 32), (65, 40)])
def test_signed_512_dimensional_latents_for_any_size(net, size):
    with torch.inference_mode():
        z = net(torch.randn(2, 3, *size))
    assert z.shape == (2, net.latent_dim) == (2, 512)
    assert (z < 0).any()
    assert (z > 0).any()


def test_224_pixels_end_as_7(net):
    shapes = []
    hooks = [
        net.blocks[0].register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape))),
        net.blocks[-1].register_forward_hook(lambda module, args, maps: shapes.append(tuple(maps.shape))),
    ]
    with torch.inference_mode():
        net(torch.zeros(1, 3, 224, 224))
    for hook in hooks:
        hook.remove()
    assert shapes == [(1, 64, 56, 56), (1, 512, 7, 7)]


def test_copies_and_loaded_states_give_the_same_latents(net):
    other = ResNet18().eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        z = net(x)
        assert torch.equal(copy.deepcopy(net)(x), z)
        assert not torch.equal(other(x), z)
        other.load_state_dict(net.state_dict())
        assert torch.equal(other(x), z)


def test_other_channels():
    with torch.inference_mode():
        assert ResNet18(in_channels=1).eval()(torch.randn(1, 1, 32, 32)).shape == (1, 512)
