"""Tables from hand-made numbers, and the words about scale."""

import csv
import io

import pytest
from rich.console import Console

from elign.lab.report.paper import Printed
from elign.lab.reproduce.base_runs import base_run, evaluation
from elign.lab.reproduce.comparison import ONE_SEED, Measured, comparison
from elign.lab.reproduce.jobs import Experiment, Job, all_jobs, time_text
from elign.lab.reproduce.request import Request
from elign.lab.reproduce.scale import differences, scale_note
from elign.lab.reproduce.sheet import print_sheet, sheet_csv, sheet_markdown

THREE = Measured(
    ("icarl", "half-5"),
    base=(50.0, 52.0, 54.0),
    aligned=(55.0, 58.0, 61.0),
    controls={"oracle-mask †": (60.0, 62.0, 64.0)},
    printed=Printed(56.97, 63.68, 6.71),
)
UNPRINTED = Measured(("lucir", "half-5"), base=(50.0, 52.0, 54.0), aligned=(49.0, 52.0, 55.0))


def sheet(*lines):
    return comparison(
        "t", "Title", ("learner", "protocol"), lines, aligned="eli/oracle †", notes=("scale",), command="elign it"
    )


def test_a_line_by_hand():
    made = sheet(THREE, UNPRINTED)
    row = dict(zip(made.page.columns, made.page.rows[0], strict=True))
    assert row["base, paper"] == "56.97"
    assert row["base"] == "52.0 ± 2.0"
    assert row["eli/oracle †"] == "58.0 ± 3.0"
    assert (row["gain, paper"], row["gain"]) == ("+6.71", "+6.00")
    assert row["95% interval"] == "[+3.52, +8.48]"  # 6 ± 4.3027 · 1 / √3
    assert (row["same sign"], row["size, of the printed"]) == ("yes", "0.89x")
    assert row["gain of oracle-mask †"] == "+10.00"
    other = dict(zip(made.page.columns, made.page.rows[1], strict=True))
    assert (other["gain, paper"], other["same sign"], other["gain of oracle-mask †"]) == ("–", "–", "–")


def test_what_all_lines_share_goes_into_the_title():
    made = sheet(THREE, UNPRINTED)
    assert made.title == "Title, half-5"
    assert made.page.columns[:2] == ("learner", "base, paper")
    assert "over 3 seeds" in made.notes[1]


def test_one_seed_has_no_interval():
    line = Measured(("icarl", "half-5"), (50.0,), (51.0,), {}, Printed(56.97, 63.68, 6.71))
    made = sheet(line)
    row = dict(zip(made.page.columns, made.page.rows[0], strict=True))
    assert row["95% interval"] == ONE_SEED
    assert row["base"] == "50.0"
    assert ONE_SEED in made.notes[1]
    assert "interval" not in made.terminal[0].columns


def test_csv_holds_every_number():
    (first, second) = csv.DictReader(io.StringIO(sheet_csv(sheet(THREE, UNPRINTED))))
    assert float(first["gain_low"]) == pytest.approx(3.516, abs=1e-3)
    assert first["aligned_values"] == "55;58;61"
    assert first["seeds"] == "3"
    assert second["paper_base"] == ""
    assert second["protocol"] == "half-5"


def test_markdown_and_terminal():
    made = sheet(THREE, UNPRINTED)
    text = sheet_markdown(made)
    assert "- scale" in text
    assert "| icarl | 56.97 | 52.0 ± 2.0 | 63.68 |" in text
    assert text.endswith("Made by `elign it`.\n")
    console = Console(width=80, record=True, file=io.StringIO())
    print_sheet(made, console)
    shown = console.export_text()
    assert "56.97 → 63.68" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_nothing_printed_is_said():
    assert sheet(UNPRINTED).notes[-1] == "the paper prints nothing for this"


def test_every_difference_of_scale_is_named():
    run = base_run("icarl", "cifar100", "half-5", preset="small", seed=0)
    found = differences([(evaluation(run), "cifar100")], seeds=3)
    assert "backbone: resnet20 instead of resnet32" in found
    assert "epochs, first task / others: 12/8 instead of 160/160" in found
    assert "exemplars: 20 of each class instead of 2000 in all" in found
    assert "train.schedule: one-cycle instead of steps" in found
    assert not any("milestones" in text or "seed" in text for text in found)
    assert scale_note("small", found).startswith("preset=small, not the paper's scale: ")


def test_the_published_scale_has_no_difference_but_what_is_typed():
    for protocol in ("half-10", "equal-5"):
        run = base_run("aanet", "imagenet100", protocol, preset="paper", seed=0)
        linear = ["aligner.hidden=[]"] if protocol == "half-10" else []
        assert differences([(evaluation(run, linear), "imagenet100")], seeds=3) == []
    run = base_run("icarl", "cifar100", "half-5", preset="paper", seed=0)
    pair = (evaluation(run, ["aligner.steps=60"]), "cifar100")
    assert differences([pair], seeds=1) == ["aligner.steps: 60 instead of 30", "1 seed instead of 3 runs"]
    assert differences([pair], seeds=3, varied=["aligner.steps"]) == []
    assert "published settings" in scale_note("paper", [])


def test_jobs_of_several_experiments_are_each_done_once():
    def job(key, seconds=None, done=False):
        return Job(key, "g", done, seconds, lambda console: None)

    def experiment(*jobs):
        return Experiment("e", "t", jobs, lambda: sheet(THREE), Request())

    jobs = all_jobs([experiment(job("a"), job("b")), experiment(job("b"), job("c"))])
    assert [one.key for one in jobs] == ["a", "b", "c"]
    assert time_text([job("a", 50.0), job("b", 3000.0)]) == "51 min"
    assert time_text([job("a", 50.0), job("b")]) == "50 s + unknown"
