"""The field's corrections after training, on the same latents: rows of `aligner.rivals=true`.

`map/...`: birth statistics are moved by one map after each task, and regularised discriminant analysis (RDA) reads the
classes; `classifier/...`: a ridge map moves them, and another classifier reads them; the other rows are whole methods
as published. What exemplars are used for stands in the last rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

import elign
from elign.lab.environment import derive_seed
from elign.lab.evaluation.inputs import BIRTH, UNIT_BIRTH, EvalInputs
from elign.lab.evaluation.methods.base import BOUNDS, RIVALS, OldSamples, Prediction, method
from elign.lab.models.classifier import directions
from elign.statistics.class_statistics import ClassStatistics

_STATISTICS = ("rivals", "labelled-pairs")
_EXEMPLARS = ("rivals", "latents", "exemplars")
_rival = partial(method, group=RIVALS)
_SAMPLES = 300  # of each class through maps that are not affine; they have exactly its mean and covariance


def _fisher(inputs: EvalInputs, seed: int) -> elign.Aligner:
    """Make EFC's shift with the previous head; of a cosine head, with the linear one that is nearest to it."""
    head: Any = inputs.target.previous_head
    if not isinstance(head, nn.Linear):
        weight = head.sigma * directions(head.prototypes()) / inputs.new_previous.norm(dim=1).mean()
        head = nn.Linear(weight.shape[1], len(weight), bias=False)
        head.weight.data.copy_(weight)
    return elign.FisherShift(head=head, seed=seed)


_MAPS: dict[str, tuple[str, Callable[[EvalInputs, int], elign.Aligner]]] = {
    "none": ("statistics stay where they were", lambda inputs, seed: elign.Identity()),
    "mean-shift": ("one shift", lambda inputs, seed: elign.MeanShift()),
    "sdc": ("SDC's local shift, its pairs in order", lambda inputs, seed: elign.LocalShift(seed=seed)),
    "hopdc": ("HopDC's Hopfield shift", lambda inputs, seed: elign.HopfieldShift(seed=seed)),
    "efc": ("EFC's shift, weighted by the Fisher matrix", lambda inputs, seed: _fisher(inputs, seed)),
    "eli": ("ELI", lambda inputs, seed: inputs.forward["eli"]),
    "ldc-adam": ("LDC's linear map by Adam", lambda inputs, seed: elign.LDC(solver="adam", seed=seed)),
    "ldc": ("LDC's linear map in closed form", lambda inputs, seed: elign.LDC()),
    "dpcr": ("DPCR's category-wise projection", lambda inputs, seed: elign.DPCR()),
    "sldc": ("SLDC's map, shrunk to the identity", lambda inputs, seed: elign.SLDC()),
    "gls": ("the generalised least-squares map", lambda inputs, seed: elign.GLS()),
    "ridge": ("a ridge map with an intercept, its penalty by leave-one-out", lambda inputs, seed: elign.Ridge()),
}
_CLASSIFIERS: dict[str, tuple[str, Callable[[], elign.LatentClassifier]]] = {
    "nearest-mean": ("the nearest mean", elign.NearestMean),
    "lda": ("LDA", lambda: elign.Gaussian(shared=1.0)),
    "fecam": ("FeCAM", elign.FeCAM),
    "ridge-head": ("DPCR's ridge head", elign.RidgeHead),
    "ranpac": ("1,000 random features of RanPAC, on samples", lambda: elign.RandomFeatures(width=1000)),
    "head": ("a linear head retrained on samples (SLCA)", elign.LinearHead),
}


def _transported(inputs: EvalInputs, name: str, *, unit: bool = False) -> ClassStatistics:
    """Return statistics of all classes in the current space: old ones moved by a map, new ones as they are."""
    # Statistics are carried along by the method of this name.
    key = name if unit else f"map/{name}"

    def made() -> ClassStatistics:
        before, after = (F.normalize(z, dim=1) if unit else z for z in (inputs.new_previous, inputs.new))
        first = len(inputs.task_sizes) == 2
        born = inputs.statistics[(UNIT_BIRTH if unit else BIRTH) if first else key]
        aligner = _MAPS[name][1](inputs, derive_seed(inputs.seed, f"map {name}"))
        if not aligner.fitted:
            aligner.fit_latents(before, after, direction="forward")
        samples = max(_SAMPLES, 3 * before.shape[1] // 2)
        return aligner.transport(born, per_class=samples).update(after, inputs.new_labels)

    found: ClassStatistics = inputs.once(key, made)
    return found


def _by_map(inputs: EvalInputs, name: str) -> Prediction:
    statistics = _transported(inputs, name)
    return Prediction(elign.Gaussian().fit(statistics)(inputs.test), statistics=statistics)


def _by_classifier(inputs: EvalInputs, name: str, map_name: str = "ridge", means_only: bool = False) -> Tensor:
    return _read(inputs, _CLASSIFIERS[name][1](), map_name, means_only=means_only)


def _read(inputs: EvalInputs, classifier: elign.LatentClassifier, map_name: str, *, means_only: bool = False) -> Tensor:
    statistics = _transported(inputs, map_name)
    scores: Tensor = classifier.fit(statistics.means_only() if means_only else statistics)(inputs.test)
    return scores


for _name in _MAPS:
    _rival(f"map/{_name}", text=f"{_MAPS[_name][0]}; then RDA", needs=_STATISTICS)(partial(_by_map, name=_name))
for _name in _CLASSIFIERS:
    _own = partial(_by_classifier, name=_name)
    _rival(f"classifier/{_name}", text=f"a ridge map; then {_CLASSIFIERS[_name][0]}", needs=_STATISTICS)(_own)
_NEAREST = {"name": "nearest-mean", "means_only": True}
for _name, _text, _options in (
    ("sdc", "SDC: means by local shifts, nearest mean", {"map_name": "sdc", **_NEAREST}),
    ("ldc", "LDC: means by a linear map (Adam), nearest mean", {"map_name": "ldc-adam", **_NEAREST}),
    ("ldc-tuned", "LDC in closed form, which was the best on a development run", {"map_name": "ldc", **_NEAREST}),
    ("hopdc", "HopDC: samples by Hopfield shifts, nearest mean", {"map_name": "hopdc", **_NEAREST}),
    ("efc++", "EFC++: means by Fisher-weighted shifts, head retrained on samples", {"map_name": "efc", "name": "head"}),
    ("dpcr", "DPCR: projected linear map, ridge head", {"map_name": "dpcr", "name": "ridge-head"}),
    ("fecam", "FeCAM: statistics that stay where they were", {"map_name": "none", "name": "fecam"}),
    ("ranpac", "RanPAC: statistics that stay where they were", {"map_name": "none", "name": "ranpac"}),
):
    _rival(_name, text=_text, needs=_STATISTICS)(partial(_by_classifier, **_options))


@_rival("dpcr-tuned", text="DPCR with a penalty of 6000, the best on a development run", needs=_STATISTICS)
def _dpcr_tuned(inputs: EvalInputs) -> Tensor:
    return _read(inputs, elign.RidgeHead(penalty=6000.0), "dpcr")


@_rival("sldc", text="SLDC: linear map of directions, shrunk to the identity, RDA", needs=_STATISTICS)
def _sldc(inputs: EvalInputs) -> Prediction:
    statistics = _transported(inputs, "sldc", unit=True)
    return Prediction(elign.Gaussian().fit(statistics)(F.normalize(inputs.test, dim=1)), statistics=statistics)


@_rival("wa", text="WA: new rows of the head shrink to the old ones' length; no data", needs=("rivals", "linear-head"))
def _weight_aligned(inputs: EvalInputs) -> Tensor:
    found = elign.WeightAligned().fit(head=inputs.target.head, old_classes=inputs.old_classes)
    scores: Tensor = found(inputs.test, logits=inputs.target.logits(inputs.test))
    return scores


@_rival("bic", text="BiC: scale and offset of new logits, on exemplars", needs=_EXEMPLARS)
def _bic(inputs: EvalInputs) -> Tensor:
    logits: Any = inputs.target.logits
    found = elign.BiC().fit(inputs.memory, inputs.memory_labels, head=logits, old_classes=inputs.old_classes)
    scores: Tensor = found(inputs.test, logits=logits(inputs.test))
    return scores


@_rival("lda-exemplars", text="LDA on the exemplars of all classes", needs=_EXEMPLARS)
def _lda(inputs: EvalInputs) -> Tensor:
    scores: Tensor = elign.Gaussian(shared=1.0).fit(z=inputs.memory, labels=inputs.memory_labels)(inputs.test)
    return scores


_BALANCED = "logistic regression on the exemplars of all classes, from the model's own head where that is linear"


@_rival("balanced-head", text=_BALANCED, needs=_EXEMPLARS)
def _balanced_head(inputs: EvalInputs) -> Tensor:
    head = inputs.target.head
    own = head if isinstance(head, nn.Linear) and head.out_features == inputs.classes else None
    found = elign.LinearHead(seed=derive_seed(inputs.seed, "balanced head"))
    scores: Tensor = found.fit(z=inputs.memory, labels=inputs.memory_labels, head=own)(inputs.test)
    return scores


_ORACLE = "RDA on the statistics of all old training images under the current model: a bound for every map"


@method("oracle-statistics", group=BOUNDS, text=_ORACLE, needs=("rivals", "latents"), uses_labels=True, colour="oracle")
def _oracle_statistics(inputs: EvalInputs, old: OldSamples) -> list[Prediction]:
    if old.statistics is None:
        return []
    everything = ClassStatistics(covariance=old.statistics.form).update(inputs.new, inputs.new_labels)
    return [Prediction(elign.Gaussian().fit(old.statistics.merge(everything))(inputs.test))]
