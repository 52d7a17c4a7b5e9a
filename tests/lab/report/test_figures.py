"""Figures: their numbers, the same specification for the page and for files."""

from __future__ import annotations

import json
import shutil

import plotly.graph_objects as go
import pytest

from elign.lab.report import static_figures
from elign.lab.report.figures import (
    averages_figure,
    comparison_figure,
    curves_figure,
    drift_figure,
    main_methods,
    matrix_figure,
    trade_off_figure,
)
from elign.lab.report.run_groups import find_runs, read_runs
from elign.lab.report.static_figures import draw, draw_figures

METHODS = {
    "base": [50, 40, 30],
    "eli__oracle": [50, 45, 35],
    "eli__all": [50, 41, 30],
    "oracle_mask": [50, 48, 40],
    "previous_model": [50, 47, 41],
    "bias_offset": [50, 43, 33],
    "blend": [50, 47, 44],
}
FIGURES = (averages_figure, curves_figure, trade_off_figure, drift_figure, lambda group: matrix_figure(group, "base"))


@pytest.fixture
def group(build_group):
    return build_group(seeds=2, **METHODS)


def test_plotly_takes_every_figure(group, resolved):
    for make in FIGURES:
        figure = make(group)
        go.Figure(resolved(figure.spec))
        assert any(character.isdigit() for character in figure.alternative)


def test_numbers(group):
    curves = {trace["name"]: trace["y"] for trace in curves_figure(group).spec["data"] if "name" in trace}
    assert curves["eli/oracle †"] == [50.5, 45.5, 35.5]
    bars, dots = averages_figure(group).spec["data"]
    assert bars["x"][0] == pytest.approx(47.5)
    assert dots["x"][:2] == pytest.approx([47, 48])
    assert matrix_figure(group, "base").spec["data"][0]["z"][1] == [40.5, 40.5, None]
    assert drift_figure(group).spec["data"][0]["y"] == [2.0, 2.0]
    points = {
        name: (x, y)
        for trace in trade_off_figure(group).spec["data"]
        for name, x, y in zip(trace["customdata"], trace["x"], trace["y"], strict=True)
    }
    assert points["eli/oracle †"] == (40.5, 90.0)
    assert len(points) == len(METHODS)


def test_no_two_lines_look_alike(group):
    assert list(main_methods(group))[:2] == ["blend", "base"]
    lines = [trace for trace in curves_figure(group).spec["data"] if "name" in trace]
    assert len(lines) == len({(line["line"]["color"], line["line"]["dash"]) for line in lines}) == 7


def test_open_marks_use_test_labels(group):
    for trace in trade_off_figure(group).spec["data"]:
        for name, symbol in zip(trace["customdata"], trace["marker"]["symbol"], strict=True):
            assert ("†" in name) == symbol.endswith("-open")


def test_comparison(build_group, group):
    without = build_group(name="another", base=[50, 40, 30], eli__all=[50, 41, 30])
    traces = {trace["name"]: trace for trace in comparison_figure([group, without]).spec["data"]}
    assert (traces["blend (label-free default)"]["x"], traces["blend (label-free default)"]["y"]) == ([47.5], [0])
    assert traces["base"]["y"] == traces["best label-free ELI"]["y"] == [0, 1]
    assert list(traces) == [
        "base",
        "blend (label-free default)",
        "eli/oracle †",
        "oracle-mask †",
        "best label-free ELI",
    ]


def test_detectors_have_average_precisions(build_group):
    group = build_group(classifier="detector", **METHODS)
    for make in FIGURES[:3]:
        figure = make(group)
        text = json.dumps(figure.spec) + figure.alternative + figure.caption
        assert "mean average precision" in text
        assert "accuracy" not in text.lower()
    assert matrix_figure(group, "base").spec["layout"]["xaxis"]["title"]["text"] == "classes of task"
    assert draw([trade_off_figure(group)]).axes[0].get_xlabel() == "mean average precision on old classes (%)"


def test_files_show_the_specification(group):
    figure = curves_figure(group)
    (axes,) = draw([figure], title="a $ sign").axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert drawn == {trace["name"]: trace["y"] for trace in figure.spec["data"] if "name" in trace}
    assert axes.get_ylabel() == "accuracy (%)"
    assert [text.get_text() for text in draw([figure]).legends[0].get_texts()] == list(drawn)
    (axes,) = draw([matrix_figure(group, "base")]).axes
    assert [text.get_text() for text in axes.texts] == ["50", "40", "40", "30", "30", "30"]
    assert axes.images[0].get_array().shape == (3, 3)
    (axes,) = draw([averages_figure(group)]).axes
    assert [bar.get_width() for bar in axes.patches][:2] == pytest.approx([47.5, 40.5])
    (axes,) = draw([trade_off_figure(group)]).axes
    assert sum(len(marks.get_offsets()) for marks in axes.collections) == len(METHODS)


def test_files_in_all_formats(run_folders, tmp_path, small_maps, monkeypatch):
    groups = read_runs(find_runs([run_folders / "lucir"]))[0]
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    paths = list(draw_figures(groups, tmp_path / "figures"))
    names = ("averages", "curves", "trade-off", "matrices", "drift", "latents")
    assert {path.name for path in paths} == {f"{name}{suffix}" for name in names for suffix in starts}
    for path in paths:
        assert path.read_bytes().startswith(starts[path.suffix])
    assert "eli/oracle" in (tmp_path / "figures" / "curves.svg").read_text()
    # Latents that were removed are not drawn.
    monkeypatch.setattr(static_figures, "save", lambda canvas, path: path)
    shutil.copytree(run_folders / "lucir", tmp_path / "run")
    (tmp_path / "run" / "task-02" / "latents.safetensors").unlink()
    without = draw_figures(read_runs(find_runs([tmp_path / "run"]))[0], tmp_path)
    assert {path.stem for path in without} == {*names} - {"latents"}


def test_files_of_several_groups_have_names_of_their_own(build_group, tmp_path):
    one = build_group(base=[90], name="a/b: $c")
    paths = list(draw_figures([one, one], tmp_path))
    assert len({path.name for path in paths}) == len(paths) == 2 * 3 * 3
    for suffix in ("png", "pdf", "svg"):
        first, second = ((tmp_path / f"{number}-a-b-c-curves.{suffix}").read_bytes() for number in (1, 2))
        assert first == second
