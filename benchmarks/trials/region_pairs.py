"""Which regions a detector's aligner should be fitted on: a finished run, read with aligners of several kinds of pairs.

    python benchmarks/trials/region_pairs.py RUN [RUN ...] [--pairs objects|others|old|kept ...]

Prints a table for each run: mean average precision (in %) of old, new and all classes after the last task, and the
share of regions on old test objects that the head takes for background. Methods marked † use test annotations. Pairs
of old objects on the new task's images need annotations that no learner has: they tell whether the pairs are to blame.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.lab.data.scenario import Memory
from elign.lab.detection.average_precision import Collected, score_methods
from elign.lab.detection.detection_experiment import DetectionExperiment
from elign.lab.detection.detector import Detector, Regions
from elign.lab.detection.learners import DetectionLearner
from elign.lab.detection.region_methods import (
    RegionMethods,
    old_regions,
    outputs_on,
    predict_images,
    region_pairs,
)
from elign.lab.evaluation.inputs import EvaluationError
from elign.lab.runs.launch import open_run
from elign.lab.runs.run_dir import RunDir

METHODS = ("base", "eli/oracle", "eli/by-prediction", "eli/old-classes", "mean-shift/oracle", "ridge/oracle")
METHODS += ("ridge/old-classes",)
PREVIOUS = "previous latents of old regions"
"""Exchanged for the current ones, under the current head."""

PAIRS = {
    "objects": "new objects",
    "others": "proposals on no new object",
    "old": "old objects on the same images, by annotations that no learner has",
    "kept": "old objects on kept images",
}


def main() -> None:
    """Print one table for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=[*PAIRS], help="kinds of pairs (default: all)")
    args = parser.parse_args()
    for run in args.runs:
        trial = Trial(RunDir(run))
        print(f"\n{run.name}\n\n| pairs | method | old | new | all | old regions taken for background |")
        print("|---|---|---:|---:|---:|---:|", flush=True)
        for line in trial.unmoved():
            print(f"| none | {line} |", flush=True)
        for kind in args.pairs:
            pairs = trial.pairs(kind)
            for line in trial.moved(pairs) if pairs else ():
                print(f"| {PAIRS[kind]} | {line} |", flush=True)


class Trial:
    """The last task of a run: both detectors, and the images."""

    def __init__(self, folder: RunDir) -> None:
        experiment = open_run(folder.metadata())
        assert isinstance(experiment, DetectionExperiment)
        self.experiment = experiment
        self.number = folder.tasks() - 1
        self.new = self.experiment.protocol.tasks[self.number]
        self.old_classes = self.new.start
        self.learner: DetectionLearner = self.experiment.learner()
        self.memory: Memory = self.experiment.memory()
        for number in range(folder.tasks()):
            self.experiment.grow(self.learner, number)
            state, ranked, _ = folder.load_model(number)
            self.learner.load_state(state)
            self.memory.restore(ranked)
        self.learner.eval()
        self.objects = [each.of(range(self.new.stop)) for each in self.experiment.data.test.objects]

    def pairs(self, kind: str) -> tuple[Tensor, Tensor] | None:
        """Pairs of one kind; None if there are none."""
        mine, old = self.experiment.rows(self.new), range(self.old_classes)
        with suppress(EvaluationError):
            return self._of_kind(kind, mine, old)
        return None

    def _of_kind(self, kind: str, mine: Tensor, old: range) -> tuple[Tensor, Tensor] | None:
        if kind == "old":
            return self._pairs(mine, old)
        if kind != "kept":
            return self._pairs(mine, self.new, regions=kind)
        each = self.memory.per_class_count(self.new.stop)
        kept = [ranks[:each] for label, ranks in self.memory.ranked.items() if label < self.old_classes]
        return self._pairs(torch.cat(kept).unique(), old) if each and kept else None

    def unmoved(self) -> Iterator[str]:
        """What the detector reaches, and what it reaches with the previous one's latents of regions on old objects."""
        found = {"base": Collected(label_free=True), PREVIOUS: Collected(label_free=False)}
        for images, regions, old in self._looks():
            before = outputs_on(self.teacher, images, regions).latents
            latents = {"base": regions.latents, PREVIOUS: torch.where(old.unsqueeze(1), before, regions.latents)}
            for name, z in latents.items():
                found[name].add(self.learner.model.detections(z, regions), None, old=None)
        yield from self._lines(found, {"base": None, PREVIOUS: None})

    def moved(self, pairs: tuple[Tensor, Tensor]) -> Iterator[str]:
        """What aligners of these pairs reach."""
        # The seed is not the run's: what differs from its own table by chance shows how much chance there is.
        settings = self.experiment.config.aligner
        methods = RegionMethods(*pairs, old_classes=self.old_classes, settings=settings, seed=0, names=METHODS)
        found = predict_images(self.learner.model, self.experiment.test_images(), methods, objects=self.objects)
        found.pop("base")
        aligners = {f"{name}/oracle": aligner for name, aligner in methods.aligners.items()}
        yield from self._lines(found, {name: aligners[name] for name in found if name in aligners})

    @property
    def teacher(self) -> Detector:
        """The previous detector."""
        if self.learner.teacher is None:
            raise SystemExit("this run has learned one task only, and nothing has moved yet")
        return self.learner.teacher.eval()

    def _lines(self, found: Mapping[str, Collected], aligners: Mapping[str, Aligner | None]) -> Iterator[str]:
        sizes, counted = self.experiment.protocol.sizes[: self.number + 1], self.experiment.config.evaluation
        rows, _ = score_methods(found, self.objects, task_sizes=sizes, threshold=counted.overlap, method=counted.method)
        lost = self._background(aligners)
        for row in rows:
            values = (row.old or 0.0, row.new or 0.0, row.accuracy)
            share = f"{100 * lost[row.method]:.0f}" if row.method in lost else "–"
            told = "" if row.label_free else " †"
            yield f"{row.method}{told} | {' | '.join(f'{100 * value:.1f}' for value in values)} | {share}"

    @torch.no_grad()
    def _background(self, aligners: Mapping[str, Aligner | None]) -> dict[str, float]:
        """Share of regions on old objects whose highest score is the background's, after each aligner."""
        model, counts, total = self.learner.model, dict.fromkeys(aligners, 0), 0
        for images, regions, old in self._looks():
            latents = regions.latents[old]
            for name, aligner in aligners.items():
                z = latents if aligner is None else aligner.align(latents)
                if name == PREVIOUS:
                    z = outputs_on(self.teacher, images, regions).latents[old]
                counts[name] += int((model.roi_heads.box_predictor(z)[0].argmax(dim=1) == 0).sum())
            total += len(latents)
        return {name: count / max(total, 1) for name, count in counts.items()}

    @torch.no_grad()
    def _looks(self) -> Iterator[tuple[list[Tensor], Regions, Tensor]]:
        """Test images, the detector's regions of them, and which of these lie on old objects."""
        done = 0
        for images in self.experiment.test_images():
            regions = self.learner.model.regions(images)
            here = self.objects[done : done + len(images)]
            yield images, regions, old_regions(regions.boxes, here, old_classes=self.old_classes)
            done += len(images)

    def _pairs(self, rows: Tensor, classes: range, *, regions: Any = "objects") -> tuple[Tensor, Tensor]:
        asked = self.experiment.config.aligner
        return region_pairs(
            self.teacher,
            self.learner.model,
            self.experiment.images(self.experiment.data.train, rows, classes),
            regions=regions,
            shared_backbone=asked.shared_backbone,
            per_image=asked.per_image,
            seed=0,
        )


if __name__ == "__main__":
    main()
