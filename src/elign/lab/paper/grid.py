"""Grids of runs: one YAML file for each table of the paper, in `grids/`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from elign.lab.runs.experiment import CLASSIFICATION

NAMES = (
    *("toy", "table1", "imagenet1k", "table2", "langevin", "iterations", "architecture", "logits", "mixup"),
    *("implicit", "compute", "dimensions", "label-free"),
)
"""Of the grids, in the order of the paper; the last one is ours."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Evaluations(_Strict):
    """Several aligners for the same trained models."""

    heading: str
    varies: str
    """The setting that the choices are about."""
    choices: dict[str, tuple[str, ...]]
    """Settings of the aligner, by the name of the row."""


class Grid(_Strict):
    """A table of the paper as combinations of learners, data sets, protocols and evaluations."""

    title: str
    benchmark: str = CLASSIFICATION
    table: Literal["comparison", "label-free", "detection", "two-task", "costs"] = "comparison"
    learners: tuple[str, ...] = ()
    fixed_learners: bool = False
    """Whether the user's choice of learners does not apply."""
    data: tuple[str, ...] = ()
    paper_data: tuple[str, ...] = ()
    """With `preset=paper`, where that is another one."""
    protocols: tuple[str, ...] = ()
    paper_protocols: tuple[str, ...] = ()
    dimensions: tuple[int, ...] = ()
    smoke_dimensions: tuple[int, ...] = ()
    beside: str = "cifar100"
    """The data set whose printed numbers stand beside runs on data that the paper does not have."""
    published_aligner: bool = False
    """Whether the exceptions among the published aligners are part of the table."""
    after_each_task: bool = False
    """Whether there is a row for each task."""
    printed: dict[str, str] = {}
    """Table of the printed numbers, by choice or learner; "" for all others."""
    evaluations: Evaluations = Evaluations(heading="", varies="", choices={"": ()})
    notes: tuple[str, ...] = ()
    aligned_notes: tuple[str, ...] = ()
    """Notes for tables that show aligned detectors."""


@cache
def read_grid(name: str) -> Grid:
    """Read the grid with this name."""
    text = resources.files(__package__).joinpath("grids", f"{name}.yaml").read_text(encoding="utf-8")
    return Grid.model_validate(yaml.safe_load(text))
