import copy

import pytest
import torch
from torch import nn

from elign.lab.models.cifar_resnet import CifarResNet


@pytest.mark.parametrize("depth", [14, 20, 32])
def test_has_the_layers_its_name_says_and_signed_64_dimensional_latents(depth):
    net = CifarResNet(depth).eval()
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == depth - 1  # the head is the last layer
    z = net(torch.randn(4, 3, 32, 32))
    assert z.shape == (4, 64)
    assert (z < 0).any()
    assert (z > 0).any()


def test_resnet_32_has_its_known_size():
    # By hand: 464 (stem) + 23,360 + 88,768 + 353,664 (stages, with 1 x 1 shortcuts), without a head.
    assert sum(p.numel() for p in CifarResNet(32).parameters()) == 466_256


def test_impossible_depth_is_named():
    with pytest.raises(ValueError, match="6 n \\+ 2"):
        CifarResNet(18)


def test_copies_and_loaded_states_give_the_same_latents():
    net, other = CifarResNet(14, in_channels=1).eval(), CifarResNet(14, in_channels=1).eval()
    x = torch.randn(2, 1, 8, 8)
    z = net(x)
    assert torch.equal(copy.deepcopy(net)(x), z)
    assert not torch.equal(other(x), z)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x), z)
