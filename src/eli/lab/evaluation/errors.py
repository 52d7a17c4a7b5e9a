"""Errors of the evaluation, so that a runner can tell wrong input from a bug. Anything in `eli.lab` may import it."""

from __future__ import annotations

from eli.errors import EliError


class EvaluationError(EliError, ValueError):
    """What is to be evaluated does not fit together; the message says what does not."""
