"""In what settings differ, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Facts = Mapping[str, str]


def say_differences(pairs: Iterable[tuple[Facts, Facts]], words: Mapping[str, str]) -> list[str]:
    """One sentence without an end for each setting that differs, those with words of their own first.

    Args:
        pairs: Settings as texts by key, each with those that they are compared with; what is missing is "none".
        words: What settings are called; the others by their keys.

    Example:
        >>> say_differences([({"model": "small"}, {"model": "large"}), ({"model": "small"}, {"model": "huge"})], {})
        ['model: small instead of large or huge']
    """
    found: dict[str, dict[str, dict[str, None]]] = {}
    for ours, theirs in pairs:
        for key in dict.fromkeys((*ours, *theirs)):
            one, other = ours.get(key, "none"), theirs.get(key, "none")
            if one != other:
                found.setdefault(key, {}).setdefault(one, {})[other] = None
    ranks = {key: rank for rank, key in enumerate(words)}
    ordered = sorted(found, key=lambda key: ranks.get(key, len(ranks)))
    return [f"{words.get(key, key)}: {_instead(found[key])}" for key in ordered]


def _instead(values: Mapping[str, Iterable[str]]) -> str:
    return ", ".join(f"{one} instead of {' or '.join(others)}" for one, others in values.items())
