"""A made-up result that looks like a real one: drifted clusters that walk most of the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from eli.lab.experiments.toy_result import Picture, SeedResult, ToyResult
from eli.lab.report.embedding import Embedding, embed

USUAL = {
    "previous model": 99.1,
    "base": 24.0,
    "eli": 83.5,
    "ridge": 71.0,
    "mean-shift": 52.0,
    "random-shift": 21.0,
}


def make_picture(n: int = 200, m: int = 200, dimension: int = 32, last: int = 30, seed: int = 0) -> Picture:
    generator = np.random.default_rng(seed)
    old_labels = generator.integers(0, 5, n)
    new_labels = generator.integers(5, 10, m)
    centres = 1.6 * generator.normal(size=(10, dimension))
    previous = centres[old_labels] + generator.normal(size=(n, dimension))
    # Drift: each class is moved towards the place of the next one, everything is pressed together and blurred.
    next_class = centres[(old_labels + 1) % 5]
    current = 0.35 * centres[old_labels] + 0.45 * next_class + 1.3 * generator.normal(size=(n, dimension))
    # The walk slows down and stops short of the target, as descent does.
    parts = 0.8 * (1 - np.exp(-3 * np.arange(last + 1) / max(last, 1)))
    trajectory = current + parts[:, None, None] * (previous - current)
    distance = ((trajectory[:, :, None] - centres[:5]) ** 2).sum(-1)
    new_current = centres[new_labels] + generator.normal(size=(m, dimension))
    energy = {
        "old, previous model": generator.normal(-4, 1, 1000),
        "old, current model": generator.normal(3, 1.5, 1000),
        "old, aligned": generator.normal(-3, 1.2, 1000),
        "new, previous model": generator.normal(-4.5, 1, 1000),
        "new, current model": generator.normal(4, 1.2, 1000),
    }
    return Picture(
        old_labels=old_labels,
        new_labels=new_labels,
        old_previous=previous.astype(np.float32),
        old_trajectory=trajectory.astype(np.float32),
        new_current=new_current.astype(np.float32),
        correct=distance.argmin(-1) == old_labels,
        energy={name: values.astype(np.float32) for name, values in energy.items()},
        loss=(-3 * (1 - np.exp(-np.arange(1500) / 200)) + 0.3 * generator.normal(size=1500)).astype(np.float32),
        class_names=tuple(f"digit {digit}" for digit in range(10)),
    )


def make_result(
    readings: Mapping[str, float] | None = None,
    *,
    seeds: int = 3,
    picture: Picture | None = None,
    printed: Mapping[str, float] | None = None,
    title: str = "Two tasks on handwritten digits",
    command: str = "eli toy --data digits --seeds 0 1 2",
) -> ToyResult:
    centre = {**USUAL, **(readings or {})}
    offsets = np.linspace(-1, 1, seeds) if seeds > 1 else np.zeros(1)
    return ToyResult(
        title=title,
        settings={"data": "digits", "latent dimension": 32, "step size": 0.1, "seeds": [0, 1, 2], "heads": "separate"},
        seeds=tuple(
            SeedResult(
                seed=number,
                # The readings of a seed rise and fall together, so differences between them have no spread.
                readings={name: value + 0.8 * float(offset) for name, value in centre.items()},
                new_task=97.3,
                new_task_aligned=61.2,
                drift_before=6.4 + 0.1 * number,
                drift_after=3.1,
                seconds_train=4.2,
                seconds_fit=1.7,
            )
            for number, offset in enumerate(offsets)
        ),
        picture=make_picture() if picture is None else picture,
        environment={"python": "3.11.7", "torch": "2.4.0", "processor": "two cores", "duration": "18 s"},
        command=command,
        printed={"previous model": 99.2, "base": 20.88, "eli": 83.44} if printed is None else printed,
    )


@pytest.fixture(scope="session")
def result() -> ToyResult:
    return make_result()


@pytest.fixture(scope="session")
def embedding(result: ToyResult) -> Embedding:
    """Shared, since the embedding takes longer than everything else."""
    return embed(result.picture)


@pytest.fixture
def build() -> Callable[..., ToyResult]:
    return make_result


@pytest.fixture
def build_picture() -> Callable[..., Picture]:
    return make_picture
