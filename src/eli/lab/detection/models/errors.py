"""Errors of the detectors. Imports `eli.errors` only; anything in `eli.lab.detection` may import it."""

from __future__ import annotations

from eli.errors import EliError, OptionError


class UnknownDetectorError(OptionError):
    """A detector name that does not exist; the message names the nearest one that does."""


class WeightsError(EliError, ValueError):
    """Weights that cannot be had, cannot be read or do not fit the network; the message says what would."""


class DetectorUseError(EliError, RuntimeError):
    """A detector that is asked for something it cannot do yet: it has no classes, or is in the wrong mode."""
