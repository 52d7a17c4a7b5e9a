"""Compare `Repair` with what users would write themselves, on the frozen models that train.py made.

    python benchmarks/panel/evaluate.py --latents DIR [--seeds 1 2] [--out measured/panel] [--page docs/panel.md]

For each model, training seed, number of exemplars and draw of exemplars, every method gets the same latents; accuracies
are balanced over classes. Results go to one CSV file for each model and seed, line by line: a run that is broken off
goes on where it ended. `--page` writes the tables from the CSV files alone. Seed 0 is the development seed, on which
defaults were chosen; the page shows the others.
"""

from __future__ import annotations

import argparse
import csv
import statistics as numbers
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import safe_open
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import elign
from elign.classifiers.bias import best_offset
from elign.lab.evaluation.methods.repairs import Labelled, vote_with_exemplars
from elign.utils.files import write_text_atomic
from elign.utils.tensors import balanced_accuracy

MODELS = ("small-finetune", "small-newonly", "small-replay", "lite0-finetune", "lite0-replay", "vit-finetune")
EXEMPLARS, DRAWS = (5, 20, 50), 3
COLUMNS = ("model", "seed", "exemplars", "draw", "method", "all", "old", "new", "confidence", "seconds")
REPAIRS = ("Repair, statistics", "Repair, exemplars", "Repair, both")
ALWAYS = ("nothing", "WA", "Repair, statistics", "oracle statistics")
METHODS = (
    "Repair, both",
    "Repair, statistics",
    "Repair, exemplars",
    "retrained head",
    "logistic regression",
    "nearest mean",
    "bias offset",
    "WA",
    "version 0.1 (blend)",
    "nothing",
    "oracle statistics",
)
Score = Callable[[Tensor], Tensor]
_BORN: dict[tuple[str, int], elign.ClassStatistics] = {}
_ENERGY: dict[tuple[str, int], elign.Aligner] = {}


class Panel(NamedTuple):
    """The stored latents of one pair of models."""

    model: str
    seed: int
    tensors: dict[str, Tensor]

    @classmethod
    def load(cls, path: Path) -> Panel:
        """Read a file of train.py."""
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        found = safetensors.torch.load_file(path)
        tensors = {name: t.float() if t.is_floating_point() else t.long() for name, t in found.items()}
        return cls(metadata["model"], int(metadata["seed"]), tensors)

    def __getattr__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def old_classes(self) -> int:
        """Number of old classes."""
        return int(self.old_train_labels.max()) + 1

    def head(self) -> nn.Linear:
        """Make the current model's head."""
        outputs, dim = self.head_weight.shape
        head = nn.Linear(dim, outputs)
        head.load_state_dict({"weight": self.head_weight, "bias": self.head_bias})
        return head.requires_grad_(False)

    def born(self) -> elign.ClassStatistics:
        """Return the statistics of old classes under the previous model, computed once."""
        key = (self.model, self.seed)
        if key not in _BORN:
            _BORN.clear()
            _BORN[key] = elign.ClassStatistics().update(self.old_train_prev, self.old_train_labels)
        return _BORN[key]

    def energy(self) -> elign.Aligner:
        """Return ELI, which the default of version 0.1 aligns with; computed once, since it needs no exemplars."""
        key = (self.model, self.seed)
        if key not in _ENERGY:
            _ENERGY.clear()
            _ENERGY[key] = elign.EnergyAligner().fit_latents(self.new_train_prev, self.new_train_cur)
        return _ENERGY[key]

    def exemplars(self, count: int, draw: int) -> Tensor:
        """Draw places among the old training images: so many of each class, replayed ones first."""
        generator = torch.Generator().manual_seed(1000 + draw)
        labels, chosen = self.old_train_labels, []
        for label in range(self.old_classes):
            places = torch.nonzero(labels == label).flatten()
            places = places[torch.randperm(len(places), generator=generator)]
            replayed = torch.isin(places, self.memory)
            chosen.append(torch.cat([places[replayed], places[~replayed]])[:count])
        return torch.cat(chosen)

    def some_new(self, count: int, draw: int) -> Tensor:
        """Draw places among the new training images: so many of each class."""
        generator = torch.Generator().manual_seed(2000 + draw)
        labels = self.new_train_labels
        order = torch.randperm(len(labels), generator=generator)
        return torch.cat([order[labels[order] == label][:count] for label in sorted(set(labels.tolist()))])


def without_exemplars(panel: Panel) -> Iterator[tuple[str, Callable[[], Score]]]:
    """Yield the methods that need no old image, by name."""
    head, pairs = panel.head(), (panel.new_train_prev, panel.new_train_cur, panel.new_train_labels)
    born = panel.born()

    def oracle() -> Score:
        labels = torch.cat([panel.old_train_labels, panel.new_train_labels])
        return elign.Gaussian().fit(z=torch.cat([panel.old_train_cur, panel.new_train_cur]), labels=labels)

    yield "nothing", lambda: lambda z: head(z)
    yield "WA", lambda: _with_head(elign.WeightAligned().fit(head=head, old_classes=panel.old_classes), head)
    yield "Repair, statistics", lambda: _with_head(elign.Repair().fit_latents(*pairs, head=head, statistics=born), head)
    yield "oracle statistics", oracle


def with_exemplars(panel: Panel, count: int, draw: int) -> Iterator[tuple[str, Callable[[], Score]]]:
    """Yield the methods that use exemplars of old classes, by name."""
    head, old = panel.head(), panel.exemplars(count, draw)
    pairs = (panel.new_train_prev, panel.new_train_cur, panel.new_train_labels)
    born = panel.born()
    kept = panel.old_train_cur[old], panel.old_train_labels[old], panel.old_train_prev[old]
    new = panel.some_new(count, draw)
    z = torch.cat([kept[0], panel.new_train_cur[new]])
    labels = torch.cat([kept[1], panel.new_train_labels[new]])
    outputs = head.out_features

    def offset() -> Score:
        found = best_offset(head(z), labels, old_classes=panel.old_classes)
        shift = found * (torch.arange(outputs) >= panel.old_classes)
        return lambda rows: head(rows) - shift

    def retrained() -> Score:
        everything = torch.cat([kept[0], panel.new_train_cur]), torch.cat([kept[1], panel.new_train_labels])
        return elign.LinearHead().fit(z=everything[0], labels=everything[1], head=head)

    def logistic() -> Score:
        mean, scale = z.mean(dim=0), z.std(dim=0).clamp(min=1e-6)
        model = LogisticRegression(C=0.1, max_iter=500).fit(((z - mean) / scale).numpy(), labels.numpy())
        return lambda rows: torch.from_numpy(model.decision_function(((rows - mean) / scale).numpy()))

    def blend() -> Score:
        return _with_head(
            vote_with_exemplars(panel.energy(), head, Labelled(z, labels), task_boundaries=panel.old_classes), head
        )

    def repair(**known: Any) -> Score:
        return _with_head(elign.Repair().fit_latents(*pairs, head=head, exemplars=kept, **known), head)

    yield "bias offset", offset
    yield "nearest mean", lambda: elign.NearestMean().fit(z=z, labels=labels)
    yield "logistic regression", logistic
    yield "retrained head", retrained
    yield "version 0.1 (blend)", blend
    yield "Repair, exemplars", repair
    yield "Repair, both", lambda: repair(statistics=born)


def _with_head(classifier: elign.LatentClassifier, head: nn.Linear) -> Score:
    return lambda z: classifier(z, logits=head(z))


def evaluate(panel: Panel, path: Path) -> None:
    """Score all methods, and append a line for each to a CSV file; lines that are there are not made again."""
    done = {tuple(row[name] for name in COLUMNS[:5]) for row in read(path)}
    cells: list[tuple[int, int]] = [(0, 0), *((k, draw) for k in EXEMPLARS for draw in range(DRAWS))]
    for count, draw in cells:
        methods = with_exemplars(panel, count, draw) if count else without_exemplars(panel)
        for name, make in methods:
            key = (panel.model, str(panel.seed), str(count), str(draw), name)
            if key in done:
                continue
            start = time.perf_counter()
            score = make()
            seconds = time.perf_counter() - start
            with torch.no_grad():
                scores = score(panel.test_cur)
            append(path, [*key, *measured(scores, panel), f"{seconds:.2f}"])
    print(f"{path.name} done", flush=True)


def measured(scores: Tensor, panel: Panel) -> list[str]:
    """Return balanced accuracy on all, old and new classes, and mean confidence, in %."""
    labels, old = panel.test_labels, panel.test_labels < panel.old_classes
    right = scores.argmax(dim=1) == labels
    parts = [right.new_ones(len(right)), old, ~old]
    confidence = scores.double().softmax(dim=1).amax(dim=1).mean().item()
    return [f"{100 * balanced_accuracy(right[p], labels[p]):.2f}" for p in parts] + [f"{100 * confidence:.2f}"]


def append(path: Path, row: list[str], columns: Sequence[str] = COLUMNS) -> None:
    """Add one line to a CSV file."""
    fresh = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(columns)
        writer.writerow(row)


def read(path: Path, last: str = COLUMNS[-1]) -> list[dict[str, str]]:
    """Return the complete lines of a CSV file, `last` being its last column."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row[last]]


def page(folder: Path, command: str) -> str:
    """Write the tables from the CSV files, without the development seed."""
    rows = [row for path in sorted(folder.glob("*.csv")) for row in read(path) if row["seed"] != "0"]
    models = [model for model in MODELS if any(row["model"] == model for row in rows)]
    seeds = sorted({row["seed"] for row in rows})

    def cells(method: str, count: int, model: str | None = None, what: str = "all") -> list[float]:
        """Return one number for each model and seed: the mean over draws."""
        count = 0 if method in ALWAYS else count
        found = [r for r in rows if r["method"] == method and int(r["exemplars"]) == count]
        groups: dict[tuple[str, str], list[float]] = {}
        for row in found:
            if model in (None, row["model"]):
                groups.setdefault((row["model"], row["seed"]), []).append(float(row[what]))
        return [numbers.mean(group) for group in groups.values()]

    def table(count: int) -> list[str]:
        lines = [f"| method | {' | '.join(models)} | mean |", f"|---|{'---:|' * (len(models) + 1)}"]
        for method in METHODS:
            values = [cells(method, count, model) for model in models]
            shown = [f"{numbers.mean(v):.1f}" if v else "" for v in [*values, cells(method, count)]]
            name = f"**{method}**" if method in REPAIRS else f"*{method}*" if method.startswith("oracle") else method
            lines.append(f"| {name} | {' | '.join(shown)} |")
        return lines

    def against(count: int) -> list[str]:
        lines = ["| exemplars a class | Repair, both − retrained head | Repair, both − best other | cells below −0.5 |"]
        lines.append("|---|---:|---:|---:|")
        others = [m for m in METHODS if m not in REPAIRS and not m.startswith("oracle")]
        for k in EXEMPLARS:
            both = cells("Repair, both", k)
            over = [a - b for a, b in zip(both, cells("retrained head", k), strict=True)]
            best = [max(values) for values in zip(*(cells(m, k) for m in others), strict=True)]
            gaps = [a - b for a, b in zip(both, best, strict=True)]
            lines.append(f"| {k} | {spread(over)} | {spread(gaps)} | {sum(gap < -0.5 for gap in gaps)} |")
        return lines

    parts = [INTRODUCTION.format(command=command, seeds=", ".join(seeds), draws=DRAWS)]
    for count in EXEMPLARS:
        parts += ["", f"## {count} exemplars a class", "", *table(count)]
    parts += ["", "## Differences", "", "Over models and seeds: mean (smallest to largest).", "", *against(20)]
    parts += ["", "## Confidence", "", "Mean confidence minus accuracy, in points, over models and seeds.", ""]
    parts += ["| | 5 | 20 | 50 |", "|---|---:|---:|---:|"]
    for method in REPAIRS:
        gaps = [
            [a - b for a, b in zip(cells(method, k, what="confidence"), cells(method, k), strict=True)]
            for k in EXEMPLARS
        ]
        parts.append(f"| {method} | {' | '.join(map(spread, gaps))} |")
    return "\n".join(parts) + "\n"


def spread(values: list[float]) -> str:
    """Return the mean, and the smallest and the largest number."""
    return f"{numbers.mean(values):+.1f} ({min(values):+.1f} to {max(values):+.1f})"


INTRODUCTION = """# Repair beside what you would write yourself

Six pairs of models that `Repair` was not tuned on: a small network from scratch (ResNet-14, CIFAR-100, 15 + 10
classes, latents of dimension 64) that was fine-tuned on all outputs, on the new outputs only, and with replay of 20
images a class; an ImageNet-pretrained EfficientNet-Lite0 (Tiny-ImageNet, 20 + 10 classes, dimension 1280), fine-tuned
and with replay; a small ViT from scratch (CIFAR-100, 15 + 10 classes, dimension 128). Numbers are accuracies on test
images in %, balanced over all classes: means over training seeds {seeds} and {draws} draws of exemplars. Seed 0, with
other classes, is the development seed on which the defaults were chosen.

- **Repair, statistics** uses birth statistics and no old image; **exemplars** uses exemplars alone; **both** uses both.
- *retrained head*: the head retrained on the exemplars and all new images, balanced (`elign.LinearHead`);
  *logistic regression*: on the exemplars and as many new images; *bias offset*: one number subtracted from the new
  classes' logits; *WA*: weight aligning; *version 0.1 (blend)*: the default before `Repair`.
- *oracle statistics*: statistics of all old training images under the current model, a bound for every transport.

Made by `python benchmarks/panel/train.py` and `{command}`."""


def run(
    description: str | None, out: Path, evaluate: Callable[[Panel, Path], None], page: Callable[[Path], str]
) -> None:
    """Evaluate the models and seeds that the command line names, then write the page."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latents", type=Path, help="folder of the files that train.py wrote")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--page", type=Path, help="write the tables to this file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for model in args.models if args.latents else ():
        for seed in args.seeds:
            stored = args.latents / f"{model}-seed{seed}.safetensors"
            if stored.exists():
                evaluate(Panel.load(stored), args.out / f"{model}-seed{seed}.csv")
            else:
                print(f"{stored.name} is not there yet")
    if args.page:
        write_text_atomic(args.page, page(args.out))


def main() -> None:
    """Evaluate `Repair` and what a user would write, then write the page."""
    command = "python benchmarks/panel/evaluate.py --latents DIR --page docs/panel.md"
    run(__doc__, Path("measured/panel"), evaluate, lambda folder: page(folder, command))


if __name__ == "__main__":
    main()
