"""What `elign remember` and `elign repair` do, from files to files."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import elign
from elign.classifiers.bias import best_offsets, offset_scores
from elign.export import ExportError
from elign.lab.data.pictures import read_picture
from elign.lab.repairing.checkpoints import Checkpoint, ModelSpecError, load_checkpoint
from elign.lab.repairing.class_folders import (
    ClassFolder,
    ClassFolderError,
    NamedStatistics,
    load_statistics,
    read_labels,
    save_statistics,
)
from elign.lab.repairing.latent_cache import Features, LatentCache
from elign.repair_report import Estimate, RepairReport
from elign.utils.errors import ElignError, OptionError
from elign.utils.extraction import logits_of
from elign.utils.files import write_text_atomic

WRITTEN = ("repair.safetensors", "statistics.safetensors", "model.onnx", "report.html", "report.json")
"""The files of a repair, beside the folder `cache`."""
_PER_CLASS = 60  # samples or latents of a class that the simple alternatives learn from
_SWAPPED, _ODD = 0.2, 0.5  # a gap in accuracy, and an accuracy on training pictures, that want an explanation
_EXAMPLES = 4  # pictures that the ONNX file is compared on


@dataclass(frozen=True)
class RememberRequest:
    """The options of `elign remember`; those of `elign repair` share the last seven."""

    data: Path
    weights: Path
    out: Path
    model: str
    head: str | None = None
    labels: Path | None = None
    input_size: int | None = None
    device: str | None = None
    batch_size: int = 64
    workers: int = 0

    def load(self, weights: Path) -> Checkpoint:
        """Load the model with some weights."""
        return load_checkpoint(self.model, weights, head=self.head, input_size=self.input_size)

    def cache(self, folder: Path, console: Console) -> LatentCache:
        """Return the cache of latents in a folder."""
        return LatentCache(folder, console, _device(self.device), self.batch_size, self.workers)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of classes in the order of outputs, if the user gave them."""
        return None if self.labels is None else read_labels(self.labels)


@dataclass(frozen=True)
class RepairRequest(RememberRequest):
    """The options of `elign repair`: `data` are the new classes, `weights` those of the current model."""

    previous: Path = Path()
    statistics: Path | None = None
    exemplars: Path | None = None
    test: Path | None = None
    force: bool = False


def remember(request: RememberRequest, console: Console) -> dict[str, Any]:
    """Compute the statistics of the classes in a folder, write them, and say what they are."""
    _check_target(request.out, (request.weights, request.labels))
    if request.out.exists() and not _is_statistics(request.out):
        raise OptionError(f"--out {request.out} is something else than statistics; give another name")
    folder = request.out.with_name(f".{request.out.name}.cache")
    cache, names = request.cache(folder, console), request.label_names
    pictures = ClassFolder.read(request.data, "--data")
    order = names or pictures.names
    labels = pictures.labels(order)
    checkpoint = request.load(request.weights)
    if len(order) > checkpoint.outputs:
        raise ClassFolderError(f"there are {len(order)} classes, but the head has {checkpoint.outputs} outputs")
    (features,) = cache.extract([checkpoint], pictures)
    pictures.require_several(pictures.places[features.rows])
    labels = labels[features.rows]
    statistics = elign.ClassStatistics().update(features.z, labels)
    save_statistics(statistics, order, checkpoint.origin, request.out)
    cache.prune([])
    right = _accuracy(_logits(checkpoint, features.z), labels)
    return {
        "head": checkpoint.head,
        "dim": checkpoint.dim,
        "classes": list(pictures.names),
        "pictures": len(features.rows),
        "skipped": features.skipped,
        "accuracy": right,
        "bytes": request.out.stat().st_size,
        "file": str(request.out),
        "notes": _order_notes(right, "the model", "--data"),
    }


@dataclass(frozen=True, eq=False)
class TestResult:
    """Scores of the test pictures and their classes.

    Args:
        pictures: The folder.
        rows: The pictures that could be read.
        labels: Class of each of them.
        before: The head's logits.
        after: The repaired scores.
        report: The repair's report with accuracies on these pictures in place of estimates.
    """

    pictures: ClassFolder
    rows: Tensor
    labels: Tensor
    before: Tensor
    after: Tensor
    report: RepairReport


@dataclass(frozen=True, eq=False)
class Repaired:
    """A finished repair, before it is written.

    Args:
        request: What was asked for.
        repair: The repair.
        report: Its own report, with estimates.
        names: All classes in the order of the outputs.
        old: The old classes among them, `new` the new ones.
        current: The current model.
        pictures: The folder of new classes.
        features: Latents of each folder under the current model, by the folder's option.
        computed: How many pictures went through a model, not counting those in the cache.
        new_labels: Classes of the latents of new pictures.
        test: On the test pictures, if there are any.
        notes: What to look at.
        kept: Bytes of what was kept of the old classes.
    """

    request: RepairRequest
    repair: elign.Repair
    report: RepairReport
    names: tuple[str, ...]
    old: tuple[int, ...]
    new: tuple[int, ...]
    current: Checkpoint
    pictures: ClassFolder
    features: Mapping[str, Features]
    computed: int
    new_labels: Tensor
    test: TestResult | None
    notes: tuple[str, ...]
    kept: Mapping[str, int]

    @property
    def shown(self) -> RepairReport:
        """The report that the first screen shows: on test pictures, else the estimate."""
        return self.report if self.test is None else self.test.report

    @property
    def measured_on(self) -> str:
        """What the numbers of the first screen come from."""
        if self.test is not None:
            return "test pictures"
        return {"exemplars": "estimate on exemplars", "samples": "estimate on samples"}.get(
            self.report.source, "nothing"
        )

    @property
    def best_alternative(self) -> str | None:
        """The best simple alternative by the numbers of the first screen."""
        others = {name: row.balanced for name, row in self.shown.rows.items() if name not in ("repair", "nothing")}
        return max(others, key=lambda name: others[name]) if others else None

    @cached_property
    def classes(self) -> list[dict[str, Any]]:
        """Each class with its accuracy before and after, where there are test pictures of it."""
        found = []
        for place, name in enumerate(self.names):
            if place not in self.old and place not in self.new:
                continue
            entry: dict[str, Any] = {"name": name, "output": place, "old": place in self.old}
            if self.test is not None and bool((mine := self.test.labels == place).any()):
                entry |= {
                    "pictures": int(mine.sum()),
                    "before": _accuracy(self.test.before[mine], self.test.labels[mine]),
                    "after": _accuracy(self.test.after[mine], self.test.labels[mine]),
                }
            found.append(entry)
        return found

    @cached_property
    def confidence(self) -> dict[str, Any]:
        """Mean confidence and accuracy before and after, on test pictures or else on those of the new classes."""
        if self.test is not None:
            on, labels, before, after = "test pictures", self.test.labels, self.test.before, self.test.after
        else:
            z = self.features["--new"].z
            before = _logits(self.current, z)
            on, labels, after = "training pictures of new classes", self.new_labels, _scores(self.repair, z, before)
        return {
            "on": on,
            **{
                when: {
                    "confidence": float(scores.double().softmax(dim=1).max(dim=1).values.mean()),
                    "accuracy": _accuracy(scores, labels),
                }
                for when, scores in (("before", before), ("after", after))
            },
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        rows = {name: asdict(row) for name, row in self.shown.rows.items()}
        return {
            "elign": elign.__version__,
            "verdict": self.shown.verdict,
            "measured_on": self.measured_on,
            "mode": self.report.mode,
            "accuracy": {
                "before": rows.get("nothing"),
                "after": rows.get("repair"),
                "best alternative": self.best_alternative,
                "alternatives": {name: row for name, row in rows.items() if name not in ("nothing", "repair")},
            },
            "estimate": self.report.to_dict(),
            "classes": self.classes,
            "drift": self.report.drift,
            "confidence": self.confidence,
            "bytes": dict(self.kept),
            "model": {
                "spec": _without_path(self.request.model),
                "head": self.current.head,
                "dim": self.current.dim,
                "outputs": self.current.outputs,
                "pictures": self.current.prepared,
            },
            "pictures": {option: len(features.rows) for option, features in self.features.items()},
            "skipped": {option: features.skipped for option, features in self.features.items()},
            "extracted": self.computed,
            "notes": list(self.notes),
        }


def check_out(request: RepairRequest) -> None:
    """Refuse a folder that holds something else than what an earlier repair wrote, or an input of this one.

    Raises:
        OptionError: It does.
    """
    out = request.out
    if out.exists() and not out.is_dir():
        raise OptionError(f"--out {out} is a file; give a folder")
    given = (request.statistics, request.previous, request.weights, request.labels)
    for name in WRITTEN:
        _check_target(out / name, given)
    entries = {entry.name for entry in out.glob("*")}
    try:
        ours = json.loads((out / "report.json").read_text(encoding="utf-8")).keys() >= {"elign", "verdict", "extracted"}
    except (OSError, ValueError, AttributeError, RecursionError):
        # One that was killed before its report has latents, and perhaps files that are written before.
        killed = "cache" in entries and entries <= {"cache", *WRITTEN[:3]} and LatentCache.is_one(out / "cache")
        ours = killed or not entries
    if not ours:
        raise OptionError(
            f"--out {out} holds something else ({sorted(entries)[0]}); give another folder, or an empty one"
        )


def _check_target(target: Path, inputs: Sequence[Path | None]) -> None:
    if target.is_dir():
        raise OptionError(f"{target} is a folder, and a file is to be written there")
    if any(path is not None and path.exists() and path.resolve() == target.resolve() for path in inputs):
        raise OptionError(f"{target} is an input of this command, and would be overwritten: give another --out")


def _is_statistics(path: Path) -> bool:
    try:
        elign.ClassStatistics.load(path)
    except (ElignError, OSError):
        return False
    return True


def run_repair(request: RepairRequest, console: Console) -> Repaired:
    """Fit a repair on two checkpoints and folders of pictures, and evaluate it on test pictures if there are any."""
    cache = request.cache(request.out / "cache", console)
    inputs = _Inputs.read(request)
    previous, current = request.load(request.previous), request.load(request.weights)
    notes = [*_check_pair(previous, current), *_check_origin(inputs.statistics, previous)]
    names, old = _names(inputs, previous, current, notes)
    found = _Latents.extract(inputs, names, previous, current, cache, notes)
    for checkpoint in (previous, current):
        checkpoint.latents.cpu()
    (z_prev, z_cur), labels = found.z["--new"], found.labels["--new"]
    notes += _check_order(previous, current, z_prev, z_cur, labels, force=request.force)
    statistics = None if inputs.statistics is None else inputs.statistics.reindexed(names)
    repair = elign.Repair(current.head, force=request.force)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they stand in the report
        repair.fit_latents(
            z_prev,
            z_cur,
            labels,
            head=current.latents.logits,
            weights=current.linear,
            statistics=statistics,
            exemplars=found.exemplars,
        )
    assert repair.report is not None  # noqa: S101  (it is fitted)
    notes += [line.replace("force=True", "--force") for line in repair.report.warnings]
    test = None
    if inputs.test is not None:
        learned = _learned(repair, z_cur, labels, found.exemplars, old, with_samples=statistics is not None)
        test = _evaluate(repair, current, inputs.test, found, learned, old)
        if test.report.rows["repair"].balanced < test.report.rows["nothing"].balanced:
            notes.append("on the test pictures this repair is worse than the head alone: do not attach it")
    kept = {} if request.statistics is None else {"statistics": request.statistics.stat().st_size}
    kept |= {} if inputs.exemplars is None else {"exemplars": inputs.exemplars.size}
    return Repaired(
        request=request,
        repair=repair,
        report=repair.report,
        names=names,
        old=old,
        new=tuple(sorted(set(labels.tolist()))),
        current=current,
        pictures=inputs.new,
        features=found.features,
        computed=found.computed,
        new_labels=labels,
        test=test,
        notes=tuple(notes),
        kept=kept,
    )


def write_outputs(done: Repaired) -> Repaired:
    """Write the repair, the statistics and the ONNX model; return the same repair with what is to be said of that."""
    out, notes = done.request.out, list[str]()
    (out / "report.json").unlink(missing_ok=True)  # where there is one, all files belong together
    done.repair.save(out / "repair.safetensors")
    save_statistics(done.repair.statistics, done.names, done.current.origin, out / "statistics.safetensors")
    if missing := missing_for_onnx():
        (out / "model.onnx").unlink(missing_ok=True)
        notes.append(f"model.onnx was not written: {' and '.join(missing)} is missing (pip install 'elign[export]')")
    else:
        rows = done.features["--new"].rows[:: max(1, len(done.features["--new"].rows) // _EXAMPLES)][:_EXAMPLES]
        files = [done.pictures.root / done.pictures.files[row] for row in rows.tolist()]
        example = torch.stack([done.current.transform(read_picture(file)) for file in files])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                done.repair.export(done.current.latents.model, out / "model.onnx", example)
        except ExportError as error:
            (out / "model.onnx").unlink(missing_ok=True)
            notes.append(f"model.onnx was not written: {error}")
    return replace(done, notes=(*done.notes, *notes))


def _without_path(spec: str) -> str:
    """Return the name of a model without the folders of this machine."""
    kind, _, name = spec.partition(":")
    return Path(spec).name if ".py:" in spec else f"{kind}:{Path(name).name}"


def missing_for_onnx() -> list[str]:
    """Return the packages that writing ONNX needs and that are not installed."""
    return [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]


def write_report(done: Repaired) -> dict[str, Any]:
    """Write `report.json` and return what it holds."""
    content = done.to_dict()
    content["files"] = [name for name in WRITTEN if name.startswith("report") or (done.request.out / name).is_file()]
    write_text_atomic(done.request.out / "report.json", json.dumps(content, indent=1) + "\n")
    return content


@dataclass(frozen=True)
class _Inputs:
    """What the files and folders of a request hold, read before any model."""

    new: ClassFolder
    exemplars: ClassFolder | None
    test: ClassFolder | None
    statistics: NamedStatistics | None
    labels: tuple[str, ...] | None

    @property
    def folders(self) -> dict[str, ClassFolder]:
        """Those that are there, by the options that named them."""
        given = {"--new": self.new, "--exemplars": self.exemplars, "--test": self.test}
        return {option: folder for option, folder in given.items() if folder is not None}

    @classmethod
    def read(cls, request: RepairRequest) -> _Inputs:
        labels = request.label_names
        found = None if request.statistics is None else load_statistics(request.statistics, labels)
        new = ClassFolder.read(request.data, "--new")
        exemplars = None if request.exemplars is None else ClassFolder.read(request.exemplars, "--exemplars")
        test = None if request.test is None else ClassFolder.read(request.test, "--test")
        if found is not None and set(new.names) <= set(found.held):
            raise ClassFolderError(
                f"all classes in --new {new.root} are in the statistics, so none is new: --new takes pictures of the "
                "classes that were learned last"
            )
        return cls(new, exemplars, test, found, labels)


@dataclass(frozen=True, eq=False)
class _Latents:
    """Latents of all folders, by the options that named these.

    Args:
        features: Under the current model.
        z: Under each model: both, or the current one alone.
        labels: Class of each latent.
        computed: How many pictures went through a model now.
    """

    features: dict[str, Features]
    z: dict[str, tuple[Tensor, ...]]
    labels: dict[str, Tensor]
    computed: int

    @classmethod
    def extract(
        cls,
        inputs: _Inputs,
        names: Sequence[str],
        previous: Checkpoint,
        current: Checkpoint,
        cache: LatentCache,
        notes: list[str],
    ) -> _Latents:
        """Run the models on what is not in the cache."""
        labels = {option: folder.labels(names) for option, folder in inputs.folders.items()}
        if inputs.test is not None and len({name in inputs.new.names for name in inputs.test.names}) < 2:
            raise ClassFolderError(f"--test {inputs.test.root} must have pictures of old classes and of new ones")
        made = cls({}, {}, {}, 0)
        computed, used = 0, list[Path]()
        for option, folder in inputs.folders.items():
            models = [current] if option == "--test" else [previous, current]
            found = cache.extract(models, folder)
            used += [cache.place(model, folder) for model in models]
            computed += sum(each.computed for each in found)
            made.features[option], made.z[option] = found[-1], tuple(each.z for each in found)
            made.labels[option] = labels[option][found[-1].rows]
            if found[-1].skipped:
                notes.append(f"{found[-1].skipped} of the pictures in {option} cannot be read and were skipped")
        cache.prune(used)
        inputs.new.require_several(inputs.new.places[made.features["--new"].rows])
        exemplars = made.labels.get("--exemplars")
        if exemplars is not None and bool(torch.isin(exemplars, made.labels["--new"]).all()):
            raise ClassFolderError("--exemplars holds new classes only: it must have some pictures of old ones")
        return replace(made, computed=computed)

    @property
    def exemplars(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """The exemplars as `Repair` takes them."""
        if "--exemplars" not in self.z:
            return None
        z_prev, z_cur = self.z["--exemplars"]
        return z_cur, self.labels["--exemplars"], z_prev


def _names(
    inputs: _Inputs, previous: Checkpoint, current: Checkpoint, notes: list[str]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return all classes in the order of the outputs, and which of them are old."""
    new, outputs = inputs.new.names, current.outputs
    remembered = () if inputs.statistics is None else inputs.statistics.names
    more = () if inputs.exemplars is None or inputs.statistics is not None else inputs.exemplars.names
    before = (*remembered, *sorted(set(more) - set(new)))
    # Names of statistics may go on with classes that were not learned then.
    known = set(before if inputs.statistics is None else inputs.statistics.held)
    if inputs.labels is None and not before:
        count = previous.outputs if previous.outputs < outputs else outputs - len(new)
        tested = () if inputs.test is None else tuple(name for name in inputs.test.names if name not in new)
        before = tested if len(tested) == count else tuple(f"output {place}" for place in range(count))
    names = inputs.labels or (*before, *sorted(set(new) - set(before)))
    if len(names) > outputs:
        raise ClassFolderError(
            f"there are {len(names)} classes ({', '.join(names[:3])}, ...), but the current head has {outputs} outputs"
        )
    fresh = [place for place, name in enumerate(names) if name in new and name not in known]
    if previous.outputs < outputs and any(place < previous.outputs for place in fresh):
        raise ClassFolderError(
            f"the new class {names[fresh[0]]!r} would be output {fresh[0]}, which the previous model has already: "
            f"{previous.outputs} old classes are needed to know the order; give it with --labels"
        )
    if again := sorted(set(new) & known):
        notes.append(f"{len(again)} classes in --new are old ones, such as {again[0]!r}: their new pictures count")
    if len(names) < outputs:
        notes.append(f"{len(names)} classes are known for {outputs} outputs: they are taken for the first ones")
    return names, tuple(place for place, name in enumerate(names) if name not in new)


def _check_pair(previous: Checkpoint, current: Checkpoint) -> list[str]:
    if previous.outputs > current.outputs:
        raise ModelSpecError(
            f"the previous model has {previous.outputs} outputs and the current one {current.outputs}: a model does "
            "not lose classes, so --previous and --current are probably swapped"
        )
    if previous.head != current.head or previous.dim != current.dim:
        raise ModelSpecError(
            f"the models differ: the previous one has the head {previous.head!r} for {previous.dim} numbers, the "
            f"current one {current.head!r} for {current.dim}"
        )
    return ["--previous and --current are the same model"] if previous.weights == current.weights else []


def _check_origin(statistics: NamedStatistics | None, previous: Checkpoint) -> list[str]:
    """Raise if statistics are of another latent space; note if they were computed in another way."""
    if statistics is None:
        return []
    if statistics.values.dim != previous.dim:
        raise ModelSpecError(
            f"the statistics are of latents of {statistics.values.dim} numbers, the model's have {previous.dim}, "
            "so they are of another model"
        )
    what = {"weights": "under other weights than --previous", "pictures": "with pictures that were prepared otherwise"}
    return [
        f"the statistics were computed {text}: 'elign remember' makes the right ones"
        for name, text in what.items()
        if statistics.origin.get(name, previous.origin[name]) != previous.origin[name]
    ]


def _check_order(
    previous: Checkpoint, current: Checkpoint, z_prev: Tensor, z_cur: Tensor, labels: Tensor, *, force: bool
) -> list[str]:
    """Raise if the previous model knows the new classes and the current one does not; note if neither does."""
    before, now = (_accuracy(_logits(each, z), labels) for each, z in ((previous, z_prev), (current, z_cur)))
    if before > now + _SWAPPED and not force:
        raise OptionError(
            f"the previous model classifies {before:.0%} of the pictures in --new correctly and the current one "
            f"{now:.0%}: are --previous and --current swapped? (--force goes on)"
        )
    return _order_notes(now, "the current model", "--new")


def _order_notes(accuracy: float, which: str, option: str) -> list[str]:
    if accuracy >= _ODD:
        return []
    return [
        f"{which} classifies only {accuracy:.0%} of the pictures in {option} correctly: check the order of classes "
        "(--labels) and the size of pictures (--input-size)"
    ]


_Rows = tuple[Tensor, Tensor]


def _learned(
    repair: elign.Repair,
    z: Tensor,
    labels: Tensor,
    exemplars: Sequence[Tensor] | None,
    old: Sequence[int],
    *,
    with_samples: bool,
) -> _Rows | None:
    """Return labelled latents that simple alternatives learn from: samples or exemplars, and some of new classes."""
    generator = torch.Generator().manual_seed(0)
    parts: list[_Rows] = []
    if with_samples and repair.statistics.form != "none":
        known = [label for label in old if label in repair.statistics.classes.tolist()]
        parts.append(repair.statistics.sample(_PER_CLASS, generator, known))
    if exemplars is not None:
        mine = torch.isin(exemplars[1], torch.tensor(old))
        parts.append((exemplars[0][mine], exemplars[1][mine]))
    if not parts:
        return None
    order = torch.randperm(len(labels), generator=generator)
    for label in sorted(set(labels.tolist())):
        rows = order[labels[order] == label][:_PER_CLASS]
        parts.append((z[rows], labels[rows]))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _evaluate(
    repair: elign.Repair,
    current: Checkpoint,
    pictures: ClassFolder,
    found: _Latents,
    learned: _Rows | None,
    old: Sequence[int],
) -> TestResult:
    """Evaluate the head, the repair and the simple alternatives on the test pictures."""
    features, labels = found.features["--test"], found.labels["--test"]
    before = _logits(current, features.z)
    after = _scores(repair, features.z, before)
    scores = {"nothing": before, **_alternatives(current, features.z, before, learned, old), "repair": after}
    is_old = torch.isin(labels, torch.tensor(old))
    rows = {name: Estimate.of(each, labels, is_old) for name, each in scores.items()}
    assert repair.report is not None  # noqa: S101  (it is fitted)
    report = replace(repair.report, rows=rows, source="test pictures")
    return TestResult(pictures, features.rows, labels, before, after, report)


def _alternatives(
    current: Checkpoint, z: Tensor, logits: Tensor, learned: _Rows | None, old: Sequence[int]
) -> dict[str, Tensor]:
    """Return the scores of an offset for the new classes and of a retrained head."""
    if learned is None:
        return {}
    outputs = current.outputs
    order = torch.tensor([*old, *(place for place in range(outputs) if place not in old)])
    inverse, plain = order.argsort(), _logits(current, learned[0])
    offsets = best_offsets(plain[:, order], inverse[learned[1]], boundaries=[len(old)])
    head = elign.LinearHead(seed=0).fit(z=learned[0], labels=learned[1], head=current.linear, classes=outputs)
    shifted = offset_scores(logits[:, order].double(), offsets, boundaries=[len(old)])[:, inverse]
    return {"bias offset": shifted, "retrained head": head(z)}


def _logits(checkpoint: Checkpoint, z: Tensor) -> Tensor:
    return logits_of(checkpoint.latents.logits(z)).detach()


def _scores(repair: elign.Repair, z: Tensor, logits: Tensor) -> Tensor:
    with torch.no_grad():
        return repair(z, logits=logits)  # type: ignore[no-any-return]


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(dim=1) == labels).double().mean())


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(
            f"--device {name}: {' '.join(str(error).split())[:150]}; 'elign doctor' lists devices"
        ) from error
    return device
