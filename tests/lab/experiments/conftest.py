"""A finished run that tests may take to pieces."""

from __future__ import annotations

import shutil

import pytest
from rich.console import Console

from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.session import begin, read_again

SETTINGS = ("data=digits", "preset=smoke", "data.limit=20", "train.first_epochs=1", "train.epochs=1")
SETTINGS += ("aligner.iterations=5",)


@pytest.fixture(scope="session")
def quick():
    """What to type for it."""
    return SETTINGS


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A run and an evaluation of it, `two`. Not to be changed."""
    quiet = Console(quiet=True)
    folder = begin([*SETTINGS, f"out={tmp_path_factory.mktemp('made') / 'runs' / 'run'}"], quiet)
    read_again(folder, ["aligner.steps=2"], quiet, name="two")
    return folder


@pytest.fixture
def run(made, tmp_path):
    """A copy of it."""
    shutil.copytree(made.path, tmp_path / "runs" / "run")
    return RunFolder(tmp_path / "runs" / "run")
