"""Runs beside the paper's printed numbers: which have some, what is said about them, and that scale is never hidden."""

from __future__ import annotations

import dataclasses

import pytest

from elign.lab.experiments.run_config import compose, describe
from elign.lab.report.run_export import FORMATS
from elign.lab.report.run_paper import paper_notes, paper_section, paper_table

TASKS = {"base": [60, 50, 40], "eli__oracle": [60, 56, 48]}


def on(experiment, *settings):
    """The same experiment, of a run with these settings."""
    config = describe(compose(list(settings)))
    runs = (dataclasses.replace(run, facts={**run.facts, "config": config}) for run in experiment.runs)
    return dataclasses.replace(experiment, runs=tuple(runs))


@pytest.fixture
def cifar(build_experiment):
    experiment = build_experiment(seeds=2, name="icarl on cifar100, half-5", **TASKS)
    return on(experiment, "learner=icarl", "data=cifar100", "protocol=half-5", "preset=small")


def test_numbers_stand_beside_the_printed_ones(cifar):
    (row,) = paper_table([cifar]).rows
    # The printed pair is of Table 1; ours are means of (60, 50, 40) and (60, 56, 48), one point more for seed 1.
    assert [cell.text for cell in row[1:8]] == [
        "56.97",
        "50.5 ± 0.7",
        "63.68",
        "55.2 ± 0.7",
        "+6.71",
        "+4.67",
        "[+4.67, +4.67]",
    ]
    assert [cell.text for cell in row[8:]] == ["yes", "0.70x"]


def test_scale_is_said(cifar):
    (note,) = paper_notes([cifar])
    assert "not the paper's scale" in note
    assert "backbone: resnet20 instead of resnet32" in note
    assert "epochs, first task / others: 12/8 instead of 160/160" in note
    assert "2 seeds instead of 3 runs" in note


def test_published_settings_are_named_as_such(build_experiment):
    experiment = on(
        build_experiment(seeds=3, **TASKS), "learner=icarl", "data=cifar100", "protocol=half-5", "preset=paper"
    )
    assert paper_notes([experiment])[0].endswith("the published settings, as far as known.")


def test_nothing_is_shown_where_the_paper_has_nothing(build_experiment, cifar):
    digits = build_experiment(**TASKS)
    unfinished = on(build_experiment(base=[60, 50], eli__oracle=[60, 56]), "data=cifar100", "protocol=half-5")
    other = dataclasses.replace(cifar.runs[0], facts={**cifar.runs[0].facts, "evaluation": ["aligner.steps=5"]})
    evaluation = dataclasses.replace(cifar, runs=(other,))
    assert paper_section([digits, unfinished, evaluation]) is None
    assert len(paper_table([digits, cifar, unfinished, evaluation]).rows) == 1


def test_tables_for_other_programs_have_it(cifar, build_experiment):
    text = FORMATS["markdown"]([cifar])
    assert "### Against the paper" in text
    assert "instead of 3 runs" in text
    assert "Against the paper" not in FORMATS["markdown"]([build_experiment(**TASKS)])
    assert "Against the paper" in FORMATS["latex"]([cifar])


def test_section_on_the_page(cifar, parse):
    piece = paper_section([cifar]).piece
    page = parse(f"<section>{piece.html}</section>")
    assert "0.70x" in page.text
    assert "not the paper's scale" in page.text
