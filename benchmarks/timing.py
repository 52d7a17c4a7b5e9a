"""Timing as ratios: all contestants take turns in each round, so that a noisy machine disturbs them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def medians(contestants: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 1) -> dict[str, float]:
    """Median seconds of each contestant over `rounds` rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warm_up + rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
