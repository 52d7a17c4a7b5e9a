"""What to reproduce: the grids of runs, one YAML file for each table of the paper, and what the user types."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from elign.lab.config.composition import ConfigError, unknown_choice
from elign.lab.data.base import catalogue
from elign.lab.data.scenario import ProtocolError, make_protocol
from elign.lab.registry import did_you_mean
from elign.lab.runs.experiment import BENCHMARKS, CLASSIFICATION, DETECTION

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


PRESETS = ("smoke", "small", "paper")
OUT = "out/reproduce"
_OWN = ("preset", "seeds", "data", "protocol", "learner", "out")


@dataclass(frozen=True)
class Request:
    """What to reproduce, at which scale.

    Args:
        seeds: How many; they are 0, 1, ...
        out: The folder of runs and tables.
        data: The data sets; this and the next two empty for the usual ones.
        settings: Further settings of every training, as `key=value`; then those of every aligner.
        alone: Whether there is a single experiment, so that every setting must be meant for it.
    """

    preset: str = "small"
    seeds: int = 3
    out: Path = Path(OUT)
    data: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    aligner: tuple[str, ...] = ()
    alone: bool = True

    @property
    def smoke(self) -> bool:
        """Whether only the code is tried."""
        return self.preset == "smoke"

    @property
    def restrictions(self) -> str:
        """What is restricted or set, as typed."""
        parts = {"data": self.data, "protocol": self.protocols, "learner": self.learners}
        texts = [f"{key}={','.join(values)}" for key, values in parts.items() if values]
        return " ".join([*texts, *self.settings, *self.aligner])

    def command(self, name: str) -> str:
        """Return the command that makes a table again."""
        parts = ["elign reproduce", name, f"preset={self.preset}", f"seeds={self.seeds}", self.restrictions]
        return " ".join(part for part in parts if part)

    def csv_file(self, name: str) -> Path:
        """Return the file of a table; restrictions are part of its name."""
        text = re.sub(r"[^A-Za-z0-9.,=-]+", "-", self.restrictions)
        # A name has at most 255 bytes on most systems; a digest tells apart what is cut off.
        short = text if len(text) < 120 else f"{text[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return self.out / f"{name}-{self.preset}{f'-{short}' if short else ''}.csv"

    def value(self, key: str) -> str | None:
        """Return the value of a further setting; None if it was not given."""
        return dict(text.split("=", 1) for text in (*self.settings, *self.aligner)).get(key)

    def reduced(self, name: str, *, takes: Sequence[str], data: Sequence[str] = ()) -> tuple[Request, tuple[str, ...]]:
        """Return the request without what an experiment does not take (settings, data sets), and a remark about that.

        Raises:
            ConfigError: There is no other experiment that it could be meant for.
        """
        wrong = [f"data={one}" for one in self.data if one not in data]
        wrong += [f"protocol={one}" for one in self.protocols] + [f"learner={one}" for one in self.learners]
        wrong += [text for text in (*self.settings, *self.aligner) if text.partition("=")[0] not in takes]
        if wrong and self.alone:
            right = ["preset", "seeds", "out", *takes, *(f"data={one}" for one in data)]
            raise ConfigError(f"{name} does not take {wrong[0]}; it takes {', '.join(right)}.")
        settings = tuple(text for text in self.settings if text not in wrong)
        mine = tuple(one for one in self.data if one in data)
        request = replace(self, data=mine, protocols=(), learners=(), settings=settings, aligner=())
        return request, (f"{name}: {', '.join(wrong)} does not concern it",) if wrong else ()

    def splits(self, data: str, usual: Sequence[str]) -> tuple[str, ...]:
        """Return the usual protocols that were asked for and fit the classes of a data set.

        Raises:
            ConfigError: None of those that were asked for is among the usual ones.
            ProtocolError: None fits.
        """
        asked = tuple(name for name in usual if name in self.protocols) if self.protocols else tuple(usual)
        if not asked:
            text = ",".join(self.protocols)
            raise ConfigError(f"protocol={text} is not part of this experiment: it has {', '.join(usual)}.")
        classes = {entry.name: entry.classes for entry in catalogue()}.get(data)
        if classes is None:
            return asked
        fitting: list[str] = []
        problem = ProtocolError(f"no protocol has two classes in its first task on {data}: there is nothing to learn.")
        for name in reversed(asked):
            try:
                fitting += [name] if make_protocol(name, classes).sizes[0] > 1 else []
            except ProtocolError as error:
                problem = error
        if not fitting:
            raise problem
        return tuple(reversed(fitting))


def read_request(words: Sequence[str]) -> tuple[tuple[str, ...], Request]:
    """Return the chosen experiments, each once, and the settings; an error names what would have been right."""
    chosen = list(dict.fromkeys(word for word in words if "=" not in word))
    for name in chosen:
        if name not in (*NAMES, "all"):
            raise ConfigError(
                f"There is no experiment {name!r}.{did_you_mean(name, NAMES)} There are: {', '.join(NAMES)}."
            )
    if not chosen:
        raise ConfigError(f"Say what to reproduce: all, or some of {', '.join(NAMES)}.")
    benchmark = _benchmark(chosen)
    given: dict[str, str] = {}
    for key, sign, value in (word.partition("=") for word in words):
        if sign and key in given:
            raise ConfigError(f"{key} is given twice: {given[key]!r} and {value!r}.")
        if sign:
            _check_key(key, benchmark)
            given[key] = value
    request = replace(_request(given, benchmark), alone=len(chosen) == 1 and chosen != ["all"])
    # `all` leaves out detectors: their learners, data and settings are others.
    names = [name for name in NAMES if read_grid(name).benchmark != DETECTION] if "all" in chosen else chosen
    return tuple(names), request


def _benchmark(chosen: Sequence[str]) -> str:
    """Return the benchmark whose settings these experiments take."""
    detectors = [name for name in chosen if name != "all" and read_grid(name).benchmark == DETECTION]
    if detectors and len(chosen) > 1:
        raise ConfigError(
            f"{detectors[0]} trains detectors, whose learners, data and settings are others: give it a command of its "
            f"own, without {next(name for name in chosen if name != detectors[0])}."
        )
    return DETECTION if detectors else CLASSIFICATION


def _request(given: dict[str, str], benchmark: str) -> Request:
    if (preset := given.get("preset", "small")) not in PRESETS:
        raise unknown_choice("preset", preset, PRESETS)
    seeds = given.get("seeds", "1" if preset == "smoke" else "3")
    if not seeds.isdecimal() or int(seeds) < 1:
        raise ConfigError(f"seeds={seeds}: give how many, a whole number from 1 on.")
    passed = [f"{key}={value}" for key, value in given.items() if key not in _OWN]
    aligner = tuple(text for text in passed if re.match(r"aligner[.=]", text))
    tree = BENCHMARKS[benchmark].tree
    table1 = read_grid("table1")
    learners = tree.choices("learner") if benchmark == DETECTION else table1.learners
    protocols = None if benchmark == DETECTION else table1.protocols
    return Request(
        preset=preset,
        seeds=int(seeds),
        out=Path(given.get("out", OUT)),
        data=_several("data", given.get("data", ""), tree.choices("data")),
        protocols=_several("protocol", given.get("protocol", "").replace("b50-", "half-"), protocols),
        learners=_several("learner", given.get("learner", ""), learners),
        settings=tuple(text for text in passed if text not in aligner),
        aligner=aligner,
    )


def _check_key(key: str, benchmark: str) -> None:
    used = BENCHMARKS[benchmark]
    groups = [name for name in used.tree.sections if name not in ("learner", "data", "protocol")]
    group, dot, _ = key.partition(".")
    if key in _OWN or key in groups or (dot and group in (*groups, "data", "learner")):
        return
    if key == "seed":
        raise ConfigError("Give seeds=N, how many seeds: an experiment is repeated with 0, 1, ... N-1.")
    raise ConfigError(
        f"There is no setting {key!r}.{did_you_mean(key, (*_OWN, *groups))} "
        f"Choose from {', '.join(_OWN)}, or those of '{used.command}' with a dot, such as train.epochs=5."
    )


def _several(key: str, text: str, choices: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if choices is not None and name not in choices:
            raise unknown_choice(key, name, choices)
        # At least two tasks: with a single one no class is old.
        if choices is None and not re.fullmatch(r"[1-9][0-9]{0,8}(\+[1-9][0-9]{0,8})+", name):
            raise ConfigError(f"{key}={name}: give how many classes each task brings, such as 15+5 or 10+5+5.")
    return names
