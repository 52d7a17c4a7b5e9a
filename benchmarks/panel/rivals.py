"""Compare what the field does without old images on the frozen models of the panel: each map, each classifier.

`python benchmarks/panel/rivals.py --latents DIR --page docs/rivals.md` evaluates what is missing in measured/rivals
(one CSV file for each model and seed; a killed run loses one row) and writes the page. No exemplar is used.
"""

from __future__ import annotations

import statistics as numbers
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from evaluate import MODELS, Panel, append, measured, read, run
from torch import Tensor, nn
from torch.nn import functional as F

import elign
from elign.lab.evaluation.metrics import student_interval

COLUMNS = ("model", "seed", "method", "all", "old", "new", "confidence", "bytes", "fit_seconds", "microseconds")
HERO = "Repair"

Map = Callable[[Panel], elign.Aligner]
Make = Callable[[], elign.LatentClassifier]


@dataclass(frozen=True)
class Rival:
    """One row: a map, a classifier, and whether latents are scaled to length 1 first."""

    name: str
    group: str
    map: Map
    classifier: Make
    unit: bool = False
    means_only: bool = False


def _previous_head(panel: Panel) -> nn.Linear:
    outputs, dim = panel.prev_head_weight.shape
    head = nn.Linear(dim, outputs)
    head.load_state_dict({"weight": panel.prev_head_weight, "bias": panel.prev_head_bias})
    return head.requires_grad_(False)


def _network(panel: Panel) -> elign.Aligner:
    # The published width has 105 million weights at dimension 1280: hours on a processor.
    return elign.MLPMap(width=32 if panel.test_cur.shape[1] <= 256 else 1)


MAPS: dict[str, Map] = {
    "none": lambda panel: elign.Identity(),
    "mean shift": lambda panel: elign.MeanShift(),
    "SDC": lambda panel: elign.LocalShift(),
    "HopDC": lambda panel: elign.HopfieldShift(),
    "EFC": lambda panel: elign.FisherShift(head=_previous_head(panel)),
    "ELI": lambda panel: elign.EnergyAligner(),
    "LDC, Adam": lambda panel: elign.LDC(solver="adam"),
    "LDC, closed form": lambda panel: elign.LDC(),
    "DPCR": lambda panel: elign.DPCR(),
    "SLDC": lambda panel: elign.SLDC(),
    "GLS": lambda panel: elign.GLS(),
    "MLP of AdaGauss": _network,
    "ridge": lambda panel: elign.Ridge(),
}
CLASSIFIERS: dict[str, Make] = {
    "nearest mean": elign.NearestMean,
    "FeCAM": elign.FeCAM,
    "DPCR's ridge head": elign.RidgeHead,
    "RanPAC, 1,000 features": lambda: elign.RandomFeatures(width=1000),
    "head retrained on samples": elign.LinearHead,
    "LDA": lambda: elign.Gaussian(shared=1.0),
    "RDA": elign.Gaussian,
}


def _published(name: str, of: str, classifier: str, *, unit: bool = False, means_only: bool = False) -> Rival:
    return Rival(name, "published", MAPS[of], CLASSIFIERS[classifier], unit, means_only)


ROWS = [
    _published("SDC: local shift, nearest mean", "SDC", "nearest mean", means_only=True),
    _published("LDC: linear map by Adam, nearest mean", "LDC, Adam", "nearest mean", means_only=True),
    _published("LDC in closed form, nearest mean", "LDC, closed form", "nearest mean", means_only=True),
    _published("HopDC: Hopfield shift, nearest mean", "HopDC", "nearest mean"),
    _published("EFC++: Fisher shift, head retrained on samples", "EFC", "head retrained on samples"),
    _published("DPCR: projected linear map, ridge head", "DPCR", "DPCR's ridge head"),
    _published("SLDC: linear map of directions, RDA", "SLDC", "RDA", unit=True),
    *(Rival(f"{name}, RDA", "map", make, CLASSIFIERS["RDA"]) for name, make in MAPS.items() if name != "ridge"),
    *(Rival(f"ridge, {name}", "classifier", MAPS["ridge"], make) for name, make in CLASSIFIERS.items()),
]


def fit(rival: Rival, panel: Panel) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return what scores latents, and the bytes that are kept for each old class."""

    def seen(z: Tensor) -> Tensor:
        return F.normalize(z, dim=1) if rival.unit else z

    born = elign.ClassStatistics().update(seen(panel.old_train_prev), panel.old_train_labels)
    if rival.means_only:
        born = born.means_only()
    before, after = seen(panel.new_train_prev), seen(panel.new_train_cur)
    moved = rival.map(panel).fit_latents(before, after, direction="forward").transport(born)
    kind = {"covariance": moved.form, "rank": moved.rank}
    everything = moved.merge(elign.ClassStatistics(**kind).update(after, panel.new_train_labels))
    classifier = rival.classifier().fit(everything)
    return lambda z: classifier(seen(z)), born.nbytes // born.rows


def repaired(panel: Panel) -> tuple[Callable[[Tensor], Tensor], int]:
    """Fit the default of the library."""
    head, born = panel.head(), panel.born()
    pairs = (panel.new_train_prev, panel.new_train_cur, panel.new_train_labels)
    repair = elign.Repair().fit_latents(*pairs, head=head, statistics=born)
    return lambda z: repair(z, logits=head(z)), born.nbytes // born.rows


def aligned_weights(panel: Panel) -> tuple[Callable[[Tensor], Tensor], int]:
    """Fit WA, which keeps nothing."""
    head = panel.head()
    found = elign.WeightAligned().fit(head=head, old_classes=panel.old_classes)
    return lambda z: found(z, logits=head(z)), 0


def bound(panel: Panel) -> tuple[Callable[[Tensor], Tensor], int]:
    """Fit on the statistics of the old training images under the current model."""
    old = elign.ClassStatistics().update(panel.old_train_cur, panel.old_train_labels)
    new = elign.ClassStatistics().update(panel.new_train_cur, panel.new_train_labels)
    return elign.Gaussian().fit(old.merge(new)), 0


def evaluate(panel: Panel, path: Path) -> None:
    """Append a line for each method that the file does not have."""
    head = panel.head()
    makers: dict[str, Callable[[], tuple[Callable[[Tensor], Tensor], int]]] = {
        HERO: lambda: repaired(panel),
        "nothing": lambda: (head, 0),
        "WA": lambda: aligned_weights(panel),
        "oracle statistics, RDA": lambda: bound(panel),
    }
    makers |= {rival.name: lambda rival=rival: fit(rival, panel) for rival in ROWS}  # type: ignore[misc]
    done = {row["method"] for row in read(path, "microseconds")}
    for name, make in makers.items():
        if name in done or (name == "ridge, FeCAM" and panel.test_cur.shape[1] > 256):
            continue  # FeCAM keeps an inverse for each class: 200 MB at dimension 1280
        start = time.process_time()
        score, kept = make()
        seconds = time.process_time() - start
        with torch.no_grad():
            start = time.process_time()
            scores = score(panel.test_cur)
            each = (time.process_time() - start) / len(panel.test_cur)
        row = [panel.model, str(panel.seed), name, *measured(scores, panel)]
        append(path, [*row, str(kept), f"{seconds:.2f}", f"{1e6 * each:.1f}"], COLUMNS)
    print(f"{path.name} done", flush=True)


def interval(differences: list[float]) -> str:
    """Return the mean of paired differences with its 95 % interval."""
    found = student_interval(differences)
    around = "" if found is None else f" ({found[0]:+.1f} to {found[1]:+.1f})"
    return f"{numbers.mean(differences):+.1f}{around}"


def page(folder: Path) -> str:
    """Write the tables from the CSV files, without the development seed."""
    rows = [row for path in sorted(folder.glob("*.csv")) for row in read(path, "microseconds") if row["seed"] != "0"]
    cells = sorted({(row["model"], row["seed"]) for row in rows}, key=lambda cell: (MODELS.index(cell[0]), cell[1]))
    models = [model for model in MODELS if model in {cell[0] for cell in cells}]
    found = {(row["model"], row["seed"], row["method"]): row for row in rows}

    def values(name: str, what: str = "all", model: str | None = None) -> list[float]:
        keys = [(*cell, name) for cell in cells if model in (None, cell[0])]
        return [float(found[key][what]) for key in keys if key in found]

    def line(name: str) -> str:
        there = [cell for cell in cells if (*cell, name) in found]
        pairs = [float(found[(*cell, name)]["all"]) - float(found[(*cell, HERO)]["all"]) for cell in there]
        each = [f"{numbers.mean(v):.1f}" if (v := values(name, model=model)) else "–" for model in models]
        complete = len(there) == len(cells)
        mean = f"{numbers.mean(values(name)):.1f}" if complete else "–"
        against = "" if name == HERO else interval(pairs) if complete else "–"
        small = [cell for cell in there if cell[0].startswith("small")]
        kept = numbers.mean(float(found[(*cell, name)]["bytes"]) for cell in small) / 1000
        cost = [numbers.median(float(found[(*cell, name)][what]) for cell in small) for what in COLUMNS[-2:]]
        shown = f"**{name}**" if name == HERO else f"*{name}*" if name.startswith("oracle") else name
        return f"| {shown} | {' | '.join(each)} | {mean} | {against} | {kept:.1f} | {cost[0]:.1f} | {cost[1]:.0f} |"

    top = [f"| | {' | '.join(models)} | mean | minus Repair (95 %) | kB a class | s to fit | µs an image |"]
    top.append(f"|---|{'---:|' * (len(models) + 5)}")
    parts = [INTRODUCTION.format(seeds=" and ".join(sorted({cell[1] for cell in cells})))]
    frame = [HERO, "nothing", "WA", "oracle statistics, RDA"]
    means = {name: numbers.mean(values(name)) for name in (*frame, "ridge, RDA", "ELI, RDA", "mean shift, RDA")}
    closed = (means[HERO] - means["nothing"]) / (means["oracle statistics, RDA"] - means["nothing"])
    parts += ["", FINDINGS.format(closed=100 * closed, ridge=means["ridge, RDA"] - means["ELI, RDA"])]
    parts[-1] += (
        f" ELI is {means['ELI, RDA'] - means['mean shift, RDA']:.1f} points above one mean shift for all classes."
    )
    for title, text, group in SECTIONS:
        # The library's own map stands in both of the last tables.
        shared = ["ridge, RDA"] if group == "map" else []
        names = [rival.name for rival in ROWS if rival.group == group] + shared
        names.sort(key=lambda name: -numbers.mean(values(name)))
        parts += ["", f"## {title}", "", text, "", *top, *map(line, [HERO, *names, *frame[1:]])]
    return "\n".join(parts) + "\n"


FINDINGS = """`Repair` closes {closed:.0f} % of the gap between doing nothing and the oracle statistics.
Among the maps, one linear map on pairs is what counts: with the same classifier it is {ridge:.1f} points above ELI,
which learns from the two sets of latents without knowing which belong together."""
SECTIONS = [
    (
        "As published",
        "Each with its own map and its own classifier, at the published settings where there are any.",
        "published",
    ),
    (
        "One classifier, every map",
        "What a map is worth: statistics are moved by each, then regularised discriminant analysis (RDA) classifies. "
        "*none* leaves the statistics where they were.",
        "map",
    ),
    (
        "One map, every classifier",
        "What a classifier is worth: a ridge map moves the statistics. FeCAM was not run at dimension 1280.",
        "classifier",
    ),
]
INTRODUCTION = """# Every rival on the same frozen models

Corrections after training that keep **no old image**: means, or means and covariances, of each class from the time when
it was learned. All rows use the same frozen models and the same pairs of latents of the new images, so that differences
are due to the correction alone. The models are those of [the panel](panel.md), none of which a setting was chosen on:
training seeds {seeds}; numbers are accuracies on test images in %, balanced over all classes. Differences to `Repair`
are paired, with 95 % intervals over models and seeds (Student's t). Costs are those of the small networks (dimension
64, 15 old and 10 new classes, 5,000 pairs) on one core: processor time to fit, and to classify an image from its
latent; kB kept for each old class.

*Oracle statistics* are those of all old training images under the current model, a bound for every map.

Made by `python benchmarks/panel/train.py` and
`python benchmarks/panel/rivals.py --latents DIR --page docs/rivals.md`. The same on class-incremental learners of
CIFAR-100: [rivals-cifar100.md](rivals-cifar100.md).

![Accuracy against the bytes that are kept of each old class](images/memory.svg)

The small networks: accuracy against what is kept of each old class, from nothing over means, covariances, and 5, 20 and
50 images. Made by `python benchmarks/panel/memory.py`."""


def main() -> None:
    """Evaluate what was asked for, then write the page."""
    torch.set_num_threads(1)
    run(__doc__, Path("measured/rivals"), evaluate, page)


if __name__ == "__main__":
    main()
