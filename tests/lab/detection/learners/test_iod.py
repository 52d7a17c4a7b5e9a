"""iOD: its terms, warp steps and image store."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from elign.lab.detection.detector import roi_losses
from elign.lab.detection.learners import Stage
from elign.lab.detection.learners.iod import ImageStore, _narrowed, softened_divergence

WARP = "roi_heads.box_head.stage.0.conv2.weight"


def moved(before, model):
    after = model.state_dict()
    return [name for name, value in before.items() if not torch.equal(value, after[name])]


@pytest.mark.parametrize("reads", ["student", "own"])
def test_its_terms_are_those_of_the_paper(make, batch, train, reads):
    learner = make("iod", options={"distillation": 0.3, "temperature": 2.0, "features": 1.5, "teacher_reads": reads})
    train(learner, *batch(3))
    torch.manual_seed(5)
    terms = learner(*batch(3))
    torch.manual_seed(5)
    look = learner.model.look(*batch(3))
    features = learner.teacher.features(look.images.tensors)
    source = look.features if reads == "student" else features
    theirs = learner.teacher.roi_outputs(source, look.rois, look.images.image_sizes)
    plain = roi_losses(look)
    divergence = softened_divergence(look.outputs.logits, theirs.logits, old=2, temperature=2.0)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {
            "objectness": look.region_losses["objectness"].item(),
            "region_box": look.region_losses["region_box"].item(),
            "classification": 0.7 * plain["classification"].item(),
            "box": 0.7 * plain["box"].item(),
            "old_features": 1.5 * F.mse_loss(look.features, features).item(),
            "old_logits": 0.3 * divergence.item(),
            "old_boxes": 0.3 * F.mse_loss(look.outputs.deltas, theirs.deltas).item(),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize(
    ("tasks", "options", "stage", "fixed", "stored", "warp_steps"),
    [
        ((2,), {"warp_every": 1}, "learn", True, True, 2),
        ((2, 1), {"warp_every": 1}, "learn", True, True, 2),
        ((2,), {"warp_every": 1, "warp_first_task": False}, "learn", False, True, 0),
        ((2, 1), {"warp_every": 1}, "fine-tune", True, False, 0),
    ],
)
def test_steps_of_the_task_leave_the_warp_layer_to_warp_steps(
    make, batch, train, tasks, options, stage, fixed, stored, warp_steps
):
    learner = make("iod", tasks, options=options)
    learner.start_stage(Stage(stage, "task"))
    taken = []
    learner.warp_step = lambda *_, **__: taken.append(1)
    before = copy.deepcopy(learner.model.state_dict())
    train(learner, *batch(sum(tasks)))
    assert set(before) - set(moved(before, learner.model)) == ({WARP} if fixed else set())
    assert bool((learner.store.rows >= 0).any()) == stored
    assert len(taken) == warp_steps


def test_a_warp_step_is_plain_descent_of_the_warp_layer_alone(make, batch):
    learner = make("iod")
    learner.train()
    before = copy.deepcopy(learner.model)
    torch.manual_seed(6)
    learner.warp_step(*batch(1, 2, 3), rate=0.5)
    assert moved(before.state_dict(), learner.model) == [WARP]
    assert all(p.grad is None for p in learner.model.parameters())
    torch.manual_seed(6)
    losses = roi_losses(before.look(*batch(1, 2, 3)))
    (gradient,) = torch.autograd.grad(losses["classification"] + losses["box"], before.warp_parameters())
    assert torch.allclose(learner.model.get_parameter(WARP), before.get_parameter(WARP) - 0.5 * gradient, atol=1e-7)
    assert gradient.abs().sum() > 0


def test_warp_steps_come_every_so_many_steps_with_a_few_stored_images(make, batch):
    learner = make("iod", options={"warp_every": 3, "warp_images": 2})
    images, targets = batch(1, 2, 3)
    seen = []

    def fetch(rows):
        return [images[row % 3] for row in rows], [targets[row % 3] for row in rows]

    def note(images, targets, *, rate):
        seen.append((step, len(images), rate))

    learner.warp_step = note
    for step in range(1, 8):
        learner.after_step(step, torch.arange(3) + 3 * step, targets, fetch, 0.25)
    assert seen == [(3, 2, 0.25), (6, 2, 0.25)]
    assert learner.store.rows.shape == (3, 10)
    assert (learner.store.rows >= 0).sum() == 21


def test_only_the_last_regions_of_each_class_count_in_a_warp_step(make, batch):
    look = make("iod").model.look(*batch(3))
    labels = torch.zeros_like(look.labels)
    labels[[1, 4, 6]] = 3
    few = _narrowed(replace(look, labels=labels), 2)
    kept = [len(labels) - 2, len(labels) - 1, 4, 6]
    assert few.labels.tolist() == [0, 0, 3, 3]
    assert torch.equal(few.outputs.logits, look.outputs.logits[kept])
    assert torch.equal(few.regression_targets, look.regression_targets[kept])


def store(classes=2, per_class=3, seed=0):
    made = ImageStore(per_class=per_class, seed=seed)
    made.grow(classes)
    return made


def test_each_image_is_kept_for_the_class_of_its_object_and_the_oldest_goes():
    kept = store()
    kept.add(torch.tensor([5]), [torch.zeros(0, dtype=torch.int64)])
    assert kept.draw(4).tolist() == []
    kept.add(torch.tensor([10, 11, 12]), [torch.tensor([1]), torch.tensor([2, 2]), torch.tensor([1])])
    assert kept.rows.tolist() == [[-1, 10, 12], [-1, -1, 11]]
    kept.add(torch.tensor([13, 14]), [torch.tensor([1]), torch.tensor([1])])
    assert kept.rows.tolist() == [[12, 13, 14], [-1, -1, 11]]


def test_an_image_with_two_classes_goes_to_either_by_chance_and_never_to_both():
    kept = store(per_class=50)
    kept.add(torch.arange(40), [torch.tensor([1, 2])] * 40)
    first, second = [(kept.rows[number] >= 0).sum().item() for number in (0, 1)]
    assert first + second == 40
    assert min(first, second) > 8


def test_draw_gives_different_images_and_no_more_than_asked_for():
    kept = store(per_class=5)
    rows = torch.tensor([3, 3, 4, 5])
    kept.add(rows, [torch.tensor([1])] * 4)
    assert sorted(kept.draw(9).tolist()) == [3, 4, 5]
    assert len(kept.draw(2)) == 2
    assert len({tuple(kept.draw(1).tolist()) for _ in range(30)}) == 3
