"""Settings from files, put together by hydra, with what the user typed.

Nothing else of hydra is used.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from elign.lab.experiments.config_errors import ConfigError, did_you_mean
from elign.lab.experiments.config_tree import ConfigTree
from elign.lab.experiments.config_values import hints

# Hydra keeps what it is doing in a global, so only one thread at a time may ask it.
_HYDRA = threading.Lock()


def compose_tree(tree: ConfigTree, given: Mapping[str, str]) -> dict[str, Any]:
    """All settings as plain values, a learner's own options apart from the others.

    Args:
        tree: The settings that there are.
        given: What the user typed, by key; see `read_overrides`.

    Raises:
        ConfigError: A value cannot be read, or the learner has no such option.
    """
    # A path can be any text, so these go round hydra's grammar.
    paths = {key: _path(key, value) for key, value in given.items() if key in tree.paths}
    rest = {key: value for key, value in _with_implied(tree, given).items() if key not in paths}
    values = _ask_hydra(tree, rest)
    for key, path in paths.items():
        group, _, name = key.rpartition(".")
        (values[group] if group else values)[name] = path
    own = hints(tree.sections["learner"]).keys()
    learner = values["learner"]
    options = {name: value for name, value in learner.items() if name not in own}
    values["learner"] = {name: value for name, value in learner.items() if name in own} | {"options": options}
    return values


def _with_implied(tree: ConfigTree, given: Mapping[str, str]) -> dict[str, str]:
    """Add the choice that a setting implies, a number of exemplars say, where the user made none.

    A preset may choose otherwise, and what the user says must win over it.
    """
    implied = [choice for key, choice in tree.implied.items() if key in given]
    return dict(given) if len(implied) != 1 or implied[0][0] in given else dict([implied[0], *given.items()])


def _path(key: str, text: str) -> str | None:
    if text == "null":
        return None
    # A run may go on from another folder than it began in; where it is itself is known by then.
    if key == "out":
        return text
    try:
        return str(Path(text).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:  # an unknown user after "~", links in a circle, a zero byte
        raise ConfigError(f"{key}={text!r} is no path that can be used: {error}.") from None


def _ask_hydra(tree: ConfigTree, given: Mapping[str, str]) -> dict[str, Any]:
    # Imported here: it takes most of a second, and `elign --help` need not wait for it.
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    chosen = tuple(sorted(f"{key}={value}" for key, value in given.items() if "." not in key and key not in tree.plain))
    settings = {key: value for key, value in given.items() if "." in key or key in tree.plain}
    try:
        with _HYDRA:
            found = deepcopy(_compose_files(tree.package, chosen))
        _check_options(settings, found["learner"])
        for key, text in settings.items():
            OmegaConf.update(found, key, _read_value(key, text))
        plain = OmegaConf.to_container(found, resolve=True)
    except ConfigError:
        raise
    # What is nested too deeply, or refers to itself, or is a number of thousands of digits, fails outside of hydra.
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"These settings cannot be read: {str(error).strip().partition(chr(10))[0]}") from None
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


@cache
def _compose_files(package: str, chosen: tuple[str, ...]) -> Any:
    """What the files say for these choices: always the same, so it is worked out once."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    # A program of hydra's own may be running us: its state is put back.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(package, job_name="elign", version_base="1.3"):
            return hydra_compose("config", list(chosen))
    finally:
        GlobalHydra.instance().hydra = outer


def _read_value(key: str, text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    typed = f"{key}={text}"
    try:
        override = OverridesParser.create().parse_override(typed)
    except (HydraException, ValueError, RecursionError):
        raise ConfigError(f"The value of {typed!r} cannot be read; a text may need quotes: key='...'.") from None
    if override.is_sweep_override():
        raise ConfigError(f"{typed!r} gives several values; a run has one. A list is written in brackets: [1,2].")
    return override.value()


def _check_options(given: Mapping[str, str], learner: Mapping[str, Any]) -> None:
    has = [str(name) for name in learner if name != "name"]
    for key in given:
        group, _, name = key.partition(".")
        if group == "learner" and name and name not in has:
            meant = did_you_mean(name, has)
            raise ConfigError(
                f"The learner {learner['name']!r} has no setting {key!r}.{meant} It has: {', '.join(has)}."
            )
