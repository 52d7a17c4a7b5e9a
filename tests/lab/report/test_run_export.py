"""Tables for other programs and figures for papers say the same numbers as the page."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess

import pytest

from elign.lab.report.run_drawings import DRAWINGS, draw_figures
from elign.lab.report.run_export import FORMATS, latex_text
from elign.lab.report.runs import find_runs, read_runs
from elign.lab.report.spread import mean_text


@pytest.fixture(scope="module")
def experiments(run_folders):
    return read_runs(find_runs([run_folders]))[0]


def test_markdown(experiments):
    text = FORMATS["markdown"](experiments)
    assert "### Experiments compared" in text
    assert f"| eli/oracle † | {mean_text(experiments[0].values('eli/oracle'))} |" in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
    assert "Experiments compared" not in FORMATS["markdown"](experiments[:1])


def test_latex_is_balanced_and_escaped(experiments):
    text = FORMATS["latex"](experiments)
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 3
    rows = [line for line in text.splitlines() if line.startswith("eli/oracle")]
    assert rows[0].startswith(r"eli/oracle $^\dagger$ & ")
    assert rows[0].count("&") == 9
    assert text.isascii()
    assert latex_text("50 % of a_b & {c}") == r"50 \% of a\_b \& \{c\}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_compiles(experiments, tmp_path):
    body = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}" + FORMATS["latex"](experiments)
    (tmp_path / "tables.tex").write_text(body + "\\end{document}")
    subprocess.run(["pdflatex", "-halt-on-error", "tables.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_csv_has_every_reading_and_number(experiments):
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](experiments))))
    (oracle,) = (
        row for row in rows if (row["experiment"], row["reading"], row["classifier"])
        == (experiments[0].name, "eli/oracle", "fc")
    )  # fmt: skip
    assert oracle["uses_test_labels"] == "yes"
    assert oracle["runs"] == "2"
    values = experiments[0].values("eli/oracle")
    assert float(oracle["average"]) == pytest.approx(sum(values) / 2, abs=1e-4)
    gains = [one - other for one, other in zip(values, experiments[0].values("base"), strict=True)]
    assert float(oracle["gain"]) == pytest.approx(sum(gains) / 2, abs=1e-4)
    # Student's t with one degree of freedom: 12.706 standard errors on either side.
    reach = 12.706 * abs(gains[0] - gains[1]) / 2
    assert float(oracle["gain_low"]) == pytest.approx(sum(gains) / 2 - reach, abs=1e-2)
    assert float(oracle["gain_high"]) == pytest.approx(sum(gains) / 2 + reach, abs=1e-2)
    assert oracle["average_std"]
    assert {row["classifier"] for row in rows} == {"fc", "prototypes", "nearest-mean", "blend"}
    assert all(row["average_std"] == "" for row in rows if row["runs"] == "1")


def test_figures_in_all_formats(experiments, tmp_path):
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    paths = list(draw_figures(experiments[:1], tmp_path / "figures"))
    assert {path.name for path in paths} == {f"{name}{suffix}" for name in DRAWINGS for suffix in starts}
    for path in paths:
        assert path.read_bytes().startswith(starts[path.suffix])
    assert "eli/oracle" in (tmp_path / "figures" / "curves.svg").read_text()
    again = list(draw_figures(experiments[:1], tmp_path / "again"))
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


def test_figures_of_several_experiments_have_names_of_their_own(build_experiment, tmp_path):
    one = build_experiment(base=[90], name="a/b: $c")
    paths = list(draw_figures([one, one], tmp_path))
    assert len({path.name for path in paths}) == len(paths) == 2 * 2 * 3
    assert (tmp_path / "1-a-b-c-curves.png").is_file()
