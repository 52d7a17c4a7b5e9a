"""`elign run`: train an incremental learner, fit ELI after each task, read it with all controls."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

HELP = "train a class-incremental learner, fit ELI after each task and read it with all its controls"
EXAMPLES = """examples:
  elign run                                                       iCaRL on the embedded digits, well under a minute
  elign run learner=lucir data=digits preset=smoke out=DIR
  elign run learner=icarl data=cifar100 protocol=half-5           tens of minutes on a CPU (preset=small)
  elign run learner=aanet data=cifar100 protocol=equal-10 preset=paper seed=1
  elign run learner=icarl data=cifar100 protocol=half-5 memory=none
  elign run data=folder data.path=pictures model=resnet18 protocol.first=4 protocol.increment=2

keys: learner, data, protocol, model, train, memory, aligner, preset, seed, out, start_from; a dot reaches inside
(train.epochs=5). 'elign run --keys' shows all of them with their values. The same command again goes on with a run that
was interrupted, and so does 'elign resume'.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="what to run; see below")
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write files for TensorBoard (extra 'tensorboard')"
    )
    parser.add_argument("--keys", action="store_true", help="show all keys and their values, and run nothing")


def run(args: argparse.Namespace, console: Console, *, kind: str = "classification") -> None:
    """Train, fit, read."""
    # Imported here, so that `elign --help` does not wait for torch's optimisers, hydra and lightning-fabric.
    from elign.lab.commands.show import print_run
    from elign.lab.experiments.kinds import kind_named
    from elign.lab.experiments.run_config import describe

    if args.keys:
        of = kind_named(kind)
        for group in of.tree.groups:
            if group != "protocol":
                console.print(f"{group}: one of {', '.join(of.tree.choices(group))}", soft_wrap=True, markup=False)
        console.print("protocol: half-N, equal-N, sizes (15+5), or protocol.first and protocol.increment\n")
        _print_keys(describe(of.compose(args.overrides)), console)
        return
    from elign.lab.experiments.session import begin

    print_run(begin(args.overrides, console, kind=kind, tensorboard=args.tensorboard), console)


def _print_keys(tree: dict[str, Any], console: Console) -> None:
    for key, value in tree.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for name, part in parts:
            # A learner's own options are typed beside the others.
            for own, text in part.items() if isinstance(part, dict) else [(name, part)]:
                shown = "null" if text is None else text
                console.print(f"{key}.{own}={shown}" if own else f"{key}={shown}", soft_wrap=True, markup=False)
