"""The registry of methods, what a method gives, and what many methods share."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from elign.classifiers.nearest_mean import NearestMean
from elign.lab.evaluation.inputs import NEEDS, EvalInputs
from elign.lab.registry import Registry
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.errors import OptionError
from elign.utils.fitted import FittedModule

F = TypeVar("F", bound=Callable[..., Any] | None)

BASE, ELI, GATES, REPAIRS = "base", "ELI", "ELI, label-free gates", "repairs, label-free"
ORACLES, BASELINES, BOUNDS = "baselines, oracle", "baselines, label-free", "bounds, oracle"
RIVALS = "other corrections, label-free"
GROUPS = (BASE, ELI, GATES, REPAIRS, ORACLES, BASELINES, RIVALS, BOUNDS)
"""Headings of tables, in their order; groups of later methods come after these."""

DEFAULT = "repair"
"""The method to use: the best that needs no test label, as far as development runs tell (docs/label-free.md)."""

MARK = "†"
"""Behind the name of a method that uses test labels."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a method gives for the test images.

    Args:
        scores: One score for each image and class, (N, classes); the highest one is the prediction.
        classifier: `fc` (the model's head), `nearest-mean`, or `own` for a classifier that replaces the head; methods
            of version 0.1 have `prototypes` and `blend` in place of `own`.
        weights: How far each image was moved, 0 to 1, (N,); None if nothing was.
        gated: Whether a label-free gate chose the weights.
        statistics: Statistics of all classes in the current space, which this method gets back at the next task.
        fitted: What to save of this method.
    """

    scores: Tensor
    classifier: str = "own"
    weights: Tensor | None = None
    gated: bool = False
    statistics: ClassStatistics | None = None
    fitted: FittedModule | None = None


@dataclass(frozen=True, eq=False)
class OldSamples:
    """What an oracle knows.

    Args:
        mask: Which test images are of old classes, (N,).
        previous: Their latents under the previous model.
        statistics: Of all old training images under the current model; with `aligner.rivals=true` alone.
    """

    mask: Tensor
    previous: Tensor
    statistics: ClassStatistics | None = None


@dataclass(frozen=True)
class Method:
    """A way to classify test images: a row of tables.

    Args:
        name: Name of the row.
        group: The heading it stands under.
        text: What it is, in one line.
        needs: What there must be, names of `NEEDS`; the row is left out elsewhere.
        uses_labels: Whether it knows which test images are old.
        colour: A token that reports map to a colour: `accent`, `baseline`, `reference` or `oracle`.
        first_task: Whether there is a row for the first task, too, where no class is old.
        function: `EvalInputs` to scores, a `Prediction` or several; oracles also get `OldSamples`. None if another
            benchmark than classification computes this row.
    """

    name: str
    group: str
    text: str
    needs: tuple[str, ...] = ()
    uses_labels: bool = False
    colour: str = "baseline"
    first_task: bool = False
    function: Callable[..., Tensor | Prediction | Iterable[Prediction]] | None = None

    def runs_on(self, inputs: EvalInputs) -> bool:
        """Whether the task has what this method needs."""
        if self.function is None or not (self.first_task or inputs.old_classes):
            return False
        return all(inputs.has(need, self.name) for need in self.needs)

    def predict(self, inputs: EvalInputs, *old: OldSamples) -> list[Prediction]:
        """Return what the function gives, one prediction for each classifier; only oracles get `old`."""
        assert self.function is not None  # noqa: S101  (`runs_on` says so)
        found = self.function(inputs, *old)
        if isinstance(found, Tensor):
            found = Prediction(found)
        return [found] if isinstance(found, Prediction) else list(found)


class _Methods(Registry[Method]):
    """The methods by name, in the order of their groups, then of their registration."""

    def _all(self) -> dict[str, Method]:
        found = super()._all()
        later = dict.fromkeys(each.group for each in found.values())
        places = {group: place for place, group in enumerate(dict.fromkeys([*GROUPS, *later]))}
        return dict(sorted(found.items(), key=lambda item: places[item[1].group]))


METHODS = _Methods("elign.lab.evaluation.methods", "method")


def method(
    name: str,
    *,
    group: str,
    text: str,
    needs: tuple[str, ...] = (),
    uses_labels: bool = False,
    colour: str = "baseline",
    first_task: bool = False,
) -> Callable[[F], F]:
    """Return a decorator that registers a function as a method; arguments as in `Method`."""
    if unknown := [need for need in needs if need not in NEEDS]:
        raise OptionError(f"the method {name!r} needs {unknown[0]!r}; there are {', '.join(NEEDS)}")

    def register(function: F) -> F:
        METHODS.add(name, Method(name, group, text, needs, uses_labels, colour, first_task, function))
        return function

    return register


def marked(name: str) -> str:
    """Return the name of a method, with a mark if it uses test labels."""
    return f"{name} {MARK}" if METHODS[name].uses_labels else name


def default_of(names: Container[str]) -> str:
    """Return the default among the methods of some results: those of version 0.1 have only `blend`."""
    return "blend" if DEFAULT not in names and "blend" in names else DEFAULT


def predictions(
    inputs: EvalInputs, test: Tensor, memory: Tensor, *, weights: Tensor | None = None, gated: bool = False
) -> list[Prediction]:
    """Classify test rows with the model's head and, if every class has an exemplar, with the nearest mean.

    Test rows and exemplars (`memory`) may have been moved; `weights` and `gated` as in `Prediction`.
    """
    scores = {"fc": inputs.target.logits(test)}
    if inputs.has("latents") and inputs.has("exemplars"):
        scores["nearest-mean"] = NearestMean().fit(z=memory, labels=inputs.memory_labels)(test)
    return [Prediction(found, classifier, weights, gated) for classifier, found in scores.items()]


def aligned(
    inputs: EvalInputs, aligner: str, weights: Tensor, *, exemplars: Tensor | None = None, gated: bool = False
) -> list[Prediction]:
    """Classify test rows that an aligner moves by `weights`, 0 to 1.

    By default exemplars of old classes are moved, too: their means go where old samples go. `exemplars` gives other
    weights.
    """
    memory = inputs.move_memory(aligner, inputs.old_memory if exemplars is None else exemplars)
    return predictions(inputs, inputs.move_test(aligner, weights), memory, weights=weights.float(), gated=gated)
