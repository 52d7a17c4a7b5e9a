"""What tests of a run's configuration share: the presets, and configurations as one types them."""

from __future__ import annotations

from functools import cache

from elign.lab.experiments.run_config import RunConfig, compose

PRESETS = ("paper", "small", "smoke")


@cache
def composed(text: str = "") -> RunConfig:
    """The configuration of what is typed, composed once."""
    return compose(text.split())
