"""The detector against torchvision, and its head that grows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F
from torchvision.models.detection import FasterRCNN
from torchvision.ops import box_iou

import elign
from elign import OptionError
from elign.lab.detection.c4_networks import RegionPool
from elign.lab.detection.detector import DetectorUseError, Predictor, roi_losses


def same(one, two):
    return all(
        torch.equal(a[name], b[name]) for a, b in zip(one, two, strict=True) for name in ("boxes", "labels", "scores")
    )


@pytest.mark.parametrize("class_agnostic", [True, False])
@pytest.mark.parametrize("unknown", [True, False])
@torch.no_grad()
def test_forward_is_regions_and_then_detections(loud, uneven, class_agnostic, unknown):
    detector = loud(class_agnostic_boxes=class_agnostic, unknown=unknown)
    regions = detector.regions(uneven[0])
    whole = detector(uneven[0])
    assert sum(len(found["labels"]) for found in whole) > 5
    assert same(whole, detector.detections(regions.latents, regions))


@torch.no_grad()
def test_forward_is_torchvisions(loud, uneven):
    detector = loud(class_agnostic_boxes=False, score_threshold=0.3, detections_per_image=4)
    found = detector(uneven[0], targets=object())  # never looked at
    assert same(found, FasterRCNN.forward(detector, uneven[0]))
    assert max(len(one["labels"]) for one in found) == 4
    assert min(one["scores"].min() for one in found if len(one["scores"])) > 0.3


@torch.no_grad()
def test_regions_are_in_both_frames(loud):
    detector = loud()
    small, wide = torch.rand(3, 48, 48), torch.rand(3, 60, 300)
    regions = detector.regions([small, wide])
    # The short side becomes 96, but the long one at most 144.
    assert regions.image_sizes == [(96, 96), (28, 144)]
    assert regions.original_sizes == [(48, 48), (60, 300)]
    assert regions.latents.shape == (sum(map(len, regions.rois)), detector.latent_dim)
    torch.testing.assert_close(regions.boxes[0], regions.rois[0] / 2)
    factors = torch.tensor([300 / 144, 60 / 28, 300 / 144, 60 / 28])
    torch.testing.assert_close(regions.boxes[1], regions.rois[1] * factors)
    for boxes, (height, width) in zip(regions.boxes, regions.original_sizes, strict=True):
        assert boxes.min() >= 0
        assert boxes[:, 2].max() <= width + 1e-3
        assert boxes[:, 3].max() <= height + 1e-3


@torch.no_grad()
def test_an_attached_aligner_acts_at_test_and_nowhere_else(loud, scenes):
    detector = loud()
    regions = detector.regions(scenes[0])
    shift = torch.linspace(-1, 1, detector.latent_dim)
    aligner = elign.MeanShift().fit_latents(regions.latents + shift, regions.latents)
    plain = detector(scenes[0])
    with elign.attach(detector, "roi_heads.box_predictor", aligner):
        attached = detector(scenes[0])
        torch.manual_seed(3)
        training = detector.train()(*scenes)
        detector.eval()
    assert not same(plain, attached)
    assert same(attached, detector.detections(aligner.align(regions.latents), regions))
    torch.manual_seed(3)
    untouched = detector.train()(*scenes)
    assert all(torch.equal(training[name], untouched[name]) for name in untouched)


@torch.no_grad()
def test_the_unknown_is_never_returned_and_takes_its_probability_with_it(loud, scenes):
    detector = loud(unknown=True, nms=1.0, score_threshold=0.0, detections_per_image=10_000)
    regions = detector.regions(scenes[0][:1])
    logits, deltas = detector.roi_heads.box_predictor(regions.latents)
    logits[:, -1] += 2
    (found,) = detector.detections_from(logits, deltas, regions)
    assert set(found["labels"].tolist()) == {1, 2, 3}
    expected = logits.softmax(dim=1)[:, 1:-1].flatten().sort(descending=True).values
    torch.testing.assert_close(found["scores"], expected)


@pytest.mark.parametrize("class_agnostic", [True, False])
@torch.no_grad()
def test_images_without_any_region_give_no_detections(loud, scenes, class_agnostic):
    detector = loud(class_agnostic_boxes=class_agnostic)
    regions = detector.regions(scenes[0])
    nothing = torch.zeros(0, 4)
    partly = dataclasses.replace(regions, rois=[nothing, regions.rois[1]])
    first, second = detector.detections(regions.latents[len(regions.rois[0]) :], partly)
    assert same([second], detector(scenes[0])[1:])
    empty = detector.detections(regions.latents[:0], dataclasses.replace(regions, rois=[nothing, nothing]))
    assert all(found["boxes"].shape == (0, 4) for found in (first, *empty))


@torch.no_grad()
def test_boxes_keep_their_precision_under_autocast(loud, scenes):
    detector = loud(score_threshold=0.0, nms=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        look = detector.train().look(*scenes)
        regions = detector.eval().regions(scenes[0])
        found = detector(scenes[0])
    assert look.features.dtype == torch.bfloat16
    assert all(torch.isfinite(loss) for loss in {**look.region_losses, **roi_losses(look)}.values())
    precise = [*regions.rois, *(one["boxes"] for one in found)]
    assert {values.dtype for values in (*precise, *look.rois, look.regression_targets, *regions.boxes)} == {
        torch.float32
    }
    assert not any(torch.equal(values, values.bfloat16().float()) for values in precise)


NAMES = {
    "objectness": "loss_objectness",
    "region_box": "loss_rpn_box_reg",
    "classification": "loss_classifier",
    "box": "loss_box_reg",
}


@pytest.mark.parametrize("unknown", [False, True])
def test_losses_are_torchvisions(make, uneven, unknown):
    detector = make(class_agnostic_boxes=False, unknown=unknown, min_size=(80, 96))
    torch.manual_seed(7)
    expected = FasterRCNN.forward(detector, *uneven)
    torch.manual_seed(7)
    found = detector(*uneven)
    assert set(found) == set(NAMES)
    assert all(torch.equal(found[ours], expected[theirs]) for ours, theirs in NAMES.items())


def test_class_agnostic_boxes_are_learned_from_all_classes(make, scenes):
    look = make().look(*scenes)
    assert look.outputs.deltas.shape == (len(look.labels), 4)
    on_object = look.labels > 0
    wanted = F.smooth_l1_loss(
        look.outputs.deltas[on_object], look.regression_targets[on_object], beta=1 / 9, reduction="sum"
    )
    torch.testing.assert_close(roi_losses(look)["box"], wanted / len(look.labels))


def test_annotated_boxes_are_among_the_candidates(make, scenes):
    images, targets = scenes
    look = make(rois=200).look(images, targets)
    # At 96 pixels nothing is resized; so few candidates are all taken, the annotated boxes behind the proposals.
    for rois, target in zip(look.rois, targets, strict=True):
        assert torch.equal(rois[-2:], target["boxes"])
    first = len(look.rois[0])
    assert look.labels[first - 2 : first].tolist() == targets[0]["labels"].tolist()
    torch.testing.assert_close(look.regression_targets[first - 2 : first], torch.zeros(2, 4))
    overlaps = box_iou(look.rois[0], targets[0]["boxes"]).max(dim=1).values
    assert torch.equal(look.labels[:first] > 0, overlaps >= 0.5)


def test_wrong_use_is_named(make, scenes):
    images, targets = scenes
    for wrong in (lambda: make(classes=0)(*scenes), lambda: make(classes=0).eval()(images)):
        with pytest.raises(DetectorUseError, match=r"no classes yet: call grow\(\)"):
            wrong()
    with pytest.raises(DetectorUseError, match=r"\.eval\(\)"):
        make().regions(images)
    with pytest.raises(DetectorUseError, match="needs targets"):
        make()(images)
    targets[1]["boxes"][0, 2] = targets[1]["boxes"][0, 0]
    with pytest.raises(OptionError, match="boxes of image 1 must be"):
        make().look(images, targets)


@pytest.mark.parametrize("class_agnostic", [True, False])
@pytest.mark.parametrize("unknown", [True, False])
def test_growing_keeps_what_old_rows_say_bit_for_bit(class_agnostic, unknown):
    predictor = Predictor(5, class_agnostic=class_agnostic, unknown=unknown)
    predictor.grow(2)
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.normal_()
    before = {name: value.clone() for name, value in predictor.state_dict().items()}
    predictor.grow(3)
    after = predictor.state_dict()
    # Background and two classes stand first; the unknown moved behind the new ones.
    kept = [0, 1, 2, -1] if unknown else [0, 1, 2]
    for kind in ("weight", "bias"):
        score, box, old_box = after[f"score.{kind}"], after[f"box.{kind}"], before[f"box.{kind}"]
        assert torch.equal(score[kept], before[f"score.{kind}"][kept])
        assert torch.equal(box[: len(old_box)], old_box)
        assert (len(score), len(box)) == (6 + unknown, 4 if class_agnostic else 24)
    assert predictor.classes == 5
    predictor.requires_grad_(False).grow(1)
    assert not any(parameter.requires_grad for parameter in predictor.parameters())
    with pytest.raises(OptionError, match="1 class or more"):
        predictor.grow(0)


def test_new_rows_start_small_without_bias_and_differ():
    predictor = Predictor(400, class_agnostic=False, unknown=True)
    predictor.grow(50)
    new = predictor.score.weight[1:51]
    assert 0.009 < new.std().item() < 0.011
    assert 0.0009 < predictor.box.weight[8:].std().item() < 0.0011
    assert not predictor.score.bias.any()
    assert not predictor.box.bias.any()
    assert len(new.unique(dim=0)) == 50


def test_bins_lie_where_the_pixels_are():
    """On a map that says where it is, pooled values are the places of the bins, whatever images came first."""
    stride = 8
    across = (torch.arange(12.0) + 0.5) * stride
    places = torch.stack(torch.meshgrid(across[:4], across, indexing="ij"))[None]
    pool = RegionPool(2, stride=stride, samples=2)
    box = torch.tensor([[16.0, 8.0, 48.0, 24.0]])
    # A wide image whose padding is a large part of its height: here torchvision would guess another scale.
    pooled = pool({"0": places}, [box], [(20, 96)])
    torch.testing.assert_close(pooled[0, 0], torch.tensor([[12.0, 12.0], [20.0, 20.0]]))
    torch.testing.assert_close(pooled[0, 1], torch.tensor([[24.0, 40.0], [24.0, 40.0]]))


def test_a_tiny_detector_learns_two_scenes_by_heart(make, scenes):
    """The whole chain: what is learned in training mode comes out of evaluation mode, at the right place."""
    images, targets = scenes
    detector, steps = make(), 80
    optimizer = torch.optim.AdamW(detector.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        sum(detector(images, targets).values()).backward()
        optimizer.step()
        schedule.step()
    with torch.inference_mode():
        found = detector.eval()(images)
    for one, target in zip(found, targets, strict=True):
        strongest = one["scores"].topk(len(target["labels"])).indices
        overlaps, which = box_iou(target["boxes"], one["boxes"][strongest]).max(dim=1)
        assert overlaps.min() > 0.5
        assert torch.equal(one["labels"][strongest][which], target["labels"])
        # After so few steps, one start in ten has a confident box too many; rounding decides which.
        assert (one["scores"] > 0.5).sum() <= len(target["labels"]) + 1
