"""`Repair`: from two models and what is known of the old classes to a corrected model, in one call."""

from __future__ import annotations

import copy
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.aligners.linear import Ridge
from elign.attachments.attachment import Attachment, attach
from elign.classifiers.base import LatentClassifier
from elign.classifiers.bias import WeightAligned, best_offsets, check_boundaries
from elign.classifiers.gaussian import Gaussian
from elign.classifiers.linear_head import LinearHead
from elign.classifiers.voting import standardised
from elign.export import Exported, export_model_onnx, export_model_torch
from elign.repair_report import Estimate, RepairReport
from elign.statistics.class_statistics import PRIOR, ClassStatistics
from elign.utils.errors import LatentError, NotFittedError, OptionError
from elign.utils.extraction import Latents, Pairs, extract_labelled, read_logits
from elign.utils.fitted import ProgressLine, Ranges, from_config, register, to_config
from elign.utils.tensors import check_labels, check_pairs, check_rows, check_seed, compute_dtype, rounded

if TYPE_CHECKING:
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
        for name, number in (("prior", prior), ("residual", residual)):
            if not (isinstance(number, int | float) and math.isfinite(number) and number >= 0):
                raise OptionError(f"{name} must be a finite number >= 0, got {number!r}")
        self.head = head
        # Not a part of this module: the map is of use in the fit only.
        self._aligner = (from_config(Ridge() if aligner is None else aligner, Aligner),)
        self.classifier = from_config(Gaussian() if classifier is None else classifier, LatentClassifier)
        # A copy for each level would double the work with every level of a nested file.
        if any(isinstance(part, Repair) for part in self.classifier.modules()):
            raise OptionError("the classifier of a Repair cannot be, or hold, another Repair")
        self._template = (copy.deepcopy(self.classifier),)
        self.prior, self.residual = float(prior), float(residual)
        self.force, self.seed = bool(force), check_seed(seed)
        self.argument = argument
        self.report: RepairReport | None = None
        self._statistics: tuple[ClassStatistics, ...] = ()

    @property
    def aligner(self) -> Aligner:
        """The map between the two models' spaces."""
        return self._aligner[0]

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

    @property
    def fitted(self) -> bool:
        """Whether it was fitted."""
        return self.dim is not None

    def config(self) -> dict[str, Any]:
        """Return the options as plain values; the classifier with those that it was fitted with."""
        plain = {name: getattr(self, name) for name in ("head", "prior", "residual", "force", "seed", "argument")}
        return {**plain, "aligner": to_config(self.aligner), "classifier": to_config(self.classifier)}

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
        say("latents of the new data under both models")
        before, after = (Latents(model, self.head, argument=self.argument) for model in (previous, current))
        read = partial(extract_labelled, [before, after], inputs=inputs, labels=labels, device=device)
        (z_prev, z_cur), classes = read(new_data)
        kept: tuple[Tensor, Tensor, Tensor] | None = None
        if exemplars is not None:
            say("latents of the exemplars under both models")
            (kept_prev, kept_cur), kept_labels = read(exemplars)
            kept = kept_cur, kept_labels, kept_prev
        part = _linear(current, self.head)
        return self.fit_latents(
            *Pairs(z_prev, z_cur, classes),
            head=after.logits,
            weights=part,
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
        start = time.perf_counter()
        inputs = _Inputs.checked(z_prev, z_cur, labels, head, weights, statistics, exemplars, task_boundaries)
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(z_cur.device.type, enabled=False):
            try:
                with ProgressLine("repair") as shown:
                    report = self._fit(inputs, progress or shown.show)
            except BaseException:
                self._forget()
                raise
        self.report = report.timed(time.perf_counter() - start)
        for line in self.report.warnings:
            warnings.warn(line, stacklevel=3)
        return self

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Return log-probabilities `(..., classes)`; the head's own logits where the head stays."""
        self._check(z)
        if logits is None and (self.mode != "classifier" or float(self.head_share) or self.classifier.needs_logits):
            raise LatentError("this repair needs the head's logits: pass logits=head(z)")
        return self.scores(z, logits)

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Do what `forward` does, without any check: tensor operations only."""
        return _repaired(self, self.mode, float(self.head_share), z, logits)

    def traceable(self) -> nn.Module:
        """Return the part of this repair that predicts, with its choices as numbers."""
        return _TracedRepair(self)

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

    def _fit(self, given: _Inputs, say: Callable[[str], None]) -> RepairReport:
        self.rows, mode = given.outputs, "classifier"
        # A fit without any memory puts another classifier into its place.
        self.classifier = copy.deepcopy(self._template[0])
        remembered = statistics = None
        if given.has_old:
            say("the map from the previous to the current space")
            remembered = self._old_statistics(given)
            # `form`: "auto" may have meant another one when the statistics were made.
            kind: Any = remembered.form
            fresh = ClassStatistics(covariance=kind, rank=remembered.rank).update(given.z_cur, given.labels)
            statistics = remembered.merge(fresh)
            say("statistics and classifier of all classes")
            self._fit_classifier(statistics, given)
            self._statistics = (statistics,)
        else:
            self._statistics = (ClassStatistics().update(given.z_cur, given.labels),)
            mode = self._fit_without_memory(given)
        say("offsets, temperature, estimates")
        z, labels = self._chosen_on(given, remembered)
        logits = given.logits(z)
        self._set(given.z_cur.shape[1], mode_number=torch.tensor(_MODES.index(mode)))
        leave_one_out = None
        if statistics is not None:
            leave_one_out = self._choose(given, statistics, z, labels, logits)
        report = self._estimate(given, z, labels, logits, leave_one_out)
        if mode == "classifier" and not self.force and report.keep_head:
            mode = "head"
            self._set(given.z_cur.shape[1], mode_number=torch.tensor(0))
        self.to(given.z_cur.device)
        return report.concluded(mode)

    def _old_statistics(self, given: _Inputs) -> ClassStatistics:
        """Return the statistics of the old classes in the current space."""
        if given.statistics is None:
            assert given.kept is not None  # noqa: S101  (`has_old` says so)
            return ClassStatistics().update(*given.kept[:2])
        z_prev, z_cur = given.pairs(_EXEMPLAR_PAIRS)
        self.aligner.fit_latents(z_prev, z_cur, direction="forward")
        moved = self.aligner.transport(given.statistics)
        if self.residual and moved.form != "none":
            moved = moved.widened(self.residual * self._residual_covariance(given))
        if given.kept is not None:
            z, labels = given.kept[:2]
            moved = moved.shrink_means(z, labels, prior=self.prior)
            missing = sorted(set(labels.tolist()) - set(moved.classes.tolist()))
            if missing:
                rows = torch.isin(labels, labels.new_tensor(missing))
                form: Any = moved.form
                more = ClassStatistics(covariance=form, rank=moved.rank).update(z[rows], labels[rows])
                moved = moved.merge(more)
        return moved

    def _residual_covariance(self, given: _Inputs) -> Tensor:
        """Return how latents of one class differ from where the map puts them: the map says nothing of that spread."""
        rest = given.z_cur - self.aligner.align(given.z_prev, generator=torch.Generator().manual_seed(self.seed))
        rest = rest.cpu().double()
        return rest.t() @ rest / len(rest)

    def _fit_classifier(self, statistics: ClassStatistics, given: _Inputs) -> None:
        if given.statistics is None:
            # On the latents themselves: the exemplars are then scored as if they were left out.
            z, labels = given.kept[:2]  # type: ignore[index]
            z, labels = torch.cat([z, given.z_cur]), torch.cat([labels, given.labels])
            self.classifier.fit(z=z, labels=labels, classes=self.rows)
        else:
            self.classifier.fit(statistics=statistics, classes=self.rows)

    def _fit_without_memory(self, given: _Inputs) -> str:
        if given.weights is None:
            return "head"
        self.classifier = WeightAligned().fit(head=given.weights, old_classes=given.old_classes)
        return "weights"

    def _chosen_on(self, given: _Inputs, old: ClassStatistics | None) -> tuple[Tensor, Tensor]:
        """Return labelled latents to choose and estimate on: exemplars or samples of old classes, some of each new."""
        generator = torch.Generator().manual_seed(self.seed)
        z, labels = given.some_new(_PER_CLASS, generator)
        if given.kept is not None and given.statistics is None:
            return torch.cat([given.kept[0], z]), torch.cat([given.kept[1], labels])
        if old is None or old.form == "none":
            return z, labels
        drawn, classes = old.sample(_PER_CLASS, generator)
        return torch.cat([drawn.to(z), z]), torch.cat([classes.to(labels.device), labels])

    def _choose(
        self, given: _Inputs, statistics: ClassStatistics, z: Tensor, labels: Tensor, logits: Tensor | None
    ) -> Tensor:
        """Choose the head's share, the offsets and the temperature; return the scores of rows that are left out."""
        scores = self.classifier.leave_one_out_scores(z, labels, logits=logits)
        # Exemplars that moved the means cannot tell anything more, and samples follow the very Gaussians that the
        # classifier knows: only exemplars without statistics, each left out in turn, show how biased the head is.
        alone = given.statistics is None
        if alone:
            self.head_share = torch.tensor(_HEAD_SHARE if logits is not None else 0.0)
            mixed = _mixed(scores, logits, float(self.head_share)).cpu().double()
            fair = mixed.gather(1, labels.cpu().unsqueeze(1)).squeeze(1) > -1e5
            self.offsets = given.offsets(mixed[fair], labels.cpu()[fair]).to(z.dtype)
        self.to(z.device)
        mixed = _mixed(scores, logits, float(self.head_share)) - self.offsets.to(scores)
        if alone or statistics.form == "none":
            temperature = fit_temperature(mixed, labels)
        else:
            temperature = self._temperature(given, statistics)
        self.temperature = torch.tensor(temperature).to(z)
        return mixed

    def _temperature(self, given: _Inputs, statistics: ClassStatistics) -> float:
        """Fit a temperature on samples, and correct it by how much harder latents are than samples of the same classes.

        Latents of new classes are at hand, and samples of their statistics can be drawn; for old classes there are
        samples only.
        """
        generator = torch.Generator().manual_seed(self.seed)
        z, labels = statistics.sample(_PER_CLASS, generator)
        fresh = torch.isin(labels.cpu(), torch.tensor(given.groups[-1])).to(labels.device)
        real, real_labels = given.some_new(_PER_CLASS, generator)
        z = z.to(given.z_cur)
        scores = self.classifier(z, logits=given.logits(z))
        on_samples = fit_temperature(scores[fresh], labels[fresh])
        on_latents = fit_temperature(self.classifier(real, logits=given.logits(real)), real_labels)
        return fit_temperature(scores, labels) * max(1.0, on_latents / on_samples) / _UNSEEN

    def _estimate(
        self, given: _Inputs, z: Tensor, labels: Tensor, logits: Tensor | None, leave_one_out: Tensor | None
    ) -> RepairReport:
        """Estimate what this repair and its simple alternatives are worth."""
        old = torch.isin(labels.cpu(), torch.tensor(given.old_classes or [-1]))
        source = "samples" if given.statistics is not None else "exemplars"
        rows: dict[str, Estimate] = {}
        if leave_one_out is None or not bool(old.any()):
            source = "none"
        else:
            if logits is not None:
                rows["nothing"] = Estimate.of(logits, labels, old)
                rows["bias offset"] = Estimate.of(_cross_offset(logits, labels, given), labels, old)
            rows["retrained head"] = Estimate.of(self._retrained(given, z, labels), labels, old)
            rows["repair"] = Estimate.of(leave_one_out, labels, old)
        notes = given.warnings(logits, labels, old)
        return RepairReport.of(rows, source=source, drift=given.drift, warnings=notes, no_drift=_NO_DRIFT)

    def _retrained(self, given: _Inputs, z: Tensor, labels: Tensor) -> Tensor:
        """Score latents by heads that were retrained without them: two halves."""
        half = torch.arange(len(z), device=z.device) % 2 == 0
        found = torch.zeros(len(z), given.outputs, dtype=z.dtype, device=z.device)
        for part in (half, ~half):
            head = LinearHead(seed=self.seed)
            head.fit(z=z[~part], labels=labels[~part], head=given.weights, classes=self.rows)
            found[part] = head(z[part])
        return found


class _TracedRepair(nn.Module):
    """A `Repair` for an exported graph."""

    offsets: Tensor
    temperature: Tensor

    def __init__(self, repair: Repair) -> None:
        super().__init__()
        self.mode, self.share = repair.mode, float(repair.head_share)
        self.classifier = repair.classifier.traceable() if self.mode != "head" else None
        self.register_buffer("offsets", repair.offsets.clone())
        self.register_buffer("temperature", repair.temperature.clone())

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        return _repaired(self, self.mode, self.share, z, logits)


def _repaired(parts: Any, mode: str, share: float, z: Tensor, logits: Tensor | None) -> Tensor:
    """Return the output of a repair from its parts: tensor operations only."""
    if mode == "head":
        assert logits is not None  # noqa: S101  (`forward` and hooks see to it)
        return logits
    scores: Tensor = parts.classifier.scores(z, logits)
    if mode == "weights":
        return scores
    mixed = _mixed(scores, logits, share) - parts.offsets.to(scores.device, compute_dtype(scores))
    result: Tensor = (mixed / parts.temperature.to(mixed)).log_softmax(dim=-1)
    return rounded(result, z.dtype if logits is None else logits.dtype)


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


def _cross_offset(logits: Tensor, labels: Tensor, given: _Inputs) -> Tensor:
    """Return logits with the offset that was chosen on the other half of the rows."""
    half = torch.arange(len(logits)) % 2 == 0
    found = logits.detach().cpu().double().clone()
    labels = labels.cpu()
    for part in (half, ~half):
        found[part] -= given.offsets(found[~part], labels[~part])
    return found


class _Inputs:
    """Everything a repair is fitted on, checked."""

    def __init__(
        self,
        pairs: Pairs,
        head: nn.Module | Callable[[Tensor], Any] | None,
        weights: nn.Linear | None,
        statistics: ClassStatistics | None,
        kept: tuple[Tensor, ...] | None,
        groups: list[list[int]],
        outputs: int,
    ) -> None:
        self.z_prev, self.z_cur, self.labels = pairs
        self.head, self.weights, self.statistics, self.kept = head, weights, statistics, kept
        self.groups, self.outputs = groups, outputs
        self.old_classes = [label for group in groups[:-1] for label in group]

    @classmethod
    def checked(
        cls,
        z_prev: Tensor,
        z_cur: Tensor,
        labels: Tensor,
        head: nn.Module | Callable[[Tensor], Any] | None,
        weights: nn.Linear | None,
        statistics: ClassStatistics | None,
        exemplars: Any,
        task_boundaries: int | Sequence[int] | None,
    ) -> _Inputs:
        """Check what was given, and find out which classes are old.

        Raises:
            LatentError: If something does not fit.
            OptionError: If something is of the wrong kind.
        """
        z_prev, z_cur = check_pairs(z_prev, z_cur)
        check_labels(labels, len(z_cur))
        labels = labels.to(z_cur.device).long()
        dim, new = z_cur.shape[1], sorted(set(labels.tolist()))
        if statistics is not None:
            if not isinstance(statistics, ClassStatistics):
                raise OptionError(f"statistics must be ClassStatistics, got {type(statistics).__name__}")
            if statistics.require_fitted() != dim:
                raise LatentError(f"the statistics have dimension {statistics.dim}, the latents {dim}")
            statistics = statistics.without(new)
        kept = cls._kept(exemplars, z_cur, new)
        logits = None if head is None else read_logits(head, z_cur[:1])
        outputs = max(new) + 1 if logits is None else int(logits.shape[-1])
        known = set() if statistics is None else set(statistics.classes.tolist())
        known |= set() if kept is None else set(kept[1].tolist())
        old = sorted(known or set(range(outputs)) - set(new))
        highest = max([*old, *new])
        if logits is not None and highest >= outputs:
            raise LatentError(f"there is class {highest}, but the head has {outputs} outputs")
        weights = head if isinstance(head, nn.Linear) and weights is None else weights
        groups = _groups(old, new, task_boundaries)
        return cls(Pairs(z_prev, z_cur, labels), head, weights, statistics, kept, groups, max(outputs, highest + 1))

    @staticmethod
    def _kept(exemplars: Any, z_cur: Tensor, new: list[int]) -> tuple[Tensor, ...] | None:
        """Return exemplars of old classes, checked; None if there are none."""
        if exemplars is None:
            return None
        if not isinstance(exemplars, tuple | list) or len(exemplars) not in (2, 3):
            raise OptionError("exemplars must be latents and their classes, (z, labels) or (z, labels, z_prev)")
        z, labels, *rest = exemplars
        for tensor in (z, *rest):
            check_rows(tensor, "exemplars")
            if tensor.shape != (len(z), z_cur.shape[1]):
                raise LatentError(f"exemplars have shape {tuple(tensor.shape)}, new latents {tuple(z_cur.shape)}")
        check_labels(labels, len(z))
        labels = labels.to(z_cur.device).long()
        old = ~torch.isin(labels, torch.tensor(new, device=labels.device))
        if not bool(old.any()):
            raise LatentError("there is no exemplar of an old class: all exemplars are of classes in the new data")
        return z.to(z_cur)[old], labels[old], *(tensor.to(z_cur)[old] for tensor in rest)

    @property
    def has_old(self) -> bool:
        """Whether anything is known of old classes."""
        return self.statistics is not None or self.kept is not None

    @property
    def drift(self) -> float:
        """Root mean square drift of the new latents, relative to their spread."""
        spread = (self.z_cur - self.z_cur.mean(dim=0)).square().sum(dim=1).mean().sqrt()
        moved = (self.z_cur - self.z_prev).square().sum(dim=1).mean().sqrt()
        return float(moved / spread.clamp(min=1e-30))

    def pairs(self, repeat: int) -> tuple[Tensor, Tensor]:
        """Return pairs to fit the map on: those of the new data and, several times, those of exemplars."""
        if self.kept is None or len(self.kept) < 3:
            return self.z_prev, self.z_cur
        z, _, before = self.kept
        return torch.cat([self.z_prev, before.repeat(repeat, 1)]), torch.cat([self.z_cur, z.repeat(repeat, 1)])

    def some_new(self, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return at most so many latents of each new class."""
        order = torch.randperm(len(self.labels), generator=generator)
        labels = self.labels.cpu()[order]
        places = torch.cat([order[labels == label][:most] for label in self.groups[-1]]).to(self.labels.device)
        return self.z_cur[places], self.labels[places]

    def logits(self, z: Tensor) -> Tensor | None:
        """Return what the head gives for latents."""
        return None if self.head is None else read_logits(self.head, z).detach()

    def offsets(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Choose one offset for each task after the first; a number for each class."""
        order = torch.tensor([label for group in self.groups for label in group])
        places = torch.zeros(scores.shape[1], dtype=torch.int64)
        places[order] = torch.arange(len(order))
        ends = torch.tensor([len(group) for group in self.groups]).cumsum(0).tolist()
        found = best_offsets(scores[:, order].clamp(min=-1e30, max=1e30), places[labels], boundaries=ends[:-1])
        result = torch.zeros(scores.shape[1], dtype=scores.dtype)
        for group, offset in zip(self.groups[1:], found, strict=True):
            result[group] = offset
        return result

    def warnings(self, logits: Tensor | None, labels: Tensor, old: Tensor) -> list[str]:
        """Return what a user should know."""
        found = []
        if not self.has_old:
            found.append(
                "there are neither statistics nor exemplars of old classes: only the head's weights are aligned (WA). "
                "Keep elign.ClassStatistics when classes are learned"
            )
        elif logits is not None and bool(old.any()):
            predicted = logits.argmax(dim=1).cpu()[old]
            if not bool(torch.isin(predicted, torch.tensor(self.old_classes)).any()):
                found.append("the head never predicts an old class")
        if self.kept is not None:
            counts = torch.bincount(self.kept[1].cpu())
            few = [label for label in self.old_classes if label < len(counts) and 0 < counts[label] < _FEW]
            if few and self.statistics is None:
                found.append(f"fewer than {_FEW} exemplars of class {few[0]} ({len(few)} such classes)")
        if self.statistics is not None and self.kept is None and len(self.groups[-1]) == 1:
            found.append(
                "the map is learned on images of one new class alone, and the old classes may have moved otherwise: "
                "compare with the head on held-out images, or give a few exemplars"
            )
        lost = self.outputs - len(self.old_classes) - len(self.groups[-1])
        if self.has_old and lost and self.head is not None:
            found.append(f"nothing is known of {lost} of the head's {self.outputs} classes: they are never predicted")
        counts = torch.bincount(self.labels.cpu())
        few = [label for label in self.groups[-1] if counts[label] < _FEW]
        if few:
            found.append(f"fewer than {_FEW} images of class {few[0]} ({len(few)} such classes)")
        return found


def _groups(old: list[int], new: list[int], task_boundaries: int | Sequence[int] | None) -> list[list[int]]:
    """Return the classes of each task, the new ones last."""
    if task_boundaries is None:
        return [old, new]
    boundaries = check_boundaries(task_boundaries)
    groups: list[list[int]] = [[] for _ in range(len(boundaries) + 1)]
    for label in old:
        groups[sum(label >= boundary for boundary in boundaries)].append(label)
    last = [label for label in groups[-1] if label in set(old)]
    if last or any(sum(label >= boundary for boundary in boundaries) != len(boundaries) for label in new):
        raise OptionError(
            f"task_boundaries={boundaries} do not fit the classes: the new data must hold the classes from "
            f"{boundaries[-1]} on, and nothing else may"
        )
    return [group for group in [*groups[:-1], new] if group]


def _linear(model: nn.Module, head: str) -> nn.Linear | None:
    latents = Latents(model, head)
    part = latents.model.get_submodule(latents.head_name)
    return part if isinstance(part, nn.Linear) else None
