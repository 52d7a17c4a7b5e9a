"""What the user types after `elign reproduce`, read and checked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elign.lab.data.catalogue import catalogue
from elign.lab.data.protocol import ProtocolError, make_protocol
from elign.lab.experiments.config_errors import ConfigError, did_you_mean, unknown_choice
from elign.lab.reproduce.vocabulary import LEARNERS, PROTOCOLS, Vocabulary, vocabulary

__all__ = ["LEARNERS", "OUT", "PRESETS", "PROTOCOLS", "Request", "read_request"]

PRESETS = ("smoke", "small", "paper")
OUT = "out/reproduce"

_OWN = ("preset", "seeds", "data", "protocol", "learner", "out")


@dataclass(frozen=True)
class Request:
    """What to reproduce, at which scale.

    Args:
        preset: The scale.
        seeds: How many; they are 0, 1, ...
        out: The folder that runs and tables are kept in.
        data: Restricts an experiment to these data sets; empty: those that the experiment has at this scale.
        protocols: Restricts it to these.
        learners: Restricts it to these.
        settings: Further settings of every training, as `key=value`.
        aligner: Further settings of every aligner, as `aligner.key=value`: models do not depend on them.
        alone: Whether a single experiment was asked for, so that every setting must be meant for it.
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

    @property
    def slug(self) -> str:
        """The restrictions as a part of a file's name; empty without any."""
        text = re.sub(r"[^A-Za-z0-9.,=-]+", "-", self.restrictions)
        # A name has at most 255 bytes on most systems; what is cut off is still told apart.
        short = text if len(text) < 120 else f"{text[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return f"-{short}" if short else ""

    def value(self, key: str) -> str | None:
        """A further setting's value; None where it was not given."""
        for text in (*self.settings, *self.aligner):
            name, _, value = text.partition("=")
            if name == key:
                return value
        return None

    def left_out(self, name: str, *, takes: Sequence[str], data: Sequence[str] = ()) -> tuple[str, ...]:
        """A remark on what was typed and does not concern an experiment; an error if it is the only one.

        Args:
            name: Of the experiment.
            takes: The further settings that it takes.
            data: The data sets that it takes.

        Raises:
            ConfigError: Nothing else was asked for that the setting could be meant for.
        """
        wrong = [f"data={one}" for one in self.data if one not in data]
        wrong += [f"protocol={one}" for one in self.protocols] + [f"learner={one}" for one in self.learners]
        wrong += [text for text in (*self.settings, *self.aligner) if text.partition("=")[0] not in takes]
        if wrong and self.alone:
            known = ["preset", "seeds", "out", *takes, *(f"data={one}" for one in data)]
            raise ConfigError(f"{name} does not take {wrong[0]}; it takes {', '.join(known)}.")
        return (f"{name}: {', '.join(wrong)} does not concern it",) if wrong else ()

    def reduced(self, *, takes: Sequence[str], data: Sequence[str] = ()) -> Request:
        """The request without what `left_out` remarks on."""
        settings = tuple(text for text in self.settings if text.partition("=")[0] in takes)
        mine = tuple(one for one in self.data if one in data)
        return replace(self, data=mine, protocols=(), learners=(), settings=settings, aligner=())

    def data_sets(self, *usual: str) -> tuple[str, ...]:
        """The data sets to use: those that were asked for, else the usual ones, else the digits of `smoke`."""
        return self.data or (("digits",) if self.smoke else usual)

    def splits(self, data: str, usual: Sequence[str]) -> tuple[str, ...]:
        """The protocols to use on a data set: of the usual ones those that were asked for and fit its classes.

        Raises:
            ConfigError: None of those that were asked for is among the usual ones.
            ProtocolError: None fits.
        """
        asked = tuple(name for name in usual if name in self.protocols) if self.protocols else tuple(usual)
        if not asked:
            raise ConfigError(
                f"protocol={','.join(self.protocols)} is not part of this experiment: it has {', '.join(usual)}."
            )
        classes = {entry.name: entry.classes for entry in catalogue()}.get(data)
        if classes is None:
            return asked
        fitting = tuple(name for name in asked if _fits(name, classes))
        if not fitting:
            make_protocol(asked[0], classes)  # raises, and says what would fit
            raise ProtocolError(
                f"{asked[0]!r} has a single class in its first task on {data}: there is nothing to learn."
            )
        return fitting


def read_request(names: Sequence[str], texts: Sequence[str]) -> tuple[tuple[str, ...], Request]:
    """Tell names of experiments from settings, and check both.

    Args:
        names: The experiments there are.
        texts: What was typed.

    Returns:
        The chosen experiments, each once, and the rest.

    Raises:
        ConfigError: Something is unknown or cannot have its value; the message has the nearest right one.
    """
    chosen = list(dict.fromkeys(text for text in texts if "=" not in text))
    for name in chosen:
        if name not in (*names, "all"):
            raise ConfigError(
                f"There is no experiment {name!r}.{did_you_mean(name, names)} There are: {', '.join(names)}."
            )
    if not chosen:
        raise ConfigError(f"Say what to reproduce: all, or some of {', '.join(names)}.")
    words = vocabulary(chosen)
    given: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if sign:
            if key in given:
                raise ConfigError(f"{key} is given twice: {given[key]!r} and {value!r}.")
            _check_key(key, words)
            given[key] = value
    return tuple(chosen), replace(_request(given, words), alone=len(chosen) == 1 and chosen != ["all"])


def _request(given: dict[str, str], words: Vocabulary) -> Request:
    preset = given.get("preset", "small")
    if preset not in PRESETS:
        raise unknown_choice("preset", preset, PRESETS)
    passed = tuple(f"{key}={value}" for key, value in given.items() if key not in _OWN)
    aligner = tuple(text for text in passed if text.partition("=")[0].partition(".")[0] == "aligner")
    return Request(
        preset=preset,
        # A smoke test asks whether it runs at all: one seed tells.
        seeds=_count(given.get("seeds", "1" if preset == "smoke" else "3")),
        out=Path(given.get("out", OUT)),
        data=_several("data", given.get("data"), words.data),
        protocols=_protocols(given.get("protocol"), words),
        learners=_several("learner", given.get("learner"), words.learners),
        settings=tuple(text for text in passed if text not in aligner),
        aligner=aligner,
    )


def _check_key(key: str, words: Vocabulary) -> None:
    group = key.partition(".")[0]
    if key in _OWN or key in words.groups or (group != key and group in (*words.groups, "data", "learner")):
        return
    if key == "seed":
        raise ConfigError("Give seeds=N, how many seeds: an experiment is repeated with 0, 1, ... N-1.")
    raise ConfigError(
        f"There is no setting {key!r}.{did_you_mean(key, (*_OWN, *words.groups))} "
        f"Choose from {', '.join(_OWN)}, or those of '{words.command}' with a dot, such as train.epochs=5."
    )


def _protocols(text: str | None, words: Vocabulary) -> tuple[str, ...]:
    if words.protocols is not None:
        return tuple(name.replace("b50-", "half-") for name in _several("protocol", text, words.protocols))
    names = _several("protocol", text, None)
    for name in names:
        # At least two tasks: with a single one no class is old.
        if not re.fullmatch(r"[1-9][0-9]{0,8}(\+[1-9][0-9]{0,8})+", name):
            raise ConfigError(f"protocol={name}: give how many classes each task brings, such as 15+5 or 10+5+5.")
    return names


def _several(key: str, text: str | None, known: Sequence[str] | None) -> tuple[str, ...]:
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if known is not None and name.replace("b50-", "half-") not in known:
            raise unknown_choice(key, name, known)
    return tuple(dict.fromkeys(names))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"seeds={text}: give how many, a whole number from 1 on.")
    return int(text)


def _fits(protocol: str, classes: int) -> bool:
    try:
        return make_protocol(protocol, classes).sizes[0] > 1
    except ProtocolError:
        return False
