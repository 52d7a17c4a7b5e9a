"""Runs of a report beside the printed numbers: which have some, and that differences of scale are said."""

from __future__ import annotations

import dataclasses

import pytest
from tests.lab.report.conftest import make_run

from elign.lab.config import compose, describe
from elign.lab.paper.report_table import paper_table
from elign.lab.report.run_groups import RunGroup
from elign.lab.report.tables import FORMATS

TASKS = {"base": [60, 50, 40], "eli/oracle": [60, 56, 48]}
PUBLISHED = ("learner=icarl", "data=cifar100", "protocol=half-5")


def group_of(*settings, seeds=2, tasks=3, **metadata):
    """Runs with these settings; each seed adds one point."""
    config = describe(compose(list(settings)))
    accuracies = {name: values[:tasks] for name, values in TASKS.items()}
    runs = [make_run({k: [v + s for v in vs] for k, vs in accuracies.items()}, seed=s) for s in range(seeds)]
    changed = (dataclasses.replace(run, metadata={**run.metadata, "config": config, **metadata}) for run in runs)
    return RunGroup("icarl on cifar100, half-5", tuple(changed))


@pytest.fixture(scope="module")
def cifar():
    return group_of(*PUBLISHED, "preset=small")


def test_numbers_stand_beside_the_printed_ones(cifar):
    (row,) = paper_table([cifar]).rows
    # The printed pair is of Table 1; ours are means of (60, 50, 40) and (60, 56, 48), one point more for seed 1.
    texts = [cell.text for cell in row.cells]
    assert texts[1:7] == ["56.97", "50.5 ± 0.7", "63.68", "55.2 ± 0.7", "+6.71", "+4.67"]
    assert texts[7:] == ["[+4.67, +4.67]", "yes", "0.70x"]


def test_scale_is_said(cifar):
    (note,) = paper_table([cifar]).footnotes
    for words in ("not the paper's scale", "resnet20 instead of resnet32", "2 seeds instead of 3 runs"):
        assert words in note
    assert "12/8 instead of 160/160" in note


def test_published_settings_are_named_as_such():
    (note,) = paper_table([group_of(*PUBLISHED, "preset=paper", seeds=3)]).footnotes
    assert note.endswith("the published settings, as far as known.")


def test_nothing_is_shown_where_the_paper_has_nothing(cifar):
    others = [
        group_of("data=digits"),
        group_of(*PUBLISHED, tasks=2),
        group_of(*PUBLISHED, evaluation=["aligner.steps=5"]),
    ]
    assert paper_table(others) is None
    assert len(paper_table([*others, cifar]).rows) == 1


def test_it_is_part_of_reports(cifar):
    for form in ("markdown", "latex"):
        assert "Against the paper" in FORMATS[form]([cifar])
        assert "Against the paper" not in FORMATS[form]([group_of("data=digits")])
