"""Which regions a detector's aligner should be fitted on: a finished run, read with aligners of several kinds of pairs.

    python benchmarks/trials/region_pairs.py RUN [RUN ...]

Prints a table for each run: mean average precision (in %) of old, new and all classes after the last task, and the
share of regions on old test objects that the head takes for background. Rows marked † use test annotations. Pairs of
old objects on the new task's images need annotations that no learner has: they tell whether the pairs are to blame.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eli.lab.data.memory import Memory
from eli.lab.detection.data.tasks import Batches, fetch
from eli.lab.detection.evaluation.matching import old_regions
from eli.lab.detection.evaluation.pairs import region_pairs
from eli.lab.detection.evaluation.reading_images import Collected, read_images, read_regions
from eli.lab.detection.evaluation.readings import RegionReading, RegionReadings
from eli.lab.detection.evaluation.scoring import score_readings
from eli.lab.detection.experiments.bench import DetectionBench
from eli.lab.detection.learners import DetectionLearner
from eli.lab.detection.models.detector import Detector
from eli.lab.experiments.kinds import kind_of
from eli.lab.experiments.reading import aligner_settings
from eli.lab.experiments.run_folder import RunFolder
from eli.lab.experiments.speed import Speed

READINGS = ("base", "eli/oracle", "eli/by-prediction", "mean-shift/oracle", "ridge/oracle")
PREVIOUS = "the previous detector's latents of old regions †"
"""What an aligner could reach at best: under the current head."""
ALIGNED = {"eli/oracle": "eli", "mean-shift/oracle": "mean-shift", "ridge/oracle": "ridge"}


def main() -> None:
    """Print one table for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        trial = Trial(RunFolder(run))
        print(f"\n{run.name}\n\n| pairs | reading | old | new | all | old regions taken for background |")
        print("|---|---|---:|---:|---:|---:|", flush=True)
        for kind, pairs in trial.pairs():
            for line in trial.lines(pairs):
                if kind == "objects of the new classes" or not line.startswith(("base", PREVIOUS)):
                    print(f"| {kind} ({len(pairs[0])}) | {line} |", flush=True)


class Trial:
    """The last task of a run: both detectors, and the images."""

    def __init__(self, folder: RunFolder) -> None:
        facts = folder.facts()
        kind = kind_of(facts)
        self.bench: DetectionBench
        self.bench, _ = kind.open_bench(kind.from_dict(facts["config"]), Speed(**facts["speed"]))
        self.number = folder.tasks() - 1
        self.known = self.bench.protocol.tasks[self.number].start
        self.learner: DetectionLearner = self.bench.learner()
        self.memory: Memory = self.bench.memory()
        for number in range(folder.tasks()):
            self.bench.grow(self.learner, number)
            state, ranked, _ = folder.load_model(number)
            self.learner.load_state(state)
            self.memory.restore(ranked)
        self.learner.eval()

    def pairs(self) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
        """Kinds of pairs by name."""
        new = self.bench.protocol.tasks[self.number]
        mine, old = self.bench.rows(new), range(self.known)
        yield "objects of the new classes", self._pairs(mine, new)
        yield "all proposals but those", self._pairs(mine, new, regions="others")
        yield "objects of old classes on the same images, by their annotations †", self._pairs(mine, old)
        each = self.memory.per_class_count(new.stop)
        kept = [ranks[:each] for label, ranks in self.memory.ranked.items() if label < self.known]
        if each and kept:
            yield "objects of old classes on kept images", self._pairs(torch.cat(kept).unique(), old)

    def lines(self, pairs: tuple[Tensor, Tensor]) -> Iterator[str]:
        """What aligners of these pairs reach."""
        readings = RegionReadings.fit(
            *pairs,
            known=self.known,
            settings=aligner_settings(self.bench.config.aligner),
            seed=0,
            names=READINGS,
        )
        seen = range(self.bench.protocol.tasks[self.number].stop)
        objects = [each.of(seen) for each in self.bench.data.test.objects]
        found = read_images(self.learner.model, self._test_images(), readings, objects=objects)
        sizes = self.bench.protocol.sizes[: self.number + 1]
        method = self.bench.config.evaluation.method
        lost, found[PREVIOUS] = self._looked_at(readings, objects)
        _, precisions = score_readings(found, objects, task_sizes=sizes, method=method)
        for name in (*READINGS, PREVIOUS):
            each = [0.0 if value is None else value for value in precisions[name]]
            parts = (each[: self.known], each[self.known :], each)
            means = " | ".join(f"{100 * sum(part) / len(part):.1f}" for part in parts)
            share = f"{100 * lost[name]:.0f}" if name in lost else "–"
            yield f"{name}{' †' if name.endswith('oracle') else ''} | {means} | {share}"

    @torch.no_grad()
    def _looked_at(self, readings: RegionReadings, objects: Any) -> tuple[dict[str, float], Collected]:
        """Share of regions on old objects whose highest score is the background's; what `PREVIOUS` finds."""
        model, counts = self.learner.model, dict.fromkeys(("base", *ALIGNED, PREVIOUS), 0)
        found, total, done = Collected(label_free=False), 0, 0
        for images in self._test_images():
            regions = model.regions(images)
            old = old_regions(regions.boxes, objects[done : done + len(images)], known=self.known)
            before, latents = read_regions(self._teacher(), images, regions).latents, regions.latents
            exchanged = torch.where(old.unsqueeze(1), before, latents)
            found.add(RegionReading(model.detections(exchanged, regions), label_free=False), old=None)
            moved = {name: readings.aligners[aligner].align(latents[old]) for name, aligner in ALIGNED.items()}
            for name, z in {"base": latents[old], PREVIOUS: before[old], **moved}.items():
                counts[name] += int((model.roi_heads.box_predictor(z)[0].argmax(dim=1) == 0).sum())
            total += int(old.sum())
            done += len(images)
        return {name: count / total for name, count in counts.items()}, found

    def _teacher(self) -> Detector:
        if self.learner.teacher is None:
            raise SystemExit("this run has learned one task only, and nothing has moved yet")
        return self.learner.teacher.eval()

    def _pairs(self, rows: Tensor, classes: range, *, regions: Any = "objects") -> tuple[Tensor, Tensor]:
        batches = self._batches(self.bench.data.train, rows, classes)
        return region_pairs(self._teacher(), self.learner.model, batches, regions=regions, seed=0)

    def _test_images(self) -> Iterator[list[Tensor]]:
        split = self.bench.data.test
        for images, _ in self._batches(split, torch.arange(len(split)), range(0)):
            yield images

    def _batches(self, split: Any, rows: Tensor, classes: range) -> Batches:
        for some in torch.split(rows, self.bench.config.train.eval_batch_size):
            yield fetch(split, some, classes, seed=None)


if __name__ == "__main__":
    main()
