"""ORE: which regions are labelled unknown, and what learns from it."""

import pytest
import torch
from torch.nn import functional as F

from elign.lab.detection.detector import roi_losses
from elign.lab.detection.learners.ore import label_unknown


@pytest.mark.parametrize(
    ("labels", "objectness", "top", "expected"),
    [
        ([0, 1, 0, 0, 2, 0, 0], [[0.2, 1.0, 0.7, 0.6], [1.0, 0.1, 0.3]], 1, [0, 1, 4, 0, 2, 0, 4]),
        ([1, 2, 0, 0, 0, 0], [[0.9, 0.9], [0.1, 0.2, 0.4], [0.3]], 2, [1, 2, 0, 4, 4, 4]),
        ([1, 2], [[0.9, 0.9]], 1, [1, 2]),
    ],
)
def test_the_background_with_the_highest_objectness_of_each_image_becomes_unknown(labels, objectness, top, expected):
    given = torch.tensor(labels)
    assert label_unknown(given, [*map(torch.tensor, objectness)], unknown=4, top=top).tolist() == expected
    assert given.tolist() == labels  # what was given stays


def test_the_likeliest_background_region_of_each_image_is_labelled_unknown(make, batch):
    learner = make("ore")
    look = learner.model.look(*batch(3))
    labels, start = look.labels.clone(), 0
    proposed = learner.model.propose(look.images, look.features)
    for rois, proposals, scores in zip(look.rois, *proposed, strict=True):
        strength = {tuple(box): score for box, score in zip(proposals.tolist(), scores.tolist(), strict=True)}
        background = [place for place in range(len(rois)) if labels[start + place] == 0]
        labels[start + max(background, key=lambda place: strength[tuple(rois[place].tolist())])] = 4
        start += len(rois)
    assert (labels == 4).sum() == 3
    terms = learner.detection_terms(look)
    assert torch.equal(terms["classification"], F.cross_entropy(look.outputs.logits, labels))
    assert torch.equal(terms["box"], roi_losses(look)["box"])
