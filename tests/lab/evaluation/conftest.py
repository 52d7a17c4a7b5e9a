"""A small run of three tasks whose latents drift: what the tests of the evaluation share."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from elign.lab.config import compose
from elign.lab.evaluation.features import TaskLatents
from elign.lab.evaluation.inputs import AlignTarget, EvalInputs
from elign.lab.evaluation.task_evaluation import evaluate_task
from elign.lab.models.classifier import LinearHead

DIM, SIZES = 5, (4, 2, 2)
TEST_EACH, NEW_EACH, MEMORY_EACH = 8, 30, 5
QUICK = compose().aligner.replace(iterations=40, hidden=(16,), steps=10, learning_rate=5e-3)


class World:
    """Inputs of eight classes, and for each task a linear model (latents = inputs times a matrix) and a head."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.centers = 2 * self._normal(sum(SIZES), DIM)
        self.bodies = [torch.eye(DIM)]
        for _ in SIZES[1:]:
            self.bodies.append(self.bodies[-1] + 0.4 * self._normal(DIM, DIM))
        # The test images of a class are the same after every task.
        self.labels = torch.arange(sum(SIZES)).repeat_interleave(TEST_EACH)
        order = torch.randperm(len(self.labels), generator=self.generator)
        self.labels = self.labels[order]
        self.images = self._images(self.labels)
        self.stored_labels = torch.arange(sum(SIZES)).repeat_interleave(MEMORY_EACH)
        self.stored = self._images(self.stored_labels)

    def _normal(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def _images(self, labels):
        return self.centers[labels] + self._normal(len(labels), DIM)

    def latents(self, task: int) -> TaskLatents:
        """Of task 0, 1 or 2."""
        old_classes, classes = sum(SIZES[:task]), sum(SIZES[: task + 1])
        body, before = self.bodies[task], self.bodies[task - 1]
        test, stored = self.labels < classes, self.stored_labels < classes
        labels = torch.arange(old_classes, classes).repeat_interleave(NEW_EACH)
        images = self._images(labels)
        nothing = torch.zeros(0, DIM)
        return TaskLatents(
            test=self.images[test] @ body,
            test_labels=self.labels[test],
            new=images @ body,
            new_labels=labels,
            memory=self.stored[stored] @ body,
            memory_labels=self.stored_labels[stored],
            pairs_previous=images @ before if task else nothing,
            pairs_current=images @ body if task else nothing,
            new_previous=images @ before if task else nothing,
            memory_previous=self.stored[stored] @ before if task else nothing,
        )

    def head(self, task: int) -> LinearHead:
        """Nearest centre; old rows were made for the space in which their class was learned, new ones are too loud."""
        head = LinearHead(DIM, sum(SIZES[: task + 1]))
        start = 0
        with torch.no_grad():
            for number, size in enumerate(SIZES[: task + 1]):
                centers = self.centers[start : start + size] @ self.bodies[number]
                head.weight[start : start + size] = centers
                head.bias[start : start + size] = -0.5 * centers.square().sum(dim=1) + 2.0 * number
                start += size
        return head.eval()


def evaluate_all(*, settings=QUICK, change=lambda latents: latents, seed=0):
    """Evaluate all tasks; `change` is applied to the latents of each."""
    world = World()
    latents = [change(world.latents(task)) for task in range(len(SIZES))]
    heads = [world.head(task) for task in range(len(SIZES))]
    evaluations = []
    carried: dict = {"prototypes": {}, "statistics": {}}
    for task in range(len(SIZES)):
        evaluation = evaluate_task(
            latents[task],
            heads[task],
            previous=latents[task - 1] if task else None,
            previous_head=heads[task - 1] if task else None,
            **carried,
            task_sizes=SIZES[: task + 1],
            settings=settings,
            seed=seed,
        )
        carried = {"prototypes": evaluation.prototypes, "statistics": evaluation.statistics}
        evaluations.append(evaluation)
    rows = [row for evaluation in evaluations for row in evaluation.rows]
    return SimpleNamespace(latents=latents, heads=heads, evaluations=evaluations, rows=rows, settings=settings)


@pytest.fixture(scope="session")
def make_run():
    """A function that evaluates all tasks, for runs that differ from the usual one."""
    return evaluate_all


@pytest.fixture(scope="session")
def run():
    """A run in the latent space."""
    return evaluate_all()


@pytest.fixture(scope="session")
def logit_run():
    """The same in the logit space."""
    return evaluate_all(settings=QUICK.replace(space="logits"))


@pytest.fixture(scope="session")
def bare_run():
    """The same as `run` without exemplars."""
    none = {"memory_labels": torch.zeros(0, dtype=torch.long)}
    none |= dict.fromkeys(("memory", "memory_previous"), torch.zeros(0, DIM))
    return evaluate_all(change=lambda latents: replace(latents, **none))


def arguments(run, task, **changes):
    """What `evaluate_task` was called with for task 2 or 3 of a run."""
    given = {
        "previous": run.latents[task - 2],
        "previous_head": run.heads[task - 2],
        "prototypes": run.evaluations[task - 2].prototypes,
        "statistics": run.evaluations[task - 2].statistics,
        "task_sizes": SIZES[:task],
        "settings": run.settings,
        "seed": 0,
    }
    return given | changes


def inputs_of(run, task, **changes):
    """What methods see of task 2 or 3 of a run, with other latents."""
    latents, space = replace(run.latents[task - 1], **changes), run.settings.space
    classes = {"old_classes": sum(SIZES[: task - 1]), "classes": sum(SIZES[:task])}
    target = AlignTarget(space, run.heads[task - 1], run.heads[task - 2], **classes)
    before, now = run.evaluations[task - 2], run.evaluations[task - 1]
    return EvalInputs.of(
        latents,
        target,
        task_sizes=SIZES[:task],
        settings=run.settings,
        seed=3,
        aligners=now.aligners,
        forward={name.removeprefix("forward-"): each for name, each in now.aligners.items()},
        prototypes=now.prototypes,
        previous_prototypes=before.prototypes,
        statistics=before.statistics,
    )
