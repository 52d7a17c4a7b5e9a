"""Every correction on the same checkpoints of class-incremental learners: train, evaluate, keep, and write the page.

    python benchmarks/rivals.py --runs DIR --data-dir DATA          trains what is missing (hours), then the rest
    python benchmarks/rivals.py --page docs/rivals-cifar100.md      writes the page from measured/checkpoints alone

Runs are made one after the other, those of the first class order first; a killed run resumes where it was. Trained runs
are evaluated with all methods from their stored latents, and their results are copied to measured/checkpoints. Learners
that share the head share the first task of a class order. Orders 0 to 2 are for development, on held-out training
images.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from elign.lab.config.schema import TREE, compose
from elign.lab.evaluation.methods import METHODS, marked
from elign.lab.evaluation.metrics import Row, interval_text, paired_difference, summarise
from elign.lab.runs.archiving import archive_run
from elign.lab.runs.launch import find_start, reevaluate_run, resume_run, start_run
from elign.lab.runs.run_dir import RunDir
from elign.utils.files import write_text_atomic

LEARNERS = {
    "icarl, 20 exemplars": ("icarl", "memory=per-class"),
    "lwf": ("lwf", "memory=none"),
    "icarl, no exemplars": ("icarl", "memory=none"),
    "finetune": ("finetune", "memory=none"),
    "lucir, 20 exemplars": ("lucir", "memory=per-class"),
    "aanet, 20 exemplars": ("aanet", "memory=per-class"),
}
PROTOCOLS = {"half-5": [*LEARNERS], "equal-10": [*LEARNERS], "equal-20": ["lwf", "icarl, 20 exemplars"]}
ORDERS = {1993: 0, 3: 1, 4: 2}
"""The class orders, each with a training seed of its own."""
RIVALS = "aligner.rivals=true"
MEASURED = Path("measured/checkpoints")
HERO = "repair"
FOLDED = ("forward/", "eli/by", "eli/dose", "mean-shift/", "ridge/", "random-shift/", "untrained/")


class Checkpoint(NamedTuple):
    """A run to make."""

    learner: str
    protocol: str
    order: int

    def words(self, *more: str) -> list[str]:
        """Return the settings, as typed."""
        name, memory = LEARNERS[self.learner]
        words = [f"learner={name}", memory, "data=cifar100", f"protocol={self.protocol}", "preset=small"]
        return [*words, "train.fast=true", f"data.order={self.order}", f"seed={ORDERS[self.order]}", *more]

    def stored(self, runs: Sequence[RunDir]) -> RunDir | None:
        """Return the folder that has this run."""
        digest = compose(self.words()).digest()
        return next((run for run in runs if TREE.from_dict(run.metadata()["config"]).digest() == digest), None)


def folders(below: Path) -> list[RunDir]:
    """Return the runs of a folder."""
    return [RunDir(file.parent) for file in sorted(below.glob("*/run.json"))]


def wanted(protocols: Sequence[str], learners: Sequence[str]) -> list[Checkpoint]:
    """Return the runs in the order in which they are made: complete class orders first."""
    return [
        Checkpoint(learner, protocol, order)
        for protocol in protocols
        for order in ORDERS
        for learner in PROTOCOLS[protocol]
        if learner in learners
    ]


def make(checkpoint: Checkpoint, runs: Path, data_dir: str | None, *, train: bool, console: Console) -> None:
    """Train a run if it is not there, evaluate it with all methods, and keep its results."""
    run = checkpoint.stored(folders(runs))
    where = [] if data_dir is None else [f"data.data_dir={data_dir}"]
    if run is None and train:
        config = compose(checkpoint.words(*where))
        other = find_start(config, folders(runs))
        start = f"{config.learner.name}-cifar100-{checkpoint.protocol}-seed{config.seed}"
        name = f"{start}-{config.digest()[:8]}"
        run = RunDir(runs / name)
        first = None if other is None else str(other.path.resolve())
        start_run(config.replace(out=str(run.path), start_from=first), console, overrides=checkpoint.words())
    if run is None or (run.finished_tasks() < len(run.metadata()["sizes"]) and not train):
        console.print(f"{checkpoint.learner}, {checkpoint.protocol}, order {checkpoint.order}: not trained")
        return
    if run.finished_tasks() < len(run.metadata()["sizes"]):
        resume_run(run, console)
    reevaluate_run(run, TREE.with_aligner(TREE.from_dict(run.metadata()["config"]), [RIVALS]), console)
    archive_run(run, MEASURED)


def rows_of(run: RunDir) -> list[Row] | None:
    """Return the rows of all methods; None if they are not complete."""
    for folder in run.evaluations():
        results = folder.gather()
        if RIVALS in results.metadata["evaluation"] and len(results.tasks) == len(results.metadata["sizes"]):
            return results.rows
    return None


Key = tuple[str, str]
"""Method and classifier."""


def values_of(kept: Sequence[RunDir], learners: Sequence[str]) -> dict[tuple[str, int], dict[Key, float]]:
    """Return the mean accuracy after the first task in %, by column and class order, then by method."""
    found = {}
    for checkpoint in wanted([*PROTOCOLS], learners):
        run = checkpoint.stored(kept)
        rows = None if run is None else rows_of(run)
        if rows is not None:
            column = f"{checkpoint.learner.partition(',')[0]}, {checkpoint.protocol}"
            found[column, checkpoint.order] = {
                (each.method, each.classifier): 100 * each.average_incremental
                for each in summarise(rows)
                if each.average_incremental is not None
            }
    return found


def table(values: dict[tuple[str, int], dict[Key, float]], hero: str) -> list[str]:
    """Make a table: the hero first, then by the mean, oracles last; rows that some run lacks are left out."""
    columns = list(dict.fromkeys(column for column, _ in values))
    keys = [key for key in next(iter(values.values())) if all(key in each for each in values.values())]
    keys = [key for key in keys if key[1] in ("fc", "own", "blend", "prototypes") or key[0] == "base"]
    oracles = [key for key in keys if METHODS[key[0]].uses_labels and key[0] in ORACLES]
    shown = [key for key in keys if not METHODS[key[0]].uses_labels and not key[0].startswith(FOLDED)]
    if hero == "repair/statistics":  # without exemplars, the same as `repair`
        shown.remove(("repair", "own"))
    mean = {key: statistics.mean(each[key] for each in values.values()) for key in (*shown, *oracles)}
    shown.sort(key=lambda key: (key[0] != hero, -mean[key]))
    lines = [f"| | {' | '.join(columns)} | mean | minus {hero} (95 %) |", f"|---|{'---:|' * (len(columns) + 2)}"]
    reference = [each[hero, "own"] for each in values.values()]
    for key in (*shown, *sorted(oracles, key=mean.__getitem__)):
        own = [each[key] for each in values.values()]
        means = [statistics.mean(each[key] for (of, _), each in values.items() if of == column) for column in columns]
        gap = paired_difference(own, reference)
        against = "" if key[0] == hero else f"{gap.mean:+.1f}"
        against += "" if key[0] == hero or gap.interval is None else f" {interval_text(gap)}"
        name = f"{key[0]}, nearest mean" if key[1] == "nearest-mean" else key[0]
        name = f"**{name}**" if key[0] == hero else f"*{marked(name)}*" if key in oracles else name
        lines.append(f"| {name} | {' | '.join(f'{m:.1f}' for m in [*means, mean[key]])} | {against} |")
    return lines


def findings(values: dict[tuple[str, int], dict[Key, float]], hero: str) -> str:
    """Say which share of the gap from the base to the two bounds is closed."""

    def mean(key: Key) -> float:
        return statistics.mean(each[key] for each in values.values())

    base, own = mean(("base", "fc")), mean((hero, "own"))
    shares = {name: (own - base) / (mean((name, at)) - base) for name, at in BOUNDS.items()}
    return ", and ".join(
        f"{100 * share:.0f} % of the gap between `base` and `{name}`" for name, share in shares.items()
    )


BOUNDS = {"oracle-statistics": "own", "oracle-mask": "fc"}
ORACLES = ("oracle-statistics", "oracle-mask", "eli/oracle", "previous-model")
SECTIONS = (
    ("Without any old image", "repair/statistics", ("lwf", "icarl, no exemplars", "finetune")),
    ("With 20 exemplars a class", "repair", [name for name in LEARNERS if "20" in name]),
)


def page(kept: Sequence[RunDir]) -> str:
    """Write the page from the results that are kept."""
    parts = [INTRODUCTION]
    for title, hero, learners in SECTIONS:
        values = values_of(kept, learners)
        if not values:
            continue
        counts = {column: [order for of, order in values if of == column] for column, _ in values}
        orders = "; ".join(f"{column}: {', '.join(map(str, of))}" for column, of in counts.items())
        parts += ["", f"## {title}", "", f"Class orders: {orders}.", f"`{hero}` closes {findings(values, hero)}."]
        parts += ["", *table(values, hero)]
    names = [name for name in METHODS if "rivals" in METHODS[name].needs or name in (*ORACLES, *OWN)]
    parts += ["", "## The rows", "", *(f"- `{name}`: {METHODS[name].text}" for name in names)]
    return "\n".join(parts) + "\n"


OWN = ("repair", "repair/statistics", "repair/exemplars", "blend", "base", "bias-offset", "retrained-head", "eli/all")
INTRODUCTION = """# Every correction on the same checkpoints

CIFAR-100 in six tasks of 50 + 5 x 10 classes (half-5), ResNet-20 from scratch, preset `small`, bf16 training. All rows
of a column use the same frozen checkpoints and the same latents, so that differences are due to the correction alone.
Numbers are accuracies on the test images of all classes so far, in %, means over the tasks after the first and over
class orders, each with its own training seed. Differences are paired by checkpoint, with 95 % intervals over learners
and orders (Student's t). No setting was chosen on these class orders or on test images.

Rows in *italics* marked † know test labels or all old training images: they are bounds. `oracle-statistics` has the
statistics of all old training images under the current model, a bound for every map that moves statistics.

Made by `python benchmarks/rivals.py --runs DIR --data-dir DATA --page docs/rivals-cifar100.md`; without `--runs` the
page is made from `measured/checkpoints` alone. What each correction costs is in [rivals.md](rivals.md)."""


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the runs")
    parser.add_argument("--data-dir", help="where cifar-100-binary or cifar-100-python is")
    parser.add_argument("--protocols", nargs="+", default=[*PROTOCOLS], choices=PROTOCOLS)
    parser.add_argument("--learners", nargs="+", default=[*LEARNERS], choices=LEARNERS)
    parser.add_argument("--no-train", action="store_true", help="evaluate only what is trained")
    parser.add_argument("--page", type=Path, help="write the tables to this file")
    args = parser.parse_args()
    if args.runs:
        for checkpoint in wanted(args.protocols, args.learners):
            make(checkpoint, args.runs, args.data_dir, train=not args.no_train, console=Console())
    if args.page:
        write_text_atomic(args.page, page(folders(MEASURED)))


if __name__ == "__main__":
    main()
