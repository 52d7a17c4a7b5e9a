"""The evaluation of one task of a class-incremental run: from latents and heads to rows of numbers.

No image is read and no network trained but the aligners' own.

Test labels are used in two places only: `_old_samples` makes the oracle's mask of them, and `score` counts. All else
gets the latents without them (`_without_test_labels`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.classifiers.nearest_mean import NearestMean
from elign.classifiers.voting import Voting
from elign.lab.evaluation.blending import blend_of, blend_readings
from elign.lab.evaluation.class_means import class_means, count_classes, move_prototypes
from elign.lab.evaluation.drift import Drift, measure_drift
from elign.lab.evaluation.errors import EvaluationError
from elign.lab.evaluation.fitting import fit_backward, fit_forward
from elign.lab.evaluation.latents import TaskLatents
from elign.lab.evaluation.material import Material
from elign.lab.evaluation.readings import Reading, forward_readings, label_free_readings, oracle_readings
from elign.lab.evaluation.scoring import Row, score
from elign.lab.evaluation.settings import AlignerSettings
from elign.lab.evaluation.spaces import Space, make_space, read_head
from elign.lab.seeds import derive_seed

FORWARD = ("none", "mean-shift", "ridge", "eli", "local-shift")
"""Names of the forward prototypes, in the order of their rows."""


@dataclass(frozen=True, eq=False)
class TaskEvaluation:
    """What the evaluation of one task gives.

    Args:
        rows: One for each reading and classifier.
        aligners: Fitted aligners by name, to be saved; forward ones as `forward-<name>`. None at the first task.
        prototypes: (seen, D) for each forward aligner, to be handed to the evaluation of the next task.
        blend: The label-free default, to be saved; None at the first task, and where rows are logits.
        seconds: `fit` and `readings`.
        drift: On test images of old classes, before (`base`) and after each aligner. Empty at the first task.
    """

    rows: list[Row]
    aligners: dict[str, Aligner]
    prototypes: dict[str, Tensor]
    blend: Voting | None
    seconds: dict[str, float]
    drift: dict[str, Drift]


def evaluate_task(
    current: TaskLatents,
    head: nn.Module,
    *,
    previous: TaskLatents | None,
    previous_head: nn.Module | None,
    prototypes: Mapping[str, Tensor],
    task_sizes: Sequence[int],
    settings: AlignerSettings,
    seed: int,
) -> TaskEvaluation:
    """Fit all aligners of a task and take all readings.

    Args:
        current: Latents after the task.
        head: The head after the task.
        previous: Latents after the task before; None at the first task. Its test images must be those of `current`
            whose classes are old, in the same order.
        previous_head: The head after the task before; None at the first task.
        prototypes: `TaskEvaluation.prototypes` of the task before; empty at the first task.
        task_sizes: How many classes each task brought so far.
        settings: Options of the aligners.
        seed: Of the run; each task has random numbers of its own.

    Raises:
        EvaluationError: The latents, heads, prototypes and sizes do not belong to one run and task.
    """
    _check_sizes(current, task_sizes)
    seed = derive_seed(seed, f"evaluation of task {len(task_sizes)}")
    if len(task_sizes) == 1:
        return _evaluate_first(current, head, settings=settings)
    if previous is None or previous_head is None:
        raise EvaluationError(f"task {len(task_sizes)} needs the latents and the head of the task before")
    old = _old_samples(current, previous)
    unlabelled = _without_test_labels(current)
    space = make_space(settings.space, head, previous_head, known=current.known, seen=current.seen)

    start = time.perf_counter()
    aligners = _fit_backward(unlabelled, space, settings=settings, seed=seed)
    forward = _fit_forward(unlabelled, space, settings=settings, seed=seed)
    fitted = time.perf_counter()

    material = Material.of(unlabelled, space=space, aligners=aligners, seed=seed)
    moved = _prototypes(unlabelled, prototypes, forward, space=space, seed=seed)
    ends = list(accumulate(task_sizes[:-1]))
    blend = blend_of(material, prototypes["ridge"], forward["ridge"], ends) if space.has_latents else None
    previous_logits = read_head(previous_head, previous.test, classes=current.known)
    rows = [
        score(reading, current.test_labels, task_sizes=task_sizes)
        for readings in (
            label_free_readings(material, quantile=settings.energy_quantile),
            forward_readings(unlabelled.test, moved),
            blend_readings(material, blend),
            oracle_readings(material, old=old, previous_logits=previous_logits),
        )
        for reading in readings
    ]
    drift = measure_drift(material, old=old, previous=space.previous(previous.test))
    return TaskEvaluation(
        rows=rows,
        aligners={**aligners, **{f"forward-{name}": aligner for name, aligner in forward.items()}},
        prototypes=moved,
        blend=blend,
        seconds={"fit": fitted - start, "readings": time.perf_counter() - fitted},
        drift=drift,
    )


def _evaluate_first(current: TaskLatents, head: nn.Module, *, settings: AlignerSettings) -> TaskEvaluation:
    """The first task: nothing is old, so nothing is aligned."""
    start = time.perf_counter()
    readings = [Reading("base", "fc", True, read_head(head, current.test, classes=current.seen))]
    prototypes: dict[str, Tensor] = {}
    if settings.space == "latent":
        if count_classes(current.memory_labels) == current.seen:
            scores = NearestMean().fit(z=current.memory, labels=current.memory_labels)(current.test)
            readings.append(Reading("base", "nearest-mean", True, scores))
        born = class_means(current.new, current.new_labels, range(current.seen))
        # Copies: a file of tensors takes none that share their memory.
        prototypes = {name: born.clone() for name in FORWARD}
        readings.extend(forward_readings(current.test, prototypes))
        # Nothing is old: the head alone.
        readings.append(Reading("blend", "blend", True, readings[0].scores))
    rows = [score(reading, current.test_labels, task_sizes=[current.seen]) for reading in readings]
    seconds = {"fit": 0.0, "readings": time.perf_counter() - start}
    return TaskEvaluation(rows=rows, aligners={}, prototypes=prototypes, blend=None, seconds=seconds, drift={})


def _fit_backward(current: TaskLatents, space: Space, *, settings: AlignerSettings, seed: int) -> dict[str, Aligner]:
    exemplars = current.memory[current.memory_labels < current.known]
    return fit_backward(
        space.previous(current.pairs_previous),
        space.values(space.rows(current.pairs_current)),
        old=space.values(space.rows(exemplars)) if len(exemplars) else None,
        settings=settings,
        seed=seed,
    )


def _fit_forward(current: TaskLatents, space: Space, *, settings: AlignerSettings, seed: int) -> dict[str, Aligner]:
    if not space.has_latents:
        return {}
    return fit_forward(current.pairs_previous, current.pairs_current, settings=settings, seed=seed)


def _prototypes(
    current: TaskLatents,
    before: Mapping[str, Tensor],
    forward: Mapping[str, Aligner],
    *,
    space: Space,
    seed: int,
) -> dict[str, Tensor]:
    """Prototypes of all classes in the current space; none where rows are logits."""
    if not space.has_latents:
        return {}
    shape = (current.known, current.test.shape[1])
    wrong = [name for name in FORWARD if name not in before or tuple(before[name].shape) != shape]
    if wrong:
        raise EvaluationError(
            f"prototypes {', '.join(wrong)} of the task before are missing or not of shape {shape}: hand over "
            "TaskEvaluation.prototypes of that task"
        )
    born = class_means(current.new, current.new_labels, range(current.known, current.seen))
    return move_prototypes({name: before[name] for name in FORWARD}, born, forward, seed=seed)


def _without_test_labels(latents: TaskLatents) -> TaskLatents:
    return replace(latents, test_labels=latents.test_labels[:0])


def _old_samples(current: TaskLatents, previous: TaskLatents) -> Tensor:
    """Which test samples are of old classes, (N,) bool: for the oracles, and to find them among `previous`."""
    old = current.test_labels < current.known
    if not torch.equal(current.test_labels[old], previous.test_labels):
        raise EvaluationError(
            "the old test samples of this task are not the test samples of the task before, in the same order: their "
            "labels differ. Are both latents of one run, and of neighbouring tasks?"
        )
    return old


def _check_sizes(current: TaskLatents, task_sizes: Sequence[int]) -> None:
    known, seen = sum(task_sizes[:-1]), sum(task_sizes)
    if (current.known, current.seen) != (known, seen) or count_classes(current.new_labels) != seen - known:
        raise EvaluationError(
            f"task_sizes {list(task_sizes)} bring classes {known} to {seen - 1} with the last task, but its training "
            f"latents are of {count_classes(current.new_labels)} classes from {current.known} to {current.seen - 1}"
        )
    present = torch.bincount(current.test_labels, minlength=seen)
    if len(present) > seen:
        raise EvaluationError(f"there are test samples of class {len(present) - 1}, but only {seen} classes were seen")
    for number, (size, end) in enumerate(zip(task_sizes, accumulate(task_sizes), strict=True), start=1):
        if not present[end - size : end].any():
            raise EvaluationError(f"there is no test sample of task {number}: its accuracy has no value")
