"""The report of detectors speaks of average precisions and regions; that of classifiers of accuracies and images."""

from __future__ import annotations

import json

import pytest

from elign.lab.report.run_curves import comparison_figure, curves_figure
from elign.lab.report.run_drawings import draw_curves, draw_matrices, draw_trade_off
from elign.lab.report.run_export import latex, markdown
from elign.lab.report.run_matrices import matrix_figure
from elign.lab.report.run_sections import TOPICS, experiment_sections
from elign.lab.report.run_summary import run_summary
from elign.lab.report.run_tables import comparison_table, readings_table
from elign.lab.report.run_trade_off import trade_off_figure
from elign.lab.report.runs import measure_of

READINGS = {"base": [50, 40, 30], "eli__oracle": [50, 45, 35], "oracle_mask": [50, 48, 40], "eli__all": [50, 40, 30]}


@pytest.fixture
def classifier(build_experiment):
    return build_experiment(**READINGS)


@pytest.fixture
def detector(build_experiment):
    experiment = build_experiment(name="iod on digit-scenes, 4+3", **READINGS)
    for run in experiment.runs:
        run.facts["kind"] = "detection"
    return experiment


def said(experiment):
    """All words of summary, figures and tables."""
    figures = [curves_figure(experiment), matrix_figure(experiment, "base"), trade_off_figure(experiment)]
    texts = [text for each in figures for text in (json.dumps(each.spec), each.alternative, each.caption)]
    return " ".join([*run_summary(experiment), *texts, readings_table(experiment).caption])


def test_detectors(detector):
    text = said(detector)
    for words in (
        "As it is (base) it reaches a mean average precision of 40.0 %",
        "Under an oracle, which tells ELI of each region whether it lies on an old object",
        "so who knows which regions are old does better here",
        "Mean average precision over all classes seen so far, after each task",
        "Mean average precision matrix of base",
        '"classes of task"',
        "what becomes of a task's classes",
        '"mean average precision (%)"',
        '"mean average precision on old classes (%)"',
        "All readings, mean average precision, in %",
    ):
        assert words in text
    assert "accuracy" not in text.lower()
    assert "test image " not in text


def test_classifiers(classifier):
    text = said(classifier)
    for words in (
        "As it is (base) it reaches 40.0 %",
        "Under the paper's protocol, which tells ELI of each test image whether its class is old",
        "so who knows which images are old does better here",
        "Accuracy on the test images of all classes seen so far, after each task",
        "Accuracy matrix of base",
        '"test images of task"',
        "what becomes of a task's images",
        '"accuracy (%)"',
        '"accuracy on old classes (%)"',
        "All readings, in %",
    ):
        assert words in text
    assert "precision" not in text
    assert "region" not in text


def test_unfinished_detectors(build_experiment):
    experiment = build_experiment(base=[50])
    experiment.runs[0].facts["kind"] = "detection"
    assert "So far it reaches a mean average precision of 50.0 % after 1 task." in run_summary(experiment)[1]


def test_both_in_one_report(classifier, detector):
    both = [classifier, detector]
    assert measure_of(both) == "accuracy or mean average precision"
    assert comparison_table(both).caption.startswith("Average accuracy or mean average precision over tasks in %")
    assert comparison_table([detector]).caption.startswith("Average mean average precision over tasks in %")
    caption = comparison_figure(both).caption
    assert "of each test image whether its class is old or of each region whether it lies on an old object" in caption


def test_tables_for_papers(classifier, detector):
    assert "it knows of each test image whether its class is old." in markdown([classifier])
    text = markdown([detector])
    assert "it knows of each region whether it lies on an old object." in text
    assert "Accuracy of detectors is mean average precision." in text
    assert "of each region" in latex([detector])


def test_drawings(classifier, detector):
    for experiment, measure, of_task in (
        (classifier, "accuracy", "test images of task"),
        (detector, "mean average precision", "classes of task"),
    ):
        assert draw_curves(experiment).axes[0].get_ylabel() == f"{measure} on all classes seen (%)"
        assert draw_trade_off(experiment).axes[0].get_xlabel() == f"{measure} on old classes (%)"
        assert draw_matrices(experiment).axes[0].get_xlabel() == of_task


def test_headings(classifier, monkeypatch):
    monkeypatch.setattr("elign.lab.report.run_sections.TOPICS", TOPICS[:2])
    titles = [section.title for section in experiment_sections([classifier], lambda text: None)]
    assert titles == ["Accuracy after each task", "All readings"]
