"""Learners of detectors: losses by hand, options, stages, states."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from elign.lab.detection.learners import DETECTION_LEARNERS, Stage
from elign.lab.detection.learners.distillation import (
    centred_logit_distance,
    delta_distance,
    draw_lowest,
    lost_features,
    lost_regions,
)
from elign.lab.detection.learners.iod import softened_divergence
from elign.utils.errors import OptionError

PLAIN = ["objectness", "region_box", "classification", "box"]
KEPT = {
    "finetune": [],
    "joint": [],
    "ilod": ["old_logits", "old_boxes"],
    "faster-ilod": ["old_features", "old_regions", "old_logits", "old_boxes"],
    "ore": [],
    "iod": ["old_features", "old_logits", "old_boxes"],
}
ALL_PROPOSALS = {"drawn": 1000, "pool": 1000}


def memory_terms(learner, look):
    return learner.memory_terms(look, learner.teacher, learner.teacher.features(look.images.tensors))


def repeated(learner, batch):
    """The terms of a batch, and the losses of its detector with the same random numbers."""
    torch.manual_seed(5)
    terms = learner(*batch)
    torch.manual_seed(5)
    return terms, learner.model(*batch)


def same_terms(one, two):
    return list(one) == list(two) and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", DETECTION_LEARNERS)
def test_the_first_task_is_faster_rcnn_alone(name, make, batch):
    learner = make(name, tasks=(2,))
    assert same_terms(*repeated(learner, batch(1, 2)))
    assert learner.teacher is None
    assert [stage.data for stage in learner.stages(0)] == ["task"]


@pytest.mark.parametrize("name", DETECTION_LEARNERS)
def test_real_steps_give_finite_terms_that_each_teach_something(name, make, batch, train):
    learner = make(name)
    images, targets = batch(3)
    before = copy.deepcopy(learner.teacher.state_dict())
    train(learner, images, targets)
    terms = learner(images, targets)
    assert list(terms) == PLAIN + KEPT[name]
    for term in terms.values():
        assert term.isfinite()
        gradients = torch.autograd.grad(term, learner.groups(), retain_graph=True, allow_unused=True)
        assert sum(g.abs().sum().item() for g in gradients if g is not None) > 0
    assert all(map(torch.equal, learner.teacher.state_dict().values(), before.values()))
    assert not any(p.requires_grad or p.grad is not None for p in learner.teacher.parameters())
    assert learner.training
    assert not any(module.training for module in learner.teacher.modules())


@pytest.mark.parametrize("name", DETECTION_LEARNERS)
def test_the_model_before_is_the_teacher_and_its_rows_are_kept(name, make, batch, train):
    learner = make(name, tasks=(2,))
    train(learner, *batch(1, 2))
    before = copy.deepcopy(learner.model)
    learner.grow(1)
    assert (learner.old_classes, learner.classes, learner.model.classes, learner.teacher.classes) == (2, 3, 3, 2)
    assert learner.teacher is not learner.model
    assert all(map(torch.equal, learner.teacher.state_dict().values(), before.state_dict().values()))
    old, new = before.predictor.score.weight, learner.model.predictor.score.weight
    assert torch.equal(new[:3], old[:3])
    assert len(new) == len(old) + 1
    assert learner.stage.name == "learn"


@pytest.mark.parametrize("class_agnostic", [True, False])
@pytest.mark.parametrize("name", ["ilod", "faster-ilod"])
def test_on_all_proposals_the_terms_are_distances_of_both_detectors(make, batch, train, name, class_agnostic):
    options = {**ALL_PROPOSALS, "logits": 4.0, "boxes": 5.0}
    if name == "faster-ilod":
        options |= {"features": 2.0, "regions": 3.0}
    learner = make(name, options=options, class_agnostic_boxes=class_agnostic)
    train(learner, *batch(3))
    look = learner.model.look(*batch(3))
    terms = {name: term.item() for name, term in memory_terms(learner, look).items()}
    teacher, sizes = learner.teacher, look.images.image_sizes
    features = teacher.features(look.images.tensors)
    rois, _ = teacher.propose(look.images, features)
    theirs, ours = teacher.roi_outputs(features, rois, sizes), learner.model.roi_outputs(look.features, rois, sizes)
    regions = lost_regions(look.objectness, look.region_deltas, *teacher.region_outputs(features), threshold=0.1)
    expected = {
        "old_features": 2 * lost_features(look.features, features).item(),
        "old_regions": 3 * regions.item(),
        "old_logits": 4 * centred_logit_distance(ours.logits, theirs.logits, old=2).item(),
        "old_boxes": 5 * delta_distance(ours.deltas, theirs.deltas, old=2, smooth=name == "ilod").item(),
    }
    assert expected["old_logits"] > 0
    assert terms == pytest.approx({term: expected[term] for term in KEPT[name]}, rel=1e-4)


@pytest.mark.parametrize("name", ["ilod", "faster-ilod"])
def test_the_best_proposals_are_compared(make, batch, train, monkeypatch, name):
    """ILOD: those in which the teacher sees least background; Faster ILOD: those of the highest objectness."""
    learner = make(name, options={"drawn": 3, "pool": 3})
    train(learner, *batch(3))
    look = learner.model.look(*batch(3))
    features = learner.teacher.features(look.images.tensors)
    proposals, _ = learner.teacher.propose(look.images, features)
    expected = [boxes[:3] for boxes in proposals]
    if name == "ilod":
        for number, boxes in enumerate(proposals):
            logits = learner.teacher.roi_outputs(features[[number]], [boxes], look.images.image_sizes[:1]).logits
            expected[number] = boxes[logits.softmax(dim=1)[:, 0].argsort()[:3]]
    read, seen = learner.model.roi_outputs, []
    monkeypatch.setattr(learner.model, "roi_outputs", lambda f, rois, sizes: seen.extend(rois) or read(f, rois, sizes))
    memory_terms(learner, look)
    for ours, wanted in zip(seen, expected, strict=True):
        torch.testing.assert_close(torch.tensor(sorted(ours.tolist())), torch.tensor(sorted(wanted.tolist())))


@pytest.mark.parametrize("name", ["ore", "iod"])
def test_later_tasks_end_with_fine_tuning_on_the_balanced_set_by_plain_losses(name, make, batch):
    learner = make(name, options={"fine_tune_share": 0.25, "fine_tune_rate": 0.5})
    learn, tune = learner.stages(1)
    assert learn == Stage("learn", "task", 0.75, 1.0)
    assert tune == Stage("fine-tune", "balanced", 0.25, 0.5)
    learner.start_stage(tune)
    assert same_terms(*repeated(learner, batch(1, 2, 3)))
    assert make(name, options={"fine_tune_share": 0.0}).stages(1) == make("ilod").stages(1) == (Stage("learn", "task"),)


def test_a_state_brings_everything_back_but_the_teacher(make, batch, train):
    learner, other = make("ore"), make("ore", seed=7)
    other.teacher = learner.teacher
    train(learner, *batch(3))
    state = learner.state()
    assert not any(key.startswith("teacher") for key in state)
    other.load_state(copy.deepcopy(state))
    assert all(torch.equal(value, other.state()[key]) for key, value in state.items())
    assert same_terms(repeated(learner, batch(3))[0], repeated(other, batch(3))[0])


def test_what_does_not_fit_is_refused(make):
    with pytest.raises(OptionError, match="does not fit"):
        make("finetune").load_state(make("iod").state())
    with pytest.raises(OptionError, match="1 class or more"):
        make("finetune", tasks=(2, 0))
    with pytest.raises(OptionError, match="unknown"):
        make("ore", unknown=False)


def test_draw_lowest_draws_from_the_pool_alone_and_differently_each_time():
    values = torch.tensor([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0])
    drawn = [frozenset(draw_lowest(values, pool=4, count=2).tolist()) for _ in range(60)]
    assert all(len(places) == 2 for places in drawn)
    assert frozenset.union(*drawn) == {1, 3, 5, 7}
    assert len(set(drawn)) == 6  # each pair out of four came up


def test_centred_logit_distance_by_hand():
    # Two old classes; the columns of new classes and of the unknown do not count.
    teacher = torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]])  # centred: 2, -1, -1 and 0, 0, 0
    student = torch.tensor([[0.0, 3.0, 0.0, 99.0], [5.0, 5.0, 2.0, -7.0]])  # centred: -1, 2, -1 and 1, 1, -2
    for ours in (student, student + 7):
        expected = (3**2 + 3**2 + 0 + 1 + 1 + 2**2) / 6
        assert centred_logit_distance(ours, teacher, old=2).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("student", "teacher", "smooth", "expected"),
    [
        # Smooth L1 of 0.5, 3 and 1, and their squares; the mean is over two regions.
        ([[0.5, 0.0, -3.0, 0.0], [1.0, 1.0, 1.0, 2.0]], [[0.0] * 4, [1.0] * 4], True, (0.125 + 2.5 + 0.5) / 2),
        ([[0.5, 0.0, -3.0, 0.0], [1.0, 1.0, 1.0, 2.0]], [[0.0] * 4, [1.0] * 4], False, (0.25 + 9 + 1) / 2),
        # Of each class: squares 1 and 5 of two old classes; background (first) and the new class (last) are left out.
        ([[[9.0] * 4, [1.0, 0.0, 0.0, 0.0], [2.0, 1.0, 0.0, 0.0], [9.0] * 4]], [[[0.0] * 4] * 3], False, (1 + 5) / 2),
    ],
)
def test_delta_distance_by_hand(student, teacher, smooth, expected):
    distance = delta_distance(torch.tensor(student), torch.tensor(teacher), old=2, smooth=smooth)
    assert distance.item() == pytest.approx(expected)


def test_lost_features_by_hand_image_by_image():
    teacher = torch.tensor([[[[0.0, 4.0]]], [[[2.0, 2.0]]]])  # minus their means: -2, 2 and 0, 0
    student = torch.tensor([[[[1.0, 3.0]]], [[[6.0, 0.0]]]])  # minus their means: -1, 1 and 3, -3
    # Teacher minus student: -1, 1 and -3, 3; what is negative does not count.
    assert lost_features(student, teacher).item() == pytest.approx((1 + 3) / 4)


def test_lost_regions_by_hand():
    # Two anchors at one place. The teacher is surer of the first by 0.5, of the second by 0.05.
    teacher, student = (torch.tensor(values).view(1, 2, 1, 1) for values in ([1.0, 0.05], [0.5, 0.0]))
    deltas = torch.arange(8.0).view(1, 8, 1, 1)
    moved = deltas + torch.tensor([1.0, 2.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0]).view(1, 8, 1, 1)
    loss = lost_regions(student, deltas, teacher, moved, threshold=0.1)
    assert loss.item() == pytest.approx((0.25 + 1 + 4 + 0.0025) / 2)
    # A student that is surer than the teacher is left alone.
    assert lost_regions(student + 3, deltas, teacher, moved, threshold=0.1).item() == 0


def test_softened_divergence_by_hand():
    # Old classes are columns 1 and 2. At T = 2 the teacher's probabilities are 3/4 and 1/4, the student's 1/2 each.
    teacher = torch.tensor([[50.0, 2 * math.log(3.0), 0.0], [0.0, 1.0, 1.0]])
    student = torch.tensor([[-50.0, 4.0, 4.0, 77.0], [0.0, 0.0, 0.0, 5.0]])
    divergence = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    loss = softened_divergence(student, teacher, old=2, temperature=2.0)
    assert loss.item() == pytest.approx(4 * divergence / 2, rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        lambda ours, theirs: centred_logit_distance(ours, theirs, old=3),
        lambda ours, theirs: delta_distance(ours, theirs, old=3, smooth=True),
        lambda ours, theirs: delta_distance(ours, theirs, old=3, smooth=False),
        lambda ours, theirs: lost_features(ours.view(1, 5, 2, 2), theirs.view(1, 5, 2, 2)),
        lambda ours, theirs: softened_divergence(ours, theirs, old=3, temperature=6.0),
        lambda ours, theirs: lost_regions(
            *(part.view(1, -1, 2, 2) for z in (ours, theirs) for part in (z[:1], z[1:])), threshold=0.1
        ),
    ],
)
def test_every_term_teaches_the_student_alone(loss):
    torch.manual_seed(0)
    ours, theirs = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss(ours, theirs).backward()
    assert theirs.grad is None
    assert ours.grad.abs().sum() > 0
    assert loss(theirs.detach(), theirs).item() == pytest.approx(0, abs=1e-7)


def test_without_regions_the_terms_are_zero_and_can_be_minimised():
    logits, deltas = torch.zeros(0, 4, requires_grad=True), torch.zeros(0, 4, requires_grad=True)
    total = centred_logit_distance(logits, logits, old=2) + delta_distance(deltas, deltas, old=2, smooth=True)
    total.backward()
    assert total.item() == 0


def options_of(name, **options):
    """The options of a learner, which are checked before a detector is made."""
    return DETECTION_LEARNERS[name](lambda: pytest.fail("a detector was made"), options=options).options


def test_published_values_hold_unless_set():
    options = options_of("iod", temperature=3)
    assert (options.temperature, options.distillation, options.warp_every) == (3, 0.2, 20)
    assert options_of("faster-ilod").threshold == 0.1
    assert (options_of("ilod").drawn, options_of("ilod").pool) == (64, 128)
    assert options_of("ore").unknowns == 1
    assert options_of("joint").model_dump() == {}


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("joint", "heat", 1),
        ("ilod", "logits", -1),
        ("ilod", "logits", "much"),
        ("ilod", "logits", float("nan")),
        ("ilod", "drawn", 0),
        ("ilod", "drawn", 3.5),
        ("iod", "distillation", 1.1),
        ("iod", "temperature", 0),
        ("iod", "warp_first_task", 1),
        ("iod", "teacher_reads", "mine"),
        ("ore", "fine_tune_share", 1.0),
    ],
)
def test_options_and_values_that_there_are_not_are_refused(name, option, value):
    with pytest.raises(OptionError, match=option):
        options_of(name, **{option: value})
