"""Errors of the detectors."""

from __future__ import annotations

from elign.utils.errors import ElignError, OptionError


class UnknownDetectorError(OptionError):
    """A detector name that does not exist; the message names the nearest one that does."""


class WeightsError(ElignError, ValueError):
    """Weights that cannot be had, cannot be read or do not fit the network; the message says what would."""


class DetectorUseError(ElignError, RuntimeError):
    """A detector that is asked for something it cannot do yet: it has no classes, or is in the wrong mode."""
