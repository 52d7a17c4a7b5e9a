"""Errors of the evaluation, so that a runner can tell wrong input from a bug. Anything in `elign.lab` may import it."""

from __future__ import annotations

from elign.utils.errors import ElignError


class EvaluationError(ElignError, ValueError):
    """What is to be evaluated does not fit together; the message says what does not."""
