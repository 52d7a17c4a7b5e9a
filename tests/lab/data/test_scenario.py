import pytest
from hypothesis import given
from hypothesis import strategies as st

from elign.lab.data.scenario import ProtocolError, class_order, make_protocol


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


@pytest.mark.parametrize("options", [{}, {"first": 5}, {"name": "half-5", "first": 5, "increment": 5}])
def test_a_name_or_both_sizes_are_needed(options):
    with pytest.raises(TypeError, match="either a name or both"):
        make_protocol(classes=10, **options)
