"""Outputs of old classes read off aligned latents, the others off the latents as they are: what the two become."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign import LatentError, OptionError, SplitOutputs


def logits(seed, rows=5, count=6):
    return 3 * torch.randn(rows, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=st.integers(0, 10_000))
def test_every_output_has_the_probability_of_its_own_reading(seed):
    here, there = logits(seed), logits(seed + 1)
    found = SplitOutputs([1, 4], background=0).merge(here, there).exp()
    mine, theirs = here.softmax(dim=1), there.softmax(dim=1)
    for column in range(6):
        expected = {0: torch.minimum(mine, theirs), 1: theirs, 4: theirs}.get(column, mine)
        torch.testing.assert_close(found[:, column], expected[:, column])


def test_a_probability_of_nothing_is_a_number():
    found = SplitOutputs([0]).merge(torch.tensor([[0.0, 500.0]]), torch.tensor([[-500.0, 0.0]]))
    assert found.isfinite().all()
    assert found.argmax() == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_dtype_is_kept(dtype):
    here, there = logits(0).to(dtype), logits(1).to(dtype)
    found = SplitOutputs(range(3)).merge(here, there)
    assert found.dtype == dtype
    assert found.isfinite().all()


class Fields(OrderedDict):
    """A mapping whose entries are attributes, too, as those of many libraries' outputs are."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


Detected = namedtuple("Detected", "logits boxes shared")
FORMS = {"tuple": lambda *parts: parts, "list": lambda *parts: [*parts], "named": Detected}
FORMS["mapping"] = lambda *parts: dict(zip(Detected._fields, parts, strict=True))
FORMS["fields"] = lambda *parts: Fields(zip(Detected._fields, parts, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_boxes_go_with_their_class_and_a_box_for_all_stays(form):
    make, zeros, each, one = FORMS[form], torch.zeros(2, 3), torch.zeros(2, 12), torch.zeros(2, 4)
    here, there = make(zeros, each, one), torch.arange(6.0).reshape(2, 3)
    found = SplitOutputs([1], background=0).merge(here, make(there, each + 1, one + 1))
    assert type(found) is type(here)
    scores, boxes, shared = found.values() if isinstance(found, dict) else found
    assert torch.equal(scores, SplitOutputs([1], background=0).merge(zeros, there))
    assert boxes.tolist() == [[0.0] * 4 + [1.0] * 4 + [0.0] * 4] * 2
    assert torch.equal(shared, one)
    assert not any(part.any() for part in (here.values() if isinstance(here, dict) else here)), "it was changed"


@pytest.mark.parametrize("columns", [[], [-1], [1, 1], [True], [0.5], 3, torch.tensor([True, False])])
def test_columns_are_places(columns):
    with pytest.raises(OptionError, match="columns must be"):
        SplitOutputs(columns)


@pytest.mark.parametrize("columns", [np.arange(2), torch.arange(2), iter([0, 1]), {0: "a", 1: "b"}, range(2)])
def test_places_become_plain_numbers(columns):
    made = SplitOutputs(columns, background=np.int64(3))
    assert made == SplitOutputs((0, 1), background=3)
    assert [type(place) for place in (*made.columns, made.background)] == [int] * 3
    assert torch.equal(made.merge(logits(0), logits(1)), made.merge(logits(0), logits(1)))


def test_what_does_not_fit_is_named():
    for background in (0, -1, 0.5, True):
        with pytest.raises(OptionError, match="background must be"):
            SplitOutputs([0, 1], background=background)
    with pytest.raises(OptionError, match="has 6 outputs"):
        SplitOutputs([6]).merge(logits(0), logits(1))
    with pytest.raises(OptionError, match="has 6 outputs"):
        SplitOutputs([1], background=6).merge(logits(0), logits(1))
    with pytest.raises(LatentError, match="shapes"):
        SplitOutputs([1]).merge(logits(0), logits(1, count=5))
