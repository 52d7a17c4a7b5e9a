import pytest
import torch
from torch.nn import functional as F

from elign.lab.detection.learners.ore import label_unknown
from elign.lab.detection.models.detector import roi_losses
from elign.utils.errors import OptionError


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


def test_the_likeliest_background_region_of_each_image_is_labelled_unknown(make, batch):
    learner = make("ore")
    look = learner.model.look(*batch(3))
    labels, start = look.labels.clone(), 0
    for rois in look.rois:
        places = [place for place in range(start, start + len(rois)) if labels[place] == 0]
        labels[max(places, key=lambda place: look.roi_objectness[place].item())] = 4
        start += len(rois)
    assert (labels == 4).sum() == 3
    terms = learner.detection_terms(look)
    assert torch.equal(terms["classification"], F.cross_entropy(look.outputs.logits, labels))
    assert torch.equal(terms["box"], roi_losses(look)["box"])


def test_the_output_for_unknown_objects_learns_only_after_the_first_task(make, batch, train):
    def unknown_logit_rises(learner, targets):
        def mean():
            torch.manual_seed(4)
            look = learner.model.look(*targets)
            background = look.outputs.logits[look.labels == 0]
            return (background[:, -1] - background[:, 0]).mean().item()

        before = mean()
        train(learner, *targets, steps=3)
        return mean() - before

    first, second = unknown_logit_rises(make("ore", (2,)), batch(1, 2)), unknown_logit_rises(make("ore"), batch(3))
    assert first < second


def test_a_detector_without_an_output_for_unknown_objects_is_refused(make):
    with pytest.raises(OptionError, match="set unknown to true"):
        make("ore", unknown=False)
