"""Telling unknown objects apart, on a detector whose logits are what the test says."""

from __future__ import annotations

import math

import pytest
import torch

from elign.lab.detection.detector import make_detector
from elign.lab.detection.unknown_objects import UnknownByEnergy, free_energy, unknown_metadata
from elign.utils.errors import LatentError

CLASSES = 2


@pytest.fixture
def detector():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = make_detector("tiny-c4", min_size=64, max_size=96, unknown=True)
        made.grow(CLASSES)
    return made


def batches(*, labels=(1, 2, 3, 4), seed=0):
    """Images with eight squares: bright ones for known classes and dark ones for those to come."""
    generator = torch.Generator().manual_seed(seed)
    kinds = [labels[number % len(labels)] for number in range(8)]
    boxes = [(8 * number, 32 * (number // 4), 8 * number + 8, 32 * (number // 4) + 16) for number in range(8)]
    for _ in range(2):
        image = torch.full((3, 64, 64), 0.5) + 0.01 * torch.rand(3, 64, 64, generator=generator)
        for number, (x1, y1, x2, y2) in enumerate(boxes):
            image[:, y1:y2, x1:x2] = (kinds[number] <= CLASSES) + 0.05 * number
        yield [image], [{"boxes": torch.tensor(boxes).float(), "labels": torch.tensor(kinds)}]


@torch.no_grad()
def teach(detector, *, right):
    """A head whose known classes are sure of bright squares (or, if not `right`, of dark ones)."""
    latents = torch.cat([_latents(detector, batch) for batch in batches(seed=1)])
    labels = torch.cat([target["labels"] for _, targets in batches(seed=1) for target in targets])
    bright, dark = (latents[mask].mean(dim=0) for mask in (labels <= CLASSES, labels > CLASSES))
    # The first class has the logit 3 in the middle of one kind and -3 in the middle of the other.
    direction = (6 if right else -6) * (bright - dark) / (bright - dark).square().sum()
    score = detector.predictor.score
    score.weight.zero_()
    score.bias.zero_()
    score.weight[1], score.bias[1] = direction, -direction @ (bright + dark) / 2
    score.weight[-1], score.bias[-1] = -score.weight[1], -score.bias[1]


def _latents(detector, batch):
    images, targets = batch
    seen, placed = detector.eval().transform(images, targets)
    return detector.roi_outputs(detector.features(seen.tensors), [placed[0]["boxes"]], seen.image_sizes).latents


@pytest.mark.parametrize("right", [True, False])
def test_a_head_that_is_sure_of_its_own_classes_tells_others_apart(detector, right):
    teach(detector, right=right)
    metadata = unknown_metadata(detector, batches(seed=2), batches(seed=3))["unknown"]
    assert metadata["objects"] == {"known": 8, "unknown": 8}
    areas = metadata["area_under_roc"]
    assert list(areas) == ["energy", "free-energy", "doubt", "output"]
    # The rule of ORE was shown which energies belong to what; the others take certainty for knowledge.
    assert areas.pop("energy") > 0.9
    assert min(areas.values()) > 0.9 if right else max(areas.values()) < 0.1


@pytest.mark.parametrize("labels", [(1, 2), (3, 4)])
def test_nothing_is_said_where_one_kind_is_missing(detector, labels):
    assert unknown_metadata(detector, batches(), batches(labels=labels)) == {}
    assert unknown_metadata(detector, batches(labels=labels), batches()) == {}


def test_free_energy_by_hand():
    logits = torch.tensor([[math.log(2.0), math.log(6.0)], [0.0, 0.0]])
    assert free_energy(logits).tolist() == pytest.approx([-math.log(8), -math.log(2)])


def logits_with(energies):
    """One class alone: the free energy is minus its logit."""
    return -energies.unsqueeze(1)


def test_distributions_are_found_again():
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(4000, generator=generator, dtype=torch.float64)
    energies = -12 + 5 * (-uniform.log()) ** (1 / 3.0)  # Weibull: shift -12, scale 5, shape 3
    fitted = UnknownByEnergy(logits_with(energies), logits_with(energies + 4))
    (shape,), at = fitted.known.args, fitted.known.kwds
    assert (at["loc"], at["scale"], shape) == pytest.approx((-12, 5, 3), rel=0.1)
    moved = fitted.unknown
    assert (moved.kwds["loc"], moved.kwds["scale"], *moved.args) == pytest.approx(
        (at["loc"] + 4, at["scale"], shape), rel=1e-3
    )
    # The probability is the share of the densities.
    x = torch.tensor([-5.0, -8.0])
    known, unknown = (torch.from_numpy(each.pdf(x.double().numpy())) for each in (fitted.known, fitted.unknown))
    torch.testing.assert_close(fitted(logits_with(x)).double(), unknown / (known + unknown), rtol=1e-5, atol=1e-7)


def test_low_energy_is_known_and_high_energy_unknown_also_outside_of_what_was_seen():
    generator = torch.Generator().manual_seed(1)
    known = torch.randn(200, generator=generator) - 10
    unknown = torch.randn(200, generator=generator) - 2
    by_energy = UnknownByEnergy(logits_with(known), logits_with(unknown))
    probability = by_energy(logits_with(torch.tensor([-40.0, -10.0, -2.0, 30.0])))
    assert probability[:2].tolist() == pytest.approx([0, 0], abs=0.01)
    assert probability[2].item() > 0.99
    assert probability.isfinite().all()


@pytest.mark.parametrize(
    ("known", "unknown", "kind"),
    [(torch.rand(9, 2), torch.zeros(4, 2), "unknown"), (torch.full((3, 2), torch.nan), torch.rand(4, 2), "known")],
)
def test_energies_that_do_not_differ_or_are_not_finite_are_refused(known, unknown, kind):
    with pytest.raises(LatentError, match=f"{kind} objects"):
        UnknownByEnergy(known, unknown)
