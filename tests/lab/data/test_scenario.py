import pytest
from hypothesis import given
from hypothesis import strategies as st

from elign import ElignError
from elign.lab.data.scenario import Protocol, ProtocolError, class_order, make_protocol


def test_the_published_order_of_cifar100(untouched_random_state):
    order = class_order(100)
    assert order[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert sorted(order) == list(range(100))
    assert all(type(label) is int for label in order)


def test_the_seed_decides_and_none_is_the_natural_order():
    assert class_order(10, seed=None) == tuple(range(10))
    assert class_order(10, seed=1) == class_order(10, seed=1) != class_order(10, seed=2)


@pytest.mark.parametrize(
    ("name", "classes", "sizes"),
    [
        ("half-5", 100, (50,) + (10,) * 5),
        ("half-10", 100, (50,) + (5,) * 10),
        ("half-25", 100, (50,) + (2,) * 25),
        ("half-25", 1000, (500,) + (20,) * 25),
        ("half-1", 10, (5, 5)),
        ("equal-5", 100, (20,) * 5),
        ("equal-10", 100, (10,) * 10),
        ("equal-20", 100, (5,) * 20),
        ("equal-1", 7, (7,)),
        ("equal-2", 10, (5, 5)),
    ],
)
def test_named_protocols(name, classes, sizes):
    protocol = make_protocol(name, classes)
    assert protocol.sizes == sizes
    assert protocol.name == name
    assert protocol.classes == classes


def test_b50_is_another_name_for_half():
    assert make_protocol("b50-5", 100) == make_protocol("half-5", 100)


def test_sizes_may_be_given_instead():
    assert make_protocol(classes=100, first=40, increment=20).sizes == (40, 20, 20, 20)


def test_all_sizes_may_be_listed():
    assert make_protocol("15+5", 20).sizes == (15, 5)
    assert make_protocol("04+3+3", 10) == make_protocol("4+3+3", 10)


@pytest.mark.parametrize(
    ("name", "message"),
    [("10+5", "a split of 15 classes, but there are 20"), ("20+0", "Every task"), ("15+", "no protocol '15\\+'")],
)
def test_a_list_of_sizes_must_fit(name, message):
    with pytest.raises(ProtocolError, match=message):
        make_protocol(name, 20)


def test_tasks_are_ranges_of_labels():
    assert make_protocol("half-2", 8).tasks == (range(0, 4), range(4, 6), range(6, 8))


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
    ("name", "classes", "parts"),
    [
        ("half-7", 100, ["the 50 classes after", "1, 2, 5, 10, 25, 50"]),
        ("half-0", 10, ["fit: 1, 5"]),
        ("equal-3", 100, ["1, 2, 4, 5, 10, 20, 25, 50, 100"]),
        ("equal-200", 100, ["cannot be split into 200"]),
        ("b50-3", 100, ["'b50-3'", "1, 2, 5, 10, 25, 50"]),
        ("half-5", 101, ["101 is an odd number"]),
        ("equal-2", 0, ["at least one class"]),
    ],
)
def test_an_uneven_split_names_what_fits(name, classes, parts):
    with pytest.raises(ProtocolError) as caught:
        make_protocol(name, classes)
    for part in parts:
        assert part in str(caught.value)
    assert isinstance(caught.value, ElignError)


@pytest.mark.parametrize(
    ("first", "increment", "message"),
    [
        (40, 7, "Increments that fit: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60"),
        (40, 0, "tasks of 0"),
        (0, 10, "1 to 99"),
        (100, 10, "1 to 99"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(first, increment, message):
    with pytest.raises(ProtocolError, match=message):
        make_protocol(classes=100, first=first, increment=increment)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("haf-5", "half-5"),
        ("half5", "half-5"),
        ("Half-7", "half-7"),
        ("EQUAL_20", "equal-20"),
        ("equal", "equal-5"),
        ("B50-10", "b50-10"),
        ("half--5", "half-5"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(wrong, right):
    with pytest.raises(ProtocolError, match=f"Did you mean '{right}'"):
        make_protocol(wrong, 100)


@pytest.mark.parametrize("name", ["", "zzzzz", "half-5\n", "half-٥"])
def test_a_name_like_no_other_lists_the_usual_ones(name):
    with pytest.raises(ProtocolError, match="half-5, half-10, half-25, equal-5, equal-10, equal-20"):
        make_protocol(name, 100)


@pytest.mark.parametrize(
    "options", [{}, {"first": 5}, {"increment": 5}, {"name": "half-5", "first": 5, "increment": 5}]
)
def test_a_name_or_both_sizes_are_needed(options):
    with pytest.raises(TypeError, match="either a name or both"):
        make_protocol(classes=10, **options)


@pytest.mark.parametrize("sizes", [(), (5, 0), (-1,)])
def test_a_task_without_a_class_is_refused(sizes):
    with pytest.raises(ProtocolError, match="must bring a class"):
        Protocol("made-up", sizes)
