"""Region methods: pairs, old regions, and each method against its definition."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from tests.lab.detection.annotating import objects
from torchvision.ops import box_iou

from elign import ByEnergy, SplitOutputs, attach
from elign.lab.detection.config import TREE
from elign.lab.detection.region_methods import (
    REGION_METHODS,
    RegionMethods,
    old_regions,
    outputs_on,
    predict_images,
    region_pairs,
)
from elign.lab.evaluation.inputs import EvaluationError
from elign.lab.evaluation.methods import METHODS
from elign.utils.errors import LatentError, OptionError

LABEL_FREE = {"base", "eli/all", "eli/by-prediction", "eli/by-energy", "mean-shift/all"}
LABEL_FREE |= {"eli/old-classes", "ridge/old-classes"}


def same(first, second):
    return all(
        set(a) == set(b) and all(torch.equal(a[key], b[key]) for key in a) for a, b in zip(first, second, strict=True)
    )


def close(first, second):
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a["labels"], b["labels"])
        torch.testing.assert_close(a["boxes"], b["boxes"])
        torch.testing.assert_close(a["scores"], b["scores"])


@pytest.fixture(scope="module")
def old(world):
    return old_regions(world.regions.boxes, world.objects, old_classes=world.old_classes)


@pytest.fixture(scope="module")
def taken(world, old):
    with torch.no_grad():
        outputs = outputs_on(world.previous, world.images, world.regions)
    return world.methods.predict(world.current, world.regions, old=old, previous=outputs)


def test_all_methods_are_there_and_in_the_catalogue(taken):
    assert tuple(taken) == REGION_METHODS
    assert set(REGION_METHODS) <= set(METHODS)


def test_the_scene_can_tell_methods_apart(world, old, taken):
    assert 0 < old.sum() < len(old)
    found = [method.detections for method in taken.values()]
    assert all(len(image["scores"]) for image in found[0])
    for place, first in enumerate(found):
        assert not any(same(first, second) for second in found[place + 1 :]), REGION_METHODS[place]


def test_base_is_the_detector_itself(world, taken):
    with torch.no_grad():
        assert same(taken["base"].detections, world.current(world.images))
    assert taken["base"].weights.sum() == 0


HOW = ("oracle", "all", "by-prediction", "by-energy")


@pytest.mark.parametrize("name", [name for name in REGION_METHODS if name.endswith(HOW)])
@torch.no_grad()
def test_the_regions_that_are_moved_are_those_of_the_definition(world, old, taken, name):
    aligner, latents = world.methods.aligners[name.partition("/")[0]], world.regions.latents
    tops = world.current.predictor(latents)[0].argmax(dim=1)
    assert set(tops.tolist()) == {0, 1, 2, 3, 4}
    gate = ByEnergy(quantile=world.settings.energy_quantile).fit(world.methods.aligners["eli"], latents)
    moves = {
        "oracle": old,
        "all": torch.ones_like(old),
        "by-prediction": (tops == 1) | (tops == 2),  # neither background nor new
        "by-energy": world.methods.aligners["eli"].energy(latents) < gate.threshold,
    }[name.partition("/")[2]]
    assert 0 < moves.sum() < len(moves) or name.endswith("/all")
    rows = [aligner.align(z.unsqueeze(0))[0] if move else z for z, move in zip(latents, moves, strict=True)]
    close(taken[name].detections, world.current.detections(torch.stack(rows), world.regions))
    assert torch.equal(taken[name].weights, moves.float())


def by_class(world, detector, aligner):
    """Detections with scores of old classes, and boxes that are theirs alone, of moved regions; column by column."""
    latents = world.regions.latents
    with torch.no_grad():
        (here, boxes), (there, moved) = (detector.predictor(z) for z in (latents, aligner.align(latents)))
        here, there = here.softmax(dim=1), there.softmax(dim=1)
        # Columns: background, two old classes, two new ones; some heads have the unknown beside them.
        nothing = torch.minimum(here[:, 0] + here[:, 5:].sum(dim=1), there[:, 0] + there[:, 5:].sum(dim=1))
        scores = torch.cat([nothing.unsqueeze(1), there[:, 1:3], here[:, 3:5], 0 * here[:, 5:]], dim=1)
        if not detector.predictor.class_agnostic:
            boxes = torch.cat([boxes[:, :4], moved[:, 4:12], boxes[:, 12:]], dim=1)
        return detector.detections_from(scores.log(), boxes, world.regions)


def test_an_aligner_attached_for_old_classes_gives_the_same(world, taken):
    old = SplitOutputs(range(1, 3), background=0)
    with (
        torch.no_grad(),
        attach(world.current, "roi_heads.box_predictor", world.methods.aligners["ridge"], outputs=old),
    ):
        close(taken["ridge/old-classes"].detections, world.current(world.images))


def test_oracle_mask_leaves_background_and_old_classes(world, old, taken):
    with torch.no_grad():
        logits, deltas = world.current.predictor(world.regions.latents)
        for row in old.nonzero():
            logits[row, 3:] = float("-inf")
        close(taken["oracle-mask"].detections, world.current.detections_from(logits, deltas, world.regions))
    assert taken["oracle-mask"].weights is None


def mixed(world, current, previous, old):
    """What `previous-model` is to find, built column by column."""
    with torch.no_grad():
        logits, deltas = current.predictor(world.regions.latents)
        regions = world.regions
        theirs = outputs_on(previous, world.images, regions)
        for row in range(len(old)):
            if old[row]:
                logits[row] = torch.tensor([*theirs.logits[row, :3], -torch.inf, -torch.inf, *theirs.logits[row, 3:]])
                for column in range(3):
                    place = slice(0, 4) if current.predictor.class_agnostic else slice(4 * column, 4 * column + 4)
                    deltas[row, place] = theirs.deltas[row].reshape(-1, 4)[0 if place.start == 0 else column]
        return current.detections_from(logits, deltas, regions)


@pytest.mark.parametrize("changes", [{}, {"class_agnostic_boxes": False}, {"unknown": True}])
def test_scores_and_boxes_of_another_model_or_latent_take_the_right_columns(world, old, changes):
    previous, current = world.make_pair(**changes)
    with torch.no_grad():
        outputs = outputs_on(previous, world.images, world.regions)
        methods = world.methods.predict(current, world.regions, old=old, previous=outputs)
    assert set(methods) == set(REGION_METHODS)
    close(methods["previous-model"].detections, mixed(world, current, previous, old))
    for name in ("eli", "ridge"):
        close(methods[f"{name}/old-classes"].detections, by_class(world, current, world.methods.aligners[name]))
    labels = torch.cat([image["labels"] for method in methods.values() for image in method.detections])
    assert int(labels.max()) <= 4


def one_by_one(world):
    return [[image] for image in world.images]


def test_label_free_methods_need_no_annotation_and_do_not_change_with_it(world):
    without, informed = (
        predict_images(world.current, one_by_one(world), world.methods, objects=objects, previous=world.previous)
        for objects in (None, world.objects)
    )
    assert set(without) == {name for name, method in informed.items() if method.label_free} == LABEL_FREE
    assert set(informed) == set(REGION_METHODS)
    assert {name for name, method in informed.items() if method.gated} == {"eli/by-prediction", "eli/by-energy"}
    for name, method in without.items():
        assert same(map(vars, method.detections), map(vars, informed[name].detections))
        assert method.gate_accuracy is None
        assert method.aligned_share == informed[name].aligned_share


def test_noise_is_the_same_on_every_walk_through_a_test_set(world):
    noisy = RegionMethods(
        world.regions.latents + 1,
        world.regions.latents,
        old_classes=world.old_classes,
        settings=TREE.compose([]).aligner.replace(iterations=5, hidden=(8,), steps=3, noise=1.0),
        seed=1,
        names=["eli/all"],
    )
    first, second = (predict_images(world.current, one_by_one(world), noisy) for _ in range(2))
    for a, b in zip(first["eli/all"].detections, second["eli/all"].detections, strict=True):
        assert torch.equal(a.scores, b.scores)


def test_shares_are_counted_over_all_batches(world):
    collected = predict_images(world.current, one_by_one(world), world.methods, objects=world.objects)
    weights, masks = [], []
    for image, truth in zip(world.images, world.objects, strict=True):
        with torch.no_grad():
            regions = world.current.regions([image])
        masks.append(old_regions(regions.boxes, [truth], old_classes=world.old_classes))
        weights.append(world.methods.predict(world.current, regions)["eli/by-prediction"].weights)
    weights, mask = torch.cat(weights), torch.cat(masks)
    assert 0 < weights.mean() < 1
    gate = collected["eli/by-prediction"]
    assert gate.gate_accuracy == pytest.approx(((weights > 0.5) == mask).float().mean().item())
    assert gate.aligned_share == pytest.approx(weights.mean().item())
    assert collected["eli/oracle"].aligned_share == pytest.approx(mask.float().mean().item())
    assert collected["eli/oracle"].gate_accuracy is None
    assert collected["eli/all"].gate_accuracy is None
    assert (collected["base"].aligned_share, collected["oracle-mask"].aligned_share) == (0, 0)


def test_at_the_first_task_there_is_only_base(world):
    (method,) = predict_images(world.previous, [world.images], None).items()
    assert method[0] == "base"
    assert len(method[1].detections) == 2
    assert method[1].label_free


def test_wrong_input_is_named(world, old):
    with pytest.raises(LatentError, match="but the batch has rows"):
        world.methods.predict(world.current, world.regions, old=old[:-1])
    with pytest.raises(EvaluationError, match="2 images, but annotations of 3"):
        predict_images(world.current, [world.images], world.methods, objects=[*world.objects, world.objects[0]])
    latents, quick = world.regions.latents, world.settings.replace(iterations=1)
    for name in ("bias-offset", "eli/by-oracle", "nothing"):
        with pytest.raises(OptionError, match="no method"):
            RegionMethods(latents, latents, old_classes=2, settings=quick, seed=0, names=[name])
    other, _ = world.make_pair()
    other.transform.min_size = (96,)
    with pytest.raises(EvaluationError, match="different sizes"):
        outputs_on(other, world.images, world.regions)


@pytest.fixture
def annotated(world):
    """Two batches of one image; objects lie where the network proposes regions, so that some of these overlap."""
    return [
        ([image], [{"boxes": objects.boxes[1:], "labels": 1 + objects.labels[1:]}])
        for image, objects in zip(world.images, world.objects, strict=True)
    ]


@torch.no_grad()
def pairs_by_hand(world, annotated, *, kind="objects", shared=False):
    """Latents under both models, image by image."""
    rows = []
    for images, targets in annotated:
        seen, placed = world.current.transform(images, targets)
        features = world.current.features(seen.tensors)
        (proposals,), _ = world.current.propose(seen, features)
        boxes = placed[0]["boxes"]
        near = [bool(box_iou(region.unsqueeze(0), boxes).max() >= 0.5) for region in proposals]
        objects = [*boxes, *(region for region, on in zip(proposals, near, strict=True) if on)]
        others = [region for region, on in zip(proposals, near, strict=True) if not on]
        rois = [torch.stack({"objects": objects, "others": others, "all": objects + others}[kind])]
        theirs = features if shared else world.previous.features(seen.tensors)
        before = world.previous.roi_outputs(theirs, rois, seen.image_sizes).latents
        rows.append((before, world.current.roi_outputs(features, rois, seen.image_sizes).latents))
    assert any(len(before) > 1 for before, _ in rows), "no proposal overlaps an object"
    return tuple(torch.cat(side) for side in zip(*rows, strict=True))


@pytest.mark.parametrize(("kind", "shared"), [("objects", False), ("objects", True), ("others", False), ("all", False)])
@pytest.mark.usefixtures("untouched_random_state")
def test_pairs_are_of_the_same_regions(world, annotated, kind, shared):
    found = region_pairs(world.previous, world.current, annotated, regions=kind, shared_backbone=shared, seed=0)
    for z, wanted in zip(found, pairs_by_hand(world, annotated, kind=kind, shared=shared), strict=True):
        torch.testing.assert_close(z, wanted)
        assert not z.requires_grad
    assert not torch.allclose(*found, atol=1e-3)


def test_training_leaves_no_trace(world, annotated):
    """Models that were being trained are read in evaluation mode, and nothing of them changes."""
    previous, current = deepcopy(world.previous).train(), deepcopy(world.current).train()
    before = {name: value.clone() for name, value in current.state_dict().items()}
    found = region_pairs(previous, current, annotated, seed=0)
    torch.testing.assert_close(found, pairs_by_hand(world, annotated))
    assert all(torch.equal(value, before[name]) for name, value in current.state_dict().items())
    assert not any(part.training for model in (previous, current) for part in model.modules())
    assert all(parameter.grad is None for parameter in current.parameters())


def test_at_most_so_many_per_image_drawn_from_all(world, annotated):
    everything = region_pairs(world.previous, world.current, annotated, seed=0)[1]
    draws = [region_pairs(world.previous, world.current, annotated, seed=seed, per_image=1)[1] for seed in range(6)]
    assert all(len(draw) == 2 for draw in draws)
    for draw in draws:
        assert torch.cdist(draw, everything).min(dim=1).values.max() < 1e-3
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) > 1
    assert torch.equal(draws[0], region_pairs(world.previous, world.current, annotated, seed=0, per_image=1)[1])


def test_images_without_boxes_are_passed_over(world, annotated):
    empty = ([world.images[0]], [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}])
    found = region_pairs(world.previous, world.current, [empty, *annotated], seed=0)
    torch.testing.assert_close(found, region_pairs(world.previous, world.current, annotated, seed=0))
    mixed = ([*empty[0], *annotated[0][0]], [*empty[1], *annotated[0][1]])
    alone = region_pairs(world.previous, world.current, annotated[:1], seed=0)
    assert region_pairs(world.previous, world.current, [mixed], seed=0)[0].shape == alone[0].shape
    with pytest.raises(EvaluationError, match="no image has a box"):
        region_pairs(world.previous, world.current, [empty], seed=0)
    for wrong in ({"per_image": 0}, {"regions": "none"}):
        with pytest.raises(OptionError, match="per_image"):
            region_pairs(world.previous, world.current, annotated, seed=0, **wrong)


def test_regions_on_old_objects():
    truth = [
        objects(((0, 0, 10, 10), 1), ((20, 0, 30, 10), 2)),
        objects(),
        objects(((0, 0, 10, 10), 0, True)),
        objects(),
    ]
    boxes = [(0, 0, 10, 5), (0, 0, 10, 4.9), (20, 0, 30, 10), (50, 50, 60, 60)], [], [(1, 0, 10, 10)], [(0, 0, 1, 1)]
    proposed = [torch.tensor(some, dtype=torch.float32).reshape(-1, 4) for some in boxes]
    old = old_regions(proposed, truth, old_classes=2)
    # Overlaps of 0.5, 0.49, 1 (with a new object) and 0 on the first image, 0.9 with a difficult object on the third.
    assert old.tolist() == [True, False, False, False, True, False]
    assert old.dtype == torch.bool
    assert old_regions(proposed, truth, old_classes=3)[2]
    with pytest.raises(EvaluationError, match="1 images"):
        old_regions(proposed[:1], [], old_classes=1)


def test_the_best_match_decides_not_any_match():
    # The region overlaps the old object by 10/18 (enough) and the new one by more.
    truth, region = objects(((0, 0, 10, 18), 0), ((0, 0, 10, 11), 5)), torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    assert old_regions([region], [truth], old_classes=5).tolist() == [False]
    assert old_regions([region], [truth.of(range(5))], old_classes=5).tolist() == [True]


def test_label_free_methods_do_not_depend_on_the_oracles_mask(world, old, taken):
    for mask in (None, ~old, torch.ones_like(old)):
        again = world.methods.predict(world.current, world.regions, old=mask)
        assert all(same(again[name].detections, taken[name].detections) for name in LABEL_FREE)
        assert (mask is None) == (set(again) == LABEL_FREE)
        assert "previous-model" not in again
