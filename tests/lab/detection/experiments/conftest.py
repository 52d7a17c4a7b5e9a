"""Real detection runs that take seconds."""

from __future__ import annotations

import pytest
from rich.console import Console

from elign.lab.experiments.kinds import DETECTION
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.session import begin


@pytest.fixture(scope="session")
def console() -> Console:
    return Console(quiet=True)


@pytest.fixture(scope="session")
def quick(quick_detection) -> tuple[str, ...]:
    return quick_detection


@pytest.fixture(scope="session")
def iod(tmp_path_factory, console, quick) -> RunFolder:
    """iOD has everything: distillation, warp steps from a store of images, and fine-tuning on kept images."""
    out = tmp_path_factory.mktemp("iod") / "run"
    return begin([*quick, "learner=iod", "learner.warp_every=2", f"out={out}"], console, kind=DETECTION)
