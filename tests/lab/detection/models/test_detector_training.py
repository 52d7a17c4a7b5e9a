import copy

import pytest
import torch
from torch.nn import functional as F
from torchvision.models.detection import FasterRCNN
from torchvision.ops import box_iou

from elign import OptionError
from elign.lab.detection.models import DetectorUseError, roi_losses

NAMES = {
    "loss_objectness": "objectness",
    "loss_rpn_box_reg": "region_box",
    "loss_classifier": "classification",
    "loss_box_reg": "box",
}


@pytest.mark.parametrize("unknown", [False, True])
def test_losses_are_torchvisions(make, uneven, unknown):
    detector = make(class_agnostic_boxes=False, unknown=unknown, min_size=(80, 96))
    torch.manual_seed(7)
    expected = FasterRCNN.forward(detector, *uneven)
    torch.manual_seed(7)
    look = detector.look(*uneven)
    found = {**look.region_losses, **roi_losses(look)}
    assert set(found) == set(NAMES.values())
    for theirs, ours in NAMES.items():
        torch.testing.assert_close(found[ours], expected[theirs], rtol=0, atol=0)
    torch.manual_seed(7)
    called = detector(*uneven)
    assert all(torch.equal(called[name], found[name]) for name in found)


def test_class_agnostic_boxes_are_learned_from_all_classes(make, scenes):
    look = make().look(*scenes)
    assert look.outputs.deltas.shape == (len(look.labels), 4)
    on_object = look.labels > 0
    wanted = F.smooth_l1_loss(
        look.outputs.deltas[on_object], look.regression_targets[on_object], beta=1 / 9, reduction="sum"
    )
    torch.testing.assert_close(roi_losses(look)["box"], wanted / len(look.labels))


def test_a_look_is_consistent(make, uneven):
    detector = make(class_agnostic_boxes=False, unknown=True)
    look = detector.look(*uneven)
    regions = sum(len(rois) for rois in look.rois)
    batch, channels, height, width = look.features.shape
    assert (batch, channels) == (3, 96)
    assert look.images.tensors.shape[-2:] == (height * 8, width * 8)
    assert look.objectness.shape == (3, 12, height, width)
    assert look.region_deltas.shape == (3, 48, height, width)
    assert look.labels.shape == look.roi_objectness.shape == (regions,)
    assert look.regression_targets.shape == (regions, 4)
    assert look.outputs.latents.shape == (regions, detector.latent_dim)
    assert look.outputs.logits.shape == (regions, 5)
    assert look.outputs.deltas.shape == (regions, 4, 4)
    assert (look.outputs.latents >= 0).all()
    # No region of the image without objects is labelled.
    assert not look.labels[-len(look.rois[2]) :].any()
    assert ((look.roi_objectness > 0) & (look.roi_objectness <= 1)).all()
    assert not any(rois.requires_grad for rois in look.rois)
    assert not look.roi_objectness.requires_grad


def test_annotated_boxes_are_among_the_candidates_with_certain_objectness(make, scenes):
    images, targets = scenes
    look = make(rois=200).look(images, targets)
    # At 96 pixels nothing is resized; so few candidates are all taken, the annotated boxes behind the proposals.
    for rois, target in zip(look.rois, targets, strict=True):
        assert torch.equal(rois[-2:], target["boxes"])
    first = len(look.rois[0])
    assert look.labels[first - 2 : first].tolist() == targets[0]["labels"].tolist()
    assert look.roi_objectness[first - 2 : first].tolist() == [1, 1]
    assert (look.roi_objectness[: first - 2] < 1).all()
    torch.testing.assert_close(look.regression_targets[first - 2 : first], torch.zeros(2, 4))
    overlaps = box_iou(look.rois[0], targets[0]["boxes"]).max(dim=1).values
    assert torch.equal(look.labels[:first] > 0, overlaps >= 0.5)


def test_sampled_regions_keep_their_objectness(make, scenes):
    detector = make(rois=8)
    look = detector.look(*scenes)
    objectness = look.roi_objectness.split([len(rois) for rois in look.rois])
    proposals = zip(*detector.propose(look.images, look.features), strict=True)
    for rois, found, (boxes, scores) in zip(look.rois, objectness, proposals, strict=True):
        same = (rois[:, None] == boxes).all(dim=2)
        proposed = same.any(dim=1)
        assert proposed.sum() > 3
        assert torch.equal(found[proposed], scores[same[proposed].int().argmax(dim=1)])
        assert (found[~proposed] == 1).all()


def test_other_labels_change_the_classification_only(make, scenes):
    detector = make(unknown=True)
    look = detector.look(*scenes)
    plain = roi_losses(look)
    assert detector.unknown_label == 4
    labels = look.labels.clone()
    labels[(labels == 0).nonzero()[0]] = detector.unknown_label
    other = roi_losses(look, labels)
    torch.testing.assert_close(other["classification"], F.cross_entropy(look.outputs.logits, labels))
    assert other["classification"] != plain["classification"]
    assert torch.equal(other["box"], plain["box"])


def test_steps_of_a_look_can_be_repeated_one_by_one(make, scenes):
    """What learners do with a teacher: look at the student's images, features and regions."""
    detector = make()
    look = detector.look(*scenes)
    assert torch.equal(detector.features(look.images.tensors), look.features)
    objectness, deltas = detector.region_outputs(look.features)
    assert torch.equal(objectness, look.objectness)
    assert torch.equal(deltas, look.region_deltas)
    again = detector.read(look.features, look.rois, look.images.image_sizes)
    for name in ("latents", "logits", "deltas"):
        assert torch.equal(getattr(again, name), getattr(look.outputs, name))
    proposals, probabilities = detector.propose(look.images, look.features)
    assert [len(boxes) for boxes in proposals] == [len(scores) for scores in probabilities]
    assert all(len(boxes) <= 30 for boxes in proposals)
    assert all((scores.diff() <= 0).all() and scores.min() > 0 and scores.max() < 1 for scores in probabilities)
    assert all(len(boxes) <= 20 for boxes in detector.eval().propose(look.images, look.features)[0])


def test_gradients_reach_every_parameter(make, scenes):
    detector = make()
    sum(detector(*scenes).values()).backward()
    assert [name for name, value in detector.named_parameters() if value.grad is None or not value.grad.any()] == []


def test_the_warp_layer_is_the_last_convolution(make):
    detector = make()
    (weight,) = detector.warp_parameters()
    assert weight is dict(detector.named_parameters())["roi_heads.box_head.stage.0.conv2.weight"]


def test_a_copy_is_a_teacher_that_stays_as_it_is(make, scenes):
    detector = make()
    teacher = copy.deepcopy(detector).eval().requires_grad_(False)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    detector.grow(2)
    sum(detector(*scenes).values()).backward()
    torch.optim.SGD(detector.parameters(), 0.1).step()
    assert (teacher.classes, detector.classes) == (3, 5)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    look = detector.look(*scenes)
    taught = teacher.read(look.features, look.rois, look.images.image_sizes)
    assert taught.logits.shape == (len(look.labels), 4)


@pytest.mark.parametrize("class_agnostic", [True, False])
def test_a_state_goes_into_a_fresh_detector_of_the_same_growth(make, scenes, class_agnostic):
    options = {"class_agnostic_boxes": class_agnostic, "unknown": True}
    detector = make(classes=2, **options)
    detector.grow(2)
    other = make(classes=0, **options)
    other.grow(4)
    with torch.no_grad():
        for parameter in detector.parameters():
            parameter.add_(0.01)
    other.load_state_dict(detector.state_dict())
    for one, two in zip(detector.eval()(scenes[0]), other.eval()(scenes[0]), strict=True):
        assert all(torch.equal(one[name], two[name]) for name in ("boxes", "labels", "scores"))


def test_a_detector_without_classes_says_so(make, scenes):
    detector = make(classes=0)
    assert detector.classes == 0
    with pytest.raises(DetectorUseError, match=r"no classes yet: call grow\(\)"):
        detector(*scenes)
    with pytest.raises(DetectorUseError, match=r"no classes yet: call grow\(\)"):
        detector.eval()(scenes[0])


def test_training_without_targets_and_boxes_without_area_are_errors(make, scenes):
    images, targets = scenes
    with pytest.raises(DetectorUseError, match="needs targets"):
        make()(images)
    targets[1]["boxes"][0, 2] = targets[1]["boxes"][0, 0]
    with pytest.raises(OptionError, match="boxes of image 1 must be"):
        make().look(images, targets)
