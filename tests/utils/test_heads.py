"""Finding heads, latents in what they are called with, and logits in what they return."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch
from torch import nn

from elign import AttachError, OptionError
from elign.utils.extraction import find_module, latent_of, logits_of, with_logits


@pytest.fixture
def model():
    heads = nn.ModuleDict({"final": nn.Linear(2, 3)})
    return nn.ModuleDict({"heads": heads, "body": nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))})


@pytest.mark.parametrize("name", ["body", "body.0", "heads.final", ""])
def test_finds_parts_by_their_dotted_name(model, name):
    assert find_module(model, name) is model.get_submodule(name)


@pytest.mark.parametrize(
    ("name", "near"), [("head.final", "'heads.final'"), ("final", r"one of 'heads.final'\?"), ("zzzzzz", "'body.3'")]
)
def test_a_wrong_name_suggests_the_nearest(model, name, near):
    with pytest.raises(AttachError, match=rf"no module '{name}'.*{near}"):
        find_module(model, name)


@pytest.mark.parametrize("name", ["body.0", "module.body.0"])
def test_names_inside_of_a_wrapper_are_names_of_the_model_or_of_the_wrapper(model, name):
    assert find_module(nn.DataParallel(model), name) is model.body[0]


def test_a_part_may_be_called_like_a_wrapper():
    model = nn.ModuleDict({"module": nn.Linear(2, 3)})
    assert find_module(model, "module") is model["module"]
    assert find_module(nn.DataParallel(model), "module.module") is model["module"]
    # Where the two disagree, a name is that of the model that was given.
    assert find_module(nn.DataParallel(model), "module") is model


def test_a_model_without_parts_says_so():
    with pytest.raises(AttachError, match="no parts at all"):
        find_module(nn.Linear(2, 3), "fc")


def test_an_argument_that_is_no_tensor_is_an_error():
    with pytest.raises(AttachError, match="is a list, not a tensor"):
        latent_of(([1],), {}, 0)


# --- Logits in what heads return.


LOGITS = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0]])


@pytest.mark.parametrize(
    "output", [None, "x", ("x", LOGITS), {"logits": 3}, {"a": LOGITS, "b": LOGITS}, {}, ()], ids=str
)
def test_logits_that_cannot_be_found_are_an_error(output):
    with pytest.raises(OptionError, match="logits="):
        logits_of(output)


def test_a_mapping_that_cannot_be_changed_becomes_a_plain_one():
    given = MappingProxyType({"extra": 1, "logits": torch.zeros(1, 2)})
    logits = torch.ones(1, 2)
    assert with_logits(given, logits) == {"extra": 1, "logits": logits}
