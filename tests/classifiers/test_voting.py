"""A voting's weights and offsets are the best there are, its exemplars never score themselves, and it is one file."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor

from elign import (
    Aligned,
    HeadLogits,
    LatentClassifier,
    LatentError,
    MeanShift,
    NearestMean,
    NotFittedError,
    OptionError,
    Voting,
)

CLASSES, KNOWN = 6, 4


@pytest.fixture
def world():
    """Latents of six classes that overlap, and logits of a head that favours the last two."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % CLASSES
    z = 2 * torch.eye(CLASSES, 8)[labels] + torch.randn(120, 8, generator=generator)
    logits = z[:, :CLASSES] + 1.5 * (torch.arange(CLASSES) >= KNOWN)
    return z, labels, logits


def fitted(world, parts, logits=None, **options):
    z, labels, own = world
    options = {"task_boundaries": KNOWN, **options}
    return Voting(parts, **options).fit(z=z, labels=labels, logits=own if logits is None else logits)


class Noise(LatentClassifier):
    """Scores that have nothing to do with the class."""

    learns = False

    def scores(self, z, logits=None):
        return torch.sin(1000 * z[..., :CLASSES])


def accuracy(scores, labels):
    """Mean over classes of the share that is right, in plain Python."""
    right = (scores.argmax(dim=1) == labels).tolist()
    shares = [
        [r for r, label in zip(right, labels.tolist(), strict=True) if label == c] for c in range(int(labels.max()) + 1)
    ]
    return sum(sum(share) / len(share) for share in shares) / len(shares)


def standard(scores):
    return (scores - scores.mean(dim=1, keepdim=True)) / scores.std(dim=1, correction=0, keepdim=True)


def test_scores_are_the_weighted_sum_of_standard_scores_less_the_offset(world):
    z, labels, logits = world
    means = NearestMean(normalize=False).fit(z=z, labels=labels)
    voting = fitted(world, [HeadLogits(), means])
    (a, b), offset = voting.weights.tolist(), float(voting.offsets)
    expected = a * standard(logits) + b * standard(means(z)) - offset * (torch.arange(CLASSES) >= KNOWN)
    torch.testing.assert_close(voting(z, logits=logits), expected, atol=1e-5, rtol=1e-5)
    assert voting(z.reshape(4, 30, 8), logits=logits.reshape(4, 30, CLASSES)).shape == (4, 30, CLASSES)


def test_no_other_voting_is_better_on_the_data_it_is_chosen_on(world):
    z, labels, logits = world
    means = NearestMean().fit(z=z, labels=labels)
    voting = fitted(world, [HeadLogits(), means, Noise()], steps=4, standard_errors=0)
    assert float(voting.weights.sum()) == pytest.approx(1)
    parts = [standard(s.double()) for s in (logits, means.leave_one_out_scores(z, labels), Noise()(z))]

    def reached(weights, offset):
        summed = sum(w * s for w, s in zip(weights, parts, strict=True))
        return accuracy(summed - offset * (torch.arange(CLASSES) >= KNOWN), labels)

    mine = reached(voting.weights.tolist(), float(voting.offsets))
    grid = [(a / 4, b / 4, (4 - a - b) / 4) for a in range(5) for b in range(5 - a)]
    assert mine == pytest.approx(max(reached(w, k / 50) for w in grid for k in range(-150, 151)), abs=1e-9)
    assert mine > reached((0, 0, 1), 0)


def test_caution_prefers_equal_weights(world):
    z, labels, _ = world
    parts = [HeadLogits(), NearestMean(normalize=False).fit(z=z, labels=labels), Noise()]
    assert fitted(world, parts, standard_errors=math.inf).weights.tolist() == pytest.approx([1 / 3] * 3)
    # Noise as a third of the sum is worse than the error of this estimate allows.
    assert fitted(world, parts, standard_errors=1).weights[2] < 1 / 3


def test_the_only_exemplar_of_a_class_has_nothing_to_be_compared_with():
    z, labels = torch.eye(3), torch.tensor([0, 1, 2])
    assert NearestMean().fit(z=z, labels=labels).leave_one_out_scores(z, labels).diagonal().isneginf().all()
    # It is chosen all the same: by the other parts.
    voting = Voting([HeadLogits(), NearestMean().fit(z=z, labels=labels)], task_boundaries=1, standard_errors=0).fit(
        z=z, labels=labels, logits=z
    )
    assert voting.weights.tolist() == [1, 0]


def test_what_cannot_be_is_said(world):
    z, labels, logits = world
    parts = [HeadLogits()]
    for wrong in (
        lambda: Voting([], task_boundaries=4),
        lambda: Voting(parts, task_boundaries=0),
        lambda: Voting(parts, task_boundaries=4, steps=0),
        lambda: Voting(parts, task_boundaries=4, standard_errors=-1),
        lambda: Voting(parts, task_boundaries=4, standard_errors=math.nan),
        lambda: Voting(parts * 30, task_boundaries=4, steps=30),
        lambda: Voting([MeanShift()], task_boundaries=4),
        lambda: Aligned(MeanShift().fit_latents(z, z + 1, direction="forward"), HeadLogits())(z, logits=logits),
    ):
        with pytest.raises(OptionError):
            wrong()
    with pytest.raises(NotFittedError, match="fit"):
        Voting(parts, task_boundaries=KNOWN)(z, logits=logits)
    with pytest.raises(NotFittedError, match="NearestMean is not fitted"):
        Voting([NearestMean()], task_boundaries=KNOWN).fit(z=z, labels=labels)
    old = labels < KNOWN
    with pytest.raises(LatentError, match="latents of both"):
        Voting(parts, task_boundaries=KNOWN).fit(z=z[old], labels=labels[old], logits=logits[old])
    with pytest.raises(LatentError, match="needs the head's logits"):
        Voting(parts, task_boundaries=KNOWN).fit(z=z, labels=labels)


@pytest.mark.parametrize("boundaries", [1, 2])
def test_the_only_exemplar_of_a_side_does_not_choose_the_offset(boundaries):
    """It has no score of its own class and cannot be won: an offset that gives its side up must not pay."""
    labels = torch.tensor([0] * 6 + [1] * 6 + [2]) if boundaries == 2 else torch.tensor([0] + [1] * 6 + [2] * 6)
    for seed in range(20):
        z = 2 * torch.eye(3, 4)[labels] + torch.randn(13, 4, generator=torch.Generator().manual_seed(seed))
        parts = [HeadLogits(), NearestMean().fit(z=z, labels=labels)]
        voting = Voting(parts, task_boundaries=boundaries).fit(z=z, labels=labels, logits=z[:, :3])
        assert abs(float(voting.offsets)) < 100


def test_modes_of_the_caller_and_gradients_of_logits_do_not_change_a_choice(world):
    z, labels, logits = world
    parts = [HeadLogits(), NearestMean().fit(z=z, labels=labels)]
    expected = fitted(world, parts, task_boundaries=[2, KNOWN])
    for mode in (torch.inference_mode(), torch.device("meta"), warnings.catch_warnings(action="error")):
        with mode:
            found = fitted(world, parts, logits.clone().requires_grad_(), task_boundaries=[2, KNOWN])
        assert torch.equal(found.weights, expected.weights)
        assert torch.equal(found.offsets, expected.offsets)
        found.load_state_dict(expected.state_dict())


def test_scores_of_other_rows_or_classes_and_what_is_no_number_are_refused(world):
    z, labels, logits = world
    old, parts = labels < KNOWN, [HeadLogits(), NearestMean().fit(z=z, labels=labels)]
    spoilt = [logits.clone(), logits.clone()]
    spoilt[0][3, 2], spoilt[1][3, 2] = torch.nan, torch.inf
    wide, narrow = torch.cat([logits, logits[:, :2]], dim=1), logits[:, :5]
    for estimators, given, word in (
        (parts, wide, "same latents and classes"),
        (parts, logits[1:], "same latents and classes"),
        (parts[:1], logits[1:], "same latents and classes"),
        (parts[:1], narrow, "label 5"),
        (parts, spoilt[0], "NaN"),
        (parts, spoilt[1], "NaN"),
    ):
        with pytest.raises(LatentError, match=word):
            fitted(world, estimators, given)
    with pytest.raises(LatentError, match="label 5"):
        NearestMean().fit(z=z[old], labels=labels[old]).leave_one_out_scores(z, labels)


def test_what_is_no_number_is_not_silently_a_class(world):
    z, labels, logits = world
    parts = [HeadLogits(), NearestMean().fit(z=z, labels=labels)]
    voting = fitted(world, parts, standard_errors=math.inf)
    broken = logits.clone()
    broken[0, 1], broken[1, 2] = math.nan, math.inf
    scores = voting(z, logits=broken)
    assert scores[0].isnan().all()
    # A head in half precision gives infinity for a large number: that is no reason to lose its row.
    assert scores[1:].isfinite().all()


def test_a_voting_of_something_unfitted_is_not_fitted(world, tmp_path):
    z, labels, _ = world
    voting = fitted(world, [HeadLogits(), NearestMean().fit(z=z, labels=labels)])
    voting.estimators[1] = NearestMean()
    assert not voting.fitted
    with pytest.raises(NotFittedError):
        voting.save(tmp_path / "voting")


def test_labels_of_a_small_type_are_compared_as_numbers(world):
    z, labels, logits = world
    voting = Voting([HeadLogits()], task_boundaries=256 + KNOWN)
    with pytest.raises(LatentError, match="labels below 260"):
        voting.fit(z=z, labels=labels.to(torch.uint8), logits=logits)


# --- Which classes a voting's parts are compared over, what its gradients are, and how sure its choice is.


SPARE = 4


class Given(LatentClassifier):
    """Scores that were made beforehand."""

    learns = False

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.given = given

    def scores(self, z, logits=None):
        return self.given


@pytest.mark.parametrize("filler", [0.0, -30.0, -1e9, -torch.inf])
def test_outputs_that_no_class_has_yet_change_nothing(world, filler):
    z, labels, logits = world
    wide = torch.cat([logits, torch.full((len(z), SPARE), filler)], dim=1)

    def scores(logits):
        means = NearestMean().fit(z=z, labels=labels, classes=logits.shape[1])
        return fitted(world, [HeadLogits(), means], logits)(z, logits=logits)

    torch.testing.assert_close(scores(wide)[:, :CLASSES], scores(logits))
    assert (scores(wide)[:, CLASSES:] < -1e5).all()


def test_gradients_are_numbers_beside_classes_without_a_mean_and_for_latents_that_say_nothing(world):
    z, labels, logits = world
    wide = torch.cat([logits, torch.zeros(len(z), SPARE)], dim=1)
    means = NearestMean(normalize=False).fit(z=z, labels=labels, classes=CLASSES + SPARE)
    voting = fitted(world, [HeadLogits(), means], wide)
    asked, said = torch.cat([z[:3], torch.zeros(1, 8)]).requires_grad_(), wide[:4].clone()
    said[3] = 1.0
    said.requires_grad_()
    voting(asked, logits=said)[:, :CLASSES].square().sum().backward()
    assert asked.grad.isfinite().all()
    assert asked.grad[:3].any()
    assert said.grad.isfinite().all()


def test_a_part_without_a_vote_has_no_say_in_which_classes_there_are(world):
    _, labels, logits = world
    # A part that scores two classes alone, and these wrongly, gets no weight.
    few = torch.full_like(logits, -torch.inf)
    few[:, :2] = torch.stack([(labels == 1).float(), (labels == 0).float()], dim=1)
    voting = fitted(world, [HeadLogits(), Given(few)], standard_errors=0)
    alone = fitted(world, [HeadLogits()])
    assert voting.weights.tolist() == [1, 0]
    assert torch.equal(voting.offsets, alone.offsets)


def test_caution_knows_that_few_latents_of_a_class_tell_little():
    """Four latents of the old class: one more that is wrong is no reason for uneven weights, 800 others or not."""
    labels = torch.tensor([0] * 4 + [1] * 400 + [2] * 400)
    good = torch.eye(3)[labels]
    # Half of the new ones are hardly told from the old class: an offset for them would cost more than it wins.
    near = torch.arange(len(labels)).ge(4) & (torch.arange(len(labels)) % 2 == 0)
    good[near] = 0.55 * good[near] + 0.45 * torch.eye(3)[0]
    bad = good.clone()
    bad[:2] = torch.eye(3)[1]
    good[0], good[1] = torch.eye(3)[1], torch.tensor([0.6, 0.4, 0.0])
    z = torch.zeros(len(labels), 2)
    votings = [
        Voting([Given(good), Given(bad)], task_boundaries=1, standard_errors=c).fit(z=z, labels=labels) for c in (0, 2)
    ]
    assert votings[0].weights[0] > votings[0].weights[1]
    assert votings[1].weights.tolist() == [0.5, 0.5]
