"""The evaluation of one task: from latents and heads to rows of numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.aligners.base import Aligner, FitReport
from elign.aligners.energy import EnergyAligner
from elign.aligners.linear import MeanShift, RandomShift, Ridge
from elign.lab.config.schema import AlignerConfig, EnergyConfig
from elign.lab.environment import derive_seed
from elign.lab.evaluation.features import TaskLatents
from elign.lab.evaluation.inputs import BIRTH, UNIT_BIRTH, AlignTarget, EvalInputs, EvaluationError, count_classes
from elign.lab.evaluation.methods import METHODS, OldSamples
from elign.lab.evaluation.methods.forward import FORWARD, fit_forward, move_prototypes
from elign.lab.evaluation.metrics import Row, score
from elign.lab.storage import MAKE_AGAIN, DamagedRunError, read_tensors, write_tensors
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.errors import ElignError
from elign.utils.fitted import FittedModule, Progress, register


@dataclass(frozen=True)
class Drift:
    """How far latents drifted: means over test images of old classes. They are reported; nothing is chosen by them.

    Args:
        distance: `mean |z - z_prev|`, of values z and of the previous model's z_prev.
        cosine_distance: `mean 1 - <z, z_prev> / (|z| |z_prev|)`.
        moved: `mean |z - z_cur|`, the length of an aligner's moves; 0 for no aligner.
    """

    distance: float
    cosine_distance: float
    moved: float

    @classmethod
    def of(cls, z: Tensor, *, current: Tensor, previous: Tensor) -> Self:
        """Measure values that an aligner may have moved."""
        return cls(
            distance=float((z - previous).norm(dim=1).mean()),
            cosine_distance=float((1 - F.cosine_similarity(z, previous, dim=1)).mean()),
            moved=float((z - current).norm(dim=1).mean()),
        )


def measure_drift(inputs: EvalInputs, old: OldSamples) -> dict[str, Drift]:
    """Measure the drift before (`base`) and after each aligner."""
    target, everywhere = inputs.target, torch.ones(len(inputs.test))
    previous, current = target.previous(old.previous), target.values(inputs.test)[old.mask]
    moved = {name: target.values(inputs.move_test(name, everywhere))[old.mask] for name in inputs.aligners}
    values = {"base": current, **moved}
    return {name: Drift.of(z, current=current, previous=previous) for name, z in values.items()}


@register
class UntrainedEnergyAligner(EnergyAligner):
    """Descends the energy model that `EnergyAligner` of the same seed starts from: does training matter at all?

    Example:
        >>> import torch
        >>> z = torch.randn(50, 4)
        >>> moved = UntrainedEnergyAligner(seed=1).fit_latents(z, z + 1).align(z + 1)
        >>> barely_trained = EnergyAligner(seed=1, iterations=1, learning_rate=1e-12).fit_latents(z, z + 1)
        >>> bool(torch.allclose(moved, barely_trained.align(z + 1), atol=1e-5))
        True
    """

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport:
        assert self.energy is not None  # noqa: S101  (made by _build, from the seed)
        self.energy.to(z_cur.dtype)
        return FitReport(rows=len(z_cur), dim=z_cur.shape[1])


def fit_backward(
    previous: Tensor, current: Tensor, *, old: Tensor | None, settings: EnergyConfig, seed: int
) -> dict[str, Aligner]:
    """Fit the aligners from the current space to the previous one: ELI and its baselines.

    Args:
        previous: Values of training images of the task's own classes under the previous model, (P, D).
        current: The same under the current model, (P, D).
        old: Values of exemplars of the old classes under the current model, if there are any. `random-shift` is as long
            as ELI's mean move of these, else of `current`: the lengths that matter are those of old samples.
        settings: Options.
        seed: Of everything random.
    """
    options = settings.options_of(EnergyAligner) | {"seed": derive_seed(seed, "energy model")}
    energy = EnergyAligner(**options).fit_latents(previous, current)
    measured = current if old is None else old
    generator = torch.Generator().manual_seed(derive_seed(seed, "random shift: length"))
    length = float((energy.align(measured, generator=generator) - measured).norm(dim=1).mean())
    baselines: dict[str, Aligner] = {
        "mean-shift": MeanShift(),
        "ridge": Ridge(**settings.options_of(Ridge)),
        "random-shift": RandomShift(norm=length, seed=derive_seed(seed, "random shift")),
        "untrained": UntrainedEnergyAligner(**options),
    }
    return {"eli": energy, **{name: aligner.fit_latents(previous, current) for name, aligner in baselines.items()}}


@dataclass(frozen=True, eq=False)
class TaskEvaluation:
    """What the evaluation of one task gives.

    Args:
        rows: One for each method and classifier.
        aligners: Fitted aligners by name, to be saved; forward ones as `forward-<name>`. None at the first task.
        fitted: What else is to be saved, by the name of the method that fitted it.
        prototypes: (classes, D) for each forward aligner, for the evaluation of the next task.
        statistics: Statistics of all classes by the method that transports them, for the evaluation of the next task.
        seconds: `fit` and `methods`.
        drift: On test images of old classes, before (`base`) and after each aligner. Empty at the first task.
    """

    rows: list[Row]
    aligners: dict[str, Aligner]
    fitted: dict[str, FittedModule]
    prototypes: dict[str, Tensor]
    statistics: dict[str, ClassStatistics]
    seconds: dict[str, float]
    drift: dict[str, Drift]


def write_statistics(path: Path, statistics: Mapping[str, ClassStatistics]) -> None:
    """Write `TaskEvaluation.statistics` to one file."""
    tensors = {f"{name}:{key}": value for name, each in statistics.items() for key, value in each.state_dict().items()}
    write_tensors(path, tensors, {name: each.config() for name, each in statistics.items()})


def read_statistics(path: Path) -> dict[str, ClassStatistics]:
    """Read what `write_statistics` wrote."""
    tensors, configs = read_tensors(path)
    found = {}
    for name, config in configs.items():
        state = {key.removeprefix(f"{name}:"): value for key, value in tensors.items() if key.startswith(f"{name}:")}
        try:
            found[name] = ClassStatistics(**config)
            found[name].load_state_dict(state)
        except (ElignError, RuntimeError, TypeError) as error:
            raise DamagedRunError(f"{path} is damaged ({error}). {MAKE_AGAIN}") from error
    return found


def evaluate_task(
    current: TaskLatents,
    head: nn.Module,
    *,
    previous: TaskLatents | None,
    previous_head: nn.Module | None,
    prototypes: Mapping[str, Tensor],
    statistics: Mapping[str, ClassStatistics],
    task_sizes: Sequence[int],
    settings: AlignerConfig,
    seed: int,
    oracle: ClassStatistics | None = None,
) -> TaskEvaluation:
    """Fit the aligners of a task and evaluate all methods.

    Args:
        current: Latents after the task.
        head: The head after the task.
        previous: Latents after the task before; None at the first task. Its test images must be those of `current`
            whose classes are old, in the same order.
        previous_head: The head after the task before; None at the first task.
        prototypes: `TaskEvaluation.prototypes` of the task before; empty at the first task.
        statistics: `TaskEvaluation.statistics` of the task before. Methods that need some are left out without.
        task_sizes: How many classes each task brought so far.
        settings: Options of the aligners.
        seed: Of the run; each task has random numbers of its own.
        oracle: Statistics of all old training images under the current model, for an oracle.

    Raises:
        EvaluationError: The latents, heads, prototypes and sizes do not belong to one run and task.
    """
    _check_sizes(current, task_sizes)
    start = time.perf_counter()
    old = _old_samples(current, previous, previous_head, oracle) if len(task_sizes) > 1 else None
    classes = {"old_classes": current.old_classes, "classes": current.classes}
    target = AlignTarget(settings.space, head, previous_head, **classes)
    seed = derive_seed(seed, f"evaluation of task {len(task_sizes)}")
    inputs = EvalInputs.of(current, target, task_sizes=tuple(task_sizes), settings=settings, seed=seed)
    inputs = fit_inputs(replace(inputs, previous_prototypes=prototypes, statistics=statistics))
    fitted = time.perf_counter()

    # All label-free methods first: nothing that an oracle does can reach them.
    methods = [each for each in METHODS.values() if each.runs_on(inputs)]
    found = {each.name: each.predict(inputs) for each in methods if not each.uses_labels}
    if old is not None:
        found |= {each.name: each.predict(inputs, old) for each in methods if each.uses_labels}
    rows = [
        score(each, prediction, current.test_labels, task_sizes=task_sizes)
        for each in methods
        for prediction in found[each.name]
    ]
    carried = {name: each.statistics for name, some in found.items() for each in some if each.statistics is not None}
    if old is None and target.has_latents:
        carried = {BIRTH: ClassStatistics().update(inputs.new, inputs.new_labels)}
        if settings.rivals:
            carried[UNIT_BIRTH] = ClassStatistics().update(F.normalize(inputs.new, dim=1), inputs.new_labels)
    return TaskEvaluation(
        rows=rows,
        aligners={**inputs.aligners, **{f"forward-{name}": each for name, each in inputs.forward.items()}},
        fitted={name: each.fitted for name, some in found.items() for each in some if each.fitted is not None},
        prototypes=dict(inputs.prototypes),
        statistics=carried,
        seconds={"fit": fitted - start, "methods": time.perf_counter() - fitted},
        drift={} if old is None else measure_drift(inputs, old),
    )


def fit_inputs(inputs: EvalInputs) -> EvalInputs:
    """Fit the aligners of a task, move the prototypes, and return the inputs with both."""
    target, settings, seed, exemplars = inputs.target, inputs.settings, inputs.seed, inputs.old_exemplars
    aligners: dict[str, Aligner] = {}
    forward: dict[str, Aligner] = {}
    if inputs.old_classes:
        aligners = fit_backward(
            target.previous(inputs.pairs_previous),
            target.values(target.rows(inputs.pairs_current)),
            old=None if exemplars is None else target.values(exemplars),
            settings=settings,
            seed=seed,
        )
    if not target.has_latents:
        return replace(inputs, aligners=aligners)
    if inputs.old_classes:
        _check_prototypes(inputs)
        forward = fit_forward(inputs.pairs_previous, inputs.pairs_current, settings=settings, seed=seed)
    inputs = replace(inputs, aligners=aligners, forward=forward)
    return replace(inputs, prototypes=move_prototypes(inputs))


def _old_samples(
    current: TaskLatents,
    previous: TaskLatents | None,
    previous_head: nn.Module | None,
    oracle: ClassStatistics | None,
) -> OldSamples:
    if previous is None or previous_head is None:
        raise EvaluationError("a task after the first needs the latents and the head of the task before")
    old = current.test_labels < current.old_classes
    if not torch.equal(current.test_labels[old], previous.test_labels):
        raise EvaluationError(
            "the old test samples of this task are not the test samples of the task before, in the same order: their "
            "labels differ. Are both latents of one run, and of neighbouring tasks?"
        )
    return OldSamples(old, previous.test, oracle)


def _check_prototypes(inputs: EvalInputs) -> None:
    before, shape = inputs.previous_prototypes, (inputs.old_classes, inputs.test.shape[1])
    wrong = [name for name in FORWARD if name not in before or tuple(before[name].shape) != shape]
    if wrong:
        raise EvaluationError(
            f"prototypes {', '.join(wrong)} of the task before are missing or not of shape {shape}: hand over "
            "TaskEvaluation.prototypes of that task"
        )


def _check_sizes(current: TaskLatents, task_sizes: Sequence[int]) -> None:
    old_classes, classes = sum(task_sizes[:-1]), sum(task_sizes)
    found = count_classes(current.new_labels)
    if (current.old_classes, current.classes, found) != (old_classes, classes, classes - old_classes):
        raise EvaluationError(
            f"task_sizes {list(task_sizes)} bring classes {old_classes} to {classes - 1} with the last task, but its "
            f"training latents are of {found} classes from {current.old_classes} to {current.classes - 1}"
        )
    present = torch.bincount(current.test_labels, minlength=classes)
    if len(present) > classes:
        raise EvaluationError(
            f"there are test samples of class {len(present) - 1}, but only {classes} classes were seen"
        )
    for number, (size, end) in enumerate(zip(task_sizes, accumulate(task_sizes), strict=True), start=1):
        if not present[end - size : end].any():
            raise EvaluationError(f"there is no test sample of task {number}: its accuracy has no value")
