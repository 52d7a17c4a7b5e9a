"""Backbones, and heads that grow, are copied, saved and loaded, and whose new prototypes are imprinted."""

import copy

import pytest
import torch
from torch import nn

from elign.lab.models import BACKBONES, make_backbone
from elign.lab.models.classifier import (
    CifarResNet,
    CosineHead,
    LinearHead,
    ResNet18,
    SmallConv,
    SplitCosineHead,
    TwoBranch,
    directions,
    imprint,
)
from elign.utils.errors import LatentError, OptionError

DIMENSIONS = {"resnet32": 64, "resnet20": 64, "resnet14": 64, "resnet18": 512, "conv": 64}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", BACKBONES)
def test_gives_latents_of_the_size_it_says(name, channels):
    net = make_backbone(name, image_shape=(channels, 32, 32)).eval()
    with torch.inference_mode():
        z = net(torch.randn(2, channels, 32, 32))
    assert z.shape == (2, net.latent_dim) == (2, DIMENSIONS[name])


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


def test_sizes_by_hand():
    def size(net):
        return sum(p.numel() for p in net.parameters())

    # 464 (stem) + 23,360 + 88,768 + 353,664 (stages, with 1 x 1 shortcuts), without a head.
    assert size(CifarResNet(32)) == 466_256
    with pytest.raises(OptionError, match="depth must be 6 n"):
        CifarResNet(18)
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


COSINE_HEADS = [lambda: CosineHead(3, 4), lambda: SplitCosineHead(3, 2, 2)]


def fill(parameter, values):
    with torch.no_grad():
        parameter.copy_(torch.tensor(values))


def hand_made_split():
    head = SplitCosineHead(2, 1, 2)
    fill(head.old, [[3.0, 4.0]])
    fill(head.new, [[0.0, -2.0], [7.0, 0.0]])
    fill(head.sigma, 5.0)
    return head


def test_cosine_head_by_hand():
    head = CosineHead(2, 2)
    assert head.sigma.item() == 1
    fill(head.weight, [[2.0, 0.0], [-4.0, 3.0]])
    z = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(head.cosines(z), torch.tensor([[0.6, 0.0]]))
    fill(head.sigma, 10.0)
    torch.testing.assert_close(head(z), torch.tensor([[6.0, 0.0]]))
    torch.testing.assert_close(head.cosines(z), torch.tensor([[0.6, 0.0]]))  # sigma is not in them


def test_split_head_by_hand_old_classes_first():
    head = hand_made_split()
    z = torch.tensor([[0.0, 0.1], [-6.0, 8.0]])
    torch.testing.assert_close(head.cosines(z), torch.tensor([[0.8, -1.0, 0.0], [0.28, -0.8, -0.6]]))
    torch.testing.assert_close(head(z), torch.tensor([[4.0, -5.0, 0.0], [1.4, -4.0, -3.0]]))


def test_growth_keeps_rows_bit_for_bit_and_adds_different_ones():
    head = LinearHead(16, 3)
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    z = torch.randn(4, 16)
    before = head(z)
    assert head.grow(5) is head
    assert head.classes == head.out_features == 5
    assert torch.equal(head.weight[:3], weight)
    assert torch.equal(head.bias[:3], bias)
    torch.testing.assert_close(head(z)[:, :3], before)
    added = head.weight[3:]
    assert 0 < added.abs().max() <= 16**-0.5
    assert not torch.equal(added[0], added[1])
    assert set(dict(head.named_parameters())) == {"weight", "bias"}


def test_growth_keeps_number_type_and_what_is_frozen():
    head = LinearHead(2, 1).to(torch.float64)
    head.weight.requires_grad_(False)
    head.grow(2)
    assert head.weight.dtype == head.bias.dtype == torch.float64
    assert not head.weight.requires_grad
    assert head.bias.requires_grad


def test_growing_by_nothing_changes_nothing_and_shrinking_is_an_error():
    head = LinearHead(2, 3)
    weight = head.weight.detach().clone()
    assert torch.equal(head.grow(3).weight, weight)
    with pytest.raises(OptionError, match="3 classes cannot shrink to 2"):
        head.grow(2)


def test_prototypes_start_uniform_within_one_over_root_dim():
    weight = CosineHead(25, 400).weight
    assert weight.abs().max() <= 0.2
    assert weight.std().item() == pytest.approx(0.2 / 3**0.5, rel=0.05)


def test_after_a_cosine_head_and_after_a_split_head():
    base = CosineHead(4, 3)
    fill(base.sigma, 7.0)
    first = SplitCosineHead.after(base, 2)
    assert torch.equal(first.old, base.weight)
    second = SplitCosineHead.after(first, 4)
    assert torch.equal(second.old, torch.cat([first.old, first.new]))
    assert second.new.shape == (4, 4)
    assert (first.classes, second.classes) == (5, 9)
    assert first.sigma.item() == second.sigma.item() == 7
    z = torch.randn(3, 4)
    torch.testing.assert_close(second(z)[:, :5], first(z))


def test_after_copies_and_gives_trainable_parameters():
    base = CosineHead(4, 3).to(torch.float64).eval()
    base.requires_grad_(False)
    before = base.weight.clone()
    head = SplitCosineHead.after(base, 1)
    assert all(p.requires_grad and p.is_leaf and p.dtype == torch.float64 for p in head.parameters())
    assert not head.training
    with torch.no_grad():
        head.old.zero_()
        head.sigma.zero_()
    assert torch.equal(base.weight, before)
    assert base.sigma.item() == 1


@pytest.mark.parametrize("make", COSINE_HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_zero_latents_give_zero_logits_and_modest_gradients(make, dtype):
    head = make().to(dtype)
    z = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    logits = head(z)
    assert torch.equal(logits, torch.zeros(2, 4, dtype=dtype))
    logits.sum().backward()
    for tensor in (z, *head.parameters()):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().max() < 10


def test_directions_are_those_of_torch_elsewhere():
    z = torch.randn(5, 7)
    torch.testing.assert_close(directions(z), nn.functional.normalize(z, dim=1))


def two_old_two_new():
    """Old prototypes of lengths 5 and 1: mean 3."""
    head = SplitCosineHead(2, 2, 2)
    fill(head.old, [[3.0, -4.0], [0.0, 1.0]])
    return head


# Class 2: directions (1, 0) and (0, 1), mean (.5, .5), so 3 (1, 1) / sqrt 2; a mean of raw latents would lean to x.
# Class 3: one latent, direction (-.6, .8), so (-1.8, 2.4).
LATENTS = torch.tensor([[100.0, 0.0], [-3.0, 4.0], [0.0, 0.5]])
LABELS = torch.tensor([2, 3, 2])
BY_HAND = torch.tensor([[4.5**0.5, 4.5**0.5], [-1.8, 2.4]])


def test_imprinting_by_hand():
    head = two_old_two_new()
    new, old = head.new, head.old.detach().clone()
    # The latent of an old class is passed over.
    imprint(head, torch.cat([LATENTS, torch.tensor([[9.0, 9.0]])]), torch.cat([LABELS, torch.tensor([1])]))
    torch.testing.assert_close(head.new.detach(), BY_HAND)
    assert torch.equal(head.old, old)
    assert head.sigma.item() == 1
    assert head.new is new  # in place: an optimiser that holds it goes on
    assert new.requires_grad
    assert new.is_leaf


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_keeps_the_number_type_of_the_head(dtype):
    head = two_old_two_new().to(dtype)
    imprint(head, LATENTS, LABELS)
    assert head.new.dtype == dtype
    torch.testing.assert_close(head.new.detach().float(), BY_HAND, atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("latents", "labels", "message"),
    [
        (LATENTS[:1], LABELS[:1], "no latents"),
        (LATENTS[:0], LABELS[:0], "no latents"),
        (LATENTS, LABELS - 2, "no latents"),  # counted from the first new class by mistake
        (LATENTS, LABELS + 1, "from 0 to 3"),
        (LATENTS, LABELS - 3, "from 0 to 3"),
        (LATENTS, LABELS.float(), "whole numbers"),
        (LATENTS, LABELS[:2], "one for each latent"),
        (torch.ones(3, 5), LABELS, r"latents must be \(N, 2\), got \(3, 5\)"),
        (LATENTS / 0, LABELS, "NaN or infinite"),
        (LATENTS * torch.tensor([[1.0], [0.0], [1.0]]), LABELS, "no mean direction"),
        (torch.tensor([[1.0, 1.0], [1.0, 0.0], [-2.0, -2.0]]), LABELS, "no mean direction"),
    ],
)
def test_what_cannot_be_imprinted_is_named_and_changes_nothing(latents, labels, message):
    head = two_old_two_new()
    before = head.new.detach().clone()
    with pytest.raises(LatentError, match=message):
        imprint(head, latents, labels)
    assert torch.equal(head.new, before)


def test_a_branch_of_unknown_plasticity_is_refused():
    with pytest.raises(OptionError, match="a branch is one of free, scaled, fixed, not 'soft'"):
        TwoBranch(make_backbone("conv", image_shape=(1, 8, 8)), one="free", two="soft")
