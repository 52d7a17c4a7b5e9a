"""Do many runs side by side with Ray: every combination of the values that are given.

Examples:
  elign sweep learner=icarl,lucir seed=0,1,2 data=digits preset=smoke --plan     what would run
  elign sweep learner=icarl,lucir,aanet seed=0,1,2 data=cifar100 protocol=half-5 --cpus 2
  elign sweep data=cifar100 preset=paper learner=icarl,lucir protocol=half-5,half-10 --cpus 8 --gpus 1 --address auto
  elign sweep --benchmark detection learner=finetune,ilod,iod preset=smoke out=DIR

keys: as of 'elign run' or, with --benchmark detection, 'elign detect run', with commas between values; a comma in
brackets belongs to a value (aligner.hidden=[64,64],[]). out is the folder of the sweep (default: out/sweep); its runs
are below it in runs/, and 'elign list', 'elign show' and 'elign report' take them. A run that dies is started again
and resumes; the same command resumes what is not finished. Needs the extra 'ray'.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from elign.lab.cli import list as list_command
from elign.lab.cli.main import at_least, check_folder, say

if TYPE_CHECKING:
    from rich.console import Console


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("overrides", nargs="*", metavar="key=value,value", help="what to run; see below")
    benchmarks = ("classification", "detection")
    parser.add_argument("--benchmark", choices=benchmarks, default=benchmarks[0], help="default: classification")
    parser.add_argument(
        "--cpus", type=at_least(1), default=1, metavar="N", help="processors and threads of each run (default: 1)"
    )
    parser.add_argument(
        "--gpus", type=at_least(0, float), default=0.0, metavar="N", help="of each run, 0.5: two share one (default: 0)"
    )
    parser.add_argument(
        "--retries", type=at_least(0), default=3, metavar="N", help="starts of a run after it died (default: 3)"
    )
    parser.add_argument("--address", help="of a Ray cluster, or 'auto' (default: Ray on this machine alone)")
    parser.add_argument("--plan", action="store_true", help="show the runs and what is done already, and run nothing")


def run(args: argparse.Namespace, console: Console) -> None:
    """Plan, run what is not finished, list all."""
    from elign.lab.runs.sweeps import Resources, SweepError, SweepTable, live_table, plan_sweep, require_ray, run_cells

    if not args.plan:
        require_ray()
    out, cells = plan_sweep(args.overrides, benchmark=args.benchmark, threads=args.cpus)
    left = [cell for cell in cells if not cell.is_finished()]
    say(console, f"{len(cells)} runs in {out}, {len(cells) - len(left)} of them finished")
    if args.plan:
        console.print(SweepTable(cells, lambda text: None).table())
        return
    check_folder(out, "runs")
    with live_table(cells, console) as (lines, refresh):
        if left:
            resources = Resources(args.cpus, args.gpus, args.retries, args.address)
            run_cells(left, resources, ended=lines.ended, refresh=refresh)
    list_command.run(argparse.Namespace(folder=out / "runs"), console)
    if lines.failed:
        label, problem = next(iter(lines.failed.items()))
        raise SweepError(
            f"{len(lines.failed)} of {len(cells)} runs failed, {label} for one: {problem}; the same command tries again"
        )
