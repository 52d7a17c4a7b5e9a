"""`elign toy` as a person meets it."""

from __future__ import annotations

from elign.lab.cli.main import main


def test_it_ends_with_a_table_and_a_report(small_maps, tmp_path, capsys):
    page = tmp_path / "results.md"
    page.write_text("<!-- begin toy-digits-8-trained-20 -->\n<!-- end toy-digits-8-trained-20 -->\n")
    options = ["--latent-dim", "8", "--heads", "trained", "--seeds", "2", "--iterations", "20"]
    assert main(["toy", *options, "--out", str(tmp_path / "out"), "--results", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "ridge" in printed
    assert str(tmp_path / "out" / "report.html") in printed.replace("\n", "")
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000
    assert "| ridge |" in page.read_text()


def test_a_page_without_markers_is_named_before_anything_runs(tmp_path, capsys):
    page = tmp_path / "results.md"
    page.write_text("nothing here")
    assert main(["toy", "--latent-dim", "4", "--out", str(tmp_path / "out"), "--results", str(page)]) == 1
    assert "toy-digits-4-paper" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
