"""The default of version 0.1: made and chosen without a test sample, and what it is made of."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.lab.evaluation.conftest import inputs_of

from elign import Aligned, Gaussian, HeadLogits, NearestMean, Voting
from elign.lab.evaluation.inputs import read_head
from elign.lab.evaluation.methods.repairs import fit_vote

ENDS = [4, 6]  # classes after each task before the last one


def same(one, other):
    return one.config() == other.config() and all(
        torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


@pytest.fixture
def without_memory():
    return {"memory": torch.zeros(0, 5), "memory_labels": torch.zeros(0, dtype=torch.long)}


@pytest.mark.parametrize("exemplars", [True, False])
def test_no_test_sample_takes_part_in_the_choice(run, exemplars, without_memory):
    changes = {} if exemplars else without_memory
    honest = fit_vote(inputs_of(run, 3, **changes))
    poisoned = torch.full_like(run.latents[2].test, torch.nan)
    assert same(honest, fit_vote(inputs_of(run, 3, test=poisoned, **changes)))
    # The comparison would notice: training data does take part.
    other = inputs_of(run, 3, **changes, new=run.latents[2].new.flip(0))
    assert not same(honest, fit_vote(replace(other, memory_labels=other.memory_labels.flip(0))))


@pytest.mark.parametrize("task", [1, 2])
def test_with_exemplars_it_is_the_head_and_a_discriminant_after_alignment(run, task):
    latents, head = run.latents[task], run.heads[task]
    aligner = run.evaluations[task].aligners["eli"]
    z, labels = latents.memory, latents.memory_labels
    discriminant = Gaussian(shared=1.0, shrinkage=0.1, normalize=True).fit(z=aligner.align(z), labels=labels)
    parts = [HeadLogits(), Aligned(aligner, discriminant)]
    blend = Voting(parts, task_boundaries=ENDS[:task], standard_errors=math.inf)
    expected = blend.fit(z=z, labels=labels, logits=read_head(head, z, classes=latents.classes))
    found = run.evaluations[task].fitted["blend"]
    assert same(found, expected)
    scores = found(latents.test, logits=read_head(head, latents.test, classes=latents.classes))
    (row,) = (row for row in run.evaluations[task].rows if row.method == "blend")
    right = scores.argmax(dim=1) == latents.test_labels
    assert (row.classifier, row.label_free) == ("blend", True)
    assert row.accuracy == pytest.approx(float(right.double().mean()))


def test_without_exemplars_samples_are_chosen_on(run, without_memory):
    blend = fit_vote(inputs_of(run, 3, **without_memory))
    assert [type(part) for part in blend.estimators] == [HeadLogits, NearestMean, Aligned]
    # Where the prototypes go, and where latents meet them.
    moved, there = blend.estimators[1].means, blend.estimators[2].classifier.means
    torch.testing.assert_close(moved, run.evaluations[2].prototypes["ridge"])
    assert torch.equal(there[:6], run.evaluations[1].prototypes["ridge"])
    new = run.evaluations[2].aligners["ridge"].align(run.latents[2].new)
    torch.testing.assert_close(there[7], new[run.latents[2].new_labels == 7].mean(dim=0))
    # The heads of this run favour the last classes: that is seen without one old sample.
    assert blend.offsets[-1] > 0


def test_at_the_first_task_and_in_the_space_of_logits_there_is_none(run, logit_run):
    assert run.evaluations[0].fitted == {}
    (row,) = (row for row in run.evaluations[0].rows if row.method == "blend")
    (base,) = (row for row in run.evaluations[0].rows if (row.method, row.classifier) == ("base", "fc"))
    assert row.accuracy == base.accuracy
    assert not any(evaluation.fitted for evaluation in logit_run.evaluations)
