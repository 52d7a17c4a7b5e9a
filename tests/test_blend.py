"""A blend's weights and offsets are the best there are, its exemplars never score themselves, and it is one file."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import elign
from elign import (
    Aligned,
    Blend,
    FileFormatError,
    HeadScores,
    LatentError,
    MeanShift,
    NearestMean,
    NotFittedError,
    OptionError,
    Prototypes,
    Readout,
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


class Noise(Readout):
    """Scores that have nothing to do with the class."""

    learns = False

    def forward(self, z, *, logits=None):
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
    prototypes = Prototypes().add(z, labels)
    blend = Blend([HeadScores(), prototypes], known=KNOWN).choose(z, labels, logits=logits)
    (a, b), offset = blend.weights.tolist(), float(blend.offsets)
    expected = a * standard(logits) + b * standard(prototypes(z)) - offset * (torch.arange(CLASSES) >= KNOWN)
    torch.testing.assert_close(blend(z, logits=logits), expected, atol=1e-5, rtol=1e-5)
    assert blend(z.reshape(4, 30, 8), logits=logits.reshape(4, 30, CLASSES)).shape == (4, 30, CLASSES)


def test_no_other_blend_is_better_on_the_data_it_is_chosen_on(world):
    z, labels, logits = world
    means = NearestMean().add(z, labels)
    blend = Blend([HeadScores(), means, Noise()], known=KNOWN, steps=4, caution=0).choose(z, labels, logits=logits)
    assert float(blend.weights.sum()) == pytest.approx(1)
    parts = [standard(s.double()) for s in (logits, means.left_out(z, labels), Noise()(z))]

    def reached(weights, offset):
        summed = sum(w * s for w, s in zip(weights, parts, strict=True))
        return accuracy(summed - offset * (torch.arange(CLASSES) >= KNOWN), labels)

    mine = reached(blend.weights.tolist(), float(blend.offsets))
    grid = [(a / 4, b / 4, (4 - a - b) / 4) for a in range(5) for b in range(5 - a)]
    assert mine == pytest.approx(max(reached(w, k / 50) for w in grid for k in range(-150, 151)), abs=1e-9)
    assert mine > reached((0, 0, 1), 0)


def test_caution_prefers_equal_weights(world):
    z, labels, logits = world
    parts = [HeadScores(), Prototypes().add(z, labels), Noise()]
    cautious = Blend(parts, known=KNOWN, caution=math.inf).choose(z, labels, logits=logits)
    assert cautious.weights.tolist() == pytest.approx([1 / 3] * 3)
    easy = Blend([HeadScores(), HeadScores()], known=1, caution=math.inf).choose(
        torch.eye(2), torch.arange(2), logits=torch.eye(2)
    )
    assert easy.weights.tolist() == [0.5, 0.5]
    # Noise as a third of the sum is worse than the error of this estimate allows.
    assert Blend(parts, known=KNOWN, caution=1).choose(z, labels, logits=logits).weights[2] < 1 / 3


def test_a_head_that_says_nothing_gets_no_weight(world):
    z, labels, _ = world
    blend = Blend([HeadScores(), Prototypes().add(z, labels)], known=KNOWN, caution=0)
    blend.choose(z, labels, logits=Noise()(z))
    assert blend.weights[0] <= 0.25


def test_the_only_exemplar_of_a_class_has_nothing_to_be_compared_with():
    z, labels = torch.eye(3), torch.tensor([0, 1, 2])
    assert NearestMean().add(z, labels).left_out(z, labels).diagonal().isneginf().all()
    # It is chosen all the same: by the other parts.
    blend = Blend([HeadScores(), NearestMean().add(z, labels)], known=1, caution=0).choose(z, labels, logits=z)
    assert blend.weights.tolist() == [1, 0]


@pytest.fixture
def blend(world):
    z, labels, logits = world
    aligner = elign.EnergyAligner(iterations=5, steps=3, hidden=(4,)).fit_latents(z + 1, z)
    aligned = NearestMean().add(aligner.align(z), labels)
    parts = [HeadScores(), NearestMean().add(z, labels), Aligned(aligner, aligned)]
    return Blend(parts, known=KNOWN, caution=math.inf).choose(z, labels, logits=logits)


def test_one_file_holds_all_of_it(blend, world, tmp_path):
    z, _, logits = world
    path = blend.save(tmp_path / "blend.safetensors")
    for loaded in (Blend.load(path), Readout.load(path), copy.deepcopy(blend)):
        assert torch.equal(loaded(z, logits=logits), blend(z, logits=logits))
        assert loaded.config() == blend.config()
    with pytest.raises(FileFormatError, match="holds a Blend"):
        Prototypes.load(path)


def test_it_takes_the_place_of_a_head(blend):
    model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, CLASSES)).eval()
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(3))
    z = model[0](x)
    with elign.attach(model, "1", blend):
        torch.testing.assert_close(model(x), blend(z, logits=model[1].forward(z)))


def test_a_choice_without_any_exemplar(world):
    z, labels, logits = world
    new = labels >= KNOWN
    prototypes = Prototypes().add(z, labels)
    made, classes = prototypes.stand_ins(z[new], labels[new])
    everything, all_labels = torch.cat([made, z[new]]), torch.cat([classes, labels[new]])
    biased = torch.cat([made, z[new]])[:, :CLASSES] + 1.5 * (torch.arange(CLASSES) >= KNOWN)
    blend = Blend([HeadScores(), prototypes], known=KNOWN).choose(everything, all_labels, logits=biased)
    assert accuracy(blend(z, logits=logits), labels) > accuracy(logits, labels)


def test_what_cannot_be_is_said(world):
    z, labels, logits = world
    parts = [HeadScores()]
    for wrong in (
        lambda: Blend([], known=4),
        lambda: Blend(parts, known=0),
        lambda: Blend(parts, known=4, steps=0),
        lambda: Blend(parts, known=4, caution=-1),
        lambda: Blend(parts, known=4, caution=math.nan),
        lambda: Blend(parts * 30, known=4, steps=30),
        lambda: Blend([MeanShift()], known=4),
        lambda: Blend([{"class": "MeanShift", "config": {}}], known=4),
        lambda: Blend([{"class": "Nothing"}], known=4),
        lambda: Blend([{"class": []}], known=4),
        lambda: Blend([{"class": "HeadScores", "config": {"loud": True}}], known=4),
        lambda: Aligned(MeanShift().fit_latents(z, z + 1, direction="forward"), HeadScores())(z, logits=logits),
        lambda: Prototypes().add(z, labels).stand_ins(z, labels, per_class=0),
    ):
        with pytest.raises(OptionError):
            wrong()
    with pytest.raises(NotFittedError, match="choose"):
        Blend(parts, known=KNOWN)(z, logits=logits)
    with pytest.raises(NotFittedError, match="add"):
        Blend([Prototypes()], known=KNOWN).choose(z, labels)
    with pytest.raises(LatentError, match="latents of both"):
        Blend(parts, known=KNOWN).choose(z[labels < KNOWN], labels[labels < KNOWN], logits=logits[labels < KNOWN])
    with pytest.raises(LatentError, match="needs the head's logits"):
        Blend(parts, known=KNOWN).choose(z, labels)


@pytest.mark.parametrize("known", [1, 2])
def test_the_only_exemplar_of_a_side_does_not_choose_the_offset(known):
    """It has no score of its own class and cannot be won: an offset that gives its side up must not pay."""
    labels = torch.tensor([0] * 6 + [1] * 6 + [2]) if known == 2 else torch.tensor([0] + [1] * 6 + [2] * 6)
    for seed in range(20):
        z = 2 * torch.eye(3, 4)[labels] + torch.randn(13, 4, generator=torch.Generator().manual_seed(seed))
        parts = [HeadScores(), NearestMean().add(z, labels)]
        blend = Blend(parts, known=known).choose(z, labels, logits=z[:, :3])
        assert abs(float(blend.offsets)) < 100


def test_a_part_may_be_used_twice(world, tmp_path):
    z, labels, logits = world
    means, shift = NearestMean().add(z, labels), MeanShift().fit_latents(z + 1, z)
    blend = Blend(
        [HeadScores(), means, Aligned(shift, means), Aligned(shift, HeadScores())], known=KNOWN, caution=math.inf
    )
    blend.choose(z, labels, logits=logits)
    loaded = Blend.load(blend.save(tmp_path / "blend"))
    assert torch.equal(loaded(z, logits=logits), blend(z, logits=logits))


def test_a_choice_is_made_under_inference_mode_and_with_logits_that_have_gradients(world):
    z, labels, logits = world
    parts = [HeadScores(), NearestMean().add(z, labels)]
    expected = Blend(parts, known=KNOWN).choose(z, labels, logits=logits)
    with torch.inference_mode():
        made = Blend(parts, known=KNOWN).choose(z, labels, logits=logits)
    made.load_state_dict(expected.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = Blend(parts, known=KNOWN).choose(z, labels, logits=logits.clone().requires_grad_())
    assert torch.equal(other.weights, expected.weights)


def test_parts_must_score_the_same_classes(world):
    z, labels, logits = world
    old = labels < KNOWN
    wide = torch.cat([logits, logits[:, :2]], dim=1)
    with pytest.raises(LatentError, match=r"\[6, 8\] classes"):
        Blend([HeadScores(), NearestMean().add(z, labels)], known=KNOWN).choose(z, labels, logits=wide)
    with pytest.raises(LatentError, match="label 5"):
        Blend([HeadScores()], known=KNOWN).choose(z, labels, logits=logits[:, :5])
    with pytest.raises(LatentError, match="label 5"):
        NearestMean().add(z[old], labels[old]).left_out(z, labels)


def test_what_is_no_number_is_not_silently_a_class(blend, world):
    z, _, logits = world
    broken = logits.clone()
    broken[0, 1], broken[1, 2] = math.nan, math.inf
    scores = blend(z, logits=broken)
    assert scores[:2].isnan().all()
    assert scores[2:].isfinite().all()


def test_a_blend_of_something_unfitted_is_not_fitted(blend, tmp_path):
    blend.parts[1] = NearestMean()
    assert not blend.fitted
    with pytest.raises(NotFittedError):
        blend.save(tmp_path / "blend")


def test_the_default_device_does_not_matter(world):
    z, labels, logits = world
    parts = [HeadScores(), Prototypes().add(z, labels)]
    expected = Blend(parts, known=[2, KNOWN]).choose(z, labels, logits=logits)
    with torch.device("meta"):
        found = Blend(parts, known=[2, KNOWN]).choose(z, labels, logits=logits)
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.offsets, expected.offsets)


@pytest.mark.parametrize("known", [np.int64(4), torch.tensor(4), (np.int32(2), 4), np.array([2, 4]), torch.tensor([4])])
def test_numbers_of_numpy_and_torch_count_classes(known, tmp_path, world):
    z, labels, logits = world
    blend = Blend([HeadScores()], known=known, steps=np.int64(2)).choose(z, labels, logits=logits)
    assert blend.ends[-1] == KNOWN
    assert Readout.load(blend.save(tmp_path / "blend")).config() == blend.config()


def test_labels_of_a_small_type_are_compared_as_numbers(world):
    z, labels, logits = world
    blend = Blend([HeadScores()], known=256 + KNOWN)
    with pytest.raises(LatentError, match="labels below 260"):
        blend.choose(z, labels.to(torch.uint8), logits=logits)
