"""The course of a detector: stages, images and boxes, rates, and that chance does not depend on the past."""

from __future__ import annotations

import pytest
import torch

from elign.lab.detection.experiments.bench import open_bench
from elign.lab.detection.experiments.config import compose
from elign.lab.detection.experiments.training import Course
from elign.lab.experiments.loop import Place


def course_of(quick, number, *typed):
    bench, _ = open_bench(compose([*quick, *typed]))
    learner, memory = bench.learner(), bench.memory()
    for task in range(number + 1):
        bench.grow(learner, task)
        if task < number:
            bench.remember(memory, task)
    return bench, learner, Course(bench, learner, memory, number)


def test_stages_share_the_steps(quick):
    bench, learner, course = course_of(quick, 1, "learner=iod", "learner.fine_tune_share=0.5", "memory.per_class=2")
    steps = 2 * -(-len(bench.rows(range(5, 10))) // 4)
    names = []
    for epoch in range(course.epochs):
        count, _ = course.begin_epoch(epoch)
        names += [learner.stage.name] * count
    assert names.count("learn") + names.count("fine-tune") == len(names)
    assert names == sorted(names, reverse=True)  # learn, then fine-tune
    assert abs(names.count("fine-tune") - steps / 2) <= 5  # whole epochs of the kept images


def test_a_task_sees_its_own_boxes_and_fine_tuning_those_of_all_classes(quick):
    bench, _, course = course_of(quick, 1, "learner=iod", "memory.per_class=3")
    own = {int(label) for batch in course.begin_epoch(0)[1] for target in batch.targets for label in target["labels"]}
    assert own <= set(range(6, 11))
    _, batches = course.begin_epoch(course.epochs - 1)
    rows, labels = [], set()
    for batch in batches:
        rows += batch.rows.tolist()
        labels |= {int(label) for target in batch.targets for label in target["labels"]}
    assert labels & set(range(1, 6))
    assert labels & set(range(6, 11))
    assert len(rows) == len(set(rows))
    for label in range(10):
        shown = sum(bool((bench.data.train.objects[row].labels == label).any()) for row in rows)
        assert shown >= min(3, len(bench.rows(range(label, label + 1))))


def test_a_backbone_from_scratch_has_no_frozen_statistics(quick):
    bench, _ = open_bench(compose([*quick, "learner=finetune", "model=resnet18-c4"]))
    learner = bench.learner()
    learner.grow(2)
    names = {type(module).__name__ for module in learner.model.modules()}
    assert "GroupNorm" in names
    assert "FrozenBatchNorm2d" not in names


def test_joint_sees_everything(quick):
    bench, _, course = course_of(quick, 1, "learner=joint")
    seen = [int(row) for batch in course.begin_epoch(0)[1] for row in batch.rows]
    assert sorted(seen) == bench.rows(range(10)).tolist()


def test_losses_depend_on_the_step_alone(quick):
    _, learner, course = course_of(quick, 0, "learner=finetune")
    learner.train()
    batch = list(course.begin_epoch(0)[1])[1]
    torch.manual_seed(1)
    first = course.loss(learner, batch).terms
    after = torch.rand(1)
    torch.manual_seed(2)
    again = course.loss(learner, batch).terms
    assert all(torch.equal(first[name], again[name]) for name in first)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)  # nobody else's random numbers were used up


def test_epochs_have_orders_of_their_own_that_repeat(quick):
    _, _, course = course_of(quick, 0, "learner=finetune")
    orders = [[batch.rows.tolist() for batch in course.begin_epoch(epoch)[1]] for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]


def test_warm_up_begins_every_stage(quick):
    typed = ("learner=iod", "train.schedule=steps", "train.milestones=[]", "train.warm_up=2", "memory.per_class=2")
    _, _, course = course_of(quick, 1, *typed)
    last = next(epoch for epoch in range(course.epochs) if course.begin_epoch(epoch) and _stage(course) == "fine-tune")
    steps = course.begin_epoch(last)[0]
    tuned = [course.rate(last, step / steps) for step in range(min(steps, 3))]
    assert tuned[0] == pytest.approx(0.5 * 0.02)
    assert tuned[1:] == pytest.approx([0.02] * (len(tuned) - 1))
    assert course.rate(0, 0.0) == pytest.approx(0.5)


def _stage(course):
    return course._learner.stage.name


def test_after_a_step_the_learner_hears_of_it(quick, monkeypatch):
    _, learner, course = course_of(quick, 1, "learner=finetune")
    heard = []
    monkeypatch.setattr(learner, "after_step", lambda *args: heard.append(args))
    count, batches = course.begin_epoch(1)
    batch = next(iter(batches))
    course.after_step(Place(1, 1), batch, 0.25)
    ((step, rows, targets, fetch, rate),) = heard
    assert (step, rate) == (count + 1, 0.25)
    assert torch.equal(rows, batch.rows)
    assert targets is batch.targets
    images, known = fetch(rows[:1])
    assert len(images) == len(known) == 1
