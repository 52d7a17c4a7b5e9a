from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torchvision.ops import box_iou

from elign.lab.detection.evaluation.pairs import region_pairs
from elign.lab.evaluation.errors import EvaluationError
from elign.utils.errors import OptionError


@pytest.fixture
def batches(world):
    """Two batches of one image; objects lie where the network proposes regions, so that some of these overlap them."""
    return [
        ([image], [{"boxes": objects.boxes[1:], "labels": 1 + objects.labels[1:]}])
        for image, objects in zip(world.images, world.objects, strict=True)
    ]


def by_hand(world, batches, *, shared=False):
    """Latents under both models, and the regions, image by image."""
    rows = []
    with torch.no_grad():
        for images, targets in batches:
            seen, placed = world.current.transform(images, targets)
            features = world.current.features(seen.tensors)
            (proposals,), _ = world.current.propose(seen, features)
            boxes = placed[0]["boxes"]
            near = [region for region in proposals if box_iou(region.unsqueeze(0), boxes).max() >= 0.5]
            rois = [torch.stack([*boxes, *near])]
            theirs = features if shared else world.previous.features(seen.tensors)
            before = world.previous.read(theirs, rois, seen.image_sizes).latents
            after = world.current.read(features, rois, seen.image_sizes).latents
            rows.append((before, after))
    assert any(len(before) > 1 for before, _ in rows), "no proposal overlaps an object"
    return tuple(torch.cat(side) for side in zip(*rows, strict=True))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.usefixtures("untouched_random_state")
def test_pairs_are_of_the_same_regions(world, batches, shared):
    found = region_pairs(world.previous, world.current, batches, shared_backbone=shared, seed=0)
    expected = by_hand(world, batches, shared=shared)
    for z, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(z, wanted)
        assert not z.requires_grad
    assert not torch.allclose(*found, atol=1e-3)


def test_the_authors_variant_lacks_the_drift_of_the_backbone(world, batches):
    own, shared = (
        region_pairs(world.previous, world.current, batches, shared_backbone=choice, seed=0) for choice in (False, True)
    )
    assert torch.equal(own[1], shared[1])
    assert not torch.allclose(own[0], shared[0], atol=1e-3)


def test_regions_are_on_objects_elsewhere_or_both(world, batches):
    rows = {
        which: region_pairs(world.previous, world.current, batches, regions=which, seed=0, per_image=10**6)[1]
        for which in ("objects", "others", "all")
    }
    torch.testing.assert_close(rows["objects"], by_hand(world, batches)[1])
    assert len(rows["others"]) > 0
    assert len(rows["all"]) == len(rows["objects"]) + len(rows["others"])
    for part in ("objects", "others"):
        assert _distances(rows[part], rows["all"]).min(dim=1).values.max() < 1e-3
    with torch.no_grad():
        for images, targets in batches:
            seen, placed = world.current.transform(images, targets)
            features = world.current.features(seen.tensors)
            (proposals,), _ = world.current.propose(seen, features)
            far = torch.stack([p for p in proposals if box_iou(p.unsqueeze(0), placed[0]["boxes"]).max() < 0.5])
            expected = world.current.read(features, [far], seen.image_sizes).latents
            assert _distances(expected, rows["others"]).min(dim=1).values.max() < 1e-3
    with pytest.raises(OptionError, match="objects, others, all"):
        region_pairs(world.previous, world.current, batches, regions="none", seed=0)


def test_without_drift_pairs_are_equal(world, batches):
    z_prev, z_cur = region_pairs(world.current, deepcopy(world.current), batches, seed=0)
    assert torch.equal(z_prev, z_cur)


def test_training_leaves_no_trace(world, batches):
    """Models that were being trained are read in evaluation mode, and nothing of them changes."""
    previous, current = deepcopy(world.previous).train(), deepcopy(world.current).train()
    before = {name: value.clone() for name, value in current.state_dict().items()}
    found = region_pairs(previous, current, batches, seed=0)
    torch.testing.assert_close(found, by_hand(world, batches))
    assert all(torch.equal(value, before[name]) for name, value in current.state_dict().items())
    assert not any(part.training for model in (previous, current) for part in model.modules())
    assert all(parameter.grad is None for parameter in current.parameters())


def test_at_most_so_many_per_image_drawn_from_all(world, batches):
    everything = region_pairs(world.previous, world.current, batches, seed=0)[1]
    draws = [region_pairs(world.previous, world.current, batches, seed=seed, per_image=1)[1] for seed in range(6)]
    assert all(len(draw) == 2 for draw in draws)
    for draw in draws:
        assert torch.cdist(draw, everything).min(dim=1).values.max() < 1e-3
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) > 1
    assert torch.equal(draws[0], region_pairs(world.previous, world.current, batches, seed=0, per_image=1)[1])


def test_images_without_boxes_are_passed_over(world, batches):
    empty = ([world.images[0]], [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}])
    found = region_pairs(world.previous, world.current, [empty, *batches], seed=0)
    torch.testing.assert_close(found, region_pairs(world.previous, world.current, batches, seed=0))
    mixed = ([*empty[0], *batches[0][0]], [*empty[1], *batches[0][1]])
    alone = region_pairs(world.previous, world.current, batches[:1], seed=0)
    assert region_pairs(world.previous, world.current, [mixed], seed=0)[0].shape == alone[0].shape
    with pytest.raises(EvaluationError, match="no image has a box"):
        region_pairs(world.previous, world.current, [empty], seed=0)
    with pytest.raises(OptionError, match="per_image"):
        region_pairs(world.previous, world.current, batches, seed=0, per_image=0)


def _distances(one, other):
    # The faster way through a product of matrices is not exact where two are nearly the same.
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
