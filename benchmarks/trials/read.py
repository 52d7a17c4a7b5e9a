"""Label-free readouts that were tried beside the default, on finished runs.

    python benchmarks/trials/read.py RUN [RUN ...]

Prints a table: accuracy (in %, mean over the tasks after the first) of each trial, for old and for new classes, in each
run and in the mean of all. Development runs keep their test images out of it: `elign run ... data.validation=50`. Rows
marked † use test labels; all others see none. Names are explained in docs/label-free.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from earlier_models import earlier_latents
from paired_energy import PairedEnergy
from torch import Tensor
from torch.nn import functional as F

from elign import (
    Aligned,
    Aligner,
    Blend,
    ByEnergy,
    Discriminant,
    Dose,
    EnergyAligner,
    HeadScores,
    LocalShift,
    MeanShift,
    NearestMean,
    OldOutputs,
    Prototypes,
    Readout,
    Ridge,
)
from elign.lab.evaluation.class_means import cosines
from elign.lab.evaluation.latents import TaskLatents
from elign.lab.evaluation.spaces import read_head
from elign.lab.experiments.kinds import kind_of
from elign.lab.experiments.run_folder import RunFolder
from elign.offset import best_offsets, offset_scores

Scores = Iterator[tuple[str, Tensor]]


@dataclass(eq=False)
class Task:
    """One task after the first, and what earlier ones left."""

    latents: TaskLatents
    head: torch.nn.Module
    aligner: EnergyAligner
    earlier: list[Tensor]
    """Its own training images under each earlier model."""
    births: list[Tensor]
    """Class means of each task so far at its own time, this one's included."""
    chain: list[dict[str, Aligner]]
    """Aligners of each task after the first up to this one."""
    moved: dict[str, Tensor]
    """Prototypes that were moved forward, by the way they were moved."""
    before: dict[str, Tensor]
    """The same before this task, in the space of the task before."""
    ends: list[int]
    """How many classes there were after each task before this one."""

    @property
    def known(self) -> int:
        """Number of old classes."""
        return self.latents.known

    def energy(self) -> EnergyAligner:
        """One with the run's options; of one seed, so that trials differ in what they are fitted on alone."""
        return EnergyAligner(**{**self.aligner.config(), "seed": 0})

    def logits(self, z: Tensor) -> Tensor:
        """What the head says."""
        return read_head(self.head, z, classes=self.latents.seen)


def tasks_of(run: Path) -> Iterator[Task]:
    """The tasks after the first one."""
    folder = RunFolder(run)
    facts = folder.facts()
    kind = kind_of(facts)
    bench, _ = kind.open_bench(kind.from_dict(facts["config"]))
    learner, earlier = bench.learner(), earlier_latents(run)
    births: list[Tensor] = []
    chain: list[dict[str, Aligner]] = []
    moved: dict[str, Tensor] = {}
    ends: list[int] = []
    for number in range(folder.tasks()):
        bench.grow(learner, number)
        learner.load_state(folder.load_model(number)[0])
        latents = TaskLatents.load(folder.task(number) / "latents.safetensors")
        births.append(Prototypes().add(latents.new, latents.new_labels).means[latents.known :])
        before, now = latents.pairs_previous, latents.pairs_current
        if number == 0:
            moved = {"none": births[0]} | dict.fromkeys(forward_aligners(), births[0])
            ends.append(latents.seen)
            continue
        stayed = dict(moved)
        moved["none"] = torch.cat([moved["none"], births[-1]])
        for name, aligner in forward_aligners().items():
            aligner.fit_latents(before, now, direction="forward")
            moved[name] = torch.cat([aligner.align(moved[name]), births[-1]])
        eli = EnergyAligner.load(folder.task(number) / "aligners" / "eli.safetensors")
        backward = {"mean-shift": MeanShift(), "ridge": Ridge(), "local-shift": LocalShift()}
        fitted = {name: aligner.fit_latents(before, now) for name, aligner in backward.items()}
        chain.append({"eli": eli, **fitted})
        yield Task(latents, learner.model.head, eli, earlier[number], births, chain, moved, stayed, list(ends))
        ends.append(latents.seen)


def forward_aligners() -> dict[str, Aligner]:
    """What moves prototypes."""
    widths = (0.05, 0.1, 0.2, 0.3, 0.5)
    local = {f"local-shift {width}": LocalShift(bandwidth=width) for width in widths}
    return {"mean-shift": MeanShift(), "ridge": Ridge(), "ridge 0.01": Ridge(penalty=0.01), **local}


def references(task: Task) -> Scores:
    """What every run's own table has, too."""
    test, labels, known = task.latents.test, task.latents.test_labels, task.known
    base, aligned = task.logits(test), task.logits(task.aligner.align(test))
    old = (labels < known).unsqueeze(1)
    new_classes = torch.arange(base.shape[1]) >= known
    yield "base", base
    yield "eli/oracle †", torch.where(old, aligned, base)
    yield "oracle-mask †", base.masked_fill(old & new_classes, -math.inf)
    yield "eli/all", aligned
    for name, means in task.moved.items():
        yield f"forward/{name}", cosines(test, means)


def gates(task: Task) -> Scores:
    """ELI where a calibrated threshold on its energy says so, and a dose of it for all."""
    latents, known = task.latents, task.known
    old = latents.memory[latents.memory_labels < known]
    gate = ByEnergy().calibrate(task.aligner, latents.new, old if len(old) else None)
    where = gate(latents.test, aligner=task.aligner)
    yield "gate: energy", task.logits(task.aligner.align(latents.test, where=where))
    z, labels = (latents.memory, latents.memory_labels) if len(old) else (latents.new, latents.new_labels)
    dose = Dose().choose(task.aligner, task.logits, z, labels, known=known)
    yield "gate: dose", task.logits(task.aligner.align(latents.test, where=dose(latents.test)))


def chains(task: Task) -> Scores:
    """Samples go back task by task; a class is judged where it was born."""
    for name in task.chain[0]:
        z, found = task.latents.test, [cosines(task.latents.test, task.births[-1])]
        for number in reversed(range(len(task.chain))):
            z = task.chain[number][name].align(z)
            found.append(cosines(z, task.births[number]))
        yield f"chain: {name}", torch.cat(found[::-1], dim=1)


def birth_spaces(task: Task) -> Scores:
    """The same without the steps between: aligners straight from now to each task's own time."""
    kinds = {"eli": task.energy, "ridge": Ridge, "local-shift": LocalShift}
    for name, make in kinds.items():
        found = []
        for z_then, born in zip(task.earlier, task.births, strict=False):
            aligner = make().fit_latents(z_then, task.latents.new)
            found.append(cosines(aligner.align(task.latents.test), born))
        yield f"birth space: {name}", torch.cat([*found, cosines(task.latents.test, task.births[-1])], dim=1)
    for name, make in {"mean-shift": MeanShift, "local-shift": LocalShift, "ridge": Ridge}.items():
        found = []
        for z_then, born in zip(task.earlier, task.births, strict=False):
            found.append(make().fit_latents(z_then, task.latents.new, direction="forward").align(born))
        yield f"forward, straight from birth: {name}", cosines(task.latents.test, torch.cat([*found, task.births[-1]]))


def other_targets(task: Task) -> Scores:
    """ELI towards something else than the last model, read by the head for all samples, and for truly old ones."""
    test, new = task.latents.test, task.latents.new
    old = task.latents.test_labels < task.known
    pairs = task.latents.pairs_previous, task.latents.pairs_current
    fits = {
        "last model": task.energy().fit_latents(task.earlier[-1], new),
        "mean of earlier models": task.energy().fit_latents(torch.stack(task.earlier).mean(0), new),
        "all earlier models": task.energy().fit_latents(torch.cat(task.earlier), new.repeat(len(task.earlier), 1)),
        "paired energy": PairedEnergy(task.aligner.iterations).fit_latents(*pairs),
    }
    for name, aligner in fits.items():
        yield f"target: {name}, oracle †", task.logits(aligner.align(test, where=old))
        yield f"target: {name}, all", task.logits(aligner.align(test))
        if len(task.latents.memory):
            yield f"target: {name}, nearest mean", aligned_mean(task, aligner)(test)


def by_outputs(task: Task) -> Scores:
    """Old classes read off aligned latents, new ones off the latents as they are: what detectors gain by."""
    old, test = OldOutputs(range(task.known)), task.latents.test
    base = task.logits(test)
    for name in ("eli", "ridge"):
        yield f"old classes after alignment: {name}", old.read(base, task.logits(task.chain[-1][name].align(test)))


def parts(task: Task) -> dict[str, Readout]:
    """What a blend may be made of, where there are exemplars."""
    z, labels = task.latents.memory, task.latents.memory_labels
    aligned = task.aligner.align(z)
    return {
        "head": HeadScores(),
        "mean": NearestMean().add(z, labels),
        "aligned mean": aligned_mean(task, task.aligner),
        "discriminant": Discriminant().fit(z, labels),
        "aligned discriminant": Aligned(task.aligner, Discriminant().fit(aligned, labels)),
        "forward": Prototypes().add(task.moved["local-shift 0.3"], torch.arange(task.latents.seen)),
    }


def aligned_mean(task: Task, aligner: Aligner) -> Aligned:
    """The nearest mean of exemplars after alignment."""
    z, labels = task.latents.memory, task.latents.memory_labels
    return Aligned(aligner, NearestMean().add(aligner.align(z), labels))


SETS = (
    ("head",),
    ("mean",),
    ("aligned mean",),
    ("discriminant",),
    ("aligned discriminant",),
    ("forward",),
    ("head", "mean", "aligned mean"),
    ("head", "mean", "aligned mean", "forward"),
    ("head", "discriminant"),
    ("head", "aligned discriminant"),
    ("head", "discriminant", "forward"),
    ("head", "discriminant", "aligned discriminant"),
)
"""Blends of these are tried."""


def blends(task: Task) -> Scores:
    """Votes of several parts: without an offset, with one, with one for each task; with weights chosen on exemplars."""
    z, labels = task.latents.memory, task.latents.memory_labels
    if not len(z):
        return
    logits, test_logits = task.logits(z), task.logits(task.latents.test)
    for share in (0.25, 0.5, 0.75):
        yield f"forward and exemplar means, {share}", cosines(task.latents.test, mixed_means(task, share))
    for shrinkage in (0.03, 0.1, 0.3, 1.0):
        fitted = Discriminant(shrinkage=shrinkage).fit(z, labels)
        yield f"discriminant, shrinkage {shrinkage}", fitted(task.latents.test)
    found = parts(task)
    for names in SETS:
        chosen, said = [found[name] for name in names], " + ".join(names)

        def reached(known: int | list[int], caution: float, chosen: list[Readout] = chosen) -> Blend:
            return Blend(chosen, known=known, caution=caution).choose(z, labels, logits=logits)

        blend = reached(task.known, math.inf)
        yield f"{said}: one offset", blend(task.latents.test, logits=test_logits)
        blend.offsets.zero_()
        plain = blend(task.latents.test, logits=test_logits)
        yield f"{said}: no offset", plain
        # What the best choice could reach: chosen by test labels, so no result.
        bound = best_offsets(plain, task.latents.test_labels, ends=task.ends)
        yield f"{said}: offset of each task, from test labels †", offset_scores(plain, bound, ends=task.ends)
        yield f"{said}: offset of each task", reached(task.ends, math.inf)(task.latents.test, logits=test_logits)
        if len(names) > 1:
            for caution in (0.0, 1.0):
                blend = reached(task.ends, caution)
                yield f"{said}: chosen weights, caution {caution:g}", blend(task.latents.test, logits=test_logits)


def without_exemplars(task: Task) -> Scores:
    """The same where no old image was kept: stand-ins are chosen on."""
    new, labels, test = task.latents.new, task.latents.new_labels, task.latents.test
    test_logits = task.logits(test)
    for name in ("none", "mean-shift", "local-shift 0.3", "ridge", "ridge 0.01"):
        prototypes = Prototypes().add(task.moved[name], torch.arange(task.latents.seen))
        made, classes = prototypes.stand_ins(new, labels)
        z, y = torch.cat([made, new]), torch.cat([classes, labels])
        logits = task.logits(z)
        sets = {"head": [HeadScores()], "forward": [prototypes], "head + forward": [HeadScores(), prototypes]}
        for said, back in (("ridge", task.chain[-1]["ridge"]), ("eli", task.aligner)):
            there = Prototypes().add(task.before[name], torch.arange(task.known)).add(back.align(new), labels)
            sets[f"back by {said}"] = [Aligned(back, there)]
            sets[f"head + back by {said}"] = [HeadScores(), Aligned(back, there)]
            sets[f"head + forward + back by {said}"] = [HeadScores(), prototypes, Aligned(back, there)]
        for said, chosen in sets.items():
            for what, known in (("one offset", task.known), ("offset of each task", task.ends)):
                blend = Blend(chosen, known=known, caution=math.inf).choose(z, y, logits=logits)
                yield f"no exemplars, {name}: {said}: {what}", blend(test, logits=test_logits)
            plain = offset_scores(blend(test, logits=test_logits), [-v for v in blend.offsets.tolist()], ends=task.ends)
            bound = best_offsets(plain, task.latents.test_labels, ends=task.ends)
            bounded = offset_scores(plain, bound, ends=task.ends)
            yield f"no exemplars, {name}: {said}: offset of each task, from test labels †", bounded


def mixed_means(task: Task, share: float) -> Tensor:
    """Forward prototypes with a share of the exemplars' means; both as directions."""
    means = NearestMean().add(task.latents.memory, task.latents.memory_labels).means
    return torch.lerp(F.normalize(task.moved["local-shift 0.3"], dim=1), F.normalize(means, dim=1), share)


TRIALS = (references, gates, chains, birth_spaces, other_targets, by_outputs, blends, without_exemplars)


def measure(run: Path) -> dict[str, list[float]]:
    """Of each trial the accuracy on all, old and new classes, in %, as the mean over tasks."""
    found: dict[str, list[list[float]]] = {}
    for task in tasks_of(run):
        labels = task.latents.test_labels
        for trial in TRIALS:
            for name, scores in trial(task):
                right = (scores.argmax(dim=1) == labels).double()
                old = labels < task.known
                values = [100 * float(part.mean()) for part in (right, right[old], right[~old])]
                found.setdefault(name, []).append(values)
    return {name: [statistics.fmean(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    found = {run.name: measure(run) for run in runs}
    print(f"| trial | {' | '.join(found)} | mean |")
    print(f"|---|{'---:|' * (len(found) + 1)}")
    for name in dict.fromkeys(name for trials in found.values() for name in trials):
        cells = [trials.get(name) for trials in found.values()]
        everywhere = [cell[0] for cell in cells if cell]
        mean = f"{statistics.fmean(everywhere):.1f}" if len(everywhere) == len(cells) else "–"
        shown = [f"{cell[0]:.1f} ({cell[1]:.1f} / {cell[2]:.1f})" if cell else "–" for cell in cells]
        print(f"| {name} | {' | '.join(shown)} | {mean} |", flush=True)


if __name__ == "__main__":
    main()
