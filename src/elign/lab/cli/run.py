"""Train a class-incremental learner, fit ELI after each task and evaluate all methods.

Examples:
  elign run                                                       iCaRL on the embedded digits, well under a minute
  elign run learner=lucir data=digits preset=smoke out=DIR
  elign run learner=icarl data=cifar100 protocol=half-5           tens of minutes on a CPU (preset=small)
  elign run learner=aanet data=cifar100 protocol=equal-10 preset=paper seed=1
  elign run learner=icarl data=cifar100 protocol=half-5 memory=none
  elign run data=folder data.path=pictures model=resnet18 protocol.first=4 protocol.increment=2

keys: learner, data, protocol, model, train, memory, aligner, preset, seed, out, start_from; a dot reaches inside
(train.epochs=5). 'elign run --keys' shows all of them with their values. The same command resumes a run that was
interrupted, and so does 'elign resume'.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elign.lab.cli.main import check_folder, say

if TYPE_CHECKING:
    from rich.console import Console


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="what to run; see below")
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard files (extra 'tensorboard')")
    parser.add_argument("--keys", action="store_true", help="show all keys and their values, and run nothing")


def run(args: argparse.Namespace, console: Console, *, benchmark: str = "classification") -> None:
    """Compose the configuration, then start or resume its run."""
    from elign.lab.runs.experiment import BENCHMARKS
    from elign.lab.runs.launch import start_run

    chosen = BENCHMARKS[benchmark]
    config = chosen.compose(args.overrides)
    if args.keys:
        _print_keys(chosen.tree, config, console)
        return
    if config.out:
        check_folder(Path(config.out), "run.json", "task-*", "progress.*")
    from elign.lab.cli.show import print_runs

    print_runs([start_run(config, console, tensorboard=args.tensorboard, overrides=args.overrides)], console)


def _print_keys(tree: Any, config: Any, console: Console) -> None:
    for group in tree.groups:
        if group != "protocol":
            say(console, f"{group}: one of {', '.join(tree.choices(group))}")
    say(console, "protocol: half-N, equal-N, sizes (15+5), or protocol.first and protocol.increment\n")
    values = config.model_dump(mode="json")
    # A learner's own options are typed beside the others.
    values["learner"] |= values["learner"].pop("options")
    for key, value in values.items():
        parts = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        for name, part in parts.items():
            say(console, f"{name}={'null' if part is None else part}")
