"""`elign sweep`: many runs side by side, on this machine or on a Ray cluster."""

from __future__ import annotations

import argparse

from rich.console import Console

HELP = "do many runs side by side with Ray: every combination of the values that are given"
EXAMPLES = """examples:
  elign sweep learner=icarl,lucir seed=0,1,2 data=digits preset=smoke --plan     what would run
  elign sweep learner=icarl,lucir,aanet seed=0,1,2 data=cifar100 protocol=half-5 --cpus 2
  elign sweep data=cifar100 preset=paper learner=icarl,lucir protocol=half-5,half-10 --cpus 8 --gpus 1 --address auto
  elign sweep --kind detection learner=finetune,ilod,iod preset=smoke out=DIR

keys: as of 'elign run' (with --kind detection, of 'elign detect run'), with commas between values; a comma in brackets
belongs to a value (aligner.hidden=[64,64],[]). out is the folder of the sweep (default: out/sweep); its runs are below
it in runs/, and 'elign list', 'elign show' and 'elign report' read them. A run that dies is begun again and goes
on; the same command again goes on with what is not finished. Needs the extra 'ray'.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("overrides", nargs="*", metavar="key=value,value", help="what to run; see below")
    kinds = ("classification", "detection")
    parser.add_argument("--kind", choices=kinds, default=kinds[0], help="the kind of runs (default: classification)")
    parser.add_argument(
        "--cpus", type=_at_least_one, default=1, metavar="N", help="processors and threads of each run (default: 1)"
    )
    parser.add_argument(
        "--gpus", type=_share, default=0.0, metavar="N", help="GPUs of each run, 0.5: two share one (default: 0)"
    )
    parser.add_argument(
        "--retries", type=_count, default=3, metavar="N", help="how often a run that dies is started again (default: 3)"
    )
    parser.add_argument("--address", help="of a Ray cluster, or 'auto' (default: Ray on this machine alone)")
    parser.add_argument("--plan", action="store_true", help="show the runs and what is done already, and run nothing")


def run(args: argparse.Namespace, console: Console) -> None:
    """Plan, run what is not done, list all."""
    # Imported here, so that `elign --help` does not wait for torch's optimisers, hydra and lightning-fabric.
    from elign.lab.commands import list as list_command
    from elign.lab.reproduce.jobs import time_text
    from elign.lab.sweep.cluster import Resources, SweepError, require_ray, run_cells
    from elign.lab.sweep.plan import plan_sweep
    from elign.lab.sweep.table import Lines, live_table

    if not args.plan:
        require_ray()
    out, cells = plan_sweep(args.overrides, kind=args.kind)
    left = [cell for cell in cells if not cell.job.done]
    about = time_text([cell.job for cell in left])
    console.print(
        f"{len(cells)} runs in {out}, {len(cells) - len(left)} of them finished; the rest one after the other: {about}",
        soft_wrap=True,
        markup=False,
    )
    if args.plan:
        console.print(Lines(cells, lambda text: None).table())
        return
    with live_table(cells, console) as (lines, look):
        if left:
            resources = Resources(args.cpus, args.gpus, args.retries, args.address)
            run_cells(left, out, resources, ended=lines.ended, look=look)
    list_command.run(argparse.Namespace(folder=out / "runs"), console)
    if lines.failed:
        label, problem = next(iter(lines.failed.items()))
        raise SweepError(
            f"{len(lines.failed)} of {len(cells)} runs failed, {label} for one: {problem}; the same command tries again"
        )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number from 1 on")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError("must be a whole number from 0 on")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number from 0 on")
    return value
