import pytest
import torch
from torch.nn import functional as F

from elign.lab.detection.models.passes import roi_losses
from elign.utils.errors import OptionError


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
