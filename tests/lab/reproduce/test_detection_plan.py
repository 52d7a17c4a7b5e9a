"""Plans of the table of detectors, its lines from hand-made numbers, and what is published. Nothing is trained here."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from elign.lab.data.protocol import ProtocolError
from elign.lab.evaluation.scoring import Row
from elign.lab.experiments.kinds import DETECTION
from elign.lab.report import paper
from elign.lab.report.spread import ONE_SEED
from elign.lab.reproduce.base_runs import base_run
from elign.lab.reproduce.catalogue import EXPERIMENTS, planned
from elign.lab.reproduce.detection_plan import LEARNERS, precision
from elign.lab.reproduce.detection_scale import differences, published_config, published_settings
from elign.lab.reproduce.detection_sheet import PARTS, Precisions, precision_sheet
from elign.lab.reproduce.request import read_request
from elign.lab.reproduce.sheet import print_sheet, sheet_csv


def plan(out, *words):
    names, request = read_request(tuple(EXPERIMENTS), ["table2", *words, f"out={out}"])
    (experiment,) = planned(names, request)
    return experiment


@pytest.mark.parametrize(
    ("words", "runs", "readings", "remark"),
    [
        ("preset=smoke", 18, 0, "18 runs share 9 first tasks"),
        ("", 54, 0, "54 runs share 27 first tasks"),
        ("preset=paper seeds=1", 18, 0, "18 runs share 9 first tasks"),
        ("preset=smoke protocol=5+5,5+3+2 learner=ilod,finetune", 4, 0, "4 runs share 1 first task"),
        # Only what is shown of iOD depends on the aligner.
        ("preset=smoke protocol=5+5 seeds=2 aligner.steps=5", 12, 2, "12 runs share 6 first tasks"),
        ("data=voc data.path=. protocol=3+2 learner=iod seeds=2", 2, 0, None),
    ],
)
def test_sizes(tmp_path, words, runs, readings, remark):
    experiment = plan(tmp_path, *words.split())
    keys = [job.key for job in experiment.jobs]
    assert len(set(keys)) == len(keys)
    assert sum(key.startswith("run ") for key in keys) == runs
    assert sum(key.startswith("evaluation ") for key in keys) == readings
    assert experiment.remarks == (() if remark is None else (f"table2: {remark}",))
    assert not any(job.done for job in experiment.jobs)


def test_splits_and_data_of_each_scale(tmp_path):
    def groups(*words):
        return {job.group for job in plan(tmp_path, "learner=ore", "seeds=1", *words).jobs}

    scenes = {f"train ore on digit-scenes, {split}" for split in ("5+5", "8+2", "9+1")}
    pictures = {f"train ore on voc2007, {split}" for split in ("10+10", "15+5", "19+1")}
    assert groups() == groups("preset=smoke") == groups("preset=paper", "data=digit-scenes") == scenes
    assert groups("preset=paper") == groups("data=voc2007") == pictures
    with pytest.raises(ProtocolError, match="split of 20 classes, but there are 10"):
        groups("protocol=15+5")


def test_missing_pictures_are_said_with_the_plan(tmp_path):
    experiment = plan(tmp_path, "preset=paper", f"data.data_dir={tmp_path}")
    assert experiment.missing[0].startswith(f"the data set voc2007 is not in {tmp_path}")
    (tmp_path / "VOC2007" / "ImageSets" / "Main").mkdir(parents=True)
    assert plan(tmp_path, "preset=paper", f"data.data_dir={tmp_path}").missing == ()
    assert plan(tmp_path, "preset=paper", f"data.path={tmp_path / 'elsewhere'}").missing == ()


def test_first_tasks_that_are_the_same():
    def key(learner, protocol="5+5", seed=0, *settings):
        run = base_run(learner, "digit-scenes", protocol, preset="small", seed=seed, settings=settings, kind=DETECTION)
        return run.first_task

    plain = [key(learner) for learner in ("joint", "finetune", "ilod", "faster-ilod")]
    assert len(set(plain)) == 1
    assert len({*plain, key("ore"), key("iod"), key("iod", "5+5", 0, "learner.warp_images=4")}) == 4
    assert key("ilod", "5+3+2") == plain[0]
    assert key("ilod", "8+2") != plain[0] != key("ilod", "5+5", 1)
    assert key("ilod", "5+5", 0, "train.epochs=1") == plain[0] != key("ilod", "5+5", 0, "train.first_epochs=1")


def test_the_published_scale_has_no_difference_but_what_is_typed():
    def pair(protocol, *typed):
        settings = (*typed, *published_settings(protocol, typed))
        run = base_run("iod", "voc2007", protocol, preset="paper", seed=0, settings=settings, kind=DETECTION)
        return run.config, published_config("iod", protocol)

    assert differences(pair(protocol) for protocol in paper.table2_protocols()) == []
    typed = differences([pair("10+10", "train.epochs=3"), pair("19+1", "model.nms=0.5", "train.epochs=3")])
    assert typed == [
        "epochs, first task / others: 29/3 instead of 29/29",
        "model.nms: 0.5 instead of 0.3",
    ]
    assert pair("19+1")[0].aligner.hidden == ()
    assert pair("10+10")[0].aligner.step_size == 0.01
    assert published_settings("8+2", ()) == ()


def test_printed_numbers():
    for protocol in paper.table2_protocols():
        old, new = map(int, protocol.split("+"))
        for learner in (*LEARNERS, "iod+eli"):
            cell = paper.table2(learner, protocol)
            assert (old * cell.old + new * cell.new) / 20 == pytest.approx(cell.all, abs=0.11)
        gain = paper.table2_gain(protocol)
        assert gain.gain == pytest.approx(gain.aligned - gain.base, abs=0.05)
    assert paper.table2("icarl", "15+5") == paper.NO_PRECISION
    assert paper.table2_gain("5+5") == paper.NOTHING
    assert [paper.table2_first(protocol).old for protocol in paper.table2_protocols()] == [73.4, 76.85, 71.07]
    assert paper.table2_first("5+5") == paper.NO_PRECISION


def test_precisions_are_those_of_a_reading_after_the_last_task():
    def row(task, reading, accuracy, old=None, new=None):
        return Row(task, reading, "detector", True, accuracy, old, new, None, None, 0.0, (accuracy,) * task)

    rows = [row(1, "base", 0.9), row(2, "base", 0.5, 0.4, 0.6), row(2, "eli/all", 0.25, 0.125, 0.375)]
    assert [precision(rows, "base", part) for part in PARTS] == [40.0, 60.0, 50.0]
    assert [precision(rows, "eli/all", part) for part in PARTS] == [12.5, 37.5, 25.0]


def lines(seeds):
    def values(*numbers):
        return {
            part: tuple(number + seed for seed in range(seeds)) for part, number in zip(PARTS, numbers, strict=True)
        }

    base = values(60.0, 70.0, 65.0)
    aligned = {part: tuple(value + 2 + (place - 1) for place, value in enumerate(base[part])) for part in PARTS}
    return [
        Precisions("5+5", "joint", values(80.0, 82.0, 81.0), printed=paper.table2("joint", "10+10")),
        Precisions("5+5", "iod", base, printed=paper.table2("iod", "10+10")),
        Precisions("5+5", "iod", aligned, "eli/oracle †", base, paper.table2("iod+eli", "10+10"), 5.4),
        Precisions("5+5", "iod", values(60.0, 69.0, 64.5), "mean-shift/oracle †", base),
    ]


def test_lines_by_hand():
    made = precision_sheet("t", "Title", lines(3), notes=("scale",), command="elign it")
    joint, iod, aligned, shifted = (dict(zip(made.page.columns, row, strict=True)) for row in made.page.rows)
    assert (joint["old, paper"], joint["old"], joint["all, paper"], joint["all"]) == (
        "74.7",
        "81.0 ± 1.0",
        "75.2",
        "82.0 ± 1.0",
    )
    assert (iod["gain, paper"], iod["gain"], iod["gain of old"]) == ("–", "–", "–")
    assert (aligned["all, paper"], aligned["gain, paper"], aligned["gain"]) == ("71.7", "+5.40", "+2.00")
    assert aligned["95% interval"] == "[-0.48, +4.48]"  # 2 ± 4.3027 · 1 / √3
    assert aligned["same sign"] == "yes, 0 in interval"
    assert (shifted["all, paper"], shifted["gain"], shifted["same sign"]) == ("–", "-0.50", "–")
    assert (shifted["gain of old"], shifted["gain of new"]) == ("+0.00", "-1.00")
    records = list(csv.DictReader(io.StringIO(sheet_csv(made))))
    assert records[2]["all_values"] == "66;68;70"
    assert float(records[2]["gain_all_high"]) == pytest.approx(4.484, abs=1e-3)
    assert (records[0]["gain_all"], records[0]["paper_new"]) == ("", "75.66")


def test_a_part_without_a_value():
    first = Precisions("5+5", "first task only", {"old": (70.0, 72.0)}, printed=paper.table2_first("10+10"))
    made = precision_sheet("t", "Title", [first], notes=(), command="elign it")
    row = dict(zip(made.page.columns, made.page.rows[0], strict=True))
    assert (row["old, paper"], row["old"], row["new"], row["all"], row["gain"]) == ("73.4", "71.0 ± 1.4", "–", "–", "–")
    (record,) = csv.DictReader(io.StringIO(sheet_csv(made)))
    assert (record["seeds"], record["old_values"]) == ("2", "70;72")


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_terminal_of_80_columns_has_room(seeds):
    made = precision_sheet("t", "Title", lines(seeds), notes=(), command="elign it")
    console = Console(width=80, record=True, file=io.StringIO())
    print_sheet(made, console)
    shown = console.export_text()
    assert "…" not in shown
    assert "mean-shift/oracle" in shown
    assert ("interval" in made.terminal[1].columns) == (seeds > 1)
    assert ONE_SEED not in shown
    alone = precision_sheet("t", "Title", lines(seeds)[:1], notes=(), command="elign it")
    assert len(alone.terminal) == 1
