"""`ByPrediction`: rows that the head takes for an old class are aligned."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.aligning import Z

import elign
from elign import ByPrediction, LatentError, OptionError

LOGITS = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 1.0, 0.5], [-1.0, -2.0, -3.0]])


@pytest.mark.parametrize(
    ("old_classes", "expected"),
    [
        (1, [True, False, False, True]),
        (2, [True, False, True, True]),
        (3, [True] * 4),
        ([2], [False, True, False, False]),
        ((0, 2), [True, True, False, True]),
        (torch.tensor([1]), [False, False, True, False]),
        (np.array([1]), [False, False, True, False]),
        (range(1), [True, False, False, True]),
    ],
    ids=str,
)
def test_rows_whose_top_class_is_old(old_classes, expected):
    gate = ByPrediction(old_classes)
    assert gate(Z, head=lambda z: LOGITS).tolist() == expected
    json.dumps(gate.config())
    assert ByPrediction(**gate.config())(Z, head=lambda z: LOGITS).tolist() == expected


def test_a_soft_prediction_is_the_probability_of_the_old_classes():
    torch.testing.assert_close(ByPrediction(2, soft=True)(Z, head=lambda z: LOGITS), LOGITS.softmax(1)[:, :2].sum(1))
    assert (ByPrediction(3, soft=True)(Z, head=lambda z: LOGITS.half()) <= 1).all()


def test_a_class_that_is_named_twice_counts_once():
    once, twice = (ByPrediction(old, soft=True)(Z, head=lambda z: LOGITS) for old in ([0, 1], [0, 1, 0]))
    assert torch.equal(once, twice)


@pytest.mark.parametrize("old_classes", [0, -1, [], [-1], [0.5], 1.5, None, "2"], ids=str)
def test_old_classes_out_of_range_is_an_error(old_classes):
    with pytest.raises(OptionError, match="old_classes"):
        ByPrediction(old_classes)


@pytest.mark.parametrize("old_classes", [4, [3], [0, 7]], ids=str)
def test_old_classes_beyond_the_heads_outputs_is_an_error(old_classes):
    with pytest.raises(OptionError, match="3 outputs"):
        ByPrediction(old_classes)(Z, head=lambda z: LOGITS)


def test_a_prediction_needs_a_head_with_a_row_per_latent():
    with pytest.raises(OptionError, match="head"):
        ByPrediction(2)(Z)
    with pytest.raises(LatentError, match="one row per latent"):
        ByPrediction(2)(Z, head=lambda z: LOGITS[:3])


def test_logits_may_be_taken_out_by_a_function_which_no_file_can_hold(tmp_path):
    gate = ByPrediction(2, logits=lambda output: output["deep"][1])
    assert gate(Z, head=lambda z: {"deep": (0, LOGITS)}).tolist() == [True, False, True, True]
    with pytest.raises(OptionError, match="logits"):
        gate.save(tmp_path / "x")


@pytest.mark.parametrize("old_classes", [np.int64(2), torch.tensor(2), 2])
def test_numbers_of_numpy_and_torch_count_classes(old_classes):
    assert elign.ByPrediction(old_classes=old_classes).old_classes == 2


def test_a_truth_value_is_no_number_of_classes():
    with pytest.raises(elign.OptionError, match="old_classes"):
        elign.ByPrediction(old_classes=True)


@pytest.mark.parametrize("output", [{"boxes": torch.zeros(2, 4), "scores": torch.zeros(2, 3)}, {}, (), []])
def test_output_without_clear_logits_asks_for_a_function(output):
    with pytest.raises(elign.OptionError, match="logits="):
        elign.ByPrediction(old_classes=1)(torch.zeros(2, 3), head=lambda z: output)
