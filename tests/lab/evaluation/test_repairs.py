"""The rows of `elign.Repair` are what a user gets, and statistics from birth are carried from task to task."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from tests.lab.evaluation.conftest import SIZES, inputs_of

from elign import ClassStatistics, LinearHead, Repair
from elign.lab.environment import derive_seed
from elign.lab.evaluation.methods import METHODS


def row_of(run, task, name):
    (row,) = (row for row in run.rows if (row.task, row.method) == (task, name))
    return row


def repair_of(run, task, seed, statistics, exemplars):
    """A repair of a task as a user would fit it."""
    latents = run.latents[task - 1]
    kept = (latents.memory, latents.memory_labels, latents.memory_previous) if exemplars else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Repair(seed=derive_seed(seed, "repair")).fit_latents(
            latents.new_previous,
            latents.new,
            latents.new_labels,
            head=run.heads[task - 1],
            statistics=statistics,
            exemplars=kept,
            task_boundaries=list(torch.tensor(SIZES[: task - 1]).cumsum(0)),
        )


def same(one, other):
    return all(torch.equal(value, other.state_dict()[key]) for key, value in one.state_dict().items())


@pytest.mark.parametrize(
    ("name", "remembered", "exemplars"),
    [("repair", True, True), ("repair/statistics", True, False), ("repair/exemplars", False, True)],
)
def test_rows_are_those_of_repairs_that_users_fit(run, name, remembered, exemplars):
    latents = run.latents[0]
    statistics = ClassStatistics().update(latents.new, latents.new_labels)
    assert same(run.evaluations[0].statistics["birth"], statistics)
    for task in (2, 3):
        seed = derive_seed(0, f"evaluation of task {task}")
        latents, head = run.latents[task - 1], run.heads[task - 1]
        repair = repair_of(run, task, seed, statistics if remembered else None, exemplars)
        with torch.no_grad():
            scores = repair(latents.test, logits=head(latents.test))
        row = row_of(run, task, name)
        assert row.accuracy == pytest.approx((scores.argmax(1) == latents.test_labels).double().mean().item())
        assert (row.classifier, row.label_free, row.aligned_share) == ("own", True, 0.0)
        # Carried along by each method on its own.
        statistics = repair.statistics
        if remembered:
            assert same(run.evaluations[task - 1].statistics[name], statistics)
    assert set(run.evaluations[2].statistics) == {"repair", "repair/statistics"}


def test_no_exemplar_touches_the_statistics_of_a_method_without_old_images(run, bare_run):
    for task in (1, 2):
        with_memory, without = (each.evaluations[task].statistics for each in (run, bare_run))
        assert same(with_memory["repair/statistics"], without["repair/statistics"])
        assert same(without["repair"], without["repair/statistics"])
        assert not torch.equal(with_memory["repair"].means, with_memory["repair/statistics"].means)


def test_retrained_head(run):
    latents = run.latents[2]
    old = latents.memory_labels < 6
    z, labels = (
        torch.cat([latents.memory[old], latents.new]),
        torch.cat([latents.memory_labels[old], latents.new_labels]),
    )
    scores = LinearHead().fit(z=z, labels=labels)(latents.test)
    right = (scores.argmax(1) == latents.test_labels).double().mean().item()
    assert row_of(run, 3, "retrained-head").accuracy == pytest.approx(right)


def test_rows_are_left_out_where_something_is_missing(run, bare_run, logit_run):
    names = {name for name in METHODS if name.startswith(("repair", "retrained"))}
    found = [{row.method for row in each.rows} & names for each in (run, bare_run, logit_run)]
    assert found == [names, {"repair", "repair/statistics"}, set()]
    # A task whose statistics were lost has no statistics of another method in their place.
    inputs = inputs_of(run, 3)
    inputs = replace(inputs, statistics={"repair/statistics": inputs.statistics["repair/statistics"]})
    assert not METHODS["repair"].runs_on(inputs)
    assert METHODS["repair/statistics"].runs_on(inputs)
