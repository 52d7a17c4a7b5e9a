"""Metrics against numbers worked by hand, and what must hold for any scores."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign.lab.config import compose
from elign.lab.evaluation.inputs import AlignTarget, EvalInputs, EvaluationError
from elign.lab.evaluation.methods import METHODS, OldSamples, Prediction
from elign.lab.evaluation.metrics import (
    METRICS,
    Row,
    Summary,
    accuracy_matrix,
    average_accuracy,
    backward_transfer,
    curve,
    forgetting,
    incremental_mean,
    recovered_fraction,
    score,
    summarise,
)


def make_row(task, method, accuracy, by_task, *, old=None, new=None, gate=None, classifier="fc"):
    return Row(
        task=task,
        method=method,
        classifier=classifier,
        label_free="oracle" not in method,
        accuracy=accuracy,
        old=old,
        new=new,
        among_old=None if old is None else old + 0.1,
        gate_accuracy=gate,
        aligned_share=0.0,
        by_task=tuple(by_task),
    )


ROWS = [
    make_row(1, "base", 0.9, [0.9]),
    make_row(2, "base", 0.6, [0.5, 0.8], old=0.5, new=0.8),
    make_row(3, "base", 0.4, [0.3, 0.2, 0.9], old=0.25, new=0.9),
    make_row(2, "eli/oracle", 0.7, [0.6, 0.8], old=0.6, new=0.8),
    make_row(3, "eli/oracle", 0.5, [0.5, 0.3, 0.9], old=0.4, new=0.9),
    make_row(2, "eli/by-energy", 0.65, [0.95, 0.5], old=0.5, new=0.7, gate=0.6),
    make_row(3, "eli/by-energy", 0.35, [0.4, 0.1, 0.6], old=0.3, new=0.6, gate=0.8),
    make_row(2, "oracle-mask", 0.8, [0.8, 0.8], old=0.8, new=0.8),
    make_row(3, "oracle-mask", 0.6, [0.5, 0.5, 0.9], old=0.5, new=0.9),
    make_row(2, "base", 0.5, [0.5, 0.5], old=0.5, new=0.5, classifier="nearest-mean"),
]


@pytest.mark.parametrize("first", [True, False])
def test_what_replaces_the_head_is_compared_with_the_head(first):
    """A classifier of its own that has no row for the first task has that of the head there."""
    rows = [make_row(1, "repair", 0.8, [0.8], classifier="own")] if first else []
    rows += [make_row(t, "repair", a, [a] * t, old=a, new=a, classifier="own") for t, a in ((2, 0.7), (3, 0.6))]
    (repair,) = (summary for summary in summarise([*ROWS, *rows]) if summary.method == "repair")
    # (0.65 - 0.5) / (0.7 - 0.5)
    assert repair.recovered == pytest.approx(0.75)
    assert repair.average == pytest.approx(((0.8 if first else 0.9) + 0.7 + 0.6) / 3)


def test_summaries_by_hand():
    found = {summary.method: summary for summary in summarise(ROWS)}
    assert list(found) == ["base", "eli/oracle", "eli/by-energy", "oracle-mask"]
    base, eli = found["base"], found["eli/oracle"]
    assert (base.tasks, base.last) == (3, 0.4)
    assert base.average == pytest.approx((0.9 + 0.6 + 0.4) / 3)
    assert base.average_incremental == pytest.approx(0.5)
    assert (base.old, base.new, base.among_old) == (pytest.approx(0.375), pytest.approx(0.85), pytest.approx(0.475))
    # Task 1 fell from 0.9 to 0.3, task 2 from 0.8 to 0.2.
    assert base.forgetting == pytest.approx(0.6)
    assert base.backward_transfer == pytest.approx(-0.6)
    assert base.recovered == 0
    # The first task counts with base's 0.9.
    assert eli.average == pytest.approx((0.9 + 0.7 + 0.5) / 3)
    assert eli.forgetting == pytest.approx(((0.9 - 0.5) + (0.8 - 0.3)) / 2)
    # (0.6 - 0.5) / (0.7 - 0.5)
    assert eli.recovered == pytest.approx(0.5)
    assert not eli.label_free
    assert eli.gate_accuracy is None
    assert found["oracle-mask"].recovered == pytest.approx(1)
    gated = found["eli/by-energy"]
    assert gated.gate_accuracy == pytest.approx(0.7)
    # Its best on task 1 was after task 2 (0.95), so forgetting is more than what is left of the way from the start.
    assert gated.forgetting == pytest.approx(((0.95 - 0.4) + (0.5 - 0.1)) / 2)
    assert gated.backward_transfer == pytest.approx(((0.4 - 0.9) + (0.1 - 0.5)) / 2)


def test_the_parts():
    rows = curve(ROWS, "eli/oracle", "fc")
    assert [row.method for row in rows] == ["base", "eli/oracle", "eli/oracle"]
    assert accuracy_matrix(rows) == [(0.9,), (0.6, 0.8), (0.5, 0.3, 0.9)]
    assert average_accuracy(rows) == pytest.approx(0.7)
    assert incremental_mean(rows) == pytest.approx(0.6)


def test_a_single_task_has_no_forgetting():
    (only,) = summarise(ROWS[:1])
    assert only.average == only.last == 0.9
    missing = {f.name for f in fields(Summary) if getattr(only, f.name) is None}
    assert missing == {
        "average_incremental",
        "old",
        "new",
        "among_old",
        "gate_accuracy",
        "forgetting",
        "backward_transfer",
        "recovered",
    }
    assert summarise([]) == []
    assert forgetting([[0.5]]) is None
    assert backward_transfer([[0.5]]) is None


def test_recovered_fraction_has_no_value_where_the_mask_gains_nothing():
    assert recovered_fraction(0.6, 0.5, 0.5) is None
    assert recovered_fraction(0.6, 0.5, None) is None
    assert recovered_fraction(0.4, 0.5, 0.7) == pytest.approx(-0.5)


def test_incomplete_or_double_rows_are_refused():
    with pytest.raises(EvaluationError, match="task 3"):
        curve(ROWS[:4], "eli/oracle", "fc")
    with pytest.raises(EvaluationError, match="two rows of base"):
        summarise([*ROWS, ROWS[1]])
    with pytest.raises(EvaluationError, match="accuracies of 1 tasks"):
        accuracy_matrix([ROWS[0], ROWS[0]])


def test_every_metric_is_explained():
    names = {f.name for f in fields(Summary)} - {"method", "classifier", "label_free", "tasks"}
    assert set(METRICS) == names | {"accuracy_matrix"}


def test_of_a_real_run(run):
    summaries = {(s.method, s.classifier): s for s in summarise(run.rows)}
    assert set(summaries) == {(row.method, row.classifier) for row in run.rows}
    first = next(row for row in run.rows if (row.task, row.method, row.classifier) == (1, "base", "nearest-mean"))
    rows = [row for row in run.rows if (row.method, row.classifier) == ("eli/all", "nearest-mean")]
    expected = (first.accuracy + sum(row.accuracy for row in rows)) / 3
    assert summaries["eli/all", "nearest-mean"].average == pytest.approx(expected)


@st.composite
def cases(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    seen = sum(sizes)
    labels = torch.tensor([*range(seen), *draw(st.lists(st.integers(0, seen - 1), max_size=20))])
    scores = torch.randn(len(labels), seen, generator=torch.Generator().manual_seed(draw(st.integers(0, 10**6))))
    return sizes, labels, scores


@given(cases())
def test_accuracy_is_the_weighted_mean_of_its_parts(case):
    sizes, labels, scores = case
    row = score(METHODS["base"], Prediction(scores, "fc"), labels, task_sizes=sizes)
    share = float((labels < sum(sizes[:-1])).double().mean())
    assert row.accuracy == pytest.approx(share * row.old + (1 - share) * row.new)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    shares = [float(((labels >= e - s) & (labels < e)).double().mean()) for s, e in zip(sizes, ends, strict=True)]
    assert row.accuracy == pytest.approx(sum(s * a for s, a in zip(shares, row.by_task, strict=True)))
    assert row.among_old >= row.old
    assert row.new == row.by_task[-1]


@given(cases())
def test_masks_are_never_worse_than_base(case):
    sizes, labels, scores = case
    old_classes, seen = sum(sizes[:-1]), sum(sizes)
    old, nothing = labels < old_classes, torch.zeros(0, seen)
    heads = torch.nn.Identity(), torch.nn.Identity()
    inputs = EvalInputs(
        target=AlignTarget("logits", *heads, old_classes=old_classes, classes=seen),
        task_sizes=tuple(sizes),
        test=scores,
        new=scores,
        new_labels=labels,
        memory=nothing,
        memory_labels=torch.zeros(0, dtype=torch.long),
        pairs_previous=nothing,
        pairs_current=nothing,
        new_previous=nothing,
        memory_previous=nothing,
        settings=compose().aligner,
        seed=0,
        aligners=dict.fromkeys(("eli", "mean-shift", "ridge", "random-shift", "untrained"), Still()),
    )
    known = OldSamples(old, scores[old, :old_classes])
    rows = {
        name: score(each, prediction, labels, task_sizes=sizes)
        for name, each in METHODS.items()
        if each.uses_labels
        for prediction in each.predict(inputs, known)
    }
    base = score(METHODS["base"], Prediction(scores, "fc"), labels, task_sizes=sizes)
    assert base.accuracy <= rows["oracle-mask"].accuracy <= rows["oracle-mask-both"].accuracy
    assert rows["oracle-mask"].new == base.new
    assert rows["oracle-mask"].old == base.among_old == rows["previous-model"].old
    # An aligner that moves nothing is base.
    assert rows["eli/oracle"].by_task == base.by_task


class Still:
    """An aligner that moves nothing."""

    def align(self, z, *, generator):
        return z
