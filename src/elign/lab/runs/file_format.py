"""What `run.json` and the lines of `results.jsonl` must look like, and how older versions are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from elign.lab.config.schema import upgrade

MAX_TASKS = 10_000
"""More are refused: a file from outside must not decide how much memory a table takes."""

_Fraction = Annotated[float, Field(ge=0, le=1)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_TaskNumber = Annotated[int, Field(ge=1, le=MAX_TASKS)]


class _Exact(BaseModel):
    """Has exactly these fields."""

    model_config = ConfigDict(strict=True, extra="forbid")


class _Open(BaseModel):
    """Has at least these fields: those that the code relies on."""

    model_config = ConfigDict(strict=True, extra="allow")


class RowLine(_Exact):
    """A row of results, as a line of `results.jsonl`."""

    kind: Literal["row"]
    task: _TaskNumber
    method: str
    classifier: str
    label_free: bool
    accuracy: _Fraction
    old: _Fraction | None
    new: _Fraction | None
    among_old: _Fraction | None
    gate_accuracy: _Fraction | None
    aligned_share: _Fraction
    by_task: Annotated[list[_Fraction], Field(max_length=MAX_TASKS)]


class _Drift(_Open):
    distance: _Number
    cosine_distance: _Number
    moved: _Number


class _UnknownObjects(_Open):
    area_under_roc: dict[str, _Number]


class TaskMetadata(_Open):
    """What is stored of a task beside its rows; the last three are of detectors."""

    task: _TaskNumber
    evaluation_version: Annotated[int, Field(ge=0)]
    seconds: dict[str, _Number]
    drift: dict[str, _Drift]
    average_precision: dict[str, list[_Number | None]] = {}
    coco: dict[str, dict[str, _Number | list[_Number | None]]] = {}
    unknown: _UnknownObjects | None = None


class HeaderLine(_Open):
    """The first line of `results.jsonl`."""

    kind: Literal["run"]
    version: int
    lines: Annotated[int, Field(ge=0)]
    metadata: dict[str, Any]


class _Named(_Open):
    name: str


class _Learner(_Named):
    options: dict[str, bool | int | float | str]


class _Protocol(_Open):
    name: str | None
    first: int | None
    increment: int | None


class _Train(_Open):
    first_epochs: int
    epochs: int


class _Memory(_Open):
    per_class: int | None
    budget: int | None = None


class _Config(_Open):
    """What summaries of a run show; `from_dict` of the benchmark checks the rest when the run is opened."""

    seed: int
    learner: _Learner
    data: _Named
    protocol: _Protocol
    model: _Named
    train: _Train
    memory: _Memory
    aligner: dict[str, Any]


class RunMetadata(_Open):
    """The content of `run.json`."""

    benchmark: str
    config: _Config
    classes: list[str]
    sizes: Annotated[list[Annotated[int, Field(ge=1, le=10**6)]], Field(min_length=1, max_length=MAX_TASKS)]
    precision: Literal["32", "bf16"]
    channels_last: bool
    threads: Annotated[int, Field(ge=1, le=10_000)] | None = None
    training_digest: str | None = None
    environment: dict[str, str] = {}
    started: str = ""
    overrides: list[str] = []
    evaluation: list[str] = []
    archived: bool = False


_Model = TypeVar("_Model", bound=BaseModel)


def validate(model: type[_Model], values: Mapping[str, Any]) -> _Model:
    """Check values from a file.

    Raises:
        ValueError: They are not of this form; the message names the first field.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        given = "" if first["type"] == "missing" else f", not {repr(first['input'])[:100]}"
        raise ValueError(f"{place}: {first['msg']}{given}") from None


def current_run(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `run.json` of any version as that of today's."""
    new = dict(values)
    if "benchmark" not in new:
        new["benchmark"] = new.pop("kind", "classification")
    # Version 0.1 chose precision and layout by a race and called the result its speed.
    speed = new.pop("speed", None)
    if "precision" not in new and isinstance(speed, Mapping):
        new |= speed
    if isinstance(new.get("config"), Mapping):
        new["config"] = upgrade(new["config"], threads=new.get("threads"), precision=new.get("precision"))
    return new


def current_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of any version as one of today's: version 1 called methods readings."""
    return {"method" if name == "reading" else name: value for name, value in line.items()}


def current_task(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a task of any version as those of today's."""
    new = {"evaluation_version" if name == "edition" else name: value for name, value in values.items()}
    for name, missing in (("evaluation_version", 0), ("seconds", {}), ("drift", {})):
        new.setdefault(name, missing)
    if isinstance(new["seconds"], Mapping):
        new["seconds"] = {"methods" if name == "readings" else name: n for name, n in new["seconds"].items()}
    return new
