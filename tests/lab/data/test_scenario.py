"""The order of classes, their split into tasks, and the exemplars that are kept of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign.lab.data.scenario import Memory, ProtocolError, class_order, herding_order, make_protocol


def test_the_published_order_of_cifar100(untouched_random_state):
    order = class_order(100)
    assert order[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert sorted(order) == list(range(100))
    assert all(type(label) is int for label in order)


def test_the_seed_decides_and_none_is_the_natural_order():
    assert class_order(10, seed=None) == tuple(range(10))
    assert class_order(10, seed=1) == class_order(10, seed=1) != class_order(10, seed=2)


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from(["half", "equal"]))
def test_tasks_cover_every_class_once_or_it_is_an_error(classes, count, kind):
    try:
        protocol = make_protocol(f"{kind}-{count}", classes)
    except ProtocolError:
        assert classes % 2 or (classes // 2) % count if kind == "half" else classes % count
    else:
        assert [label for task in protocol.tasks for label in task] == list(range(classes))
        assert len(protocol.tasks) == count + (kind == "half")


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"name": "half-5"}, (50,) + (10,) * 5),
        ({"name": "b50-25"}, (50,) + (2,) * 25),
        ({"name": "half-1"}, (50, 50)),
        ({"name": "equal-5"}, (20,) * 5),
        ({"name": "equal-1"}, (100,)),
        ({"name": "085+5+10"}, (85, 5, 10)),
        ({"first": 40, "increment": 20}, (40, 20, 20, 20)),
    ],
)
def test_protocols_by_name_and_by_sizes(options, sizes):
    assert make_protocol(classes=100, **options).sizes == sizes


@pytest.mark.parametrize(
    ("options", "classes", "message"),
    [
        ({"name": "half-7"}, 100, "the 50 classes after .* 1, 2, 5, 10, 25, 50"),
        ({"name": "half-0"}, 10, "fit: 1, 5"),
        ({"name": "equal-200"}, 100, "cannot be split into 200"),
        ({"name": "half-5"}, 101, "101 is an odd number"),
        ({"name": "equal-2"}, 0, "at least one class"),
        ({"name": "10+5"}, 20, "a split of 15 classes"),
        ({"name": "20+0"}, 20, "Every task"),
        ({"name": "15+"}, 20, "no protocol"),
        ({"name": "half5"}, 100, "Did you mean 'half-5'"),
        ({"name": "EQUAL_20"}, 100, "Did you mean 'equal-20'"),
        ({"name": "half-5\n"}, 100, "Did you mean"),
        ({"name": "half-٥"}, 100, "half-25, equal-5"),
        ({"first": 40, "increment": 7}, 100, "Increments that fit: 1, 2, 3, 4, 5, 6, 10"),
        ({"first": 40, "increment": 0}, 100, "tasks of 0"),
        ({"first": 0, "increment": 10}, 100, "1 to 99"),
        ({"first": 100, "increment": 10}, 100, "1 to 99"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(options, classes, message):
    with pytest.raises(ProtocolError, match=message):
        make_protocol(classes=classes, **options)


@pytest.mark.parametrize("options", [{}, {"first": 5}])
def test_a_name_or_both_sizes_are_needed(options):
    with pytest.raises(TypeError, match="either a name or both"):
        make_protocol(classes=10, **options)


# Lengths differ, directions are (1, 0), (0, 1), (0.6, 0.8), (-0.6, 0.8), so the mean direction is (0.25, 0.65).
# try 1: w = (0.25, 0.65),  scores 0.25, 0.65, 0.67, 0.37: sample 2
# try 2: w = (-0.1, 0.5),   scores -0.1, 0.5, 0.34, 0.46:  sample 1
# try 3: w = (0.15, 0.15),  scores 0.15, 0.15, 0.21, 0.03: sample 2 again, so no new rank, but w moves
# try 4: w = (-0.2, 0.0),   scores -0.2, 0.0, -0.12, 0.12: sample 3
# try 5: w = (0.65, -0.15), scores 0.65, -0.15, 0.27, -0.51: sample 0
BY_HAND = torch.tensor([[7.0, 0.0], [0.0, 0.5], [3.0, 4.0], [-6.0, 8.0]])


def test_herding_by_hand():
    assert herding_order(BY_HAND).tolist() == [2, 1, 3, 0]
    # At try 3 sample 2 is passed over; 0 and 1 are equal there, and 1 has its rank already.
    assert herding_order(BY_HAND, tries=0).tolist() == [2, 1, 0, 3]


def brute_force(features, wanted, tries):
    """The loop of the published code, sample by sample; it may end with fewer than `wanted`."""
    rows = [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in features]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    w, ranked = list(mean), []
    for _ in range(tries):
        scores = [sum(a * b for a, b in zip(w, row, strict=True)) for row in rows]
        pick = max(range(len(rows)), key=lambda place: scores[place])
        if pick not in ranked:
            ranked.append(pick)
        w = [a + m - d for a, m, d in zip(w, mean, rows[pick], strict=True)]
        if len(ranked) == wanted:
            break
    return ranked


@given(st.integers(3, 14), st.integers(2, 5), st.integers(0, 10**6), st.sampled_from([1, 7, 60]))
def test_herding_is_the_published_loop(count, width, seed, tries):
    features = np.random.default_rng(seed).normal(size=(count, width)) + 0.5
    order = herding_order(torch.from_numpy(features), tries=tries).tolist()
    expected = brute_force(features.tolist(), count, tries)
    assert order[: len(expected)] == expected
    assert sorted(order) == list(range(count))


def test_herding_goes_on_when_one_sample_is_found_again_and_again():
    features = torch.cat([torch.eye(2)[:1].repeat(30, 1), torch.zeros(3, 2)])  # equal ones, and some without direction
    order = herding_order(features, tries=5)
    assert sorted(order.tolist()) == list(range(33))
    assert torch.equal(order, herding_order(features.clone(), tries=5))


@pytest.mark.parametrize("features", [torch.zeros(3), torch.zeros(0, 4), torch.tensor([[1.0, torch.nan]])])
def test_herding_refuses_what_it_cannot_rank(features):
    with pytest.raises(ValueError, match="features must be"):
        herding_order(features)


def filled(**options):
    """Two classes of 6 and 3 samples, at places 10..15 and 20..22 of the training set."""
    memory = Memory(**options)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(9, 4, generator=generator)
    memory.add(4, torch.arange(10, 16), features[:6])
    memory.add(1, torch.arange(20, 23), features[6:])
    return memory, features


def test_the_first_ranks_of_each_class_are_kept():
    memory, features = filled(budget=8)
    first = herding_order(features[:6]) + 10
    second = herding_order(features[6:]) + 20
    assert tuple(memory.ranked) == (4, 1)
    assert torch.equal(memory.indices(2), torch.cat([first[:4], second]))  # the second class has 3 of its 4
    assert torch.equal(memory.indices(4), torch.cat([first[:2], second[:2]]))
    assert memory.indices(4).dtype == torch.int64


def test_a_number_per_class_does_not_shrink_and_without_a_number_nothing_is_kept():
    memory, _ = filled(per_class=2)
    assert memory.per_class_count(2) == memory.per_class_count(100) == 2
    assert len(memory.indices(100)) == 4
    none, _ = filled()
    assert none.per_class_count(2) == 0
    assert none.indices(2).shape == (0,)
    assert Memory(budget=5).indices(1).dtype == torch.int64


def test_random_selection_needs_no_features_and_differs_by_class_and_seed(untouched_random_state):
    def pick(seed, label):
        memory = Memory(per_class=20, selection="random", seed=seed)
        memory.add(label, torch.arange(100))
        return memory.indices(1).tolist()

    assert pick(0, 0) == pick(0, 0)
    assert pick(0, 0) != pick(1, 0)
    assert pick(0, 0) != pick(0, 1)


@pytest.mark.parametrize("options", [{"budget": 8}, {"per_class": 2, "selection": "random", "seed": 3}, {}])
def test_a_memory_can_be_restored_from_its_ranks(options):
    memory, _ = filled(**options)
    again = Memory(**options)
    again.restore(memory.ranked)
    assert all(again.ranked[label] is not ranks for label, ranks in memory.ranked.items())
    memory.add(7, torch.arange(30, 35), torch.eye(5))
    again.add(7, torch.arange(30, 35), torch.eye(5))
    assert [*again.ranked] == [*memory.ranked]
    for seen in (3, 5, 9):
        assert torch.equal(again.indices(seen), memory.indices(seen))
        assert again.per_class_count(seen) == memory.per_class_count(seen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, torch.arange(3), torch.zeros(3, 2)), "added before"),
        ((5, torch.arange(3), torch.zeros(2, 2)), "all 3 samples"),
        ((5, torch.arange(3)), "all 3 samples"),
        ((5, torch.zeros(3), torch.zeros(3, 2)), "int64"),
        ((5, torch.arange(0), torch.zeros(0, 2)), "filled"),
    ],
)
def test_a_class_that_cannot_be_added_changes_nothing(arguments, message):
    memory, _ = filled(budget=4)
    with pytest.raises(ValueError, match=message):
        memory.add(*arguments)
    assert tuple(memory.ranked) == (4, 1)


def test_fewer_seen_than_added_is_refused():
    memory, _ = filled(budget=4)
    with pytest.raises(ValueError, match="2 classes were added"):
        memory.indices(1)


@pytest.mark.parametrize(
    "options", [{"budget": 5, "per_class": 5}, {"budget": 0}, {"per_class": -1}, {"selection": "best"}]
)
def test_a_memory_refuses_options_that_make_no_sense(options):
    with pytest.raises(ValueError, match=r"budget|selection"):
        Memory(**options)
