"""Tables: every reading under its group, oracles marked, spreads over runs."""

from __future__ import annotations

import io
import statistics
from dataclasses import replace

import pytest
from rich.console import Console
from tests.lab.evaluation.classifier_readings import READINGS

from elign.lab.evaluation.metrics import summarise
from elign.lab.evaluation.table import NEAREST_MEAN, summary_markdown, summary_table


@pytest.fixture(scope="module")
def summaries(run):
    return summarise(run.rows)


def printed(table, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return stream.getvalue()


def value(summaries, reading, name, classifier="fc"):
    (found,) = (s for s in summaries if (s.reading, s.classifier) == (reading, classifier))
    return getattr(found, name)


def changed(summaries, by):
    return [replace(s, average=s.average + by) for s in summaries]


@pytest.mark.parametrize("count", [1, 3])
def test_terminal(summaries, count):
    text = printed(summary_table([changed(summaries, 0.02 * i) for i in range(count)], title="[b]x[/b]"))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    assert "[b]x[/b]" in text
    for name, entry in READINGS.items():
        (line,) = (line for line in lines if line.split()[:1] == [name])
        assert ("†" in line) == (not entry.label_free)
    assert "† uses test labels" in text
    assert ("± " in text or "±" in text.replace("mean ±", "")) == (count > 1)


def test_groups_are_in_order(summaries):
    text = printed(summary_table([summaries]))
    places = [text.index(heading) for heading in dict.fromkeys(entry.group for entry in READINGS.values())]
    assert places == sorted(places)
    assert text.index("controls, oracle") < text.index("ridge/oracle") < text.index("controls, label-free")


def test_markdown_numbers(summaries):
    lines = summary_markdown([summaries]).splitlines()
    (line,) = (line for line in lines if "`eli/by-energy`" in line)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    names = ("average", "last", "old", "new", "among_old", "forgetting", "gate_accuracy")
    names += ("average_incremental", "recovered")
    assert cells[3:] == [f"{100 * value(summaries, 'eli/by-energy', name):.1f}" for name in names]
    (line,) = (line for line in lines if "`eli/oracle`" in line)
    assert "yes †" in line
    assert line.split("|")[10].strip() == "–"
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {13}
    assert len(table) == 2 + len(READINGS)


def test_spread_over_runs(summaries):
    runs = [changed(summaries, by) for by in (0.0, 0.01, 0.05)]
    values = [100 * value(run, "base", "average") for run in runs]
    expected = f"| {statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f} |"
    (line,) = (line for line in summary_markdown(runs).splitlines() if "`base`" in line)
    assert expected in line
    assert "over 3 runs" in summary_markdown(runs)


def test_a_reading_that_a_run_lacks_has_no_mean(summaries):
    fewer = [s for s in summaries if s.reading != "eli/by-probe"]
    (line,) = (line for line in summary_markdown([summaries, fewer]).splitlines() if "`eli/by-probe`" in line)
    assert line.count("–") == 9


def test_nearest_mean_is_a_table_of_its_own(summaries):
    text = summary_markdown([summaries], classifiers=NEAREST_MEAN)
    assert "bias-offset" not in text
    assert "forward" not in text
    (line,) = (line for line in text.splitlines() if "`base`" in line)
    assert f"{100 * value(summaries, 'base', 'average', 'nearest-mean'):.1f}" in line
