"""Checks of latents from outside."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign import LatentError, OptionError
from elign.utils.tensors import (
    check_finite,
    check_labels,
    check_number,
    check_pairs,
    check_seed,
    check_whole,
    whole_number,
)


@given(
    rows=st.integers(1, 6),
    dim=st.integers(1, 6),
    bad=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from([math.nan, math.inf, -math.inf]))),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_finds_every_bad_number_and_only_those(rows, dim, bad, dtype):
    z = torch.full((rows, dim), 100.0, dtype=dtype)
    for row, column, value in bad:
        z[row % rows, column % dim] = value
    count = len({row % rows for row, _, _ in bad})
    if count:
        with pytest.raises(LatentError, match=f"latents hold NaN or infinite numbers in {count} rows"):
            check_finite(z, "latents")
    else:
        check_finite(z, "latents")


@pytest.mark.parametrize(("value", "dtype"), [(3e38, torch.float32), (1e300, torch.float64), (6e4, torch.float16)])
def test_large_numbers_whose_sum_overflows_are_no_error(value, dtype):
    check_finite(torch.full((1000, 8), value, dtype=dtype), "latents")


def test_one_latent_and_none_at_all_can_be_checked():
    check_finite(torch.zeros(5), "latents")
    check_finite(torch.zeros(0, 5), "latents")
    for bad in (torch.tensor([1.0, math.nan]), torch.tensor(math.nan)):
        with pytest.raises(LatentError, match="1 rows"):
            check_finite(bad, "latents")


def test_infinities_of_both_signs_do_not_cancel():
    with pytest.raises(LatentError):
        check_finite(torch.tensor([[math.inf, -math.inf]]), "latents")


@pytest.mark.parametrize(
    ("prev", "cur", "expected"),
    [
        (torch.float16, torch.float16, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float64, torch.float32, torch.float32),
        (torch.float32, torch.float64, torch.float64),
    ],
)
def test_pairs_come_in_one_precision(prev, cur, expected):
    z_prev, z_cur = check_pairs(torch.ones(2, 3, dtype=prev), torch.zeros(2, 3, dtype=cur))
    assert z_prev.dtype == z_cur.dtype == expected
    assert z_prev.sum() == 6
    assert z_cur.sum() == 0


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "1", None])
def test_seeds_that_they_do_not_take(seed):
    with pytest.raises(OptionError, match="seed"):
        check_seed(seed)


@pytest.mark.parametrize("number", [3, np.int64(3), np.uint8(3), torch.tensor(3), torch.tensor(3, dtype=torch.int8)])
def test_whole_numbers_of_any_kind_become_plain(number):
    for found in (whole_number(number), check_whole(number, "steps", least=3), check_seed(number)):
        assert type(found) is int
        assert found == 3


@pytest.mark.parametrize(
    ("number", "options"),
    [*[(bad, {}) for bad in (-1, math.nan, math.inf, "1", None, 10**400)], (0.0, {"positive": True}), (2, {"most": 1})],
)
def test_numbers_out_of_range_are_named(number, options):
    with pytest.raises(OptionError, match="noise must be a finite number"):
        check_number(number, "noise", **options)
    assert check_number(np.float32(0.5), "noise", **options) == 0.5


@pytest.mark.parametrize("number", [True, np.bool_(True), torch.tensor(True), 3.0, np.float32(3), "3", None])
def test_what_is_no_whole_number(number):
    with pytest.raises(TypeError):
        whole_number(number)
    with pytest.raises(OptionError, match="steps must be a whole number >= 1"):
        check_whole(number, "steps", least=1)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (torch.tensor([0.0, 1.0]), "2 whole numbers, got torch.float32"),
        (torch.tensor([True, False]), "torch.bool"),
        (torch.tensor([0]), "2 whole numbers"),
        (torch.tensor([0, -1]), "there is a -1"),
    ],
)
def test_what_is_no_label_is_named(labels, says):
    with pytest.raises(LatentError, match=says):
        check_labels(labels, 2)
