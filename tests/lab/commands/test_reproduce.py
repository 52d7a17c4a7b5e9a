"""`elign reproduce` end to end on the embedded digits: interrupted, gone on with, shared, adopted."""

import argparse
import csv
import subprocess
import sys

import pytest
from rich.console import Console

from elign.lab.commands import reproduce
from elign.lab.experiments.config_errors import ConfigError
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.session import begin, read_again
from elign.lab.pages import PageError
from elign.lab.reproduce import grid

TRAINED = ("data.limit=12", "train.first_epochs=1", "train.epochs=1")
TINY = ("preset=smoke", *TRAINED, "aligner.iterations=2")


def run(*words):
    parser = argparse.ArgumentParser()
    reproduce.add_options(parser)
    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    reproduce.run(parser.parse_args([str(word) for word in words]), console)
    return console.export_text()


class StopError(Exception):
    pass


@pytest.fixture(scope="module", autouse=True)
def _few_settings():
    """Half of the printed settings are enough to see it work; the plans' tests count them all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elign.lab.report.paper.ablation_values", lambda name: ("5", "30", "90"))
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Langevin steps of a run that `elign run` made, broken off after one of three readings, and gone on with."""
    folder = tmp_path_factory.mktemp("reproduce")
    settings = ["learner=icarl", "data=digits", "protocol=half-5", "preset=smoke", "train.threads=1", *TRAINED]
    begin([*settings, f"out={folder / 'runs' / 'mine'}"], Console(quiet=True))
    read = []

    def stop(*arguments, **options):
        if len(read) == 1:
            raise StopError
        read.append(arguments)
        return read_again(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "read_again", stop)
        with pytest.raises(StopError):
            run("langevin", *TINY, f"out={folder}")
    plan = run("langevin", *TINY, f"out={folder}", "--plan")
    assert "train icarl on digits, half-5 1 1 0 -" in " ".join(plan.split())
    assert "with other aligners 3 1 2" in " ".join(plan.split())
    run("langevin", *TINY, f"out={folder}")
    return folder


def test_the_table_has_a_line_for_each_printed_setting(out):
    (file,) = out.glob("langevin-smoke-*.csv")
    lines = list(csv.DictReader(file.open()))
    assert [line["steps"] for line in lines] == ["5", "30", "90"]
    assert [line["paper_aligned"] for line in lines] == ["63.3", "63.68", "63.79"]
    # One base model, whatever aligner reads it.
    assert len({line["base"] for line in lines}) == 1
    # Its settings count, not its name.
    assert [folder.name for folder in (out / "runs").iterdir()] == ["mine"]


def test_the_same_again_trains_and_reads_nothing(out, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError

    for name in ("begin", "go_on", "read_again"):
        monkeypatch.setattr(grid, name, never)
    page = out / "page.md"
    page.write_text("<!-- begin reproduce-langevin-smoke -->\n<!-- end reproduce-langevin-smoke -->\n")
    shown = run("langevin", *TINY, f"out={out}", "--results", page)
    assert "in all 4 4 0 -" in " ".join(shown.split())
    assert "preset=smoke, not the paper's scale: data: digits instead of cifar100" in " ".join(shown.split())
    assert "one seed, no interval" in " ".join(shown.split())
    written = page.read_text()
    assert "| 90 | 56.97 |" in written
    assert "Made by `elign reproduce langevin preset=smoke seeds=1 data.limit=12" in written


def test_another_experiment_takes_the_base_run_and_the_first_task(out):
    words = ("learner=icarl,lucir", "protocol=half-5", "preset=smoke", *TRAINED)
    shown = run("table1", *words, f"out={out}")
    assert "training icarl" not in shown
    assert "training lucir" in shown
    (lucir,) = (out / "runs").glob("lucir-*")
    icarl = out / "runs" / "mine"
    assert RunFolder(lucir).facts()["config"]["start_from"] == str(icarl.resolve())
    first = [RunFolder(folder).load_model(0)[0] for folder in (icarl, lucir)]
    assert all(first[0][name].equal(first[1][name]) for name in first[0])
    plan = run("langevin", "learner=aanet", *TINY, f"out={out}", "--plan")
    # Finished runs tell how long others take.
    assert "unknown" not in plan


def test_label_free_readings_stand_beside_the_oracles(out):
    words = ("learner=icarl", "protocol=half-5", "preset=smoke", *TRAINED)
    shown = run("label-free", *words, f"out={out}")
    assert "training icarl" not in shown
    (file,) = out.glob("label-free-smoke-*.csv")
    lines = {line["reading"]: line for line in csv.DictReader(file.open())}
    told = {name for name in lines if "†" in name}
    assert told == {"eli/oracle †", "oracle-mask †"}
    assert {"base", "eli/all", "eli/dose", "bias-offset", "forward/local-shift", "blend"} < set(lines)
    assert {"base, nearest mean", "eli/all, nearest mean"} < set(lines)
    (blend,) = (
        row for row in RunFolder(out / "runs" / "mine").gather().rows if (row.reading, row.task) == ("blend", 6)
    )
    assert float(lines["blend"]["last"]) == pytest.approx(100 * blend.accuracy)


def test_a_table_goes_to_the_section_that_was_named(out, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- begin mine -->\n<!-- end mine -->\n")
    words = ("label-free", "learner=icarl", "protocol=half-5", "preset=smoke", *TRAINED, f"out={out}")
    run(*words, "--results", page, "--section", "mine")
    assert "| blend |" in page.read_text(encoding="utf-8")
    for wrong in (("--section", "mine"), ("langevin", "--results", page, "--section", "mine")):
        with pytest.raises(ConfigError, match="one experiment's table"):
            run(*words, *wrong)


def test_compute_measures_once(tmp_path, monkeypatch):
    # In place of two fresh processes.
    monkeypatch.setattr("elign.lab.reproduce.compute._memory", lambda what, dim: 1.25 if what == "align" else None)
    shown = " ".join(run("compute", "preset=smoke", f"out={tmp_path}").split())
    assert "64, paper 8.385K 1.057M 39 ± 3" in shown
    assert "64 8,385 1.057M" in shown
    assert "1.2 –" in shown
    monkeypatch.setattr("elign.lab.reproduce.compute.measure", None)
    assert "in all 1 1 0 -" in " ".join(run("compute", "preset=smoke", f"out={tmp_path}").split())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells the present size of a process")
def test_memory_grows_by_what_alignment_needs():
    # In a process of its own, as it is used: one that did other work before has room at hand that it need not ask for.
    command = [sys.executable, "-m", "elign.lab.reproduce.memory_probe", "align", "1024"]
    grown = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # The result alone has 10,000 x 1024 numbers of 4 bytes.
    assert grown > 0.9 * 10_000 * 1024 * 4 / 2**20


def test_toy_beside_the_paper(small_maps, tmp_path):
    shown = " ".join(run("toy", "preset=smoke", f"out={tmp_path}").split())
    assert "20.88 → 83.44" in shown
    assert "iterations 300 instead of 17100" in shown
    assert "in all 1 1 0 -" in " ".join(run("toy", "preset=smoke", f"out={tmp_path}", "--plan").split())


def test_what_cannot_end_well_does_not_start(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(PageError, match="reproduce-langevin-smoke"):
        run("langevin", *TINY, f"out={tmp_path / 'o'}", "--results", page)
    with pytest.raises(ConfigError, match="table1 cannot start: the data set imagenet100"):
        run("table1", "data=imagenet100", f"data.data_dir={tmp_path}", f"out={tmp_path / 'o'}")
    assert not (tmp_path / "o").exists()
