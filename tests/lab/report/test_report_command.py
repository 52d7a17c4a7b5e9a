"""`elign report` as a person meets it."""

from __future__ import annotations

import argparse

import pytest
from rich.console import Console

from elign.lab.commands import report
from elign.lab.experiments.run_folder import RunError

pytestmark = pytest.mark.usefixtures("small_maps")


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
    assert len(list((tmp_path / "figures").iterdir())) == 12
    call(run_folders / "lucir", "--format", "latex", "--out", tmp_path / "tables.tex")
    assert "\\toprule" in (tmp_path / "tables.tex").read_text()


def test_default_place():
    from pathlib import Path

    assert report._default([]) == Path("out/report.html")
    assert report._default([Path("out/a")]) == Path("out/a/report.html")
    assert report._default([Path("out/a"), Path("out/b")]) == Path("out/report.html")
