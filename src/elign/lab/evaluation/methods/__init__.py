"""The methods: every way to classify a task's test images, one function each.

A new method is one file here with one decorated function; it appears in runs, tables, reports and lists:

    @method("mine", group=BASELINES, text="what it does", needs=("exemplars",))
    def mine(inputs: EvalInputs) -> Tensor:
        return scores  # (test images, classes)
"""

from elign.lab.evaluation.methods.base import (
    DEFAULT,
    MARK,
    METHODS,
    Method,
    OldSamples,
    Prediction,
    default_of,
    marked,
    method,
    predictions,
)

__all__ = [
    "DEFAULT",
    "MARK",
    "METHODS",
    "Method",
    "OldSamples",
    "Prediction",
    "default_of",
    "marked",
    "method",
    "predictions",
]
