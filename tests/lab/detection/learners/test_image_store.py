import torch

from elign.lab.detection.learners.image_store import ImageStore


def store(classes=2, per_class=3, seed=0):
    made = ImageStore(per_class=per_class, seed=seed)
    made.grow(classes)
    return made


def test_each_image_is_kept_for_the_class_of_its_object_and_the_oldest_goes():
    kept = store()
    kept.add(torch.tensor([10, 11, 12]), [torch.tensor([1]), torch.tensor([2, 2]), torch.tensor([1])])
    assert kept.rows.tolist() == [[-1, 10, 12], [-1, -1, 11]]
    kept.add(torch.tensor([13, 14]), [torch.tensor([1]), torch.tensor([1])])
    assert kept.rows.tolist() == [[12, 13, 14], [-1, -1, 11]]


def test_an_image_without_objects_is_not_kept():
    kept = store()
    kept.add(torch.tensor([5]), [torch.zeros(0, dtype=torch.int64)])
    assert (kept.rows == -1).all()
    assert kept.draw(4).tolist() == []


def test_growing_keeps_what_is_there_and_adds_empty_places():
    kept = store(classes=1)
    kept.add(torch.tensor([7]), [torch.tensor([1])])
    kept.grow(2)
    assert kept.rows.tolist() == [[-1, -1, 7], [-1, -1, -1], [-1, -1, -1]]
    assert kept.rows.dtype == torch.int64


def test_an_image_with_two_classes_goes_to_either_by_chance_and_never_to_both():
    kept = store(per_class=50)
    kept.add(torch.arange(40), [torch.tensor([1, 2])] * 40)
    first, second = [(kept.rows[number] >= 0).sum().item() for number in (0, 1)]
    assert first + second == 40
    assert min(first, second) > 8


def test_draw_gives_different_images_and_no_more_than_asked_for():
    kept = store(per_class=5)
    rows = torch.tensor([3, 3, 4, 5])
    kept.add(rows, [torch.tensor([1])] * 4)
    assert sorted(kept.draw(9).tolist()) == [3, 4, 5]
    assert len(kept.draw(2)) == 2
    assert len({tuple(kept.draw(1).tolist()) for _ in range(30)}) == 3


def test_going_on_from_a_state_makes_the_same_choices_whatever_else_draws_random_numbers():
    rows, labels = torch.arange(30), [torch.tensor([1, 2])] * 30
    whole, halves = store(per_class=20), store(per_class=20)
    whole.add(rows, labels)
    halves.add(rows[:13], labels[:13])
    resumed = store(per_class=20)
    resumed.load_state_dict(halves.state_dict())
    torch.manual_seed(99)
    resumed.add(rows[13:], labels[13:])
    assert torch.equal(resumed.rows, whole.rows)
    assert torch.equal(resumed.draw(5), whole.draw(5))
    other = store(per_class=20, seed=1)
    other.add(rows, labels)
    assert not torch.equal(other.rows, whole.rows)
