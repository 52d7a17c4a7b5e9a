import dataclasses

import pytest

from elign import OptionError
from elign.lab.detection.models import DetectorSettings, settings_of


def test_the_defaults_are_those_of_the_literature():
    settings = settings_of("resnet50-c4")
    assert settings == DetectorSettings()
    assert settings.short_sides[-1] == 800
    assert settings.max_size == 1333
    assert settings.proposals_test == (6000, 1000)
    assert (settings.rois, settings.positive_share) == (512, 0.25)
    assert (settings.score_threshold, settings.detections_per_image) == (0.05, 100)
    assert settings.class_agnostic_boxes
    assert not settings.unknown


def test_settings_cannot_be_changed_afterwards_and_lists_become_tuples():
    settings = settings_of("tiny-c4", anchors=[10, 20], min_size=[96, 128], proposals_test=[9, 5])
    assert (settings.anchors, settings.short_sides, settings.proposals_test) == ((10, 20), (96, 128), (9, 5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.rois = 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_size", 0),
        ("min_size", ()),
        ("max_size", 100),
        ("anchors", ()),
        ("anchors", (16, -1)),
        ("anchor_ratios", (float("nan"),)),
        ("proposals_train", (10, 20)),
        ("proposals_test", (10,)),
        ("proposals_test", (10, 0)),
        ("region_nms", 0.0),
        ("region_samples", 0),
        ("rois", 0),
        ("positive_share", 1.5),
        ("pool", 0),
        ("pool_samples", -1),
        ("score_threshold", 1.0),
        ("nms", -0.1),
        ("detections_per_image", 0),
        ("normalisation", "batch"),
        ("frozen_stages", 5),
    ],
)
def test_a_number_outside_its_range_is_named(name, value):
    with pytest.raises(OptionError, match=f"^{name} must"):
        settings_of("tiny-c4", **{name: value})


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(OptionError, match="no setting roiz"):
        settings_of("tiny-c4", roiz=3)
