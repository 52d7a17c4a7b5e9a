"""The printed numbers, spot-checked; tables from hand-made numbers; which runs of a report have printed ones beside."""

import csv
import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests.lab.report.conftest import make_run

from elign.lab.config import compose, describe
from elign.lab.evaluation.methods import DEFAULT
from elign.lab.evaluation.metrics import ONE_SEED, Row
from elign.lab.paper.comparison import (
    NO_PRECISION,
    NOTHING,
    Measured,
    Printed,
    comparison_tables,
    label_free_tables,
    numbers,
    paper_table,
    printed_cell,
    printed_precision,
    printed_toy,
)
from elign.lab.paper.detection_table import FIRST, PARTS, Precisions, precision, precision_tables
from elign.lab.paper.request import NAMES, read_grid
from elign.lab.report.run_groups import FORMATS, RunGroup

THREE = Measured(
    ("icarl", "half-5"),
    base=(50.0, 52.0, 54.0),
    aligned=(55.0, 58.0, 61.0),
    baselines={"oracle-mask †": (60.0, 62.0, 64.0)},
    printed=Printed(56.97, 63.68, 6.71),
)
UNPRINTED = Measured(("lucir", "half-5"), base=(50.0, 52.0, 54.0), aligned=(49.0, 52.0, 55.0))


def compared(*lines):
    headings = ("learner", "protocol")
    return comparison_tables("Title", headings, lines, aligned="eli/oracle †", notes=["scale"], command="elign it")


def cells(table):
    """The rows of the table on a page, by heading."""
    lines = [line for line in table.to_markdown().splitlines() if line.startswith("| ")]
    heads, _, *rows = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in lines)
    return [dict(zip(heads, row, strict=True)) for row in rows]


def records(table):
    return list(csv.DictReader(io.StringIO(table.to_csv())))


def shown(tables):
    console = Console(width=80, file=io.StringIO())
    for table in tables:
        table.caption, table.footnotes = (), ()
        console.print(table.to_rich())
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    return " ".join(text.split())


def test_a_line_by_hand():
    row, other = cells(compared(THREE, UNPRINTED)[0])
    assert (row["base, paper"], row["base"], row["eli/oracle †"]) == ("56.97", "52.0 ± 2.0", "58.0 ± 3.0")
    assert (row["gain, paper"], row["gain"]) == ("+6.71", "+6.00")
    assert row["95% interval"] == "[+3.52, +8.48]"  # 6 ± 4.3027 · 1 / √3
    assert (row["same sign"], row["size, of the printed"]) == ("yes", "0.89x")
    assert row["gain of oracle-mask †"] == "+10.00"
    assert (other["gain, paper"], other["same sign"], other["gain of oracle-mask †"]) == ("–", "–", "–")


def test_labels_that_all_lines_share_go_into_the_title():
    table = compared(THREE, UNPRINTED)[0]
    assert table.title == "Title, half-5"
    assert next(iter(cells(table)[0])) == "learner"
    assert "protocol" not in cells(table)[0]
    assert "over 3 seeds" in table.caption[1]
    assert compared(UNPRINTED)[0].caption[-1] == "the paper prints nothing for this"


def test_one_seed_has_no_interval():
    tables = compared(Measured(("icarl", "half-5"), (50.0,), (51.0,), {}, Printed(56.97, 63.68, 6.71)))
    (row,) = cells(tables[0])
    assert (row["95% interval"], row["base"]) == (ONE_SEED, "50.0")
    assert ONE_SEED in tables[0].caption[1]
    assert "interval" not in shown(tables)


def test_files_have_every_number():
    first, second = records(compared(THREE, UNPRINTED)[0])
    assert float(first["gain_low"]) == pytest.approx(3.516, abs=1e-3)
    assert (first["aligned_values"], first["seeds"], first["gain of oracle-mask †"]) == ("55;58;61", "3", "10")
    assert (second["paper_base"], second["protocol"]) == ("", "half-5")


def test_page_and_terminal():
    tables = compared(THREE, UNPRINTED)
    text = tables[0].to_markdown()
    assert text.startswith("**Title, half-5**\n\n- scale\n")
    assert text.endswith("\nMade by `elign it`.\n")
    assert "56.97 →" in shown(tables)
    assert [column.title for column in tables[1].columns][2:] == ["eli/oracle †", "oracle-mask †"]


def values(*numbers, **others):
    names = ("average", "average_incremental", "last", "old", "new")
    return {name: others.get(name, numbers) for name in names}


METHODS = {
    "base": values(40.0, 42.0),
    "oracle-mask †": values(60.0, 62.0),
    "eli/all": values(46.0, 50.0),
    "blend": values(50.0, 52.0, old=(49.0, None)),
}


def label_free(methods=METHODS, seeds=2):
    blocks = [(("icarl", "cifar100", "half-5"), methods)]
    return label_free_tables(blocks, title="Methods", notes=["scale"], seeds=seeds)


def test_label_free_methods_by_hand():
    table = label_free()[0]
    rows = {row["method"]: row for row in cells(table)}
    assert list(rows) == list(METHODS)
    assert rows["eli/all"]["without the first task"] == "48.0 ± 2.8"
    assert rows["eli/all"]["gain over base"] == "+7.00"
    assert rows["eli/all"]["95% interval"] == "[-5.71, +19.71]"  # 7 ± 12.706 · 1.4142 / √2
    assert rows["eli/all"]["blend above it"] == "+3.00"
    assert rows["eli/all"]["its 95% interval"] == "[-9.71, +15.71]"
    assert rows["eli/all"]["recovered"] == "35.0 ± 7.1"  # 6 and 8 of 20
    assert rows["base"]["gain over base"] == rows["blend"]["blend above it"] == "–"
    assert rows["base"]["blend above it"] == "+10.00"
    # A mean needs the values of all seeds.
    assert rows["blend"]["old"] == "–"
    assert table.title == "Methods, icarl, cifar100, half-5"
    assert records(table)[2]["average_incremental"] == "48"


def test_label_free_methods_of_one_seed_or_without_the_default():
    single = {name: {key: numbers[:1] for key, numbers in found.items()} for name, found in METHODS.items()}
    row = cells(label_free(single, seeds=1)[0])[2]
    assert (row["gain over base"], row["95% interval"], row["its 95% interval"]) == ("+6.00", "–", "–")
    others = {name: found for name, found in METHODS.items() if name != "blend"}
    assert {row[f"{DEFAULT} above it"] for row in cells(label_free(others)[0])} == {"–"}


def precisions(seeds):
    def of(*numbers):
        return {
            part: tuple(number + seed for seed in range(seeds)) for part, number in zip(PARTS, numbers, strict=True)
        }

    base = of(60.0, 70.0, 65.0)
    aligned = {part: tuple(value + 2 + (place - 1) for place, value in enumerate(base[part])) for part in PARTS}
    return [
        Precisions("5+5", "joint", of(80.0, 82.0, 81.0), printed=printed_precision("joint", "10+10")),
        Precisions("5+5", "iod", base, printed=printed_precision("iod", "10+10")),
        Precisions("5+5", "iod", aligned, "eli/oracle †", base, printed_precision("iod+eli", "10+10")),
        Precisions("5+5", "iod", of(60.0, 69.0, 64.5), "mean-shift/oracle †", base),
    ]


def test_detectors_by_hand():
    table = precision_tables("Title", precisions(3), notes=["scale"], command="elign it")[0]
    joint, iod, aligned, shifted = cells(table)
    assert (joint["old, paper"], joint["old"], joint["all, paper"], joint["all"]) == (
        *("74.7", "81.0 ± 1.0", "75.2", "82.0 ± 1.0"),
    )
    assert (iod["gain, paper"], iod["gain"], iod["gain of old"]) == ("–", "–", "–")
    assert (aligned["all, paper"], aligned["gain, paper"], aligned["gain"]) == ("71.7", "+5.40", "+2.00")
    assert (aligned["95% interval"], aligned["same sign"]) == ("[-0.48, +4.48]", "yes, 0 in interval")
    assert (shifted["all, paper"], shifted["gain"], shifted["same sign"]) == ("–", "-0.50", "–")
    assert (shifted["gain of old"], shifted["gain of new"]) == ("+0.00", "-1.00")
    found = records(table)
    assert found[2]["all_values"] == "66;68;70"
    assert float(found[2]["gain_all_high"]) == pytest.approx(4.484, abs=1e-3)
    assert (found[0]["gain_all"], found[0]["paper_new"]) == ("", "75.66")


def test_a_part_without_a_value():
    first = Precisions("5+5", FIRST, {"old": (70.0, 72.0)}, printed=printed_precision("first", "10+10"))
    (table,) = precision_tables("Title", [first], notes=[], command="elign it")
    (row,), (record,) = cells(table), records(table)
    assert (row["old, paper"], row["old"], row["new"], row["all"], row["gain"]) == ("73.4", "71.0 ± 1.4", "–", "–", "–")
    assert (record["seeds"], record["old_values"], record["all"]) == ("2", "70;72", "")


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_terminal_of_80_columns_has_room_for_detectors(seeds):
    text = shown(precision_tables("Title", precisions(seeds), notes=[], command="elign it"))
    assert "mean-shift/oracle" in text
    assert ("interval" in text) == (seeds > 1)


def test_precisions_are_those_of_a_method_after_the_last_task():
    def row(task, method, accuracy, old=None, new=None):
        return Row(task, method, "detector", True, accuracy, old, new, None, None, 0.0, (accuracy,) * task)

    rows = [row(1, "base", 0.9), row(2, "base", 0.5, 0.4, 0.6), row(2, "eli/all", 0.25, 0.125, 0.375)]
    assert [precision(rows, "base", part) for part in PARTS] == [40.0, 60.0, 50.0]
    assert [precision(rows, "eli/all", part) for part in PARTS] == [12.5, 37.5, 25.0]


TASKS = {"base": [60, 50, 40], "eli/oracle": [60, 56, 48]}
PUBLISHED = ("learner=icarl", "data=cifar100", "protocol=half-5")


def group_of(*settings, seeds=2, tasks=3, **metadata):
    """Runs with these settings; each seed adds one point."""
    config = describe(compose(list(settings)))
    accuracies = {name: values[:tasks] for name, values in TASKS.items()}
    runs = [make_run({k: [v + s for v in vs] for k, vs in accuracies.items()}, seed=s) for s in range(seeds)]
    changed = (replace(run, metadata={**run.metadata, "config": config, **metadata}) for run in runs)
    return RunGroup("icarl on cifar100, half-5", tuple(changed))


@pytest.fixture(scope="module")
def cifar():
    return group_of(*PUBLISHED, "preset=small")


def test_numbers_of_a_report_stand_beside_the_printed_ones(cifar):
    (row,) = paper_table([cifar]).rows
    # The printed pair is of Table 1; ours are means of (60, 50, 40) and (60, 56, 48), one point more for seed 1.
    texts = [cell.text for cell in row.cells]
    assert texts[3:9] == ["56.97", "50.5 ± 0.7", "63.68", "55.2 ± 0.7", "+6.71", "+4.67"]
    assert texts[9:] == ["[+4.67, +4.67]", "yes", "0.70x"]


def test_scale_is_said(cifar):
    (note,) = paper_table([cifar]).footnotes
    for words in ("not the paper's scale", "resnet20 instead of resnet32", "2 seeds instead of 3 runs"):
        assert words in note
    assert "12/8 instead of 160/160" in note
    (note,) = paper_table([group_of(*PUBLISHED, "preset=paper", seeds=3)]).footnotes
    assert note.endswith("the published settings, as far as known.")


def test_nothing_is_shown_where_the_paper_has_nothing(cifar):
    others = [
        group_of("data=digits"),
        group_of(*PUBLISHED, tasks=2),
        group_of(*PUBLISHED, evaluation=["aligner.steps=5"]),
    ]
    assert paper_table(others) is None
    assert len(paper_table([*others, cifar]).rows) == 1


def test_it_is_part_of_reports(cifar):
    for form in ("markdown", "latex"):
        assert "Against the paper" in FORMATS[form]([cifar])
        assert "Against the paper" not in FORMATS[form]([group_of("data=digits")])


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (("table1", "icarl", "cifar100", "half-5"), Printed(56.97, 63.68, 6.71)),
        (("table1", "icarl", "imagenet100", "half-5"), Printed(58.24, 68.94, 10.73)),
        (("table1", "lucir", "cifar100", "equal-5"), Printed(62.01, 64.55, 2.49)),
        (("table1", "aanet", "imagenet100", "equal-20"), Printed(44.96, 46.93, 1.97)),
        (("table1", "finetune", "cifar100", "half-5"), NOTHING),
        (("table1", "icarl", "digits", "half-5"), NOTHING),
        (("table1", "icarl", "cifar100", "half-2"), NOTHING),
        (("table3_langevin_steps", "icarl", "cifar100", "half-25", "90"), Printed(50.98, 54.04, 3.06)),
        (("table3_langevin_steps", "lucir", "cifar100", "half-5", "5"), NOTHING),
        (("table5_ebm_architecture", "icarl", "cifar100", "half-5", "i-o"), Printed(56.97, 60.97, 4.0)),
        (("table6_logit_aligner", "lucir", "cifar100", "half-5"), Printed(64.37, 62.5, -1.87)),
        (("imagenet1k", "icarl", "imagenet1k", "half-5"), Printed(gain=8.17)),
        (("implicit", "aanet-implicit", "imagenet100", "half-10"), Printed(gain=3.58)),
        (("implicit", "aanet-implicit", "cifar100", "half-10"), NOTHING),
        (("implicit", "aanet-implicit", "imagenet100", "equal-5"), NOTHING),
    ],
)
def test_cells(cell, expected):
    assert printed_cell(*cell) == expected


def test_every_cell_of_table1_is_there_and_gains_are_about_the_differences():
    grid = read_grid("table1")
    for learner in grid.learners:
        for data in grid.data:
            for protocol in grid.protocols:
                cell = printed_cell("table1", learner, data, protocol)
                assert cell.gain == pytest.approx(cell.aligned - cell.base, abs=0.06)


def test_grids_have_the_printed_rows():
    for name in ("langevin", "iterations", "architecture", "mixup"):
        grid = read_grid(name)
        rows = numbers()[grid.printed[""]]["rows"]
        assert list(grid.evaluations.choices) == [row.replace(" ", "") for row in rows]
        assert all(words[0].startswith(f"{grid.evaluations.varies}=") for words in grid.evaluations.choices.values())
    assert all(read_grid(name).title for name in NAMES)


def test_detectors():
    grid = read_grid("table2")
    for protocol in grid.paper_protocols:
        old, new = map(int, protocol.split("+"))
        for learner in (*grid.learners, "iod+eli"):
            cell = printed_precision(learner, protocol)
            assert (old * cell.old + new * cell.new) / 20 == pytest.approx(cell.all, abs=0.11)
        base, aligned = (printed_precision(learner, protocol) for learner in ("iod", "iod+eli"))
        assert aligned.gain == pytest.approx(aligned.all - base.all, abs=0.05)
    assert [printed_precision("first", protocol).old for protocol in grid.paper_protocols] == [73.4, 76.85, 71.07]
    for learner, protocol in (("icarl", "15+5"), ("iod", "5+5"), ("first", "5+5")):
        assert printed_precision(learner, protocol) == NO_PRECISION


def test_others():
    assert printed_toy(32) == Printed(20.88, 83.44, 62.56)
    assert printed_toy(64) == NOTHING
    assert numbers()["compute"]["parameters_computed"] == 8385
