import math

import pytest
import torch

from elign.lab.detection.learners.unknown import UnknownByEnergy, free_energy, label_unknown
from elign.utils.errors import LatentError, NotFittedError, OptionError


def test_the_background_with_the_highest_objectness_of_each_image_becomes_unknown():
    #                      first image          second image
    labels = torch.tensor([0, 1, 0, 0, 2, 0, 0])
    objectness = torch.tensor([0.2, 1.0, 0.7, 0.6, 1.0, 0.1, 0.3])
    changed = label_unknown(labels, objectness, [4, 3], unknown=4)
    assert changed.tolist() == [0, 1, 4, 0, 2, 0, 4]
    assert labels.tolist() == [0, 1, 0, 0, 2, 0, 0]  # what was given stays


def test_more_than_one_unknown_and_images_without_background():
    labels = torch.tensor([1, 2, 0, 0, 0, 0])
    objectness = torch.tensor([0.9, 0.9, 0.1, 0.2, 0.4, 0.3])
    assert label_unknown(labels, objectness, [2, 3, 1], unknown=3, top=2).tolist() == [1, 2, 0, 3, 3, 3]
    assert label_unknown(labels[:2], objectness[:2], [2], unknown=3).tolist() == [1, 2]


def test_free_energy_by_hand():
    logits = torch.tensor([[math.log(2.0), math.log(6.0)], [0.0, 0.0]])
    assert free_energy(logits).tolist() == pytest.approx([-math.log(8), -math.log(2)])
    # T = 2: -2 log(sqrt 2 + sqrt 6)
    assert free_energy(logits, 2.0)[0].item() == pytest.approx(-2 * math.log(math.sqrt(2) + math.sqrt(6)))


def logits_with(energies):
    """One class alone: the free energy is minus its logit."""
    return -energies.unsqueeze(1)


def test_distributions_are_found_again():
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(4000, generator=generator, dtype=torch.float64)
    energies = -12 + 5 * (-uniform.log()) ** (1 / 3.0)  # Weibull: shift -12, scale 5, shape 3
    fitted = UnknownByEnergy().fit(logits_with(energies), logits_with(energies + 4))
    shift, scale, shape = fitted.known.tolist()
    assert (shift, scale, shape) == pytest.approx((-12, 5, 3), rel=0.1)
    assert fitted.unknown.tolist() == pytest.approx([shift + 4, scale, shape], rel=1e-3)


def test_the_probability_is_the_share_of_the_densities():
    by_energy = UnknownByEnergy()
    # Shape 1 is an exponential distribution: densities exp(-x) and 0.5 exp(-x / 2), both from 0 on.
    by_energy.known.copy_(torch.tensor([0.0, 1.0, 1.0]))
    by_energy.unknown.copy_(torch.tensor([0.0, 2.0, 1.0]))
    x = 3.0
    known, unknown = math.exp(-x), 0.5 * math.exp(-x / 2)
    assert by_energy(logits_with(torch.tensor([x]))).item() == pytest.approx(unknown / (known + unknown), rel=1e-5)


def test_low_energy_is_known_and_high_energy_unknown_also_outside_of_what_was_seen():
    generator = torch.Generator().manual_seed(1)
    known = torch.randn(200, generator=generator) - 10
    unknown = torch.randn(200, generator=generator) - 2
    by_energy = UnknownByEnergy().fit(logits_with(known), logits_with(unknown))
    probability = by_energy(logits_with(torch.tensor([-40.0, -10.0, -2.0, 30.0])))
    assert probability[:2].tolist() == pytest.approx([0, 0], abs=0.01)
    assert probability[2].item() > 0.99
    assert probability.isfinite().all()
    again = UnknownByEnergy()
    again.load_state_dict(by_energy.state_dict())
    assert torch.equal(again(logits_with(known)), by_energy(logits_with(known)))


def test_bad_input_is_refused():
    with pytest.raises(NotFittedError, match="fit"):
        UnknownByEnergy()(torch.zeros(1, 2))
    with pytest.raises(LatentError, match="unknown objects"):
        UnknownByEnergy().fit(torch.randn(9, 2), torch.zeros(4, 2))
    with pytest.raises(LatentError, match="known objects"):
        UnknownByEnergy().fit(torch.full((3, 2), torch.nan), torch.randn(4, 2))
    with pytest.raises(OptionError, match="temperature"):
        UnknownByEnergy(temperature=0.0)
