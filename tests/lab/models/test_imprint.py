import pytest
import torch

from elign.lab.models.heads import CosineHead, SplitCosineHead
from elign.lab.models.imprint import imprint
from elign.utils.errors import LatentError


def two_old_two_new():
    """Old prototypes of lengths 5 and 1: mean 3."""
    head = SplitCosineHead(2, 2, 2)
    with torch.no_grad():
        head.old.copy_(torch.tensor([[3.0, -4.0], [0.0, 1.0]]))
    return head


# Class 2: directions (1, 0) and (0, 1), mean (.5, .5), so 3 (1, 1) / sqrt 2; a mean of raw latents would lean to x.
# Class 3: one latent, direction (-.6, .8), so (-1.8, 2.4).
LATENTS = torch.tensor([[100.0, 0.0], [-3.0, 4.0], [0.0, 0.5]])
LABELS = torch.tensor([2, 3, 2])
BY_HAND = torch.tensor([[4.5**0.5, 4.5**0.5], [-1.8, 2.4]])


def test_by_hand():
    head = two_old_two_new()
    new, old = head.new, head.old.detach().clone()
    imprint(head, LATENTS, LABELS)
    torch.testing.assert_close(head.new.detach(), BY_HAND)
    assert torch.equal(head.old, old)
    assert head.sigma.item() == 1
    assert head.new is new  # in place: an optimiser that holds it goes on
    assert new.requires_grad
    assert new.is_leaf


def test_latents_of_old_classes_are_passed_over():
    head = two_old_two_new()
    imprint(head, torch.cat([LATENTS, torch.tensor([[9.0, 9.0]])]), torch.cat([LABELS, torch.tensor([1])]))
    torch.testing.assert_close(head.new.detach(), BY_HAND)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_keeps_the_number_type_of_the_head(dtype):
    head = two_old_two_new().to(dtype)
    imprint(head, LATENTS, LABELS)
    assert head.new.dtype == dtype
    torch.testing.assert_close(head.new.detach().float(), BY_HAND, atol=0.02, rtol=0)


def test_takes_latents_of_inference_mode():
    with torch.inference_mode():
        latents = LATENTS * 2
    head = two_old_two_new()
    imprint(head, latents, LABELS)
    head(torch.ones(1, 2)).sum().backward()
    torch.testing.assert_close(head.new.detach(), BY_HAND)


def test_tells_well_separated_new_classes_apart_at_once():
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(5, 16, generator=generator) * 4
    labels = torch.arange(5).repeat(20)
    latents = centres[labels] + torch.randn(100, 16, generator=generator)
    head = SplitCosineHead.after(CosineHead(16, 3), 5)
    imprint(head, latents, labels + 3)
    chosen = head(latents)[:, 3:].argmax(dim=1)
    assert (chosen == labels).all()


@pytest.mark.parametrize(
    ("latents", "labels", "message"),
    [
        (LATENTS[:1], LABELS[:1], "for class 3;"),
        (LATENTS[:0], LABELS[:0], "for class 2, 3;"),
        (LATENTS, LABELS - 2, "for class 2, 3;"),  # counted from the first new class by mistake
        (LATENTS, LABELS + 1, "from 0 to 3"),
        (LATENTS, LABELS - 3, "from 0 to 3"),
        (LATENTS, LABELS.float(), "whole numbers"),
        (LATENTS, LABELS[:2], "one for each latent"),
        (torch.ones(3, 5), LABELS, r"latents must be \(N, 2\), got \(3, 5\)"),
        (LATENTS / 0, LABELS, "NaN or infinite"),
        (LATENTS * torch.tensor([[1.0], [0.0], [1.0]]), LABELS, "class 3 have no mean direction"),
        (torch.tensor([[1.0, 1.0], [1.0, 0.0], [-2.0, -2.0]]), LABELS, "class 2 have no mean direction"),
    ],
)
def test_what_cannot_be_imprinted_is_named_and_changes_nothing(latents, labels, message):
    head = two_old_two_new()
    before = head.new.detach().clone()
    with pytest.raises(LatentError, match=message):
        imprint(head, latents, labels)
    assert torch.equal(head.new, before)
