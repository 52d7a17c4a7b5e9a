"""Which regions a detector's aligner should be fitted on: a finished run, read with aligners of several kinds of pairs.

    python benchmarks/trials/region_pairs.py RUN [RUN ...] [--pairs objects|others|old|kept ...]

Prints a table for each run: mean average precision (in %) of old, new and all classes after the last task, and the
share of regions on old test objects that the head takes for background. Readings marked † use test annotations. Pairs
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
from elign.lab.data.memory import Memory
from elign.lab.detection.evaluation.matching import old_regions
from elign.lab.detection.evaluation.pairs import region_pairs
from elign.lab.detection.evaluation.reading_images import Collected, read_images, read_regions
from elign.lab.detection.evaluation.readings import RegionReading, RegionReadings
from elign.lab.detection.evaluation.scoring import score_readings
from elign.lab.detection.experiments.bench import DetectionBench
from elign.lab.detection.experiments.reading import all_test_images, image_batches
from elign.lab.detection.learners import DetectionLearner
from elign.lab.detection.models.detector import Detector
from elign.lab.detection.models.passes import Regions
from elign.lab.evaluation.errors import EvaluationError
from elign.lab.experiments.kinds import kind_of
from elign.lab.experiments.reading import aligner_settings
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.speed import Speed

READINGS = ("base", "eli/oracle", "eli/by-prediction", "eli/old-classes", "mean-shift/oracle", "ridge/oracle")
READINGS += ("ridge/old-classes",)
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
        trial = Trial(RunFolder(run))
        print(f"\n{run.name}\n\n| pairs | reading | old | new | all | old regions taken for background |")
        print("|---|---|---:|---:|---:|---:|", flush=True)
        for line in trial.unmoved():
            print(f"| none | {line} |", flush=True)
        for kind in args.pairs:
            pairs = trial.pairs(kind)
            for line in trial.moved(pairs) if pairs else ():
                print(f"| {PAIRS[kind]} | {line} |", flush=True)


class Trial:
    """The last task of a run: both detectors, and the images."""

    def __init__(self, folder: RunFolder) -> None:
        facts = folder.facts()
        kind = kind_of(facts)
        self.bench: DetectionBench
        self.bench, _ = kind.open_bench(kind.from_dict(facts["config"]), Speed(**facts["speed"]))
        self.number = folder.tasks() - 1
        self.new = self.bench.protocol.tasks[self.number]
        self.known = self.new.start
        self.learner: DetectionLearner = self.bench.learner()
        self.memory: Memory = self.bench.memory()
        for number in range(folder.tasks()):
            self.bench.grow(self.learner, number)
            state, ranked, _ = folder.load_model(number)
            self.learner.load_state(state)
            self.memory.restore(ranked)
        self.learner.eval()
        self.objects = [each.of(range(self.new.stop)) for each in self.bench.data.test.objects]

    def pairs(self, kind: str) -> tuple[Tensor, Tensor] | None:
        """Pairs of one kind; None if there are none."""
        mine, old = self.bench.rows(self.new), range(self.known)
        with suppress(EvaluationError):
            return self._of_kind(kind, mine, old)
        return None

    def _of_kind(self, kind: str, mine: Tensor, old: range) -> tuple[Tensor, Tensor] | None:
        if kind == "old":
            return self._pairs(mine, old)
        if kind != "kept":
            return self._pairs(mine, self.new, regions=kind)
        each = self.memory.per_class_count(self.new.stop)
        kept = [ranks[:each] for label, ranks in self.memory.ranked.items() if label < self.known]
        return self._pairs(torch.cat(kept).unique(), old) if each and kept else None

    def unmoved(self) -> Iterator[str]:
        """What the detector reaches, and what it reaches with the previous one's latents of regions on old objects."""
        found = {"base": Collected(label_free=True), PREVIOUS: Collected(label_free=False)}
        for images, regions, old in self._looks():
            before = read_regions(self.teacher, images, regions).latents
            latents = {"base": regions.latents, PREVIOUS: torch.where(old.unsqueeze(1), before, regions.latents)}
            for name, z in latents.items():
                reading = RegionReading(self.learner.model.detections(z, regions), found[name].label_free)
                found[name].add(reading, old=None)
        yield from self._lines(found, {"base": None, PREVIOUS: None})

    def moved(self, pairs: tuple[Tensor, Tensor]) -> Iterator[str]:
        """What aligners of these pairs reach."""
        # The seed is not the run's: what differs from its own table by chance shows how much chance there is.
        settings = aligner_settings(self.bench.config.aligner)
        readings = RegionReadings.fit(*pairs, known=self.known, settings=settings, seed=0, names=READINGS)
        found = read_images(self.learner.model, all_test_images(self.bench), readings, objects=self.objects)
        found.pop("base")
        aligners = {f"{name}/oracle": aligner for name, aligner in readings.aligners.items()}
        yield from self._lines(found, {name: aligners[name] for name in found if name in aligners})

    @property
    def teacher(self) -> Detector:
        """The previous detector."""
        if self.learner.teacher is None:
            raise SystemExit("this run has learned one task only, and nothing has moved yet")
        return self.learner.teacher.eval()

    def _lines(self, found: Mapping[str, Collected], aligners: Mapping[str, Aligner | None]) -> Iterator[str]:
        sizes, counted = self.bench.protocol.sizes[: self.number + 1], self.bench.config.evaluation
        rows, _ = score_readings(
            found, self.objects, task_sizes=sizes, threshold=counted.overlap, method=counted.method
        )
        lost = self._background(aligners)
        for row in rows:
            values = (row.old or 0.0, row.new or 0.0, row.accuracy)
            share = f"{100 * lost[row.reading]:.0f}" if row.reading in lost else "–"
            told = "" if row.label_free else " †"
            yield f"{row.reading}{told} | {' | '.join(f'{100 * value:.1f}' for value in values)} | {share}"

    @torch.no_grad()
    def _background(self, aligners: Mapping[str, Aligner | None]) -> dict[str, float]:
        """Share of regions on old objects whose highest score is the background's, after each aligner."""
        model, counts, total = self.learner.model, dict.fromkeys(aligners, 0), 0
        for images, regions, old in self._looks():
            latents = regions.latents[old]
            for name, aligner in aligners.items():
                z = latents if aligner is None else aligner.align(latents)
                if name == PREVIOUS:
                    z = read_regions(self.teacher, images, regions).latents[old]
                counts[name] += int((model.roi_heads.box_predictor(z)[0].argmax(dim=1) == 0).sum())
            total += len(latents)
        return {name: count / max(total, 1) for name, count in counts.items()}

    @torch.no_grad()
    def _looks(self) -> Iterator[tuple[list[Tensor], Regions, Tensor]]:
        """Test images, the detector's regions of them, and which of these lie on old objects."""
        done = 0
        for images in all_test_images(self.bench):
            regions = self.learner.model.regions(images)
            here = self.objects[done : done + len(images)]
            yield images, regions, old_regions(regions.boxes, here, known=self.known)
            done += len(images)

    def _pairs(self, rows: Tensor, classes: range, *, regions: Any = "objects") -> tuple[Tensor, Tensor]:
        asked = self.bench.config.aligner
        return region_pairs(
            self.teacher,
            self.learner.model,
            image_batches(self.bench, self.bench.data.train, rows, classes),
            regions=regions,
            shared_backbone=asked.shared_backbone,
            per_image=asked.per_image,
            seed=0,
        )


if __name__ == "__main__":
    main()
