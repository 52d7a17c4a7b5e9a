"""Real detection runs that take seconds."""

from __future__ import annotations

import pytest
from tests.lab.starting import start

from elign.lab.runs.experiment import DETECTION


@pytest.fixture(scope="session")
def quick(quick_detection) -> tuple[str, ...]:
    return quick_detection


@pytest.fixture(scope="session")
def run_of(tmp_path_factory, quick):
    """Gives a finished run of a learner; nobody may change it."""
    runs = {}

    def given(learner):
        if learner not in runs:
            # iOD has everything: distillation, warp steps from a store of images, and fine-tuning on kept images.
            more = ["learner.warp_every=2"] if learner == "iod" else []
            out = tmp_path_factory.mktemp(learner) / "run"
            runs[learner] = start([*quick, f"learner={learner}", *more, f"out={out}"], benchmark=DETECTION)
        return runs[learner]

    return given


@pytest.fixture
def iod(run_of):
    return run_of("iod")
