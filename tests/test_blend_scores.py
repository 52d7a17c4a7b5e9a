"""Which classes a blend's parts are compared over, what its gradients are, and how sure its choice is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elign import Blend, HeadScores, LatentError, NearestMean, OptionError, Prototypes, Readout

CLASSES, KNOWN, SPARE = 6, 4, 4


@pytest.fixture
def world():
    """Latents of six classes that overlap, and logits of a head that favours the last two."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % CLASSES
    z = 2 * torch.eye(CLASSES, 8)[labels] + torch.randn(120, 8, generator=generator)
    return z, labels, z[:, :CLASSES] + 1.5 * (torch.arange(CLASSES) >= KNOWN)


class Given(Readout):
    """Scores that were made beforehand."""

    learns = False

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, z, *, logits=None):
        return self.scores


@pytest.mark.parametrize("filler", [0.0, -30.0, -1e9, -torch.inf])
def test_outputs_that_no_class_has_yet_change_nothing(world, filler):
    z, labels, logits = world
    wide = torch.cat([logits, torch.full((len(z), SPARE), filler)], dim=1)

    def scores(logits):
        means = NearestMean().add(z, labels, classes=logits.shape[1])
        return Blend([HeadScores(), means], known=KNOWN).choose(z, labels, logits=logits)(z, logits=logits)

    torch.testing.assert_close(scores(wide)[:, :CLASSES], scores(logits))
    assert (scores(wide)[:, CLASSES:] < -1e5).all()


def test_gradients_are_numbers_beside_classes_without_a_mean_and_for_latents_that_say_nothing(world):
    z, labels, logits = world
    wide = torch.cat([logits, torch.zeros(len(z), SPARE)], dim=1)
    means = Prototypes().add(z, labels, classes=CLASSES + SPARE)
    blend = Blend([HeadScores(), means], known=KNOWN).choose(z, labels, logits=wide)
    asked, said = torch.cat([z[:3], torch.zeros(1, 8)]).requires_grad_(), wide[:4].clone()
    said[3] = 1.0
    said.requires_grad_()
    blend(asked, logits=said)[:, :CLASSES].square().sum().backward()
    assert asked.grad.isfinite().all()
    assert asked.grad[:3].any()
    assert said.grad.isfinite().all()


def test_a_part_without_a_vote_has_no_say_in_which_classes_there_are(world):
    z, labels, logits = world
    # A part that scores two classes alone, and these wrongly, gets no weight.
    few = torch.full_like(logits, -torch.inf)
    few[:, :2] = torch.stack([(labels == 1).float(), (labels == 0).float()], dim=1)
    blend = Blend([HeadScores(), Given(few)], known=KNOWN, caution=0).choose(z, labels, logits=logits)
    alone = Blend([HeadScores()], known=KNOWN).choose(z, labels, logits=logits)
    assert blend.weights.tolist() == [1, 0]
    assert torch.equal(blend.offsets, alone.offsets)


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
    blends = [Blend([Given(good), Given(bad)], known=1, caution=c).choose(z, labels) for c in (0, 2)]
    assert blends[0].weights[0] > blends[0].weights[1]
    assert blends[1].weights.tolist() == [0.5, 0.5]


def test_logits_of_other_rows_or_without_numbers_are_named(world):
    z, labels, logits = world
    means = NearestMean().add(z, labels)
    for parts in ([HeadScores()], [HeadScores(), means]):
        with pytest.raises(LatentError, match=r"for 120 latents|of the same latents"):
            Blend(parts, known=KNOWN).choose(z, labels, logits=logits[1:])
    for wrong in (torch.nan, torch.inf):
        spoilt = logits.clone()
        spoilt[3, 2] = wrong
        with pytest.raises(LatentError, match="logits hold"):
            Blend([HeadScores(), means], known=KNOWN).choose(z, labels, logits=spoilt)


def test_latents_must_be_latents_also_where_the_head_alone_votes(world):
    z, labels, logits = world
    blend = Blend([HeadScores()], known=KNOWN).choose(z, labels, logits=logits)
    with pytest.raises(LatentError, match="floating"):
        blend(z.long(), logits=logits)


def test_numbers_of_classes_and_seeds_are_whole(world):
    z, labels, _ = world
    for wrong in (7.5, "7"):
        with pytest.raises(OptionError, match="classes"):
            Prototypes().add(z, labels, classes=wrong)
    with pytest.raises(OptionError, match="seed"):
        Prototypes().add(z, labels).stand_ins(z[:20], labels[:20], seed="a")
