"""What the user types after `eli run`, read and checked for its names. Imported by `run_config.py` only.

Values are left as text here: hydra reads those. The names are checked before hydra sees them, because it can say that a
name is wrong, but not in one line, and not which one was meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from eli.lab.experiments.config_errors import ConfigError, did_you_mean, unknown_choice
from eli.lab.experiments.config_values import Checked, hints

CONFIG_PACKAGE = "eli.lab.config"
GROUPS = ("learner", "data", "protocol", "model", "train", "memory", "aligner", "preset")
PLAIN = ("seed", "out", "start_from")

PATHS = ("out", "start_from", "data.path", "data.data_dir")
"""Settings that are paths, hence any text at all: hydra's grammar must not read them."""

_IMPLIED = {"memory.budget": "budget", "memory.per_class": "per-class"}


@cache
def choices(group: str) -> tuple[str, ...]:
    """The choices of a group, from the files of the package."""
    folder = resources.files(CONFIG_PACKAGE).joinpath(group)
    return tuple(sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")))


def read_overrides(texts: Sequence[str], sections: Mapping[str, type[Checked]]) -> dict[str, str]:
    """Read `key=value` texts.

    Args:
        texts: What the user typed.
        sections: The groups that have settings of their own.

    Returns:
        The values by their keys. A protocol's name is a setting, since there are more of them than files.

    Raises:
        ConfigError: A text is no setting, its key does not exist or was given before, or a group has no such choice.
    """
    given: dict[str, str] = {}
    for text in texts:
        key, value = _split(text)
        key = "protocol.name" if key == "protocol" else key
        if key in given:
            raise ConfigError(f"{key} is given twice: {given[key]!r} and {value!r}.")
        _check_key(key, sections)
        if key in GROUPS and value not in choices(key):
            raise unknown_choice(key, value, choices(key))
        given[key] = value
    return given


def with_implied(given: Mapping[str, str]) -> dict[str, str]:
    """Add the choice that a number of exemplars implies, where the user made none.

    A preset may count exemplars the other way, and what the user says must win over it.
    """
    implied = [choice for key, choice in _IMPLIED.items() if key in given]
    return dict(given) if "memory" in given or len(implied) != 1 else {"memory": implied[0], **given}


def _split(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if key[:1] in ("+", "~"):
        raise ConfigError(f"{text!r}: settings cannot be added or removed, only set. Write key=value.")
    if not sign or not key.strip():
        raise ConfigError(f"{text!r} is no setting. Write key=value, such as learner=lucir or train.epochs=3.")
    return key.strip(), value.strip()


def _check_key(key: str, sections: Mapping[str, type[Checked]]) -> None:
    group, dot, name = key.partition(".")
    if not dot and (key in GROUPS or key in PLAIN):
        return
    if dot and group in sections:
        if name == "name" and group != "protocol":
            raise ConfigError(f"{key} cannot be set alone. Write {group}=NAME, one of: {', '.join(choices(group))}.")
        # Which options a learner has is known only after it is chosen.
        if group == "learner" and name.isidentifier() and name != "options":
            return
        if name in hints(sections[group]) and group != "learner":
            return
    known = ["protocol.name"] + [
        f"{section}.{field}"
        for section, cls in sections.items()
        for field in hints(cls)
        if field not in ("name", "options")
    ]
    raise ConfigError(f"There is no setting {key!r}.{_meant(key, known)}")


def _meant(key: str, known: Sequence[str]) -> str:
    bare = key.strip("-").lower().replace("-", "_")
    elsewhere = [candidate for candidate in known if candidate.endswith(f".{bare.rpartition('.')[2]}")]
    if elsewhere:
        return f" Did you mean {' or '.join(repr(candidate) for candidate in elsewhere)}?"
    return did_you_mean(bare, (*GROUPS, *PLAIN, *known))
