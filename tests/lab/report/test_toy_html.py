"""The report is one valid file that needs no network, says every number, and escapes what it is given."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from elign.lab.experiments.toy_result import READINGS
from elign.lab.report.embedding import embed
from elign.lab.report.toy_figures import SHOWN_DIMENSIONS, heat_figure, loss_figure, seed_offsets
from elign.lab.report.toy_html import toy_html, write_toy_report

FIGURES = ["accuracy", "latent", "heat", "energy", "loss"]


@pytest.fixture(scope="module")
def path(result, embedding, tmp_path_factory):
    return write_toy_report(result, tmp_path_factory.mktemp("report") / "out" / "toy.html", embedding=embedding)


@pytest.fixture(scope="module")
def page(path, parse):
    return parse(path.read_text(encoding="utf-8"))


@pytest.fixture
def small(build_picture):
    """A picture whose embedding takes no time."""
    return build_picture(n=12, m=6, dimension=4, last=3)


def test_parses_and_is_small_enough(path, page):
    assert page.open == []
    assert path.stat().st_size < 8_000_000
    assert len(page.scripts) == 3


def test_loads_nothing(path, page):
    for _, attributes in page.elements:
        assert not {"src", "href", "srcset", "action", "poster"} & attributes.keys()
    assert "url(" not in page.style
    assert "@import" not in page.style
    policy = next(meta["content"] for meta in page.named("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "http" not in policy
    own = path.read_text(encoding="utf-8").replace(page.scripts[1], "")
    assert "http://" not in own
    assert "https://" not in own


def test_says_every_number(page, result):
    for name, description in READINGS.items():
        assert name in page.text
        assert description in page.text
        for value in result.values(name):
            assert f"{value:.1f}" in page.text
    assert "83.44" in page.text
    assert "ELI brought it back to 83.5 ± 0.8 %" in page.text
    assert result.command in page.text
    for pairs in (result.settings, result.environment):
        assert all(key in page.text for key in pairs)
    assert "6.400" in page.text


def test_sections_come_in_order(page):
    order = [attributes["id"] for attributes in page.named("h2")]
    assert order == ["summary", "readings", "latents", "dimensions", "energies", "training", "drift", "run"]


def test_every_figure_has_words(page):
    plots = [attributes for attributes in page.named("div") if "data-figure" in attributes]
    assert [plot["data-figure"] for plot in plots] == FIGURES
    for plot in plots:
        assert plot["role"] == "img"
        assert re.search(r"\d", plot["aria-label"])
    assert len(page.named("figcaption")) == len(FIGURES)


def test_controls_are_native_and_labelled(page):
    (slider,) = page.named("input")
    assert slider["type"] == "range"
    assert slider["max"] == "10"
    assert any(label["for"] == slider["id"] for label in page.named("label"))
    assert re.match(r"step 0 of 30, \d+ % of the points shown are read correctly", slider["aria-valuetext"])
    assert all(button.get("type") == "button" for button in page.named("button"))
    assert any(meta.get("name") == "viewport" for meta in page.named("meta"))
    assert "prefers-color-scheme: dark" in page.style


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_what_plotly_accepts(page, name, resolved):
    go.Figure(resolved(page.data["figures"][name]))


def test_frames_fit_the_figure(page, result, embedding):
    frames = page.data["frames"]["latent"]
    data = page.data["figures"]["latent"]["data"]
    assert len(frames["x"]) == len(frames["y"]) == len(frames["symbols"]) == len(frames["texts"]) == 11
    for position, trace in enumerate(frames["traces"]):
        assert data[trace]["x"] == frames["x"][0][position]
        assert data[trace]["marker"]["symbol"] == frames["symbols"][0][position]
    for step, symbols in zip(embedding.steps, frames["symbols"], strict=True):
        wrong = sum(each.count("x") for each in symbols)
        assert wrong == int((~result.picture.correct[step, embedding.old_index]).sum())


def test_escapes_what_it_is_given(build, small, parse):
    evil = "</script><script>alert('x')</script> & <b>"
    result = build(picture=replace(small, class_names=(evil,) * 10), title=evil, command=f"elign toy {evil}")
    result = replace(result, settings={evil: evil}, environment={evil: evil})
    page = parse(toy_html(result, embed(small)))
    assert len(page.scripts) == 3
    assert page.open == []
    assert page.text.count(evil) >= 6
    names = [trace.get("name", "") for trace in page.data["figures"]["latent"]["data"]]
    assert not any("<" in name for name in names)


def test_single_seed_without_printed_numbers(build, small, parse):
    page = parse(toy_html(build(seeds=1, printed={}, picture=small), embed(small)))
    assert "±" not in page.text
    assert "paper" not in page.text
    assert "error_x" not in page.data["figures"]["accuracy"]["data"][0]


def test_survives_overflow_and_missing_energies(build, small, parse):
    small.old_trajectory[-1, 0] = np.nan
    broken = replace(small, energy={"old, aligned": np.array([np.inf, 1.0], np.float32)}, loss=np.array([], np.float32))
    page = parse(toy_html(build(picture=broken), embed(broken)))
    assert "1 of 12 images are left out" in page.text


def test_heat_map_shows_the_dimensions_that_move_most(build_picture):
    picture = build_picture(n=10, m=5, dimension=100, last=4)
    figure = heat_figure(picture)
    (trace,) = figure.spec["data"]
    assert len(trace["y"]) == SHOWN_DIMENSIONS
    assert "64 of 100 dimensions" in figure.caption
    moved = np.abs((picture.old_trajectory - picture.old_trajectory[0]).mean(axis=1)).max(axis=0)
    assert {int(index) for index in trace["y"]} == set(np.argsort(-moved)[:SHOWN_DIMENSIONS].tolist())
    assert trace["zmin"] == -trace["zmax"]


def test_long_losses_are_averaged(build_picture):
    picture = replace(build_picture(n=4, m=2, dimension=2, last=1), loss=np.arange(2500, dtype=np.float32))
    figure = loss_figure(picture)
    (trace,) = figure.spec["data"]
    assert trace["y"][0] == 1.0
    assert len(trace["y"]) == 834
    assert "mean of 3 iterations" in figure.caption


def test_dots_of_seeds_are_centred():
    assert seed_offsets(1) == [0.0]
    assert sum(seed_offsets(3)) == pytest.approx(0)
