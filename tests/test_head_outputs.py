"""Logits in what heads return."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch

from elign import OptionError
from elign.head_outputs import logits_of, with_logits

LOGITS = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0]])


@pytest.mark.parametrize(
    "output",
    [LOGITS, {"loss": 1, "logits": LOGITS}, {"scores": LOGITS}, (LOGITS, 1), [LOGITS]],
    ids=["tensor", "logits", "only", "tuple", "list"],
)
def test_logits_are_found_in_what_heads_return(output):
    assert logits_of(output) is LOGITS


@pytest.mark.parametrize("output", [None, "x", ("x", LOGITS), {"logits": 3}], ids=str)
def test_logits_that_cannot_be_found_are_an_error(output):
    with pytest.raises(OptionError, match="logits="):
        logits_of(output)


def test_a_mapping_that_cannot_be_changed_becomes_a_plain_one():
    given = MappingProxyType({"extra": 1, "logits": torch.zeros(1, 2)})
    logits = torch.ones(1, 2)
    assert with_logits(given, logits) == {"extra": 1, "logits": logits}
