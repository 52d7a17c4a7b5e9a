import copy

import pytest
import torch
from torch import nn

from elign.lab.models.small_conv import SmallConv
from elign.utils.errors import OptionError


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("training", [True, False])
def test_signed_latents_for_small_images(shape, training):
    net = SmallConv(in_channels=shape[0]).train(training)
    z = net(torch.rand(4, *shape))
    assert z.shape == (4, net.latent_dim) == (4, 64)
    assert (z < 0).any()
    assert (z > 0).any()


def test_size_by_hand():
    # Convolutions: 9 (16 + 16 * 32 + 32 * 64 + 64 * 10); batch norm: two for each of 16 + 32 + 64 + 10 channels.
    net = SmallConv(latent_dim=10)
    assert sum(p.numel() for p in net.parameters()) == 9 * 3216 + 2 * 122
    assert net(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_copies_and_loaded_states_give_the_same_latents():
    net, other = SmallConv(), SmallConv().eval()
    x = torch.rand(8, 1, 8, 8)
    net(x)  # moves the batch norm statistics, which the state must carry too
    z = net.eval()(x)
    assert torch.equal(copy.deepcopy(net)(x), z)
    assert not torch.equal(other(x), z)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x), z)


def test_learns_two_patterns_in_a_few_steps():
    torch.manual_seed(0)
    x = torch.rand(32, 1, 8, 8) * 0.2
    y = torch.arange(32) % 2
    x[y == 0, :, 3] += 1  # a row against a column
    x[y == 1, :, :, 3] += 1
    net, head = SmallConv(), nn.Linear(64, 2)
    optimiser = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
    for _ in range(10):
        optimiser.zero_grad()
        nn.functional.cross_entropy(head(net(x)), y).backward()
        optimiser.step()
    assert (head(net(x)).argmax(dim=1) == y).all()


def test_latents_without_a_dimension_are_named():
    with pytest.raises(OptionError, match="latent_dim must be at least 1"):
        SmallConv(latent_dim=0)
