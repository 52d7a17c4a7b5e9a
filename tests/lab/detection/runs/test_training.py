"""The training of a detector: stages, images and boxes, rates, and that chance does not depend on the past."""

from __future__ import annotations

import pytest
import torch

from elign.lab.detection.config import TREE
from elign.lab.detection.detection_experiment import DetectionExperiment, DetectorTraining
from elign.lab.training.device import Precision
from elign.lab.training.trainer import Step


def training_of(quick, number, *typed):
    experiment = DetectionExperiment(TREE.compose([*quick, *typed]), Precision())
    learner, memory = experiment.learner(), experiment.memory()
    for task in range(number + 1):
        experiment.grow(learner, task)
        if task < number:
            experiment.update_memory(learner, memory, task)
    return experiment, learner, DetectorTraining(experiment, learner, memory, number)


def test_stages_share_the_steps(quick):
    experiment, learner, training = training_of(
        quick, 1, "learner=iod", "learner.fine_tune_share=0.5", "memory.per_class=2"
    )
    steps = 2 * -(-len(experiment.rows(range(5, 10))) // 4)
    names = []
    for epoch in range(training.epochs):
        count, _ = training.batches(epoch)
        names += [learner.stage.name] * count
    assert names.count("learn") + names.count("fine-tune") == len(names)
    assert names == sorted(names, reverse=True)  # learn, then fine-tune
    assert abs(names.count("fine-tune") - steps / 2) <= 5  # whole epochs of the kept images


def test_a_task_sees_its_own_boxes_and_fine_tuning_those_of_all_classes(quick):
    experiment, _, training = training_of(quick, 1, "learner=iod", "memory.per_class=3")
    own, balanced = ([*training.batches(epoch)[1]] for epoch in (0, training.epochs - 1))
    labels, kept = (
        {label for batch in some for target in batch.targets for label in target["labels"].tolist()}
        for some in (own, balanced)
    )
    assert labels <= set(range(6, 11))
    assert kept & set(range(1, 6))
    assert kept & set(range(6, 11))
    rows = torch.cat([batch.rows for batch in balanced]).tolist()
    assert len(rows) == len(set(rows))
    for label in range(10):
        shown = sum(bool((experiment.data.train.objects[row].labels == label).any()) for row in rows)
        assert shown >= min(3, len(experiment.rows(range(label, label + 1))))


def test_a_backbone_from_scratch_has_no_frozen_statistics(quick):
    experiment = DetectionExperiment(TREE.compose([*quick, "learner=finetune", "model=resnet18-c4"]), Precision())
    learner = experiment.learner()
    learner.grow(2)
    names = {type(module).__name__ for module in learner.model.modules()}
    assert "GroupNorm" in names
    assert "FrozenBatchNorm2d" not in names


def test_losses_depend_on_the_step_alone(quick):
    _, learner, training = training_of(quick, 0, "learner=finetune")
    learner.train()
    batch = list(training.batches(0)[1])[1]
    torch.manual_seed(1)
    first = training.loss(learner, batch).terms
    after = torch.rand(1)
    torch.manual_seed(2)
    again = training.loss(learner, batch).terms
    assert all(torch.equal(first[name], again[name]) for name in first)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)  # nobody else's random numbers were used up


def test_epochs_have_orders_of_their_own_that_repeat_and_joint_sees_everything(quick):
    experiment, _, training = training_of(quick, 1, "learner=joint")
    orders = [torch.cat([batch.rows for batch in training.batches(epoch)[1]]).tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == experiment.rows(range(10)).tolist()


def test_warm_up_begins_every_stage(quick):
    typed = ("learner=iod", "train.schedule=steps", "train.milestones=[]", "train.warm_up=2", "memory.per_class=2")
    _, learner, training = training_of(quick, 1, *typed)
    last = next(
        epoch for epoch in range(training.epochs) if training.batches(epoch) and learner.stage.name == "fine-tune"
    )
    steps = training.batches(last)[0]
    tuned = [training.rate(last, step / steps) for step in range(min(steps, 3))]
    assert tuned[0] == pytest.approx(0.5 * 0.02)
    assert tuned[1:] == pytest.approx([0.02] * (len(tuned) - 1))
    assert training.rate(0, 0.0) == pytest.approx(0.5)


def test_after_a_step_the_learner_hears_of_it(quick, monkeypatch):
    _, learner, training = training_of(quick, 1, "learner=finetune")
    heard = []
    monkeypatch.setattr(learner, "after_step", lambda *args: heard.append(args))
    count, batches = training.batches(1)
    batch = next(iter(batches))
    training.after_step(Step(1, 1), batch, 0.25)
    ((step, rows, targets, fetch, rate),) = heard
    assert (step, rate) == (count + 1, 0.25)
    assert torch.equal(rows, batch.rows)
    assert targets is batch.targets
    images, known = fetch(rows[:1])
    assert len(images) == len(known) == 1
