"""`ByProbe`: rows that a fitted classifier takes for old ones are aligned."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.aligning import Z

from elign import ByProbe, LatentError, NotFittedError, OptionError
from elign.gates.by_probe import fit_logistic


@pytest.mark.parametrize(("old", "new"), [(1, 1), (1, 300), (300, 1), (5, 1000)])
def test_a_probe_learns_from_few_and_from_unbalanced_latents(old, new):
    generator = torch.Generator().manual_seed(0)
    z_old, z_new = torch.randn(old, 6, generator=generator) + 4, torch.randn(new, 6, generator=generator) - 4
    gate = ByProbe().fit(z_old, z_new)
    assert gate(z_old).all()
    assert not gate(z_new).any()
    soft = ByProbe(soft=True).fit(z_old, z_new)
    assert torch.equal(soft(z_new) > 0.5, gate(z_new))


def test_a_probe_says_yes_from_one_half_on(pairs):
    z = torch.cat(pairs)
    hard, soft = (ByProbe(soft=soft).fit(pairs[0] + 1.5, pairs[1])(z) for soft in (False, True))
    assert ((soft > 0.4) & (soft < 0.6)).sum() > 5
    assert torch.equal(hard, soft > 0.5)


def test_a_probe_of_latents_all_alike_has_no_opinion():
    soft = ByProbe(soft=True).fit(torch.ones(3, 6), torch.ones(9, 6))
    torch.testing.assert_close(soft(torch.randn(4, 6)), torch.full((4,), 0.5), atol=1e-4, rtol=0)


def test_a_probe_learns_under_autocast_and_inference_mode_as_outside(pairs):
    expected = ByProbe().fit(pairs[0], pairs[1])
    for mode in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with mode:
            gate = ByProbe().fit(pairs[0], pairs[1])
        assert torch.equal(gate.weight, expected.weight)


def test_a_probe_may_be_fitted_again_with_another_dimension(pairs):
    gate = ByProbe().fit(torch.randn(5, 3), torch.randn(5, 3)).fit(*pairs)
    assert gate(pairs[0]).shape == (200,)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (torch.zeros(0, 6), torch.zeros(3, 6)),
        (torch.zeros(3, 6), torch.zeros(0, 6)),
        (torch.zeros(3, 6), torch.zeros(3, 5)),
        (torch.zeros(6), torch.zeros(6)),
        (torch.full((3, 6), math.inf), torch.zeros(3, 6)),
        (torch.zeros(3, 6, dtype=torch.int32), torch.zeros(3, 6)),
    ],
)
def test_a_probe_refuses_latents_that_cannot_be_used(old, new):
    gate = ByProbe()
    with pytest.raises(LatentError):
        gate.fit(old, new)
    assert not gate.fitted


def test_a_probe_must_be_fitted_and_meet_its_dimension(pairs):
    with pytest.raises(NotFittedError):
        ByProbe()(Z)
    with pytest.raises(LatentError, match="dimension 6"):
        ByProbe().fit(*pairs)(torch.zeros(3, 5))


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.nan, math.inf])
def test_a_penalty_out_of_range_is_an_error(penalty):
    with pytest.raises(OptionError, match="penalty"):
        ByProbe(penalty=penalty)


# --- The logistic probe: it is at the minimum of what it says it minimises, on any data.


def gradient_at(z_old, z_new, weight, bias, penalty):
    """Of the documented objective, by automatic differentiation, in standardised coordinates."""
    z = torch.cat([z_old, z_new]).double()
    center, scale = z.mean(dim=0), z.std(dim=0, correction=0)
    v = (weight.double() * scale).requires_grad_()
    c = (bias.double() + (weight.double() * center).sum()).requires_grad_()
    old, new = (((g.double() - center) / scale) @ v + c for g in (z_old, z_new))
    soft = torch.nn.functional.softplus
    loss = 0.5 * soft(-old).mean() + 0.5 * soft(new).mean() + penalty / 2 * v.square().sum()
    return torch.autograd.grad(loss, [v, c])


@given(
    seed=st.integers(0, 10_000),
    old=st.integers(1, 30),
    new=st.integers(1, 200),
    dim=st.integers(1, 6),
    gap=st.sampled_from([0.0, 1.0, 30.0]),
    penalty=st.sampled_from([1e-4, 1e-2, 1.0]),
)
def test_it_is_at_the_minimum_for_small_unbalanced_and_separable_data(seed, old, new, dim, gap, penalty):
    generator = torch.Generator().manual_seed(seed)
    z_old = torch.randn(old, dim, generator=generator) + gap
    z_new = torch.randn(new, dim, generator=generator) * 2
    weight, bias = fit_logistic(z_old, z_new, penalty=penalty)
    assert weight.isfinite().all()
    assert bias.isfinite()
    for slope in gradient_at(z_old, z_new, weight, bias, penalty):
        assert slope.abs().max() < 1e-4


def test_groups_weigh_the_same_whatever_their_sizes():
    generator = torch.Generator().manual_seed(0)
    z_old, z_new = torch.randn(10, 3, generator=generator) + 1, torch.randn(40, 3, generator=generator)
    weight, bias = fit_logistic(z_old, z_new, penalty=0.1)
    # Ten copies of one group change the centre and scale only a little, but would change an unweighted fit a lot.
    score = lambda w, b: torch.cat([z_old, z_new]) @ w + b  # noqa: E731
    again = fit_logistic(z_old.repeat(10, 1), z_new, penalty=0.1)
    assert (score(weight, bias) - score(*again)).abs().mean() < 0.3


@pytest.mark.parametrize("value", [0.0, 0.1, 1000.1, 1e6 / 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_dimension_gets_no_weight(value, dtype):
    generator = torch.Generator().manual_seed(0)
    z_old = torch.randn(7, 3, generator=generator, dtype=dtype) + 1
    z_new = torch.randn(52, 3, generator=generator, dtype=dtype)
    z_old[:, 1] = z_new[:, 1] = value
    weight, bias = fit_logistic(z_old, z_new, penalty=0.01)
    assert weight[1] == 0
    assert weight[[0, 2]].abs().min() > 0
    assert bias.isfinite()


def test_data_that_are_all_alike_give_no_opinion():
    weight, bias = fit_logistic(torch.ones(3, 4), torch.ones(9, 4), penalty=0.01)
    assert weight.abs().max() == 0
    assert bias.abs() < 1e-6


def test_a_little_penalty_on_separable_data_with_more_dimensions_than_rows_stays_finite():
    z_old, z_new = torch.randn(3, 20) + 10, torch.randn(4, 20)
    weight, bias = fit_logistic(z_old, z_new, penalty=1e-6)
    assert (z_old @ weight + bias > 0).all()
    assert (z_new @ weight + bias < 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_result_is_single_precision_not_rounded_to_that_of_the_latents(dtype):
    z_old, z_new = (torch.randn(20, 3) + 1).to(dtype), torch.randn(30, 3).to(dtype)
    weight, bias = fit_logistic(z_old, z_new, penalty=0.1)
    expected = fit_logistic(z_old.double(), z_new.double(), penalty=0.1)
    assert weight.dtype == bias.dtype == torch.float32
    torch.testing.assert_close((weight, bias), expected)
