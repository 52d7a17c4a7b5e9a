"""The report of runs: one file without network access that says every number and survives unfinished runs."""

from __future__ import annotations

import re
import shutil

import plotly.graph_objects as go
import pytest

from elign.lab.evaluation.catalogue import READINGS
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.report.run_html import run_html, write_run_report
from elign.lab.report.runs import find_runs, read_runs
from elign.lab.report.sections import Piece, Section
from elign.lab.report.spread import mean_text

pytestmark = pytest.mark.usefixtures("small_maps")
TOPICS = ["summary", "curves", "readings", "trade-off", "matrices", "drift", "latents", "runs"]  # of classifiers


@pytest.fixture(scope="module")
def experiments(run_folders):
    return read_runs(find_runs([run_folders]))[0]


@pytest.fixture(scope="module")
def path(experiments, tmp_path_factory):
    return write_run_report(experiments, tmp_path_factory.mktemp("report") / "out" / "report.html")


@pytest.fixture(scope="module")
def page(path, parse):
    return parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def single(experiments, parse):
    return parse(run_html(experiments[:1]))


def test_parses_and_is_small_enough(path, page):
    assert page.open == []
    assert path.stat().st_size < 8_000_000
    assert len(page.scripts) == 3


def test_loads_nothing(path, page):
    for _, attributes in page.elements:
        assert not {"src", "srcset", "action", "poster"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")
    own = path.read_text(encoding="utf-8").replace(page.scripts[1], "")
    assert "http://" not in own
    assert "https://" not in own


def test_says_every_number(single, experiments):
    (experiment,) = experiments[:1]
    for name in experiment.summaries():
        assert READINGS[name].text in single.text
        assert mean_text(experiment.values(name)) in single.text
    assert "uses test labels †" in single.text
    assert "mean ± sample standard deviation over 2 seeds" in single.text
    for key in ("learner.temperature", "aligner.steps", "processor", "training (s)", "elign run data=digits"):
        assert key in single.text


def test_sections_come_in_order(single, page):
    assert [attributes["id"] for attributes in single.named("h2")] == TOPICS
    several = [attributes["id"] for attributes in page.named("h2")]
    assert several == ["summary", "comparison", "experiment-1", "experiment-2"]
    for each in (single, page):
        links = [attributes["href"] for attributes in each.named("a")]
        assert links == [f"#{attributes['id']}" for attributes in each.named("h2")]


def test_identifiers_differ(page):
    found = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(found) == len(set(found))


def test_every_figure_has_words_and_data(page, resolved):
    plots = [attributes for attributes in page.named("div") if "data-figure" in attributes]
    assert {plot["data-figure"] for plot in plots} == set(page.data["figures"])
    assert len(page.named("figcaption")) == len(plots) == 1 + 2 * 8
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


def test_a_section_can_be_added(experiments, parse):
    page = parse(run_html(experiments[1:], more=[Section("paper", "Against the paper", Piece("<p>83.4</p>"))]))
    assert [attributes["id"] for attributes in page.named("h2")][:2] == ["summary", "paper"]
    assert "83.4" in page.text


@pytest.mark.parametrize("finished", [1, 2])
def test_unfinished_runs_are_shown_as_far_as_they_are(run_folders, tmp_path, parse, finished):
    shutil.copytree(run_folders / "lucir", tmp_path / "run")
    for number in range(finished, 3):
        shutil.rmtree(tmp_path / "run" / f"task-0{number}")
    experiments, problems = read_runs([RunFolder(tmp_path / "run")])
    page = parse(run_html(experiments, problems=problems))
    assert f"Only {finished} of 3 tasks are finished so far" in page.text
    assert ("nothing to say about ELI yet" in page.text) == (finished == 1)


def test_missing_latents_are_said_and_do_not_stop_the_report(run_folders, tmp_path, parse):
    shutil.copytree(run_folders / "lucir", tmp_path / "run")
    (tmp_path / "run" / "task-02" / "latents.safetensors").unlink()
    page = parse(run_html(read_runs([RunFolder(tmp_path / "run")])[0]))
    assert "cannot be shown" in page.text
    assert "latent" not in page.data["figures"]


def test_escapes_what_it_is_given(build_experiment, parse):
    evil = "</script><script>alert('x')</script> & <b>"
    experiment = build_experiment(name=evil, base=[90], eli__oracle=[90])
    page = parse(run_html([experiment, experiment], problems=[evil]))
    assert len(page.scripts) == 3
    assert page.open == []
    assert page.text.count(evil) >= 5
