"""`ByProbe`: rows that a fitted classifier takes for old ones are aligned."""

from __future__ import annotations

import math

import pytest
import torch
from tests.aligning import Z

from elign import ByProbe, LatentError, NotFittedError, OptionError


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
