"""Real detection runs that take seconds."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.lab.starting import start

from elign.lab.runs.experiment import DETECTION
from elign.lab.runs.run_dir import RunDir


@pytest.fixture(scope="session")
def console() -> Console:
    return Console(quiet=True)


@pytest.fixture(scope="session")
def quick(quick_detection) -> tuple[str, ...]:
    return quick_detection


@pytest.fixture(scope="session")
def iod(tmp_path_factory, console, quick) -> RunDir:
    """iOD has everything: distillation, warp steps from a store of images, and fine-tuning on kept images."""
    out = tmp_path_factory.mktemp("iod") / "run"
    return start([*quick, "learner=iod", "learner.warp_every=2", f"out={out}"], console, benchmark=DETECTION)
