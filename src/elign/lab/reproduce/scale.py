"""In what planned runs differ from the published ones, as the first note of a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from elign.lab.experiments import published
from elign.lab.reproduce.base_runs import Evaluation


def differences(pairs: Iterable[tuple[Evaluation, str]], *, seeds: int, varied: Collection[str] = ()) -> list[str]:
    """Every difference of scale from the paper.

    Args:
        pairs: What is read, each with the data set of the printed number that it stands beside.
        seeds: How many seeds.
        varied: Settings of the aligner that the experiment varies itself.

    Returns:
        Sentences without an end, the most telling first.
    """
    configs = (
        (
            replace(reading.run.config, aligner=reading.aligner),
            published.published_config(reading.run.learner, data, reading.run.protocol),
        )
        for reading, data in dict.fromkeys(pairs)
    )
    sentences = published.differences(configs, varied=varied)
    if seeds != 3:
        sentences.append(f"{seeds} seed{'s' if seeds > 1 else ''} instead of 3 runs")
    return sentences


def scale_note(preset: str, found: Collection[str]) -> str:
    """The differences as the first note of a table."""
    if not found:
        return f"preset={preset}: the published settings, as far as they are known"
    return f"preset={preset}, not the paper's scale: {'; '.join(found)}"
