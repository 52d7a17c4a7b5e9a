"""What somebody may type after `elign run`, and what a run's file may hold as its settings: checked or refused."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import NAMED, answer, fuzz

from elign.lab.config import RunConfig, compose, describe
from elign.lab.config.schema import TREE
from elign.lab.runs.experiment import protocol_of

KEYS = ("learner", "protocol", "model", "preset", "seed", "out", "start_from", "data.path", "train.epochs")
KEYS += ("aligner.hidden", "train.milestones", "train.fast", "memory.budget", "learner.temperature", "data.order")
PIECES = (
    "${",
    "}",
    "[",
    "]",
    "{",
    ":",
    ",",
    "'",
    '"',
    "\\",
    "=",
    "oc.env:HOME",
    "1e999",
    "9" * 310,
    "-1",
    "null",
    "~x",
)
VALUES = st.text(max_size=12) | st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
SCALARS = st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=6)
JSON = st.recursive(
    SCALARS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=4), some, max_size=3),
    max_leaves=6,
)


@fuzz(50)
@given(settings=st.lists(st.tuples(st.sampled_from(KEYS) | st.text(max_size=9), VALUES), min_size=1, max_size=2))
def test_whatever_is_typed_is_a_configuration_or_refused_in_a_line(settings):
    found = answer(lambda: compose([f"{key}={value}" for key, value in settings]))
    assert found is None or isinstance(found, RunConfig)


@fuzz(150)
@given(data=st.data())
def test_whatever_a_file_holds_is_a_configuration_or_refused(data):
    values = copy.deepcopy(describe(compose()))
    group = data.draw(st.sampled_from(list(values)))
    if isinstance(values[group], dict) and data.draw(st.booleans()):
        values[group][data.draw(st.sampled_from([*values[group], "x"]))] = data.draw(JSON)
    else:
        values[group] = data.draw(JSON)
    found = answer(lambda: TREE.from_dict(values))
    assert found is None or isinstance(found, RunConfig)


@pytest.mark.parametrize(
    "typed",
    [
        f"train.epochs={'9' * 400}",
        f"train.learning_rate={'9' * 400}",
        f"train.epochs={'9' * 5000}",
        "data.path=~no-such-user/x",
        "data.path=a\0b",
        f"aligner.hidden={'[' * 2000}",
        "train.epochs=${train.epochs}",
        "train.epochs=${oc.env:NO_SUCH_VARIABLE}",
        "aligner.hidden=${aligner}",
        f"protocol=half-{'9' * 5000}",
    ],
)
def test_absurd_values_are_refused_in_a_line(typed):
    with pytest.raises(NAMED) as caught:
        protocol_of(compose([typed]), 10)
    assert "\n" not in str(caught.value)
