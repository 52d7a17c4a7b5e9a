import copy

import pytest
import torch

from elign.lab.detection.learners import LEARNERS, Stage
from elign.lab.detection.learners.losses import centred_logit_distance, delta_distance, lost_features, lost_regions
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


def test_all_learners_are_there():
    assert set(LEARNERS) == set(KEPT)
    assert [name for name, learner in LEARNERS.items() if learner.sees_all_data] == ["joint"]


@pytest.mark.parametrize("name", LEARNERS)
def test_the_first_task_is_faster_rcnn_alone(name, make, batch):
    learner = make(name, tasks=(2,))
    torch.manual_seed(5)
    terms = learner(*batch(1, 2))
    torch.manual_seed(5)
    plain = learner.model(*batch(1, 2))
    assert list(terms) == PLAIN
    assert all(torch.equal(terms[key], plain[key]) for key in PLAIN)
    assert learner.teacher is None
    assert [stage.data for stage in learner.stages(0)] == ["task"]


@pytest.mark.parametrize("name", LEARNERS)
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
    after = learner.teacher.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not any(p.requires_grad or p.grad is not None for p in learner.teacher.parameters())
    assert learner.training
    assert not any(module.training for module in learner.teacher.modules())


@pytest.mark.parametrize("name", LEARNERS)
def test_the_model_before_is_the_teacher_and_its_rows_are_kept(name, make, batch, train):
    learner = make(name, tasks=(2,))
    train(learner, *batch(1, 2))
    before = copy.deepcopy(learner.model)
    learner.grow(1)
    assert (learner.known, learner.classes, learner.model.classes, learner.teacher.classes) == (2, 3, 3, 2)
    assert learner.teacher is not learner.model
    for key, value in learner.teacher.state_dict().items():
        assert torch.equal(value, before.state_dict()[key])
    old, new = before.predictor.score.weight, learner.model.predictor.score.weight
    assert torch.equal(new[:3], old[:3])
    assert len(new) == len(old) + 1
    assert learner.stage.name == "learn"


@pytest.mark.parametrize("name", ["ilod", "faster-ilod", "iod"])
def test_descending_the_terms_against_forgetting_brings_the_student_nearer(name, make, batch, train):
    learner = make(name, options={} if name == "iod" else ALL_PROPOSALS)
    images, targets = batch(3)
    train(learner, images, targets)

    def apart():
        torch.manual_seed(5)
        look = learner.model.look(images, targets)
        return torch.stack([*learner.memory_terms(look, learner.teacher).values()]).sum()

    before = apart()
    gradients = torch.autograd.grad(before, learner.groups(), allow_unused=True)
    norm = torch.stack([g.square().sum() for g in gradients if g is not None]).sum()
    with torch.no_grad():
        for parameter, gradient in zip(learner.groups(), gradients, strict=True):
            if gradient is not None:
                parameter -= 0.02 * before / norm * gradient
    # To first order, 2 % less.
    assert apart().item() < 0.99 * before.item()


@pytest.mark.parametrize("class_agnostic", [True, False])
def test_ilod_on_all_proposals_is_the_distance_of_both_heads(make, batch, train, class_agnostic):
    learner = make("ilod", options={**ALL_PROPOSALS, "logits": 2.0}, class_agnostic_boxes=class_agnostic)
    train(learner, *batch(3))
    look = learner.model.look(*batch(3))
    terms = learner.memory_terms(look, learner.teacher)
    features = learner.teacher.features(look.images.tensors)
    rois, _ = learner.teacher.propose(look.images, features)
    theirs = learner.teacher.read(features, rois, look.images.image_sizes)
    ours = learner.model.read(look.features, rois, look.images.image_sizes)
    logits = centred_logit_distance(ours.logits, theirs.logits, old=2)
    boxes = delta_distance(ours.deltas, theirs.deltas, old=2, smooth=True)
    assert terms["old_logits"].item() == pytest.approx(2 * logits.item(), rel=1e-4)
    assert terms["old_boxes"].item() == pytest.approx(boxes.item(), rel=1e-4)
    assert logits.item() > 0


def test_ilod_looks_where_the_teacher_sees_least_background(make, batch, train, monkeypatch):
    learner = make("ilod", options={"drawn": 3, "pool": 3})
    train(learner, *batch(3))
    look = learner.model.look(*batch(3))
    features = learner.teacher.features(look.images.tensors)
    proposals, _ = learner.teacher.propose(look.images, features)
    expected = []
    for number, boxes in enumerate(proposals):
        logits = learner.teacher.read(features[[number]], [boxes], look.images.image_sizes[:1]).logits
        expected.append(boxes[logits.softmax(dim=1)[:, 0].argsort()[:3]])
    read, seen = learner.model.read, []
    monkeypatch.setattr(learner.model, "read", lambda f, rois, sizes: seen.extend(rois) or read(f, rois, sizes))
    learner.memory_terms(look, learner.teacher)
    for ours, wanted in zip(seen, expected, strict=True):
        torch.testing.assert_close(torch.tensor(sorted(ours.tolist())), torch.tensor(sorted(wanted.tolist())))


@pytest.mark.parametrize("class_agnostic", [True, False])
def test_faster_ilod_is_the_sum_of_its_four_terms(make, batch, train, class_agnostic):
    options = {**ALL_PROPOSALS, "features": 2.0, "regions": 3.0, "logits": 4.0, "boxes": 5.0}
    learner = make("faster-ilod", options=options, class_agnostic_boxes=class_agnostic)
    train(learner, *batch(3))
    look = learner.model.look(*batch(3))
    terms = {name: term.item() for name, term in learner.memory_terms(look, learner.teacher).items()}
    teacher, sizes = learner.teacher, look.images.image_sizes
    features = teacher.features(look.images.tensors)
    rois, _ = teacher.propose(look.images, features)
    theirs, ours = teacher.read(features, rois, sizes), learner.model.read(look.features, rois, sizes)
    regions = lost_regions(look.objectness, look.region_deltas, *teacher.region_outputs(features), threshold=0.1)
    assert terms == pytest.approx(
        {
            "old_features": 2 * lost_features(look.features, features).item(),
            "old_regions": 3 * regions.item(),
            "old_logits": 4 * centred_logit_distance(ours.logits, theirs.logits, old=2).item(),
            "old_boxes": 5 * delta_distance(ours.deltas, theirs.deltas, old=2, smooth=False).item(),
        },
        rel=1e-4,
    )


def test_faster_ilod_looks_at_the_best_proposals(make, batch, monkeypatch):
    learner = make("faster-ilod", options={"drawn": 2, "pool": 2})
    look = learner.model.look(*batch(3))
    rois, _ = learner.teacher.propose(look.images, learner.teacher.features(look.images.tensors))
    read, seen = learner.model.read, []
    monkeypatch.setattr(learner.model, "read", lambda f, boxes, sizes: seen.extend(boxes) or read(f, boxes, sizes))
    learner.memory_terms(look, learner.teacher)
    for ours, proposed in zip(seen, rois, strict=True):
        assert sorted(ours.tolist()) == sorted(proposed[:2].tolist())


@pytest.mark.parametrize("name", ["ore", "iod"])
def test_later_tasks_end_with_fine_tuning_on_the_balanced_set_by_plain_losses(name, make, batch):
    learner = make(name, options={"fine_tune_share": 0.25, "fine_tune_rate": 0.5})
    learn, tune = learner.stages(1)
    assert learn == Stage("learn", "task", 0.75, 1.0)
    assert tune == Stage("fine-tune", "balanced", 0.25, 0.5)
    learner.begin_stage(tune)
    torch.manual_seed(5)
    terms = learner(*batch(1, 2, 3))
    torch.manual_seed(5)
    plain = learner.model(*batch(1, 2, 3))
    assert list(terms) == PLAIN
    assert all(torch.equal(terms[key], plain[key]) for key in PLAIN)
    assert len(make(name, options={"fine_tune_share": 0.0}).stages(1)) == 1


@pytest.mark.parametrize("name", ["finetune", "joint", "ilod", "faster-ilod"])
def test_the_others_learn_every_task_in_one_stage(name, make):
    assert make(name).stages(1) == (Stage("learn", "task", 1.0, 1.0),)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_state_brings_everything_back_but_the_teacher(name, make, batch, train):
    learner, other = make(name), make(name, seed=7)
    other.teacher = learner.teacher
    train(learner, *batch(3))
    state = learner.state()
    assert not any(key.startswith("teacher") for key in state)
    other.load_state(copy.deepcopy(state))
    assert all(torch.equal(value, other.state()[key]) for key, value in state.items())
    torch.manual_seed(5)
    one = learner(*batch(3))
    torch.manual_seed(5)
    two = other(*batch(3))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_state_that_does_not_fit_is_refused(make):
    with pytest.raises(OptionError, match="does not fit"):
        make("finetune").load_state(make("iod").state())


def test_a_task_without_classes_is_refused(make):
    with pytest.raises(OptionError, match="at least one class"):
        make("finetune", tasks=(2, 0))
