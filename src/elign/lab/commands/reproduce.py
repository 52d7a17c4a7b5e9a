"""`elign reproduce`: the tables and figures of the paper, at any scale, beside the printed numbers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from elign.lab.reproduce.jobs import Experiment

HELP = "make the paper's tables and ablations at any scale, with the printed numbers beside the measured ones"
EXAMPLES = """examples:
  elign reproduce langevin preset=smoke                             every code path in seconds, on the embedded digits
  elign reproduce table1 data=cifar100 protocol=half-5,equal-5 --plan
  elign reproduce table1 data=cifar100 learner=icarl seeds=3 out=DIR
  elign reproduce langevin iterations architecture mixup protocol=half-5    reuse the runs of table1
  elign reproduce toy compute dimensions --results docs/results.md
  elign reproduce label-free learner=icarl protocol=half-5             what can be had without knowing what is old
  elign reproduce table2 protocol=5+5,8+2 learner=finetune,ilod,iod --plan    detectors, on scenes of digits

names: toy, table1, imagenet1k, table2, langevin, iterations, architecture, logits, mixup, implicit, compute,
dimensions, label-free (ours); keys: preset (smoke, small, paper), seeds, data, protocol, learner, out, and those of
'elign run' with a dot. 'all' is everything but table2, which needs the extra 'detection' and goes alone: its learners,
data and settings are those of 'elign detect run', its protocols sizes such as 15+5.
Runs are kept below out (default: out/reproduce) in runs/ and are shared by all experiments: what is finished is
skipped, and the same command goes on after an interruption.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("words", nargs="*", metavar="NAME|key=value", help="what to reproduce, and at which scale")
    parser.add_argument("--plan", action="store_true", help="show what would run and about how long, and run nothing")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="also write each table into this markdown page, section reproduce-NAME-PRESET",
    )
    parser.add_argument("--section", metavar="NAME", help="another section of that page, for a single table")


def run(args: argparse.Namespace, console: Console) -> None:
    """Plan, run what is not done, show the tables."""
    # Imported here, so that `elign --help` does not wait for torch's optimisers, hydra and lightning-fabric.
    from elign.lab.experiments.config_errors import ConfigError
    from elign.lab.reproduce.catalogue import EXPERIMENTS, planned
    from elign.lab.reproduce.jobs import plan_table
    from elign.lab.reproduce.request import read_request

    names, request = read_request(tuple(EXPERIMENTS), args.words)
    experiments = planned(names, request)
    sections = _sections(args, experiments)
    console.print(plan_table(experiments))
    for remark in dict.fromkeys(text for one in experiments for text in (*one.remarks, *one.missing)):
        console.print(f"- {remark}", soft_wrap=True, markup=False)
    if args.plan:
        return
    for experiment in experiments:
        if experiment.missing and not all(job.done for job in experiment.jobs):
            raise ConfigError(f"{experiment.name} cannot start: {experiment.missing[0]}.")
    worked: set[str] = set()
    for experiment, section in zip(experiments, sections, strict=True):
        for job in experiment.jobs:
            if not job.done and job.key not in worked:
                job.work(console)
                worked.add(job.key)
        _show(experiment, console, page=args.results, section=section)


def _sections(args: argparse.Namespace, experiments: Sequence[Experiment]) -> list[str]:
    """Where the tables go on the page that was asked for, which must be there before anything is run."""
    from elign.lab.experiments.config_errors import ConfigError
    from elign.lab.pages import around_section

    if args.section and (args.results is None or len(experiments) != 1):
        raise ConfigError("--section names the place of one experiment's table on the page of --results.")
    sections = [args.section or f"reproduce-{each.name}-{each.request.preset}" for each in experiments]
    for section in sections if args.results else ():
        around_section(args.results, section)
    return sections


def _show(experiment: Experiment, console: Console, *, page: Path | None, section: str) -> None:
    """A finished experiment on the terminal, in a file and, if there is a page for it, in a section of the page."""
    from elign.lab.pages import update_section
    from elign.lab.reproduce.sheet import print_sheet, sheet_csv, sheet_markdown
    from elign.utils.files import write_text_atomic

    sheet, request = experiment.sheet(), experiment.request
    print_sheet(sheet, console)
    file = request.out / f"{sheet.name}-{request.preset}{request.slug}.csv"
    write_text_atomic(file, sheet_csv(sheet))
    console.print(f"Table: {file}", soft_wrap=True, markup=False)
    if page:
        update_section(page, section, sheet_markdown(sheet))
