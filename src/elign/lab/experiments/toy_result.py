"""What the two-task toy experiment leaves behind: plain records that the report, the tables and the docs read.

Nothing here trains or draws.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

# Every reading is the accuracy in percent on held-out images of task 1, read by task 1's own head: the task of a test
# image is known to each row alike (the paper's Section 3.3). The order here is the order in which they are shown.
READINGS: Mapping[str, str] = {
    "previous model": "before task 2 was learned, kept for old images: upper bound",
    "base": "after task 2, nothing done: what was forgotten",
    "eli": "after task 2, latents aligned by the energy model",
    "ridge": "control: linear map from current to previous latents, closed form, uses pairs",
    "mean-shift": "control: one constant shift, the difference of the means",
    "random-shift": "control: as long as ELI's own shift, in a random direction",
}


@dataclass(frozen=True)
class SeedResult:
    """The numbers of one seed."""

    seed: int
    readings: Mapping[str, float]
    """Accuracy (%) on task 1's test images for each name in `READINGS`."""
    new_task: float
    """Accuracy (%) on task 2's test images with task 2's head, unaligned: only old images are aligned in any row."""
    new_task_aligned: float
    """The same if new images were aligned too: what a gate must prevent."""
    drift_before: float
    """Mean distance between current and previous latents of task-1 test images (never seen by the aligner)."""
    drift_after: float
    """The same after alignment."""
    seconds_train: float
    seconds_fit: float


@dataclass(frozen=True)
class Picture:
    """Arrays of the first seed that the figures are drawn from (n old and m new test images, D dimensions, L steps)."""

    old_labels: NDArray[np.int64]
    """(n,) digit or class of each old test image."""
    new_labels: NDArray[np.int64]
    """(m,) the same for new test images."""
    old_previous: FloatArray
    """(n, D) latents of old images under the previous model: where they should be."""
    old_trajectory: FloatArray
    """(L + 1, n, D) the same images under the current model, from unaligned (index 0) to aligned (index L)."""
    new_current: FloatArray
    """(m, D) latents of new images under the current model."""
    correct: NDArray[np.bool_]
    """(L + 1, n) is the old image classified rightly at that step?"""
    energy: Mapping[str, FloatArray]
    """Energies of whole test sets: 'old, previous model', 'old, current model', 'old, aligned', 'new, previous model',
    'new, current model'."""
    loss: FloatArray
    """(iterations,) training loss of the energy model: mean E(previous) - mean E(sampled)."""
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class ToyResult:
    """One experiment over several seeds."""

    title: str
    settings: Mapping[str, str | int | float | bool | list[int]]
    """Configuration as shown to the reader (data, latent dimension, heads, iterations, seeds...)."""
    seeds: tuple[SeedResult, ...]
    picture: Picture
    environment: Mapping[str, str]
    """Versions and machine: python, torch, elign, processor, threads, duration."""
    command: str
    """The command that makes this result again."""
    printed: Mapping[str, float]
    """The paper's numbers for the same readings, where it prints them (else empty)."""

    def values(self, reading: str) -> list[float]:
        """The reading of each seed, in the order of the seeds."""
        return [seed.readings[reading] for seed in self.seeds]

    def mean_and_spread(self, reading: str) -> tuple[float, float]:
        """Mean and sample standard deviation over the seeds (0 for a single seed)."""
        values = self.values(reading)
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
