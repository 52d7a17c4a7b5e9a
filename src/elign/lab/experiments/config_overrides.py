"""What the user types after `elign run`, read and checked for its names.

Values are left as text here: hydra reads those. The names are checked before hydra sees them, because it can say that a
name is wrong, but not in one line, and not which one was meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from elign.lab.experiments.config_errors import ConfigError, did_you_mean, unknown_choice
from elign.lab.experiments.config_tree import ConfigTree
from elign.lab.experiments.config_values import hints


def read_overrides(tree: ConfigTree, texts: Sequence[str]) -> dict[str, str]:
    """Read `key=value` texts.

    Args:
        tree: The settings that there are.
        texts: What the user typed.

    Returns:
        The values by their keys. A protocol's name is a setting, since there are more of them than files.

    Raises:
        ConfigError: A text is no setting, its key does not exist or was given before, or a group has no such choice.
    """
    given: dict[str, str] = {}
    for text in texts:
        key, value = _split(tree, text)
        key = "protocol.name" if key == "protocol" else key
        if key in given:
            raise ConfigError(f"{key} is given twice: {given[key]!r} and {value!r}.")
        _check_key(tree, key)
        if key in tree.groups and value not in tree.choices(key):
            raise unknown_choice(key, value, tree.choices(key))
        given[key] = value
    return given


def _split(tree: ConfigTree, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if key[:1] in ("+", "~"):
        raise ConfigError(f"{text!r}: settings cannot be added or removed, only set. Write key=value.")
    if not sign or not key.strip():
        raise ConfigError(f"{text!r} is no setting. Write key=value, such as {' or '.join(tree.examples)}.")
    return key.strip(), value.strip()


def _check_key(tree: ConfigTree, key: str) -> None:
    group, dot, name = key.partition(".")
    if not dot and (key in tree.groups or key in tree.plain):
        return
    if dot and group in tree.sections:
        if name == "name" and group != "protocol":
            raise ConfigError(
                f"{key} cannot be set alone. Write {group}=NAME, one of: {', '.join(tree.choices(group))}."
            )
        # Which options a learner has is known only after it is chosen.
        if group == "learner" and name.isidentifier() and name != "options":
            return
        if name in hints(tree.sections[group]) and group != "learner":
            return
    known = ["protocol.name"] + [
        f"{section}.{field}"
        for section, cls in tree.sections.items()
        for field in hints(cls)
        if field not in ("name", "options")
    ]
    raise ConfigError(f"There is no setting {key!r}.{_meant(tree, key, known)}")


def _meant(tree: ConfigTree, key: str, known: Sequence[str]) -> str:
    bare = key.strip("-").lower().replace("-", "_")
    elsewhere = [candidate for candidate in known if candidate.endswith(f".{bare.rpartition('.')[2]}")]
    if elsewhere:
        return f" Did you mean {' or '.join(repr(candidate) for candidate in elsewhere)}?"
    return did_you_mean(bare, (*tree.groups, *tree.plain, *known))
