"""A finished run that tests may take to pieces."""

from __future__ import annotations

import shutil

import pytest
from tests.lab.starting import reevaluate, start

from elign.lab.runs.run_dir import RunDir

SETTINGS = ("data=digits", "preset=smoke", "data.limit=20", "train.first_epochs=1", "train.epochs=1")
SETTINGS += ("aligner.iterations=5",)


@pytest.fixture(scope="session")
def quick():
    """What to type for it."""
    return SETTINGS


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A run and an evaluation of it, `two`. Not to be changed."""
    folder = start([*SETTINGS, f"out={tmp_path_factory.mktemp('made') / 'runs' / 'run'}"])
    reevaluate(folder, ["aligner.steps=2"], name="two")
    return folder


@pytest.fixture
def run(made, tmp_path):
    """A copy of it."""
    shutil.copytree(made.path, tmp_path / "runs" / "run")
    return RunDir(tmp_path / "runs" / "run")
