"""Real detection runs that take seconds: few small scenes, a step or two of everything."""

from __future__ import annotations

import pytest
from rich.console import Console

from eli.lab.experiments.kinds import DETECTION
from eli.lab.experiments.run_folder import RunFolder
from eli.lab.experiments.session import begin

QUICK = ("preset=smoke", "protocol=5+5", "data.scenes=[16,14]", "data.image_size=64", "model.min_size=64")
QUICK += ("model.anchors=[16,32]", "model.rois=16", "model.proposals=12", "train.first_epochs=2", "train.epochs=2")
QUICK += ("train.batch_size=4", "train.learning_rate=0.01", "aligner.iterations=10", "aligner.steps=2")


@pytest.fixture(scope="session")
def console() -> Console:
    return Console(quiet=True)


@pytest.fixture(scope="session")
def quick() -> tuple[str, ...]:
    return QUICK


@pytest.fixture(scope="session")
def iod(tmp_path_factory, console) -> RunFolder:
    """iOD has everything: distillation, warp steps from a store of images, and fine-tuning on kept images."""
    out = tmp_path_factory.mktemp("iod") / "run"
    return begin([*QUICK, "learner=iod", "learner.warp_every=2", f"out={out}"], console, kind=DETECTION)
