import pytest
import torch

from elign.lab.detection.data.split import Objects


def some(labels=(0, 3, 1, 3), difficult=(False, True, False, False)) -> Objects:
    count = len(labels)
    return Objects(
        boxes=torch.arange(4.0 * count).view(count, 4),
        labels=torch.tensor(labels, dtype=torch.int64),
        difficult=torch.tensor(difficult, dtype=torch.bool),
    )


def test_only_the_objects_of_some_classes():
    kept = some().of(range(1, 4))
    assert kept.labels.tolist() == [3, 1, 3]
    assert kept.boxes[:, 0].tolist() == [4.0, 8.0, 12.0]
    assert kept.difficult.tolist() == [True, False, False]
    easy = some().of(range(1, 4), difficult=False)
    assert easy.labels.tolist() == [1, 3]
    assert easy.boxes[:, 0].tolist() == [8.0, 12.0]


def test_none_may_be_left():
    for none in (some().of(range(4, 9)), some().of(range(0))):
        assert len(none) == 0
        assert none.boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("boxes", torch.zeros(4, 5)),
        ("boxes", torch.zeros(3, 4)),
        ("boxes", torch.zeros(4, 4, dtype=torch.float64)),
        ("labels", torch.zeros(4)),
        ("difficult", torch.zeros(4, dtype=torch.int64)),
        ("difficult", torch.zeros(3, dtype=torch.bool)),
    ],
)
def test_tensors_that_do_not_fit_are_refused(field, value):
    good = some()
    fields = {"boxes": good.boxes, "labels": good.labels, "difficult": good.difficult}
    with pytest.raises(ValueError, match=field):
        Objects(**(fields | {field: value}))


def test_classes_with_gaps_are_refused():
    with pytest.raises(ValueError, match="consecutive"):
        some().of(range(0, 4, 2))
