"""Every method against a slow computation of its own, sample by sample."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from elign import ByEnergy, ByProbe, FixedStrength
from elign.classifiers.bias import best_offset
from elign.lab.evaluation.methods import DEFAULT, MARK, default_of, marked
from elign.lab.evaluation.methods import METHODS as ALL
from elign.lab.evaluation.methods.base import GROUPS

SIZES = (4, 2, 2)  # classes of each task of the fixture's run
ALIGNERS = ("eli", "mean-shift", "ridge", "random-shift", "untrained")
METHODS = {n: each for n, each in ALL.items() if each.function is not None and "rivals" not in each.needs}
OWN = {"repair", "repair/statistics", "repair/exemplars", "retrained-head"}
FC = {name for name in METHODS if not name.startswith(("forward/", "blend"))} - OWN
NEAREST = FC - {"bias-offset", "previous-model", "eli/dose"}
FORWARD = {name for name in METHODS if name.startswith("forward/")}


def table(run, task):
    """Rows of one task (1 to 3) by method and classifier."""
    rows = [row for row in run.rows if row.task == task]
    assert len({(row.method, row.classifier) for row in rows}) == len(rows)
    return {(row.method, row.classifier): row for row in rows}


def one(aligner, z):
    return aligner.align(z.unsqueeze(0))[0]


class Slow:
    """Accuracy from a function that predicts one sample's class from its number, counted in plain Python."""

    def __init__(self, run, task):
        self.latents, self.head = run.latents[task - 1], run.heads[task - 1]
        self.previous, self.previous_head = run.latents[task - 2], run.heads[task - 2]
        self.aligners = run.evaluations[task - 1].aligners
        self.prototypes = run.evaluations[task - 1].prototypes
        self.old_classes, self.classes = sum(SIZES[: task - 1]), sum(SIZES[:task])
        self.labels = self.latents.test_labels.tolist()
        self.task = task

    def old(self, i):
        return self.labels[i] < self.old_classes

    def logits(self, z):
        with torch.no_grad():
            return self.head(z.unsqueeze(0))[0].tolist()

    def means(self, aligner, moves):
        """Unit class means of the exemplars, those of the classes for which `moves` holds being moved first."""
        result = []
        for label in range(self.classes):
            rows = [
                z for z, y in zip(self.latents.memory, self.latents.memory_labels.tolist(), strict=True) if y == label
            ]
            rows = [one(aligner, z) if moves(label) else z for z in rows]
            mean = sum(z / z.norm() for z in rows) / len(rows)
            result.append(mean / mean.norm())
        return result

    def check(self, row, score):
        """`score(i)` gives one score per class for sample i."""
        right, right_among = [], []
        for i, label in enumerate(self.labels):
            scores = score(i)
            right.append(max(range(self.classes), key=scores.__getitem__) == label)
            right_among.append(max(range(self.old_classes), key=scores.__getitem__) == label)
        olds = [i for i in range(len(self.labels)) if self.old(i)]
        news = [i for i in range(len(self.labels)) if not self.old(i)]
        assert row.accuracy == pytest.approx(sum(right) / len(right))
        assert row.old == pytest.approx(sum(right[i] for i in olds) / len(olds))
        assert row.new == pytest.approx(sum(right[i] for i in news) / len(news))
        assert row.among_old == pytest.approx(sum(right_among[i] for i in olds) / len(olds))
        start = 0
        for size, value in zip(SIZES[: self.task], row.by_task, strict=True):
            members = [i for i, y in enumerate(self.labels) if start <= y < start + size]
            assert value == pytest.approx(sum(right[i] for i in members) / len(members))
            start += size


@pytest.fixture(params=[2, 3])
def slow(run, request):
    return Slow(run, request.param)


def test_every_method_exists_once_and_says_rightly_whether_it_is_label_free(run, logit_run):
    for task in (2, 3):
        names = {name: {c for r, c in table(run, task) if r == name} for name in METHODS}
        expected = {"fc": FC, "nearest-mean": NEAREST, "prototypes": FORWARD, "blend": {"blend"}, "own": OWN}
        assert names == {name: {c for c, members in expected.items() if name in members} for name in METHODS}
        assert set(table(logit_run, task)) == {(name, "fc") for name in FC - {"eli/dose"}}
    assert all(row.label_free == (not METHODS[row.method].uses_labels) for row in run.rows + logit_run.rows)


def test_first_task_has_nothing_to_align(run, logit_run):
    rows = table(run, 1)
    without_head = {(name, "prototypes") for name in FORWARD} | {("blend", "blend")}
    assert set(rows) == {("base", "fc"), ("base", "nearest-mean")} | without_head
    assert set(table(logit_run, 1)) == {("base", "fc")}
    for row in rows.values():
        assert (row.old, row.new, row.among_old, row.gate_accuracy) == (None,) * 4
        assert row.by_task == (row.accuracy,)
    latents, head = run.latents[0], run.heads[0]
    right = [int(head(z.unsqueeze(0)).argmax()) == y for z, y in zip(latents.test, latents.test_labels, strict=True)]
    assert rows["base", "fc"].accuracy == pytest.approx(sum(right) / len(right))
    assert run.evaluations[0].aligners == {}
    assert run.evaluations[0].drift == {}


def test_the_case_is_worth_method(run):
    """The comparisons below say little if all methods predict alike."""
    rows = table(run, 3)
    assert len({row.accuracy for row in rows.values()}) > 10
    assert 0.3 < rows["base", "fc"].accuracy < 0.95
    assert rows["base", "fc"].old < rows["base", "fc"].among_old


@pytest.mark.parametrize("name", ALIGNERS)
def test_oracle_moves_truly_old_samples_and_nothing_else(slow, run, name):
    aligner = slow.aligners[name]

    @cache
    def latent(i):
        return one(aligner, slow.latents.test[i]) if slow.old(i) else slow.latents.test[i]

    rows = table(run, slow.task)
    slow.check(rows[f"{name}/oracle", "fc"], lambda i: slow.logits(latent(i)))
    means = slow.means(aligner, lambda label: label < slow.old_classes)
    slow.check(rows[f"{name}/oracle", "nearest-mean"], lambda i: [float(latent(i) @ mean) for mean in means])
    assert rows[f"{name}/oracle", "fc"].aligned_share == pytest.approx(slow.old_classes / slow.classes)
    assert rows[f"{name}/oracle", "fc"].gate_accuracy is None
    assert rows[f"{name}/oracle", "fc"].new == rows["base", "fc"].new


@pytest.mark.parametrize("name", ["eli", "mean-shift", "ridge"])
def test_all_moves_every_sample_and_every_exemplar(slow, run, name):
    aligner = slow.aligners[name]

    @cache
    def latent(i):
        return one(aligner, slow.latents.test[i])

    rows = table(run, slow.task)
    slow.check(rows[f"{name}/all", "fc"], lambda i: slow.logits(latent(i)))
    means = slow.means(aligner, lambda label: True)
    slow.check(rows[f"{name}/all", "nearest-mean"], lambda i: [float(latent(i) @ mean) for mean in means])
    assert rows[f"{name}/all", "fc"].aligned_share == 1


def test_base(slow, run):
    rows = table(run, slow.task)
    slow.check(rows["base", "fc"], lambda i: slow.logits(slow.latents.test[i]))
    means = slow.means(None, lambda label: False)
    slow.check(rows["base", "nearest-mean"], lambda i: [float(slow.latents.test[i] @ mean) for mean in means])
    assert rows["base", "fc"].aligned_share == 0


def gate_weight(slow, gate):
    """Sample number to weight, by the gate's definition."""
    z = slow.latents.test
    exemplars = slow.latents.memory[slow.latents.memory_labels < slow.old_classes]
    if gate == "by-prediction":
        return lambda i: float(max(range(slow.classes), key=slow.logits(z[i]).__getitem__) < slow.old_classes)
    if gate == "by-prediction-soft":

        def soft(i):
            powers = [math.exp(v) for v in slow.logits(z[i])]
            return sum(powers[: slow.old_classes]) / sum(powers)

        return soft
    if gate == "by-energy":
        aligner = slow.aligners["eli"]
        fitted = ByEnergy().fit(aligner, slow.latents.new, exemplars)
        return lambda i: float(aligner.energy(z[i]) < fitted.threshold)
    probe = ByProbe().fit(exemplars, slow.latents.new)
    return lambda i: float(z[i] @ probe.weight + probe.bias > 0)


@pytest.mark.parametrize("gate", ["by-prediction", "by-prediction-soft", "by-energy", "by-probe"])
def test_gates(slow, run, gate):
    aligner, weight = slow.aligners["eli"], gate_weight(slow, gate)
    weights = [weight(i) for i in range(len(slow.labels))]
    assert 0 < sum(weights) < len(weights)

    @cache
    def latent(i):
        z = slow.latents.test[i]
        return z + weights[i] * (one(aligner, z) - z)

    rows = table(run, slow.task)
    slow.check(rows[f"eli/{gate}", "fc"], lambda i: slow.logits(latent(i)))
    means = slow.means(aligner, lambda label: label < slow.old_classes)
    slow.check(rows[f"eli/{gate}", "nearest-mean"], lambda i: [float(latent(i) @ mean) for mean in means])
    rightly = sum((w > 0.5) == slow.old(i) for i, w in enumerate(weights)) / len(weights)
    assert rows[f"eli/{gate}", "fc"].gate_accuracy == pytest.approx(rightly)
    assert rows[f"eli/{gate}", "fc"].aligned_share == pytest.approx(sum(weights) / len(weights), abs=1e-5)


def test_dose(slow, run):
    exemplars, labels = slow.latents.memory, slow.latents.memory_labels
    aligner = slow.aligners["eli"]
    share = float(FixedStrength().fit(aligner, slow.head, exemplars, labels, old_classes=slow.old_classes).strength)
    row = table(run, slow.task)["eli/dose", "fc"]
    latents = [z + share * (one(aligner, z) - z) for z in slow.latents.test]
    slow.check(row, lambda i: slow.logits(latents[i]))
    assert (row.aligned_share, row.gate_accuracy) == (pytest.approx(share), None)


def test_masks(slow, run):
    rows = table(run, slow.task)
    means = slow.means(None, lambda label: False)

    for classifier, base in (
        ("fc", lambda i: slow.logits(slow.latents.test[i])),
        ("nearest-mean", lambda i: [float(slow.latents.test[i] @ mean) for mean in means]),
    ):

        def one_sided(i, base=base):
            return [v if label < slow.old_classes or not slow.old(i) else -math.inf for label, v in enumerate(base(i))]

        def two_sided(i, base=base):
            return [v if (label < slow.old_classes) == slow.old(i) else -math.inf for label, v in enumerate(base(i))]

        slow.check(rows["oracle-mask", classifier], one_sided)
        # Among old classes counts old samples only, whose scores are those of the one-sided mask.
        slow.check(rows["oracle-mask-both", classifier], two_sided)
        assert rows["oracle-mask-both", classifier].accuracy >= rows["oracle-mask", classifier].accuracy
        assert rows["oracle-mask", classifier].accuracy >= rows["base", classifier].accuracy


def test_previous_model(slow, run):
    place = {}
    for i in range(len(slow.labels)):
        if slow.old(i):
            place[i] = len(place)

    def score(i):
        if not slow.old(i):
            return slow.logits(slow.latents.test[i])
        with torch.no_grad():
            logits = slow.previous_head(slow.previous.test[place[i]].unsqueeze(0))[0].tolist()
        return logits + [-math.inf] * (slow.classes - slow.old_classes)

    slow.check(table(run, slow.task)["previous-model", "fc"], score)


def test_bias_offset(slow, run):
    with torch.no_grad():
        logits = slow.head(slow.latents.memory)
    offset = best_offset(logits, slow.latents.memory_labels, old_classes=slow.old_classes)
    assert offset != 0

    def score(i):
        return [
            v if label < slow.old_classes else v - offset for label, v in enumerate(slow.logits(slow.latents.test[i]))
        ]

    slow.check(table(run, slow.task)["bias-offset", "fc"], score)


def test_forward_prototypes(run):
    chain: dict[str, list[torch.Tensor]] = {name: [] for name in ("none", "mean-shift", "ridge", "eli")}
    for task in (1, 2, 3):
        latents, evaluation = run.latents[task - 1], run.evaluations[task - 1]
        for name, prototypes in chain.items():
            if task > 1 and name != "none":
                prototypes[:] = [one(evaluation.aligners[f"forward-{name}"], p) for p in prototypes]
            for label in range(latents.old_classes, latents.classes):
                prototypes.append(latents.new[latents.new_labels == label].mean(dim=0))
            assert torch.allclose(torch.stack(prototypes), evaluation.prototypes[name], atol=1e-4)
    latents, shift = run.latents[1], run.evaluations[1].aligners["forward-mean-shift"].shift
    assert torch.allclose(shift, (latents.pairs_current - latents.pairs_previous).mean(dim=0), atol=1e-4)
    for task in (2, 3):
        slow = Slow(run, task)
        for name in chain:
            prototypes = run.evaluations[task - 1].prototypes[name]
            slow.check(
                table(run, task)[f"forward/{name}", "prototypes"],
                lambda i, slow=slow, prototypes=prototypes: [
                    float(slow.latents.test[i] @ p / p.norm()) for p in prototypes
                ],
            )


def test_random_shift_is_as_long_as_elis_moves_of_exemplars_or_else_of_the_pairs(run, bare_run):
    for which, rows in ((run, run.latents[2].memory[run.latents[2].memory_labels < 6]), (bare_run, None)):
        latents, aligners = which.latents[2], which.evaluations[2].aligners
        rows = latents.pairs_current if rows is None else rows
        length = (aligners["eli"].align(rows) - rows).norm(dim=1).mean()
        assert float(aligners["random-shift"].shift.norm()) == pytest.approx(float(length), rel=1e-4)


def test_untrained_starts_where_eli_starts_and_is_something_else_than_eli(run):
    aligners, z = run.evaluations[1].aligners, run.latents[1].test
    assert aligners["untrained"].seed == aligners["eli"].seed
    assert not torch.allclose(aligners["untrained"].align(z), aligners["eli"].align(z), atol=1e-3)
    assert not torch.equal(aligners["untrained"].align(z), z)


def test_no_memory_leaves_out_what_needs_it(bare_run):
    for task in (2, 3):
        names = set(table(bare_run, task))
        assert {classifier for _, classifier in names} == {"fc", "prototypes", "blend", "own"}
        assert {name for name, c in names if c == "fc"} == FC - {"eli/by-probe", "bias-offset"}
    latents, aligner = bare_run.latents[2], bare_run.evaluations[2].aligners["eli"]
    gate = ByEnergy(quantile=0.05).fit(aligner, latents.new)
    share = float(gate(latents.test, aligner=aligner).float().mean())
    assert table(bare_run, 3)["eli/by-energy", "fc"].aligned_share == pytest.approx(share)
    dose = FixedStrength().fit(aligner, bare_run.heads[2], latents.new, latents.new_labels, old_classes=6).strength
    assert table(bare_run, 3)["eli/dose", "fc"].aligned_share == pytest.approx(float(dose))


def test_nearest_mean_needs_an_exemplar_of_every_class(make_run):
    def without_class_1(latents):
        keep = latents.memory_labels != 1
        names = ["memory", "memory_labels", *(["memory_previous"] if latents.old_classes else [])]
        return replace(latents, **{name: getattr(latents, name)[keep] for name in names})

    rows = make_run(change=without_class_1).rows
    assert not [row for row in rows if row.classifier == "nearest-mean"]
    assert [row for row in rows if row.method == "eli/by-probe"]


def test_default_and_order():
    groups = [each.group for each in ALL.values()]
    assert list(dict.fromkeys(groups)) == [*GROUPS]
    assert [name for name, each in ALL.items() if each.function is None] == ["eli/old-classes", "ridge/old-classes"]
    assert (DEFAULT, default_of(ALL), default_of({"base", "blend"}), default_of({"base"})) == (
        *("repair", "repair"),
        *("blend", "repair"),
    )
    assert (marked("eli/all"), marked("eli/oracle")) == ("eli/all", f"eli/oracle {MARK}")
