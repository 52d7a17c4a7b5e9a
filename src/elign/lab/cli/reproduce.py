"""Make the paper's tables and ablations at any scale, with the printed numbers beside the measured ones.

Examples:
  elign reproduce langevin preset=smoke                             every code path in seconds, on the embedded digits
  elign reproduce table1 data=cifar100 protocol=half-5,equal-5 --plan
  elign reproduce table1 data=cifar100 learner=icarl seeds=3 out=DIR
  elign reproduce langevin iterations architecture mixup protocol=half-5    reuse the runs of table1
  elign reproduce toy compute dimensions --results docs/results.md
  elign reproduce label-free learner=icarl protocol=half-5             what is possible without knowing what is old
  elign reproduce table2 protocol=5+5,8+2 learner=finetune,ilod,iod --plan    detectors, on scenes of digits

names: toy, table1, imagenet1k, table2, langevin, iterations, architecture, logits, mixup, implicit, compute,
dimensions, label-free (ours); keys: preset (smoke, small, paper), seeds, data, protocol, learner, out, and those of
'elign run' with a dot. 'all' is everything but table2, which needs the extra 'detection' and goes alone: its learners,
data and settings are those of 'elign detect run', its protocols sizes such as 15+5.
Runs are kept below out (default: out/reproduce) in runs/ and are shared by all experiments: what is finished is
skipped, and the same command resumes after an interruption.
"""

from __future__ import annotations

import argparse
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.cli.main import check_folder, say

if TYPE_CHECKING:
    from rich.console import Console

    from elign.lab.paper.plan import Plan
    from elign.lab.report.table import Table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("overrides", nargs="*", metavar="NAME|key=value", help="what to reproduce, and at which scale")
    parser.add_argument("--plan", action="store_true", help="show what would run and about how long, and run nothing")
    section = "also write each table into this markdown page, section reproduce-NAME-PRESET"
    parser.add_argument("--results", type=Path, metavar="FILE", help=section)
    parser.add_argument("--section", metavar="NAME", help="another section of that page, for a single table")


def run(args: argparse.Namespace, console: Console) -> None:
    """Plan, run what is not finished, show the tables."""
    from elign.lab.config.composition import ConfigError
    from elign.lab.paper.plan import plan_table, run_plans
    from elign.lab.paper.reproduction import plan_experiments
    from elign.lab.paper.request import read_request
    from elign.lab.report.table import around_section, update_section

    names, request = read_request(args.overrides)
    plans = plan_experiments(names, request)
    if args.section and (args.results is None or len(plans) != 1):
        raise ConfigError("--section names the place of one experiment's table on the page of --results.")
    sections = [args.section or f"reproduce-{plan.name}-{request.preset}" for plan in plans]
    for section in sections if args.results else ():
        around_section(args.results, section)  # must be there before anything runs
    console.print(plan_table(plans).to_rich())
    for remark in dict.fromkeys(text for plan in plans for text in (*plan.remarks, *plan.missing)):
        say(console, f"- {remark}")
    if args.plan:
        return
    check_folder(request.out, "runs", "compute", "*.csv", "*.json")
    run_plans(plans, console)
    for plan, section in zip(plans, sections, strict=True):
        main = _show_tables(plan, console)
        if args.results:
            update_section(args.results, section, main.to_markdown())


def _show_tables(plan: Plan, console: Console) -> Table:
    """Show the tables of a finished experiment, write the main one as CSV, and return it."""
    from rich.text import Text

    from elign.utils.files import write_text_atomic

    main, *others = plan.tables()
    console.print()
    console.print(Text(main.title, style="bold"))
    for note in main.caption:
        console.print(Text(f"- {note}"))
    for table in (main, *others):
        shown = copy(table)
        shown.title, shown.caption, shown.footnotes = "" if table is main else table.title, (), ()
        console.print(shown.to_rich())
    file = plan.request.csv_file(plan.name)
    write_text_atomic(file, main.to_csv())
    say(console, f"Table: {file}")
    return main
