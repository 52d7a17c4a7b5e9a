"""Every reading of regions against a slow computation of its own, region by region."""

from __future__ import annotations

import pytest
import torch

from elign import ByEnergy, SplitOutputs, attach
from elign.lab.detection.evaluation.matching import old_regions
from elign.lab.detection.evaluation.reading_images import read_images, read_regions
from elign.lab.detection.evaluation.readings import REGION_READINGS, RegionReadings
from elign.lab.evaluation.catalogue import READINGS
from elign.lab.evaluation.errors import EvaluationError
from elign.lab.evaluation.settings import AlignerSettings
from elign.utils.errors import OptionError

LABEL_FREE = {"base", "eli/all", "eli/by-prediction", "eli/by-energy", "mean-shift/all"}
LABEL_FREE |= {"eli/old-classes", "ridge/old-classes"}


def same(first, second):
    return len(first) == len(second) and all(
        set(a) == set(b) and all(torch.equal(a[key], b[key]) for key in a) for a, b in zip(first, second, strict=True)
    )


def close(first, second):
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a["labels"], b["labels"])
        torch.testing.assert_close(a["boxes"], b["boxes"])
        torch.testing.assert_close(a["scores"], b["scores"])


@pytest.fixture(scope="module")
def old(world):
    return old_regions(world.regions.boxes, world.objects, known=world.known)


@pytest.fixture(scope="module")
def taken(world, old):
    with torch.no_grad():
        outputs = read_regions(world.previous, world.images, world.regions)
    return world.readings.read(world.current, world.regions, old=old, previous=outputs)


def by_hand(world, name, moves):
    """Detections after the aligner moved, one by one, the regions for which `moves(latent, row)` holds."""
    aligner = world.readings.aligners[name.partition("/")[0]]
    rows = [aligner.align(z.unsqueeze(0))[0] if moves(z, row) else z for row, z in enumerate(world.regions.latents)]
    with torch.no_grad():
        return world.current.detections(torch.stack(rows), world.regions)


def test_all_readings_are_there_and_in_the_catalogue(taken):
    assert tuple(taken) == REGION_READINGS
    assert {name for name, reading in taken.items() if reading.label_free} == LABEL_FREE
    assert set(REGION_READINGS) <= set(READINGS)
    assert {name for name, reading in taken.items() if reading.gated} == {"eli/by-prediction", "eli/by-energy"}


def test_the_scene_can_tell_readings_apart(world, old, taken):
    assert 0 < old.sum() < len(old)
    found = [reading.detections for reading in taken.values()]
    assert all(len(image["scores"]) for image in found[0])
    for place, first in enumerate(found):
        assert not any(same(first, second) for second in found[place + 1 :]), REGION_READINGS[place]


def test_base_is_the_detector_itself(world, taken):
    with torch.no_grad():
        assert same(taken["base"].detections, world.current(world.images))
    assert taken["base"].weights.sum() == 0


@pytest.mark.parametrize("name", [name for name in REGION_READINGS if name.endswith("/oracle")])
def test_oracles_move_the_regions_on_old_objects(world, old, taken, name):
    close(taken[name].detections, by_hand(world, name, lambda z, row: bool(old[row])))
    assert torch.equal(taken[name].weights > 0, old)


@pytest.mark.parametrize("name", ["eli/all", "mean-shift/all"])
def test_all_regions_are_moved(world, taken, name):
    close(taken[name].detections, by_hand(world, name, lambda z, row: True))
    assert (taken[name].weights == 1).all()


def test_by_prediction_moves_what_the_head_takes_for_old_but_not_for_background(world, taken):
    def looks_old(z, row):
        with torch.no_grad():
            logits, _ = world.current.predictor(z.unsqueeze(0))
        return int(logits.argmax()) in (1, 2)

    close(taken["eli/by-prediction"].detections, by_hand(world, "eli/by-prediction", looks_old))
    tops = world.current.predictor(world.regions.latents)[0].argmax(dim=1)
    assert set(tops.tolist()) == {0, 1, 2, 3, 4}
    assert torch.equal(taken["eli/by-prediction"].weights > 0, (tops == 1) | (tops == 2))


def test_by_energy_moves_regions_of_low_energy(world, taken):
    gate = ByEnergy(quantile=world.settings.energy_quantile)
    gate.fit(world.readings.aligners["eli"], world.regions.latents)
    energies = world.readings.aligners["eli"].energy(world.regions.latents).detach()
    close(
        taken["eli/by-energy"].detections,
        by_hand(world, "eli/by-energy", lambda z, row: float(energies[row]) < float(gate.threshold)),
    )
    assert 0 < taken["eli/by-energy"].weights.mean() < 0.2


def by_class(world, detector, aligner):
    """Detections with scores of old classes, and boxes that are theirs alone, of moved regions; column by column."""
    latents = world.regions.latents
    with torch.no_grad():
        (here, boxes), (there, moved) = (detector.predictor(z) for z in (latents, aligner.align(latents)))
        here, there = here.softmax(dim=1), there.softmax(dim=1)
        # Columns: background, two old classes, two new ones; some heads have the unknown beside them.
        nothing = torch.minimum(here[:, 0] + here[:, 5:].sum(dim=1), there[:, 0] + there[:, 5:].sum(dim=1))
        scores = torch.cat([nothing.unsqueeze(1), there[:, 1:3], here[:, 3:5], 0 * here[:, 5:]], dim=1)
        if not detector.predictor.class_agnostic:
            boxes = torch.cat([boxes[:, :4], moved[:, 4:12], boxes[:, 12:]], dim=1)
        return detector.detections_from(scores.log(), boxes, world.regions)


@pytest.mark.parametrize("name", ["eli/old-classes", "ridge/old-classes"])
def test_scores_of_old_classes_are_those_of_the_moved_region(world, taken, name):
    aligner = world.readings.aligners[name.partition("/")[0]]
    close(taken[name].detections, by_class(world, world.current, aligner))


def test_an_aligner_attached_for_old_classes_gives_the_same(world, taken):
    old = SplitOutputs(range(1, 3), background=0)
    with (
        torch.no_grad(),
        attach(world.current, "roi_heads.box_predictor", world.readings.aligners["ridge"], outputs=old),
    ):
        close(taken["ridge/old-classes"].detections, world.current(world.images))


def test_oracle_mask_leaves_background_and_old_classes(world, old, taken):
    with torch.no_grad():
        logits, deltas = world.current.predictor(world.regions.latents)
        for row in range(len(old)):
            if old[row]:
                logits[row, 3:] = float("-inf")
        close(taken["oracle-mask"].detections, world.current.detections_from(logits, deltas, world.regions))
    assert taken["oracle-mask"].weights is None


def mixed(world, current, previous, old):
    """What `previous-model` is to find, built column by column."""
    with torch.no_grad():
        logits, deltas = current.predictor(world.regions.latents)
        regions = world.regions
        theirs = read_regions(previous, world.images, regions)
        for row in range(len(old)):
            if old[row]:
                logits[row] = torch.tensor([*theirs.logits[row, :3], -torch.inf, -torch.inf, *theirs.logits[row, 3:]])
                for column in range(3):
                    place = slice(0, 4) if current.predictor.class_agnostic else slice(4 * column, 4 * column + 4)
                    deltas[row, place] = theirs.deltas[row].reshape(-1, 4)[0 if place.start == 0 else column]
        return current.detections_from(logits, deltas, regions)


def test_previous_model_takes_over_scores_and_boxes(world, old, taken):
    close(taken["previous-model"].detections, mixed(world, world.current, world.previous, old))


@pytest.mark.parametrize("changes", [{"class_agnostic_boxes": False}, {"unknown": True}])
def test_other_heads(world, old, changes):
    previous, current = world.make_pair(**changes)
    with torch.no_grad():
        outputs = read_regions(previous, world.images, world.regions)
        readings = world.readings.read(current, world.regions, old=old, previous=outputs)
    assert set(readings) == set(REGION_READINGS)
    close(readings["previous-model"].detections, mixed(world, current, previous, old))
    close(readings["ridge/old-classes"].detections, by_class(world, current, world.readings.aligners["ridge"]))
    labels = torch.cat([image["labels"] for reading in readings.values() for image in reading.detections])
    assert int(labels.max()) <= 4


class Unlabelled:
    """A split of which only the images may be seen."""

    def __init__(self, images):
        self._images = images

    @property
    def objects(self):
        raise AssertionError("a label-free reading looked at test annotations")

    def __len__(self):
        return len(self._images)

    def image(self, row):
        return self._images[row]


def batches(split, size=1):
    return [[split.image(row) for row in range(at, min(at + size, len(split)))] for at in range(0, len(split), size)]


def test_label_free_readings_need_no_annotation_and_do_not_change_with_it(world):
    split = Unlabelled(world.images)
    without = read_images(world.current, batches(split), world.readings, previous=world.previous)
    informed = read_images(
        world.current, batches(split), world.readings, objects=world.objects, previous=world.previous
    )
    assert set(without) == LABEL_FREE
    assert set(informed) == set(REGION_READINGS)
    for name, reading in without.items():
        for a, b in zip(reading.detections, informed[name].detections, strict=True):
            assert torch.equal(a.boxes, b.boxes)
            assert torch.equal(a.scores, b.scores)
            assert torch.equal(a.labels, b.labels)
        assert reading.gate_accuracy is None
        assert reading.aligned_share == informed[name].aligned_share


def test_label_free_readings_do_not_depend_on_the_oracles_mask(world, old, taken):
    for mask in (None, ~old, torch.ones_like(old)):
        again = world.readings.apply(world.current, world.regions, old=mask)
        assert all(same(again[name], taken[name].detections) for name in LABEL_FREE)
        assert (mask is None) == (set(again) == LABEL_FREE)
        assert "previous-model" not in again


def test_noise_is_the_same_on_every_walk_through_a_test_set(world):
    noisy = RegionReadings.fit(
        world.regions.latents + 1,
        world.regions.latents,
        known=world.known,
        settings=AlignerSettings(iterations=5, hidden=(8,), steps=3, noise=1.0),
        seed=1,
        names=["eli/all"],
    )
    first, second = (read_images(world.current, [[image] for image in world.images], noisy) for _ in range(2))
    for a, b in zip(first["eli/all"].detections, second["eli/all"].detections, strict=True):
        assert torch.equal(a.scores, b.scores)


def test_shares_are_counted_over_all_batches(world):
    split = Unlabelled(world.images)
    collected = read_images(world.current, batches(split), world.readings, objects=world.objects)
    weights, masks = [], []
    for image, objects in zip(world.images, world.objects, strict=True):
        with torch.no_grad():
            regions = world.current.regions([image])
        masks.append(old_regions(regions.boxes, [objects], known=world.known))
        weights.append(world.readings.read(world.current, regions)["eli/by-prediction"].weights)
    weights, mask = torch.cat(weights), torch.cat(masks)
    assert 0 < weights.mean() < 1
    gate = collected["eli/by-prediction"]
    assert gate.gate_accuracy == pytest.approx(((weights > 0.5) == mask).float().mean().item())
    assert gate.aligned_share == pytest.approx(weights.mean().item())
    assert collected["eli/oracle"].aligned_share == pytest.approx(mask.float().mean().item())
    assert collected["eli/oracle"].gate_accuracy is None
    assert collected["eli/all"].gate_accuracy is None
    assert (collected["base"].aligned_share, collected["oracle-mask"].aligned_share) == (0, 0)


def test_at_the_first_task_there_is_only_base(world):
    (reading,) = read_images(world.previous, [world.images], None).items()
    assert reading[0] == "base"
    assert len(reading[1].detections) == 2
    assert reading[1].label_free


def test_wrong_input_is_named(world, old):
    with pytest.raises(EvaluationError, match="one entry for each"):
        world.readings.read(world.current, world.regions, old=old[:-1])
    with pytest.raises(EvaluationError, match="2 images, but annotations of 3"):
        read_images(world.current, [world.images], world.readings, objects=[*world.objects, world.objects[0]])
    with pytest.raises(OptionError, match="no reading"):
        RegionReadings({}, gates={}, known=2, names=["bias-offset"])
    with pytest.raises(OptionError, match="needs the aligner"):
        RegionReadings({}, gates={}, known=2, names=["eli/all"])
    with pytest.raises(OptionError, match="latents"):
        RegionReadings.fit(
            torch.ones(2, 2), torch.ones(2, 2), known=1, settings=AlignerSettings(space="logits"), seed=0
        )
    other, _ = world.make_pair()
    other.transform.min_size = (96,)
    with pytest.raises(EvaluationError, match="different sizes"):
        read_regions(other, world.images, world.regions)
