"""Rows of other corrections: statistics from birth, moved by one map after the other, read by a classifier."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from tests.lab.evaluation.conftest import QUICK, arguments
from tests.lab.starting import reevaluate, start
from torch import nn
from torch.nn import functional as F

import elign
from elign.lab.config.schema import TREE, flatten
from elign.lab.environment import derive_seed
from elign.lab.evaluation import task_evaluation
from elign.lab.evaluation.inputs import BIRTH, UNIT_BIRTH
from elign.lab.evaluation.methods import METHODS, OldSamples
from elign.lab.evaluation.methods.base import RIVALS
from elign.lab.evaluation.methods.rivals import _CLASSIFIERS as METHODS_OF_STATISTICS
from elign.lab.evaluation.task_evaluation import evaluate_task, read_statistics

NAMES = {name for name, each in METHODS.items() if each.group == RIVALS}


@pytest.fixture(scope="module", autouse=True)
def few_features():
    """RanPAC's features take most of the time, whatever the size of the latents."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS_OF_STATISTICS, "ranpac", ("random features", lambda: elign.RandomFeatures(width=30)))
        yield


@pytest.fixture(scope="module")
def rivals(make_run):
    return make_run(settings=QUICK.replace(rivals=True))


def accuracy(run, task, name):
    (row,) = (row for row in run.rows if (row.task, row.method) == (task, name))
    return row.accuracy


def right(scores, latents):
    return (scores.argmax(dim=1) == latents.test_labels).double().mean().item()


def scale(z, unit):
    return F.normalize(z, dim=1) if unit else z


def chain(run, make, unit=False):
    """Statistics of all classes after each task, moved by hand."""
    first = run.latents[0]
    statistics = elign.ClassStatistics().update(scale(first.new, unit), first.new_labels)
    for task in (2, 3):
        latents, before = run.latents[task - 1], run.heads[task - 2]
        aligner = make(seed=derive_seed(derive_seed(0, f"evaluation of task {task}"), "map efc"), head=before)
        aligner.fit_latents(scale(latents.new_previous, unit), scale(latents.new, unit), direction="forward")
        statistics = aligner.transport(statistics).update(scale(latents.new, unit), latents.new_labels)
        yield task, latents, statistics


def plain(made):
    return lambda seed, head: made()


def efc(seed, head):
    return elign.FisherShift(head=head, seed=seed)


@pytest.mark.parametrize(
    ("name", "aligner", "classifier", "unit"),
    [
        ("map/none", plain(elign.Identity), elign.Gaussian, False),
        ("map/mean-shift", plain(elign.MeanShift), elign.Gaussian, False),
        ("map/ridge", plain(elign.Ridge), elign.Gaussian, False),
        ("map/gls", plain(elign.GLS), elign.Gaussian, False),
        ("map/efc", efc, elign.Gaussian, False),
        ("classifier/lda", plain(elign.Ridge), lambda: elign.Gaussian(shared=1.0), False),
        ("classifier/head", plain(elign.Ridge), elign.LinearHead, False),
        ("dpcr", plain(elign.DPCR), elign.RidgeHead, False),
        ("dpcr-tuned", plain(elign.DPCR), lambda: elign.RidgeHead(penalty=6000.0), False),
        ("fecam", plain(elign.Identity), elign.FeCAM, False),
        ("sldc", plain(elign.SLDC), elign.Gaussian, True),
    ],
)
def test_statistics_are_carried_from_task_to_task(rivals, name, aligner, classifier, unit):
    for task, latents, statistics in chain(rivals, aligner, unit):
        scores = classifier().fit(statistics)(scale(latents.test, unit))
        assert accuracy(rivals, task, name) == pytest.approx(right(scores, latents))


def test_published_nearest_means_ignore_covariances(rivals):
    for task, latents, statistics in chain(rivals, plain(lambda: elign.LocalShift(anchors=10_000))):
        means = F.normalize(statistics.means, dim=1)
        scores = F.normalize(latents.test, dim=1) @ means.t()
        # With covariances a local shift moves samples; published SDC moves the means.
        assert abs(accuracy(rivals, task, "sdc") - right(scores, latents)) < 0.1


def test_corrections_on_exemplars(rivals):
    latents, head = rivals.latents[2], rivals.heads[2]
    z, labels, test = latents.memory, latents.memory_labels, latents.test
    with torch.no_grad():
        logits = head(test)
        expected = {
            "wa": elign.WeightAligned().fit(head=head, old_classes=6)(test, logits=logits),
            "bic": elign.BiC().fit(z, labels, head=head, old_classes=6)(test, logits=logits),
            "lda-exemplars": elign.Gaussian(shared=1.0).fit(z=z, labels=labels)(test),
        }
    for name, scores in expected.items():
        assert accuracy(rivals, 3, name) == pytest.approx(right(scores, latents)), name


def test_rows_and_their_statistics_are_there_only_where_asked_for(run, bare_run, rivals, make_run):
    assert not NAMES & {row.method for row in (*run.rows, *bare_run.rows)}
    assert {row.method for row in rivals.rows} >= NAMES
    assert not {UNIT_BIRTH, "map/ridge"} & set(run.evaluations[2].statistics)
    assert {BIRTH, UNIT_BIRTH} <= set(rivals.evaluations[0].statistics)
    logits = make_run(settings=QUICK.replace(rivals=True, space="logits"))
    assert not NAMES & {row.method for row in logits.rows}


def test_the_shift_of_efc_takes_a_cosine_head_for_the_linear_one_near_it(rivals):
    class Cosine(nn.Module):
        sigma = torch.tensor(3.0)

        def prototypes(self):
            return rivals.heads[1].weight.detach()

        def forward(self, z):
            return 3 * F.normalize(z, dim=1) @ F.normalize(self.prototypes(), dim=1).t()

    given = arguments(rivals, 3, previous_head=Cosine())
    found = evaluate_task(rivals.latents[2], rivals.heads[2], **given)
    (row,) = (row for row in found.rows if row.method == "map/efc")
    assert 0 < row.accuracy <= 1
    assert "wa" in {row.method for row in found.rows}


def test_no_score_depends_on_test_labels(rivals, monkeypatch):
    current = rivals.latents[2]
    order = torch.randperm(len(current.test_labels), generator=torch.Generator().manual_seed(1))
    shuffled = replace(current, test_labels=current.test_labels[order])
    before = replace(rivals.latents[1], test_labels=shuffled.test_labels[shuffled.test_labels < 6])
    scores = []
    count = task_evaluation.score

    def spy(method, prediction, labels, **options):
        if method.name in NAMES:
            scores[-1][method.name, prediction.classifier] = prediction.scores.clone()
        return count(method, prediction, labels, **options)

    monkeypatch.setattr(task_evaluation, "score", spy)
    for latents, previous in ((current, rivals.latents[1]), (shuffled, before)):
        scores.append({})
        evaluate_task(latents, rivals.heads[2], **arguments(rivals, 3, previous=previous))
    assert {name for name, _ in scores[0]} == NAMES
    assert all(torch.equal(one, scores[1][name]) for name, one in scores[0].items())


def test_oracle_statistics_are_given_to_oracles_alone(rivals):
    latents = rivals.latents[2]
    old = elign.ClassStatistics().update(latents.memory, latents.memory_labels).without([6, 7])
    found = evaluate_task(latents, rivals.heads[2], **arguments(rivals, 3), oracle=old)
    (row,) = (row for row in found.rows if row.method == "oracle-statistics")
    whole = old.merge(elign.ClassStatistics().update(latents.new, latents.new_labels))
    assert not row.label_free
    assert row.accuracy == pytest.approx(right(elign.Gaussian().fit(whole)(latents.test), latents))
    assert "oracle-statistics" not in {row.method for row in rivals.rows}
    assert [field.name for field in fields(OldSamples)] == ["mask", "previous", "statistics"]


def test_a_trained_run_gets_the_rows_and_the_true_statistics_of_old_images(tmp_path):
    words = ["data=digits", "protocol.first=4", "protocol.increment=3", "data.limit=20", "train.first_epochs=1"]
    words += ["train.epochs=1", "aligner.iterations=2", "aligner.steps=2", f"out={tmp_path / 'run'}"]
    run = start(words)
    assert not run.task_file(1, "oracle").exists()
    evaluated = reevaluate(run, ["aligner.rivals=true"])
    assert {row.method for row in evaluated.gather().rows} >= {*NAMES - {"wa"}, "oracle-statistics"}
    found = read_statistics(evaluated.task_file(2, "oracle"))["oracle"]
    assert found.classes.tolist() == list(range(7))
    assert set(found.counts.tolist()) == {20}
    # The same run without them keeps its digest: archives of earlier versions are recognised.
    config = TREE.from_dict(run.metadata()["config"])
    asked = TREE.with_aligner(config, ["aligner.rivals=true"])
    assert "aligner.rivals" not in flatten(config)
    assert (asked.training_digest(), asked.digest() == config.digest()) == (config.training_digest(), False)
