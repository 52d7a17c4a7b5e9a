"""`Repair`: from two models and what is known of the old classes to a corrected model, in one call."""

from __future__ import annotations

import copy
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.aligners.linear import Ridge
from elign.attachments import Attachment, attach
from elign.classifiers.base import LatentClassifier
from elign.classifiers.bias import WeightAligned, best_offsets, check_boundaries
from elign.classifiers.gaussian import Gaussian
from elign.classifiers.linear_head import LinearHead
from elign.classifiers.voting import standardised
from elign.export import Exported, export_model_onnx, export_model_torch
from elign.repair_report import Estimate, RepairReport
from elign.statistics.class_statistics import PRIOR, ClassStatistics, check_statistics
from elign.utils.errors import LatentError, NotFittedError, OptionError
from elign.utils.extraction import Latents, Pairs, read_logits
from elign.utils.fitted import ProgressLine, Ranges, from_config, register
from elign.utils.tensors import check_labels, check_number, check_pairs, check_rows, check_seed, compute_dtype, rounded

Exemplars = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]

_MODES = ("head", "classifier", "weights")
# All chosen on the development seed of benchmarks/panel (docs/decisions.md).
_HEAD_SHARE = 0.25  # of the head in the vote, where exemplars are all there is
_EXEMPLAR_PAIRS = 2  # how often a pair of an exemplar counts among the pairs that the map is fitted on
_UNSEEN = 0.85  # test images are harder than training images: what a temperature is divided by for that
_PER_CLASS = 60  # samples or new latents of each class to choose and estimate on
_NO_DRIFT = 1e-4  # relative drift below which two models are the same
_FEW = 5  # exemplars of a class


@register
class Repair(LatentClassifier):
    """Corrects a model that learned new classes and forgot old ones, without retraining it.

    What is remembered of the old classes moves into the current model's latent space, and classes are read off there:

    1. A ridge map is fitted on latents of the new data under both models (and of exemplars, if there are any).
    2. Means and covariances of the old classes follow it: `mu A + b` and `A' S A + r R`, where R is the covariance of
       the map's residuals and r is `residual`. The means move towards the exemplars' by `n / (n + prior)`.
    3. `Gaussian` classifies latents by the statistics of old and new classes. With exemplars alone, the head gets a
       quarter of the vote, and one offset per task, chosen on the exemplars, corrects the bias towards newer classes.
    4. A temperature makes the outputs log-probabilities that can be trusted.

    It works with statistics, with exemplars (also of old classes only), with both, and with neither: then only weight
    aligning (WA) is left. If the models do not differ, or the estimate says that nothing is won, the head stays.

    Args:
        head: Name of the head in the model, as in `model.named_modules()`; not needed for `fit_latents`.
        aligner: The map, not fitted; `Ridge()` when not given.
        classifier: What classifies latents, not fitted; `Gaussian()` when not given.
        prior: How many exemplars of a class weigh as much as its transported mean.
        residual: Share of the map's residual covariance that is added to transported covariances.
        force: Correct the model even if the estimate says that nothing is won.
        seed: Of samples.
        argument: Which argument of the head is the latent: a position or a keyword.

    Attributes:
        mode: `classifier`, `weights` (WA), or `head` (nothing is changed).
        report: What to expect, beside the simple alternatives; a `RepairReport` (not stored in files).
        statistics: Of all classes in the current model's space: keep them for the next time (not stored in this file).

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> centers = 6 * torch.randn(4, 8)
        >>> def data(classes, n=100):
        ...     labels = torch.tensor(classes).repeat(n)
        ...     return [(centers[labels] + torch.randn(len(labels), 8), labels)]
        >>> old_model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval()
        >>> statistics = elign.ClassStatistics.from_data(old_model, "1", data([0, 1]))
        >>> new_model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval()   # stands for a fine-tuned model
        >>> repair = elign.Repair("1").fit(old_model, new_model, data([2, 3]), statistics=statistics)
        >>> x, labels = data([0, 1, 2, 3])[0]
        >>> with repair.attach(new_model):
        ...     accuracy = (new_model(x).argmax(dim=1) == labels).float().mean()
        >>> bool(accuracy > 0.9)
        True
    """

    needs_logits: ClassVar[bool] = True
    how_to_fit = "fit(...) or fit_latents(...)"
    rows_of: ClassVar[str] = "offsets"
    ranges: ClassVar[Ranges] = {"mode_number": (0, 2), "temperature": (1e-30, math.inf), "head_share": (0.0, 1.0)}
    offsets: Tensor
    temperature: Tensor
    head_share: Tensor
    mode_number: Tensor
    _traced: tuple[str, float] | None = None  # in a graph: the mode and the head's share as plain values

    def __init__(
        self,
        head: str = "",
        *,
        aligner: Aligner | Mapping[str, Any] | None = None,
        classifier: LatentClassifier | Mapping[str, Any] | None = None,
        prior: float = PRIOR,
        residual: float = 0.5,
        force: bool = False,
        seed: int = 0,
        argument: int | str = 0,
    ) -> None:
        super().__init__()
        if isinstance(argument, bool) or not isinstance(argument, int | str):
            raise OptionError(f"argument must be a position or a keyword, got {argument!r}")
        if not isinstance(head, str):
            raise OptionError(f'give the name of the head, such as "fc": it is looked for in both models, got {head!r}')
        self.head = head
        self.classifier = from_config(Gaussian() if classifier is None else classifier, LatentClassifier)
        # A copy for each level would double the work with every level of a nested file.
        if any(isinstance(part, Repair) for part in self.classifier.modules()):
            raise OptionError("the classifier of a Repair cannot be, or hold, another Repair")
        # In tuples, since they are not parts of this module: the fit alone uses them, and files do not hold them.
        self._recipe = (from_config(Ridge() if aligner is None else aligner, Aligner), copy.deepcopy(self.classifier))
        self._statistics: tuple[ClassStatistics, ...] = ()
        self.prior = float(check_number(prior, "prior"))
        self.residual = float(check_number(residual, "residual"))
        self.force, self.seed = bool(force), check_seed(seed)
        self.argument = argument
        self.report: RepairReport | None = None

    @property
    def aligner(self) -> Aligner:
        """The map between the two models' spaces."""
        return self._recipe[0]

    @property
    def mode(self) -> str:
        """How it predicts: `classifier`, `weights` or `head`."""
        return _MODES[int(self.mode_number)] if self.fitted else "not fitted"

    @property
    def statistics(self) -> ClassStatistics:
        """Statistics of all classes in the current model's space."""
        if not self._statistics:
            raise NotFittedError("there are no statistics here: fit first (files of a repair do not hold them)")
        return self._statistics[0]

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("offsets", torch.zeros(self.rows))
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("head_share", torch.zeros(()))
        self.register_buffer("mode_number", torch.tensor(0))

    def _check_state(self) -> None:
        if self.mode != "head":
            self.classifier.require_fitted()
            if self.classifier.takes not in (None, self.dim) or self.classifier.rows not in (0, self.rows):
                raise LatentError("the classifier has another dimension, or another number of classes")

    def fit(  # type: ignore[override]
        self,
        previous: nn.Module,
        current: nn.Module,
        new_data: Iterable[Any],
        *,
        statistics: ClassStatistics | None = None,
        exemplars: Iterable[Any] | None = None,
        task_boundaries: int | Sequence[int] | None = None,
        inputs: Callable[[Any], Any] | None = None,
        labels: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Fit on the two models and training data of the new classes.

        Each input goes through each model once, without gradients and in evaluation mode.

        Args:
            previous: The model before it learned the new classes.
            current: The model after.
            new_data: Batches of training data of the new classes: inputs first, classes second, or a mapping.
            statistics: Of the old classes under the previous model.
            exemplars: Batches of some training data of old classes; those of new classes are ignored.
            task_boundaries: Number of classes after each task but the last, if there were several; one offset per task.
            inputs: Takes the models' input out of a batch, if it is not the first entry.
            labels: Takes the classes out of a batch, if they are not the second entry.
            device: Where to run the models' inputs; by default where `current`'s parameters are.
            progress: Called with one line of text at each stage.

        Raises:
            LatentError: If data or statistics do not fit the models or each other.
        """
        if not self.head:
            raise OptionError('say which part of the model is its head: Repair("fc"), or use fit_latents')
        say = progress or (lambda line: None)
        options: dict[str, Any] = {"argument": self.argument, "inputs": inputs, "labels": labels, "device": device}
        say("latents of the new data under both models")
        new, kept = Pairs.from_models(previous, current, self.head, new_data, **options), None
        if exemplars is not None:
            say("latents of the exemplars under both models")
            z_prev, z_cur, classes = Pairs.from_models(previous, current, self.head, exemplars, **options)
            kept = z_cur, classes, z_prev
        latents = Latents(current, self.head, argument=self.argument)
        part = latents.model.get_submodule(latents.head_name)
        return self.fit_latents(
            *new,
            head=latents.logits,
            weights=part if isinstance(part, nn.Linear) else None,
            statistics=statistics,
            exemplars=kept,
            task_boundaries=task_boundaries,
            progress=progress,
        )

    def fit_latents(
        self,
        z_prev: Tensor,
        z_cur: Tensor,
        labels: Tensor,
        *,
        head: nn.Module | Callable[[Tensor], Any] | None = None,
        weights: nn.Linear | None = None,
        statistics: ClassStatistics | None = None,
        exemplars: Exemplars | None = None,
        task_boundaries: int | Sequence[int] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Fit on latents.

        Args:
            z_prev: Latents `(N, D)` of new data under the previous model.
            z_cur: Latents of the same inputs under the current model.
            labels: Their classes `(N,)`.
            head: The current model's head: latents to logits.
            weights: The head as a linear layer, if `head` is a function around one.
            statistics: Of the old classes under the previous model.
            exemplars: Latents of old images under the current model and their classes; as a third entry their latents
                under the previous model, which make good pairs, too.
            task_boundaries: As in `fit`.
            progress: As in `fit`.
        """
        given = _Given(z_prev, z_cur, labels, head, weights, statistics, exemplars, task_boundaries)
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(z_cur.device.type, enabled=False):
            try:
                with ProgressLine("repair") as shown:
                    self.report = self._fit(given, progress or shown.show)
            except BaseException:
                self._forget()
                raise
        for line in self.report.warnings:
            warnings.warn(line, stacklevel=3)
        return self

    def _fit(self, given: _Given, say: Callable[[str], None]) -> RepairReport:
        """Fit all parts, in the order of the class's description."""
        start = time.perf_counter()
        dim, self.rows = given.z_cur.shape[1], given.outputs
        say("the map from the previous to the current space")
        statistics = self._remembered(given).update(given.z_cur, given.labels)
        self._statistics = (statistics,)
        say("the classifier of all classes")
        mode = self._fit_classifier(given, statistics)
        self._set(dim, mode_number=torch.tensor(_MODES.index(mode)))
        say("offsets, temperature, estimates")
        trial, rows = None, {}
        if given.remembers:
            trial = self._trial(given, statistics)
            rows = self._estimates(given, trial, self._calibrate(given, statistics, trial))
        notes, drift = given.warnings(trial), given.drift
        source = "none" if not rows else "exemplars" if given.statistics is None else "samples"
        # A model that was trained on its exemplars knows them by heart: there the head's estimate proves nothing.
        useless = source == "samples" and "nothing" in rows and rows["repair"].balanced <= rows["nothing"].balanced
        if mode == "classifier" and not self.force and (useless or drift <= _NO_DRIFT):
            mode = "head"
            self._set(dim)
            if rows:
                notes.append("no drift, or nothing to win by the estimate: the head stays (force=True overrides this)")
        self.to(given.z_cur.device)
        return RepairReport(rows, source, drift, tuple(notes), mode, seconds=time.perf_counter() - start)

    def _remembered(self, given: _Given) -> ClassStatistics:
        """Return the statistics of the old classes in the current space; not fitted if nothing is known of them."""
        if given.statistics is None:
            return ClassStatistics() if given.exemplars is None else ClassStatistics().update(*given.exemplars[:2])
        pairs = [(given.z_prev, given.z_cur)]
        if given.exemplars is not None and len(given.exemplars) == 3:
            pairs += [(given.exemplars[2], given.exemplars[0])] * _EXEMPLAR_PAIRS
        self.aligner.fit_latents(*(torch.cat(side) for side in zip(*pairs, strict=True)), direction="forward")
        moved = self.aligner.transport(given.statistics)
        if self.residual and moved.form != "none":
            # The map says nothing of how latents of one class differ from where it puts them.
            rest = given.z_cur - self.aligner.align(given.z_prev, generator=torch.Generator().manual_seed(self.seed))
            rest = rest.cpu().double()
            moved = moved.widened(self.residual * (rest.t() @ rest / len(rest)))
        if given.exemplars is not None:
            z, labels = given.exemplars[:2]
            moved = moved.shrink_means(z, labels, prior=self.prior)
            missing = ~torch.isin(labels, moved.classes.to(labels.device))
            if missing.any():
                moved.update(z[missing], labels[missing])
        return moved

    def _fit_classifier(self, given: _Given, statistics: ClassStatistics) -> str:
        """Fit what will classify latents; return the mode."""
        # A fresh one: a fit without any memory puts another classifier into its place.
        self.classifier = copy.deepcopy(self._recipe[1])
        if given.statistics is not None:
            self.classifier.fit(statistics=statistics, classes=self.rows)
        elif given.exemplars is not None:
            # On the latents themselves: the exemplars are then scored as if they were left out.
            z, labels = torch.cat([given.exemplars[0], given.z_cur]), torch.cat([given.exemplars[1], given.labels])
            self.classifier.fit(z=z, labels=labels, classes=self.rows)
        elif given.weights is not None:
            self.classifier = WeightAligned().fit(head=given.weights, old_classes=given.old_classes)
            return "weights"
        else:
            return "head"
        return "classifier"

    def _trial(self, given: _Given, statistics: ClassStatistics) -> _Trial:
        """Return what to choose and estimate on: exemplars or samples of old classes, and some of each new class."""
        generator = torch.Generator().manual_seed(self.seed)
        z, labels = given.some_new(_PER_CLASS, generator)
        if given.statistics is None:
            z, labels = torch.cat([given.exemplars[0], z]), torch.cat([given.exemplars[1], labels])
        elif statistics.form != "none":
            drawn, classes = statistics.sample(_PER_CLASS, generator, given.old_classes)
            z, labels = torch.cat([drawn.to(z), z]), torch.cat([classes.to(labels.device), labels])
        return _Trial(z, labels, given.logits(z), torch.isin(labels.cpu(), torch.tensor(given.old_classes)))

    def _calibrate(self, given: _Given, statistics: ClassStatistics, trial: _Trial) -> Tensor:
        """Choose the head's share, the offsets and the temperature; return the scores of rows that are left out."""
        z, labels, logits, _ = trial
        scores = self.classifier.leave_one_out_scores(z, labels, logits=logits)
        # Exemplars that moved the means cannot tell anything more, and samples follow the very Gaussians that the
        # classifier knows: only exemplars without statistics, each left out in turn, show how biased the head is.
        alone = given.statistics is None
        if alone and logits is not None:
            self.head_share = torch.tensor(_HEAD_SHARE)
        mixed = _mixed(scores, logits, float(self.head_share))
        if alone:
            rows, classes = mixed.cpu().double(), labels.cpu()
            fair = rows.gather(1, classes.unsqueeze(1)).squeeze(1) > -1e5
            self.offsets = given.offsets(rows[fair], classes[fair]).to(z.dtype)
            mixed = mixed - self.offsets.to(mixed)
        if alone or statistics.form == "none":
            temperature = fit_temperature(mixed, labels)
        else:
            temperature = self._temperature(given, statistics)
        self.temperature = torch.tensor(temperature).to(z)
        return mixed

    def _temperature(self, given: _Given, statistics: ClassStatistics) -> float:
        """Fit a temperature on samples, and correct it by how much harder latents are than samples of the same classes.

        Latents of new classes are at hand, and samples of their statistics can be drawn; for old classes there are
        samples only.
        """
        generator = torch.Generator().manual_seed(self.seed)
        z, labels = statistics.sample(_PER_CLASS, generator)
        z, fresh = z.to(given.z_cur), torch.isin(labels.cpu(), torch.tensor(given.new_classes)).to(labels.device)
        real, real_labels = given.some_new(_PER_CLASS, generator)
        scores = self.classifier(z, logits=given.logits(z))
        on_samples = fit_temperature(scores[fresh], labels[fresh])
        on_latents = fit_temperature(self.classifier(real, logits=given.logits(real)), real_labels)
        return fit_temperature(scores, labels) * max(1.0, on_latents / on_samples) / _UNSEEN

    def _estimates(self, given: _Given, trial: _Trial, held_out: Tensor) -> dict[str, Estimate]:
        """Estimate what this repair and its simple alternatives are worth; nothing without rows of old classes."""
        z, labels, logits, is_old = trial
        if not bool(is_old.any()):
            return {}
        # The alternatives are chosen on one half of the rows and score the other.
        found = {"retrained head": torch.zeros(len(z), self.rows, dtype=z.dtype, device=z.device)}
        if logits is not None:
            found = {"nothing": logits, "bias offset": logits.detach().cpu().double().clone(), **found}
        half = torch.arange(len(z)) % 2 == 0
        for part in (half, ~half):
            if logits is not None:
                plain = logits.detach().cpu().double()
                found["bias offset"][part] = plain[part] - given.offsets(plain[~part], labels.cpu()[~part])
            head = LinearHead(seed=self.seed)
            head.fit(z=z[~part], labels=labels[~part], head=given.weights, classes=self.rows)
            found["retrained head"][part] = head(z[part])
        return {name: Estimate.of(scores, labels, is_old) for name, scores in {**found, "repair": held_out}.items()}

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Return log-probabilities `(..., classes)`; the head's own logits where the head stays."""
        self._check(z)
        if logits is None and (self.mode != "classifier" or float(self.head_share) or self.classifier.needs_logits):
            raise LatentError("this repair needs the head's logits: pass logits=head(z)")
        return self.scores(z, logits)

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Do what `forward` does, without any check: tensor operations only."""
        mode, share = self._traced or (self.mode, float(self.head_share))
        if mode == "head":
            assert logits is not None  # noqa: S101  (`forward` and hooks see to it)
            return logits
        scores = self.classifier.scores(z, logits)
        if mode == "weights":
            return scores
        mixed = _mixed(scores, logits, share) - self.offsets.to(scores.device, compute_dtype(scores))
        result = (mixed / self.temperature.to(mixed)).log_softmax(dim=-1)
        return rounded(result, z.dtype if logits is None else logits.dtype)

    def traceable(self) -> nn.Module:
        """Return a copy in which the classifier is traceable, and the mode and the head's share are plain values."""
        made = copy.deepcopy(self)
        made._traced = (self.mode, float(self.head_share))
        # Where the head stays, the classifier would be dead weight.
        made.classifier = nn.Identity() if self.mode == "head" else made.classifier.traceable()  # type: ignore[assignment]
        return made

    def attach(self, model: nn.Module, *, replace: bool = False) -> Attachment:
        """Let a model predict with this repair, whenever it is in evaluation mode; see `elign.attach`."""
        if not self.head:
            raise OptionError("this repair was fitted on latents and knows no head: elign.attach(model, head, repair)")
        return attach(model, self.head, self, argument=self.argument, replace=replace)

    def export(
        self, model: nn.Module, path: str | os.PathLike[str], example: Tensor, *, verify: bool = True
    ) -> Exported:
        """Write a model with this repair as one file: ONNX, or `torch.export` if the name ends in `.pt2`.

        Args:
            model: The current model; it is not changed.
            path: The file to write.
            example: A batch of inputs, which gives the shape and is used to compare the file with PyTorch.
            verify: Compare the file's results with PyTorch's.
        """
        copied = copy.deepcopy(model).eval()
        self.attach(copied, replace=True)
        write = export_model_torch if os.fspath(path).endswith(".pt2") else export_model_onnx
        return write(copied, path, example, verify=verify)


def _mixed(scores: Tensor, logits: Tensor | None, share: float) -> Tensor:
    """Return scores, or the sum of standardised scores and logits where the head has a share."""
    scores = scores.to(compute_dtype(scores))
    if not share or logits is None:
        return scores
    both = standardised([scores, logits.to(scores)])
    return (1 - share) * both[0] + share * both[1]


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the temperature with the highest likelihood of labels under `softmax(scores / temperature)`.

    Golden-section search over its logarithm; the likelihood has one maximum. Every class weighs the same.
    """
    scores, labels = scores.cpu().double(), labels.cpu().long()
    scores = scores.masked_fill(scores == -torch.inf, -1e30)
    weight = 1.0 / torch.bincount(labels)[labels].double()

    def loss(power: float) -> float:
        likelihood = (scores * math.exp(-power)).log_softmax(dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)
        return -float((weight * likelihood.clamp(min=-1e6)).sum())

    low, high, ratio = math.log(1e-3), math.log(1e3), (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = loss(a), loss(b)
    for _ in range(40):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = loss(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = loss(b)
    return math.exp((low + high) / 2)


class _Trial(NamedTuple):
    """Labelled latents to choose and estimate on."""

    z: Tensor
    labels: Tensor
    logits: Tensor | None
    is_old: Tensor
    """Which rows are of old classes; on the CPU."""


@dataclass
class _Given:
    """Everything a repair is fitted on; the arguments of `fit_latents`, which are checked here."""

    z_prev: Tensor
    z_cur: Tensor
    labels: Tensor
    head: nn.Module | Callable[[Tensor], Any] | None
    weights: nn.Linear | None
    statistics: ClassStatistics | None
    exemplars: Any
    task_boundaries: int | Sequence[int] | None

    def __post_init__(self) -> None:
        self.z_prev, self.z_cur = check_pairs(self.z_prev, self.z_cur)
        check_labels(self.labels, len(self.z_cur))
        self.labels = self.labels.to(self.z_cur.device).long()
        self.new_classes = sorted(set(self.labels.tolist()))
        known: set[int] = set()
        if self.statistics is not None:
            check_statistics(self.statistics, self.z_cur.shape[1])
            self.statistics = self.statistics.without(self.new_classes)
            known |= set(self.statistics.classes.tolist()) if self.statistics else set()
        if self.exemplars is not None:
            if not isinstance(self.exemplars, tuple | list) or len(self.exemplars) not in (2, 3):
                raise OptionError("exemplars must be latents and their classes, (z, labels) or (z, labels, z_prev)")
            self.exemplars = self._old_exemplars(*self.exemplars)
            known |= set(self.exemplars[1].tolist())
        logits = self.logits(self.z_cur[:1])
        outputs = max(self.new_classes) + 1 if logits is None else int(logits.shape[-1])
        self.old_classes = sorted(known or set(range(outputs)) - set(self.new_classes))
        highest = max([*self.old_classes, *self.new_classes])
        if logits is not None and highest >= outputs:
            raise LatentError(f"there is class {highest}, but the head has {outputs} outputs")
        self.outputs = max(outputs, highest + 1)
        self.tasks = self._tasks()
        if isinstance(self.head, nn.Linear) and self.weights is None:
            self.weights = self.head

    def _old_exemplars(self, z: Tensor, labels: Tensor, *previous: Tensor) -> tuple[Tensor, ...]:
        """Return the exemplars of old classes, checked."""
        for tensor in (z, *previous):
            check_rows(tensor, "exemplars")
            if tensor.shape != (len(z), self.z_cur.shape[1]):
                raise LatentError(f"exemplars have shape {tuple(tensor.shape)}, new latents {tuple(self.z_cur.shape)}")
        check_labels(labels, len(z))
        labels = labels.to(self.z_cur.device).long()
        old = ~torch.isin(labels, labels.new_tensor(self.new_classes))
        if not bool(old.any()):
            raise LatentError("there is no exemplar of an old class: all exemplars are of classes in the new data")
        return z.to(self.z_cur)[old], labels[old], *(tensor.to(self.z_cur)[old] for tensor in previous)

    def _tasks(self) -> list[list[int]]:
        """Return the classes of each task, the new ones last."""
        if self.task_boundaries is None:
            return [self.old_classes, self.new_classes]
        ends = check_boundaries(self.task_boundaries)
        if any(c >= ends[-1] for c in self.old_classes) or any(c < ends[-1] for c in self.new_classes):
            raise OptionError(
                f"task_boundaries={ends} do not fit the classes: the new data must hold the classes from "
                f"{ends[-1]} on, and nothing else may"
            )
        tasks = [[c for c in self.old_classes if low <= c < high] for low, high in pairwise([0, *ends])]
        return [task for task in (*tasks, self.new_classes) if task]

    @property
    def remembers(self) -> bool:
        """Whether anything is known of old classes."""
        return self.statistics is not None or self.exemplars is not None

    @property
    def drift(self) -> float:
        """Root mean square drift of the new latents, relative to their spread."""
        spread = (self.z_cur - self.z_cur.mean(dim=0)).square().sum(dim=1).mean().sqrt()
        moved = (self.z_cur - self.z_prev).square().sum(dim=1).mean().sqrt()
        return float(moved / spread.clamp(min=1e-30))

    def some_new(self, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return at most so many latents of each new class."""
        order = torch.randperm(len(self.labels), generator=generator)
        labels = self.labels.cpu()[order]
        places = torch.cat([order[labels == label][:most] for label in self.new_classes]).to(self.labels.device)
        return self.z_cur[places], self.labels[places]

    def logits(self, z: Tensor) -> Tensor | None:
        """Return what the head gives for latents."""
        return None if self.head is None else read_logits(self.head, z).detach()

    def offsets(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Choose one offset for each task after the first; a number for each class."""
        order = torch.tensor([label for task in self.tasks for label in task])
        places = torch.zeros(scores.shape[1], dtype=torch.int64)
        places[order] = torch.arange(len(order))
        ends = torch.tensor([len(task) for task in self.tasks]).cumsum(0).tolist()
        found = best_offsets(scores[:, order].clamp(min=-1e30, max=1e30), places[labels], boundaries=ends[:-1])
        result = torch.zeros(scores.shape[1], dtype=scores.dtype)
        for task, offset in zip(self.tasks[1:], found, strict=True):
            result[task] = offset
        return result

    def warnings(self, trial: _Trial | None) -> list[str]:
        """Return what a user should know."""
        found = []
        if trial is None:
            found.append(
                "there are neither statistics nor exemplars of old classes: only the head's weights are aligned (WA). "
                "Keep elign.ClassStatistics when classes are learned"
            )
        elif trial.logits is not None and bool(trial.is_old.any()):
            predicted = trial.logits.argmax(dim=1).cpu()[trial.is_old]
            if not bool(torch.isin(predicted, torch.tensor(self.old_classes)).any()):
                found.append("the head never predicts an old class")
        if self.exemplars is not None and self.statistics is None:
            found += self._few("exemplars", self.exemplars[1])
        if self.statistics is not None and self.exemplars is None and len(self.new_classes) == 1:
            found.append(
                "the map is learned on images of one new class alone, and the old classes may have moved otherwise: "
                "compare with the head on held-out images, or give a few exemplars"
            )
        lost = self.outputs - len(self.old_classes) - len(self.new_classes)
        if self.remembers and lost and self.head is not None:
            found.append(f"nothing is known of {lost} of the head's {self.outputs} classes: they are never predicted")
        return found + self._few("images", self.labels)

    @staticmethod
    def _few(what: str, labels: Tensor) -> list[str]:
        classes, counts = torch.unique(labels, return_counts=True)
        few = classes[counts < _FEW].tolist()
        return [f"fewer than {_FEW} {what} of class {few[0]} ({len(few)} such classes)"] if few else []
