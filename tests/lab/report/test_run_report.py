"""The report of runs: one file without network access that says every number and survives unfinished runs."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

import plotly.graph_objects as go
import pytest
from rich.console import Console

from elign.lab.cli import report
from elign.lab.evaluation.methods import METHODS
from elign.lab.evaluation.metrics import mean_text
from elign.lab.report.run_groups import TABLES, find_runs, read_runs
from elign.lab.report.run_report import run_html, write_run_report
from elign.lab.report.table import Table
from elign.lab.runs.run_dir import RunDir, RunError

pytestmark = pytest.mark.usefixtures("small_maps")
SECTIONS = ["summary", "averages", "curves", "methods", "trade-off", "matrices", "drift", "latents", "runs"]


@pytest.fixture(scope="module")
def groups(run_folders):
    return read_runs(find_runs([run_folders]))[0]


@pytest.fixture(scope="module")
def path(groups, tmp_path_factory):
    return write_run_report(groups, tmp_path_factory.mktemp("report") / "out" / "report.html")


@pytest.fixture(scope="module")
def page(path, parse):
    return parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def single(groups, parse):
    return parse(run_html(groups[:1]))


def test_parses_is_small_and_loads_nothing(path, page):
    assert page.open == []
    assert path.stat().st_size < 8_000_000
    assert len(page.scripts) == 3
    for _, attributes in page.elements:
        assert not {"src", "srcset", "action", "poster"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")
    own = path.read_text(encoding="utf-8").replace(page.scripts[1], "")
    assert "http://" not in own
    assert "https://" not in own


def test_says_every_number(single, groups):
    (group,) = groups[:1]
    for name in group.summaries():
        assert METHODS[name].text in single.text
        assert mean_text(group.values(name)) in single.text
    assert "uses test labels †" in single.text
    assert "mean ± sample standard deviation over 2 seeds" in single.text
    for key in ("learner.temperature", "aligner.steps", "processor", "training (s)", "elign run data=digits"):
        assert key in single.text


def test_sections_come_in_order(single, page):
    assert [attributes["id"] for attributes in single.named("h2")] == SECTIONS
    several = [attributes["id"] for attributes in page.named("h2")]
    assert several == ["summary", "comparison", "experiment-1", "experiment-2"]
    for each in (single, page):
        links = [attributes["href"] for attributes in each.named("a")]
        assert links == [f"#{attributes['id']}" for attributes in each.named("h2")]
        found = [attributes["id"] for _, attributes in each.elements if "id" in attributes]
        assert len(found) == len(set(found))


def test_every_figure_has_words_and_data(page, resolved):
    plots = [attributes for attributes in page.named("div") if "data-figure" in attributes]
    assert {plot["data-figure"] for plot in plots} == set(page.data["figures"])
    assert len(page.named("figcaption")) == len(plots) == 1 + 2 * 9
    for plot in plots:
        assert plot["role"] == "img"
        assert re.search(r"\d", plot["aria-label"])
        go.Figure(resolved(page.data["figures"][plot["data-figure"]]))


def test_each_walk_has_its_own_slider(page):
    assert set(page.data["frames"]) == {"e1-latent", "e2-latent"}
    assert [slider["id"] for slider in page.named("input")] == ["step-e1-latent", "step-e2-latent"]
    for label, slider in zip(page.named("label"), page.named("input"), strict=True):
        assert label["for"] == slider["id"]
        assert slider["max"] == "3"


@pytest.mark.parametrize("finished", [1, 2])
def test_unfinished_runs_are_shown_as_far_as_they_are(run_folders, tmp_path, parse, finished):
    shutil.copytree(run_folders / "lucir", tmp_path / "run")
    for number in range(finished, 3):
        shutil.rmtree(tmp_path / "run" / f"task-0{number}")
    groups, problems = read_runs([RunDir(tmp_path / "run")])
    page = parse(run_html(groups, problems=problems))
    assert f"Only {finished} of 3 tasks are finished so far" in page.text
    assert ("after the second task only" in page.text) == (finished == 1)


def test_missing_latents_do_not_stop_the_report_and_registered_tables_are_sections(
    run_folders, tmp_path, parse, monkeypatch
):
    monkeypatch.setattr(TABLES, "_found", {"mine": lambda groups: Table("My table", ["83.4"])})
    shutil.copytree(run_folders / "lucir", tmp_path / "run")
    (tmp_path / "run" / "task-02" / "latents.safetensors").unlink()
    page = parse(run_html(read_runs([RunDir(tmp_path / "run")])[0]))
    assert "cannot be shown" in page.text
    assert "latent" not in page.data["figures"]
    assert [attributes["id"] for attributes in page.named("h2")][:2] == ["summary", "mine"]
    assert "83.4" in page.text


def test_escapes_what_it_is_given(build_group, parse):
    evil = "</script><script>alert('x')</script> & <b>"
    group = build_group(name=evil, base=[90], eli__oracle=[90])
    page = parse(run_html([group, group], problems=[evil]))
    assert len(page.scripts) == 3
    assert page.open == []
    assert page.text.count(evil) >= 4


def call(*arguments):
    parser = argparse.ArgumentParser()
    report.add_options(parser)
    report.run(parser.parse_args([str(argument) for argument in arguments]), Console(width=60))


def test_page_of_given_runs(run_folders, tmp_path, capsys):
    call(run_folders / "icarl-0", run_folders / "icarl-1", "--out", tmp_path / "deep" / "page.html")
    assert "page.html" in capsys.readouterr().out
    assert "icarl on digits, 4+3" in (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")


def test_without_runs_all_below_out(run_folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="there is no run in out"):
        call()
    (tmp_path / "out").symlink_to(run_folders)
    call("--format", "csv")
    out = capsys.readouterr().out
    assert "icarl on digits" in out
    assert "lucir on digits" in out
    assert not (run_folders / "report.html").exists()


def test_tables_are_not_wrapped_and_figures_are_drawn(run_folders, tmp_path, capsys):
    call(run_folders / "lucir", "--format", "markdown", "--figures", tmp_path / "figures")
    captured = capsys.readouterr()
    assert any(len(line) > 100 and line.endswith("|") for line in captured.out.splitlines())
    assert "Figure" not in captured.out
    assert "curves.svg" in captured.err
    assert len(list((tmp_path / "figures").iterdir())) == 18
    call(run_folders / "lucir", "--format", "latex", "--out", tmp_path / "tables.tex")
    assert "\\toprule" in (tmp_path / "tables.tex").read_text()


def test_default_place():
    assert report._default([]) == Path("out/report.html")
    assert report._default([Path("out/a")]) == Path("out/a/report.html")
    assert report._default([Path("out/a"), Path("out/b")]) == Path("out/report.html")
