"""Readings in cases small enough to be worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from elign.lab.evaluation.evaluate import evaluate_task
from elign.lab.evaluation.latents import TaskLatents
from elign.lab.evaluation.settings import AlignerSettings
from elign.lab.models.heads import LinearHead


def test_mean_shift_by_hand():
    """One old class at (1, 0) and one at (0, 1); both drifted by (0, 3), which the new class's pairs show exactly."""
    shift = torch.tensor([0.0, 3.0])
    old = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]])
    labels = torch.tensor([0, 1, 0])
    new = torch.tensor([[-4.0, 0.0], [-4.0, 1.0]])
    nothing, no_labels = torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)
    first = TaskLatents(old, labels, old, labels, nothing, no_labels, nothing, nothing)
    second = TaskLatents(
        test=torch.cat([old + shift, new + shift]),
        test_labels=torch.tensor([0, 1, 0, 2, 2]),
        new=new + shift,
        new_labels=torch.tensor([2, 2]),
        memory=nothing,
        memory_labels=no_labels,
        pairs_previous=new,
        pairs_current=new + shift,
    )
    head = LinearHead(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        head.bias.zero_()
    before = LinearHead(2, 2)
    with torch.no_grad():
        before.weight.copy_(head.weight[:2])
        before.bias.zero_()
    common = {"settings": AlignerSettings(iterations=2), "seed": 0}
    start = evaluate_task(first, before, previous=None, previous_head=None, prototypes={}, task_sizes=[2], **common)
    found = evaluate_task(
        second,
        head,
        previous=first,
        previous_head=before,
        prototypes=start.prototypes,
        task_sizes=[2, 1],
        **common,
    )
    rows = {row.reading: row for row in found.rows if row.classifier == "fc"}
    # Base: everything looks like class 1 but the new samples, whose -x is 4 against y = 3 and y = 4 (a tie: class 1).
    assert (rows["base"].old, rows["base"].new) == (pytest.approx(1 / 3), 0.5)
    assert rows["base"].by_task == (pytest.approx(1 / 3), 0.5)
    assert (rows["mean-shift/oracle"].old, rows["mean-shift/oracle"].new) == (1.0, 0.5)
    # Moving the new samples back too takes their drift off as well: -x = 4 against y = 0 and y = 1.
    assert (rows["mean-shift/all"].old, rows["mean-shift/all"].new) == (1.0, 1.0)
    assert (rows["previous-model"].old, rows["previous-model"].new) == (1.0, 0.5)
    assert rows["oracle-mask"].old == pytest.approx(1 / 3)
    assert rows["oracle-mask-both"].new == 1.0
    assert rows["mean-shift/oracle"].accuracy == pytest.approx(4 / 5)
    assert found.drift["base"].distance == pytest.approx(3.0)
    assert found.drift["mean-shift"].distance == pytest.approx(0.0, abs=1e-6)
    assert found.drift["mean-shift"].moved == pytest.approx(3.0)
    cosines = 1 / math.hypot(1, 3), 1.0, (1 + 0.1 * 3.1) / math.hypot(1, 0.1) / math.hypot(1, 3.1)
    assert found.drift["base"].cosine_distance == pytest.approx(1 - sum(cosines) / 3, abs=1e-6)
    assert found.drift["mean-shift"].cosine_distance == pytest.approx(0.0, abs=1e-6)
