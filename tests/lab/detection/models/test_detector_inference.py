import dataclasses

import pytest
import torch
from torchvision.models.detection import FasterRCNN

import elign
from elign.lab.detection.models import DetectorUseError, roi_losses


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
    assert same(whole, detector.detections_from(*detector.roi_heads.box_predictor(regions.latents), regions))


@torch.no_grad()
def test_forward_is_torchvisions(loud, uneven):
    detector = loud(class_agnostic_boxes=False)
    assert same(detector(uneven[0]), FasterRCNN.forward(detector, uneven[0]))


@torch.no_grad()
def test_targets_are_never_looked_at(loud, uneven):
    detector = loud()
    assert same(detector(uneven[0]), detector(uneven[0], targets=object()))


@torch.no_grad()
def test_regions_are_in_both_frames(loud):
    detector = loud()
    small, wide = torch.rand(3, 48, 48), torch.rand(3, 60, 300)
    regions = detector.regions([small, wide])
    # The short side becomes 96, but the long one at most 144.
    assert regions.image_sizes == [(96, 96), (28, 144)]
    assert regions.original_sizes == [(48, 48), (60, 300)]
    assert regions.counts == [len(rois) for rois in regions.rois]
    assert regions.latents.shape == (sum(regions.counts), detector.latent_dim)
    torch.testing.assert_close(regions.boxes[0], regions.rois[0] / 2)
    factors = torch.tensor([300 / 144, 60 / 28, 300 / 144, 60 / 28])
    torch.testing.assert_close(regions.boxes[1], regions.rois[1] * factors)
    for boxes, (height, width) in zip(regions.boxes, regions.original_sizes, strict=True):
        assert boxes.min() >= 0
        assert boxes[:, 2].max() <= width + 1e-3
        assert boxes[:, 3].max() <= height + 1e-3


def test_regions_follow_the_callers_gradient_mode(loud, scenes):
    detector = loud()
    assert detector.regions(scenes[0]).latents.requires_grad
    with torch.inference_mode():
        assert not detector.regions(scenes[0]).latents.requires_grad


def test_regions_of_a_training_detector_are_refused(make, scenes):
    with pytest.raises(DetectorUseError, match=r"\.eval\(\)"):
        make().regions(scenes[0])


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


@torch.no_grad()
def test_detections_obey_threshold_and_number(loud, scenes):
    detector = loud(score_threshold=0.3, detections_per_image=4)
    for found in detector(scenes[0]):
        assert 0 < len(found["labels"]) <= 4
        assert found["scores"].min() > 0.3


@pytest.mark.parametrize("class_agnostic", [True, False])
@torch.no_grad()
def test_images_without_any_region_give_no_detections(loud, scenes, class_agnostic):
    detector = loud(class_agnostic_boxes=class_agnostic)
    regions = detector.regions(scenes[0])
    nothing = torch.zeros(0, 4)
    partly = dataclasses.replace(regions, rois=[nothing, regions.rois[1]])
    second = detector.detections(regions.latents[regions.counts[0] :], partly)
    assert len(second[0]["boxes"]) == 0
    assert same(second[1:], detector(scenes[0])[1:])
    empty = dataclasses.replace(regions, rois=[nothing, nothing])
    for found in detector.detections(regions.latents[:0], empty):
        assert found["boxes"].shape == (0, 4)


@torch.no_grad()
def test_boxes_keep_their_precision_under_autocast(loud, scenes):
    detector = loud(score_threshold=0.0, nms=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        look = detector.train().look(*scenes)
        regions = detector.eval().regions(scenes[0])
        found = detector(scenes[0])
    assert look.features.dtype == torch.bfloat16
    assert all(torch.isfinite(loss) for loss in look.region_losses.values())
    assert all(torch.isfinite(loss) for loss in roi_losses(look).values())
    boxes = [*look.rois, look.regression_targets, *regions.rois, *regions.boxes, *(one["boxes"] for one in found)]
    for values in boxes:
        assert values.dtype == torch.float32
    for values in (*regions.rois, *(one["boxes"] for one in found)):
        assert not torch.equal(values, values.bfloat16().float())


@torch.no_grad()
def test_growing_keeps_what_was_known(loud, scenes):
    detector = loud(score_threshold=0.0, detections_per_image=10_000)
    regions = detector.regions(scenes[0])
    before, boxes = detector.roi_heads.box_predictor(regions.latents)
    detector.grow(2)
    after, boxes_after = detector.roi_heads.box_predictor(regions.latents)
    torch.testing.assert_close(after[:, :4], before)
    torch.testing.assert_close(boxes_after, boxes)
    labels = {label for found in detector(scenes[0]) for label in found["labels"].tolist()}
    assert labels == {1, 2, 3, 4, 5}
