"""Mixup in `fit`: batches are blended with themselves, by random numbers of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.spies import Recorder, Spy, batches_of

import elign
from elign import LatentError, MeanShift, OptionError


def test_mixup_blends_each_batch_with_its_permutation_by_one_coefficient():
    """Rows of powers of two: which two rows were blended, and how, can be read off the blend."""
    x = torch.eye(8)
    recorder = Recorder().fit(lambda x: x, lambda x: x, [x, x], mixup=1.0)
    assert torch.equal(*recorder.seen)
    for blend in recorder.seen[0].split(8):
        torch.testing.assert_close(blend.sum(dim=1), torch.ones(8))
        torch.testing.assert_close(blend.sum(dim=0), torch.ones(8))
        own = blend.diagonal()
        moved = own[own < 1 - 1e-6]
        assert len(moved) > 2
        torch.testing.assert_close(moved, moved[:1].expand_as(moved))


def test_mixup_has_the_beta_distribution_of_its_alpha():
    shares = []
    for alpha in (0.1, 10.0):
        x = torch.tensor([[0.0], [1.0]])
        z = Recorder().fit(lambda x: x, lambda x: x, [x] * 2000, mixup=alpha).seen[0].reshape(-1, 2)
        shares.append(z[:, 0].double())
    assert [share.mean().item() for share in shares] == pytest.approx([0.25, 0.25], abs=0.3)
    between = [((share > 0.2) & (share < 0.8)).double().mean().item() for share in shares]
    assert between[0] < 0.1
    assert between[1] > 0.45


def test_mixup_depends_on_the_seed_alone():
    def seen(seed):
        aligner = elign.RandomShift(seed=seed)
        learned = []
        aligner._learn = lambda p, c, progress: (learned.append(p), elign.FitReport(rows=len(p), dim=2))[1]
        aligner.fit(lambda x: x, lambda x: x, batches_of(), mixup=0.5)
        return learned[0]

    assert torch.equal(seen(1), seen(1))
    assert not torch.equal(seen(1), seen(2))


def test_mixup_calls_the_models_no_more_often():
    spy = Spy()
    MeanShift().fit(spy, Spy(), batches_of(), mixup=0.5)
    assert spy.calls == 3


@pytest.mark.parametrize("x", [torch.zeros(4, 2, dtype=torch.uint8), [torch.zeros(4, 2)], "text"])
def test_mixup_of_what_cannot_be_blended_is_an_error(x):
    with pytest.raises(LatentError, match="mixup"):
        MeanShift().fit(Spy(), Spy(), [x], inputs=lambda batch: batch, mixup=0.5)


@pytest.mark.parametrize("mixup", [0.0, -1.0, math.nan, math.inf])
def test_mixup_out_of_range_is_an_error(mixup):
    with pytest.raises(OptionError, match="mixup"):
        MeanShift().fit(Spy(), Spy(), batches_of(), mixup=mixup)


def test_numpy_random_numbers_are_untouched_by_mixup():
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    MeanShift().fit(Spy(), Spy(), batches_of(), mixup=0.5)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
