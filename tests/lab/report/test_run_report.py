"""The report of runs: one file without network access, its summary, its pictures of detections, and the command."""

from __future__ import annotations

import argparse
import re
import shutil
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest
import torch
from rich.console import Console
from tests.test_path_of_a_repair import files_that_run

from elign.lab.cli import report
from elign.lab.evaluation.methods import METHODS
from elign.lab.evaluation.metrics import mean_text
from elign.lab.paper.comparison import paper_table
from elign.lab.report.run_groups import TABLES, find_runs, read_runs
from elign.lab.report.run_report import pictures_html, run_html, run_summary, write_run_report
from elign.lab.report.table import Table
from elign.lab.runs.run_dir import RunDir, RunError
from elign.lab.storage import write_tensors

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


def test_the_page_of_a_run_goes_through_few_files(run_folders, tmp_path, capsys, monkeypatch):
    """Whoever looks for a mistake has to read these; they were 62 once."""
    # What other tests have loaded adds tables that a command of its own does not have.
    monkeypatch.setattr(TABLES, "_found", {"paper": paper_table})
    with files_that_run() as names:
        call(run_folders / "icarl-0", "--out", tmp_path / "deep" / "page.html")
    assert "page.html" in capsys.readouterr().out
    assert "icarl on digits, 4+3" in (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    assert {"lab/report/run_report.py", "lab/report/latent_space.py", "aligners/energy.py"} <= names
    assert len(names) <= 25, f"{len(names)} files: {', '.join(sorted(names))}"


GAINS = {
    "base": [90, 60, 50],
    "eli__oracle": [90, 80, 70],
    "eli__by_probe": [90, 70, 60],
    "eli__all": [90, 50, 40],
    "oracle_mask": [90, 70, 65],
    "ridge__oracle": [90, 65, 60],
    "bias_offset": [90, 65, 55],
    "blend": [90, 75, 66],
}


def test_wording(build_group):
    """The one snapshot of the sentences."""
    assert run_summary(build_group(seeds=2, **GAINS))[1:] == [
        "Base, without any correction, has an average accuracy over the tasks of 67.2 ± 0.7 %. It reaches 50.5 ± 0.7 % "
        "after the last task, 55.5 ± 0.7 % on old classes and 90.0 ± 0.0 % on new ones.",
        "The label-free default (blend) reaches 77.5 ± 0.7 %: 10.3 points more than base, on 2 of 2 seeds.",
        "The best label-free use of ELI, eli/by-probe, reaches 73.8 ± 0.7 %: 6.7 points more than base, on 2 of 2 "
        "seeds. The best label-free baseline, bias-offset, reaches 70.5 ± 0.7 %: 3.3 points less than eli/by-probe, "
        "on 2 of 2 seeds. They were chosen by their results on these test images, so their numbers are optimistic.",
        "An oracle knows of each test image whether its class is old. With it, ELI (eli/oracle) reaches 80.5 ± 0.7 %: "
        "13.3 points more than base, on 2 of 2 seeds. Base with the same knowledge (oracle-mask) reaches 75.5 ± 0.7 %: "
        "5.0 points less than eli/oracle, on 2 of 2 seeds. The best baseline with it, ridge/oracle, reaches "
        "72.2 ± 0.7 %: 8.3 points less than eli/oracle, on 2 of 2 seeds.",
    ]


def test_losses_are_said(build_group):
    losses = {"eli__oracle": [90, 50, 40], "eli__by_probe": [90, 40, 30], "blend": [90, 55, 45]}
    text = " ".join(run_summary(build_group(**{**GAINS, **losses})))
    assert "±" not in text
    assert "The label-free default (blend) reaches 63.3 %: 3.3 points less than base, on the only seed." in text
    assert "reaches 60.0 %: 6.7 points less than base" in text
    assert "15.0 points more than eli/oracle" in text


def test_no_difference_is_said(build_group):
    text = " ".join(run_summary(build_group(**{name: [90, 60, 50] for name in GAINS})))
    assert text.count("the same as") == 6
    assert "0.0 points" not in text


def test_prototypes_moved_by_eli_are_no_baseline(build_group):
    group = build_group(base=[90, 60], eli__oracle=[90, 60], forward__eli=[90, 80], forward__none=[90, 85])
    assert group.best_eli() == "forward/eli"
    assert group.best_baseline() == "forward/none"
    assert group.best_baseline(uses_labels=True) is None


@pytest.mark.parametrize("tasks", [1, 2])
def test_unfinished(build_group, tasks):
    sentences = run_summary(build_group(base=[90, 60][:tasks], eli__oracle=[90, 70][:tasks]))
    assert f"Only {tasks} of 3 tasks are finished so far." in sentences[0]
    assert (len(sentences) == 2) == (tasks == 1)
    assert "nan" not in " ".join(sentences)


def test_detectors(build_group):
    text = " ".join(run_summary(build_group(classifier="detector", **GAINS)))
    assert "average mean average precision over the tasks of 66.7 %" in text
    assert "of each region whether it lies on an old object" in text
    assert "accuracy" not in text


# Boxes on a picture of 64 x 64; the classes from 4 on are new.
FOUND = (
    ((2.0, 2.0, 20.0, 20.0), 0, 0.9),
    ((50.0, 0.0, 64.0, 12.0), 6, 0.5),
    ((40.0, 63.0, 60.0, 64.0), 1, 0.4),
    ((10.0, 10.0, 30.0, 30.0), 2, 0.29),
)
NAMES = ["<zero>", "one", "two", "three", "four", "five", "dining table"]


@pytest.fixture
def detector(build_group, tmp_path):
    group = build_group(base=[50, 40], classifier="detector")
    run = group.runs[0]
    return replace(group, runs=(replace(run, folder=RunDir(tmp_path), metadata={**run.metadata, "classes": NAMES}),))


@pytest.fixture
def html(detector, tmp_path):
    """The pictures of a run in which every method found the same."""
    assert pictures_html(detector) is None
    boxes, labels, scores = map(torch.tensor, zip(*FOUND, strict=True))
    tensors = {"0.image": torch.zeros(3, 64, 64, dtype=torch.uint8)}
    tensors |= {"0.boxes": boxes[:2].clone(), "0.labels": labels[:2].clone(), "0.difficult": torch.zeros(2).bool()}
    for name in ("base", "eli/oracle", "eli/by-prediction"):
        parts = {"boxes": boxes, "scores": scores, "labels": labels}
        tensors |= {f"0.{name}.{part}": value.clone() for part, value in parts.items()}
    (tmp_path / "task-01").mkdir()
    write_tensors(tmp_path / "task-01" / "pictures.safetensors", tensors, {"count": 1})
    return pictures_html(detector)


def panels(html):
    return re.findall(r"<svg.*?</svg>", html, re.DOTALL)


def test_what_is_drawn(html):
    assert re.findall(r'<li class="(\w+)">', html) == ["old", "new", "there"]
    assert len(panels(html)) == 3
    for panel in panels(html):
        assert len(re.findall(r'<rect class="(old|new)"', panel)) == 3
        assert re.findall(r'<text class="(\w+)"[^>]*>([^<]*)', panel) == [
            # The surest last, so that nothing covers its name.
            ("old", "one 0.40"),
            ("new", "dining table 0.50"),
            ("old", "&lt;zero&gt; 0.90"),
        ]
        assert panel.rindex("<rect") < panel.index("<text")
        # Each box has an edge, which is seen where its colour is not.
        assert panel.count('class="edge"') == len(re.findall(r'<rect class="(old|new|there)"', panel))
        assert "found &lt;zero&gt; 0.90, dining table 0.50, one 0.40; there is" in panel


def test_names_stay_within_the_picture(html):
    pattern = r'<text class="\w+" x="([\d.]+)" y="([\d.]+)" font-size="([\d.]+)" text-anchor="(\w+)">([^<]*)'
    placed = re.findall(pattern, panels(html)[0])
    assert len(placed) == 3
    for x, y, size, anchor, text in placed:
        # A letter of a usual font is about 0.6 of its size wide.
        width = 0.6 * float(size) * len(text.replace("&lt;", "<").replace("&gt;", ">"))
        left = float(x) if anchor == "start" else float(x) - width
        assert left >= 0
        assert left + width <= 64
        assert float(size) <= float(y) + 1
        assert float(y) <= 64
