"""A run from its command line to its folder, new or gone on with."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from elign.lab.environment import describe_environment
from elign.lab.experiments.board import open_board
from elign.lab.experiments.kind import Kind
from elign.lab.experiments.kinds import CLASSIFICATION, kind_named, kind_of
from elign.lab.experiments.run_config import describe
from elign.lab.experiments.run_folder import RunError, RunFolder, go_on_command, refuse_archived
from elign.lab.experiments.runner import evaluate, run
from elign.lab.experiments.speed import Speed
from elign.lab.run_progress import watch_run
from elign.lab.tensor_file import DamagedRunError


def begin(
    overrides: Sequence[str], console: Console, *, kind: str = CLASSIFICATION, tensorboard: bool = False
) -> RunFolder:
    """Start the run that `overrides` describe; if it was started before, go on with it.

    Args:
        overrides: What to run.
        console: For the progress.
        kind: The kind of run.
        tensorboard: Whether to write files for TensorBoard into the run's folder, too.

    Raises:
        RunError: The folder holds another run.
    """
    of = kind_named(kind)
    config = of.compose(overrides)
    folder = RunFolder(config.out or default_folder(config))
    if folder.exists:
        facts = folder.facts()
        if kind_of(facts) is not of or of.from_dict(facts["config"]).digest() != config.digest():
            raise RunError(
                f"{folder.path} holds another run ('elign show {folder.path}'); give out=DIR for a folder of its own"
            )
        refuse_archived(folder, facts)
        console.print(f"going on with the run in {folder.path}", soft_wrap=True, markup=False)
        # What decides no result may change, where the data are for instance.
        facts |= {"config": describe(config), "overrides": list(overrides)}
        bench, _ = _open(facts)
    else:
        bench, speed = of.open_bench(config, _speed_of(config))
        if config.start_from is not None:
            _check_start(of, bench, speed)
        facts = _facts(of, bench, speed, overrides)
    _work(of, bench, folder, console, facts=facts, tensorboard=tensorboard)
    return folder


def go_on(folder: RunFolder, console: Console, *, tensorboard: bool = False) -> None:
    """Do what is not done yet of a run.

    Raises:
        RunError: The folder holds no run, but an evaluation of one.
    """
    facts = folder.facts()
    refuse_archived(folder, facts)
    _refuse_evaluation(folder, facts)
    _work(kind_of(facts), _open(facts)[0], folder, console, facts=facts, tensorboard=tensorboard)


def _open(facts: Mapping[str, Any], **changes: Any) -> tuple[Any, Speed]:
    of = kind_of(facts)
    config = of.from_dict(facts["config"])
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))
    if config.train.threads is None and "threads" in facts:
        # How sums are split over threads changes their rounding, and the numbers with it.
        torch.set_num_threads(facts["threads"])
    return of.open_bench(config, _speed(facts))


def _speed(facts: Mapping[str, Any]) -> Speed:
    try:
        return Speed(**facts["speed"])
    except TypeError as error:
        raise DamagedRunError(f"run.json has no way of training ({error}); start the run anew in another folder") from (
            error
        )


def _speed_of(config: Any) -> Speed | None:
    """The way of training of the run that the first task is taken from, where the user has no other wish."""
    if config.start_from is None or (config.train.precision, config.train.layout) != ("auto", "auto"):
        return None
    return _speed(RunFolder(config.start_from).facts())


def _check_start(of: Kind, bench: Any, speed: Speed) -> None:
    other = RunFolder(str(bench.config.start_from))
    facts = other.facts()
    refuse_archived(other, facts)
    if kind_of(facts) is not of:
        raise RunError(f"{other.path} is another kind of run")
    mine = of.first_task(bench.config, bench.protocol.sizes[0], speed)
    theirs = of.first_task(of.from_dict(facts["config"]), facts["sizes"][0], _speed(facts))
    different = [key for key, value in mine.items() if theirs[key] != value]
    if different:
        raise RunError(f"{other.path} has another first task: {', '.join(different)} differ")
    if not other.is_learned(0):
        raise RunError(f"{other.path} has not finished its first task yet")


def _refuse_evaluation(folder: RunFolder, facts: Mapping[str, Any]) -> None:
    if "evaluation" in facts:
        raise RunError(
            f"{folder.path} is an evaluation of the run {folder.path.parent.parent}; "
            f"'{go_on_command(folder, facts)}' goes on with it"
        )


def _work(
    of: Kind,
    bench: Any,
    folder: RunFolder,
    console: Console,
    *,
    facts: Mapping[str, Any],
    tensorboard: bool,
) -> None:
    # Of several processes the first one speaks and writes.
    main = bench.engine.is_main
    with folder.locked() if main else nullcontext():
        if main and (not folder.exists or folder.facts() != facts):
            folder.write_facts(facts)
        with watch_run(console if main else Console(quiet=True), len(bench.protocol.tasks)) as (show, say):
            if tensorboard and main:
                with open_board(folder.path / "tensorboard") as board:
                    run(of, bench, folder, board.beside(show), say, board.results)
            else:
                run(of, bench, folder, show, say)
        if main:
            folder.complete()
    bench.engine.wait()
    if not main:
        raise SystemExit(0)  # what follows, tables say, is for one process to do


def _facts(of: Kind, bench: Any, speed: Speed, overrides: Sequence[str]) -> dict[str, Any]:
    return {
        "kind": of.name,
        "overrides": list(overrides),
        "config": describe(bench.config),
        "classes": list(bench.data.classes),
        "sizes": list(bench.protocol.sizes),
        "speed": asdict(speed),
        "threads": torch.get_num_threads(),
        "environment": describe_environment(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def read_again(folder: RunFolder, overrides: Sequence[str], console: Console, *, name: str | None = None) -> RunFolder:
    """Fit other aligners to the models of a run and read it again.

    Args:
        folder: The run.
        overrides: What is different, `aligner.steps=60` say.
        console: For the progress.
        name: Of the evaluation; by default made from what is different.

    Returns:
        The folder of the evaluation, below the run's.

    Raises:
        ConfigError: Something else than the aligner would change.
        RunError: The run has learned nothing yet, or another evaluation has this name.
    """
    facts = folder.facts()
    refuse_archived(folder, facts)
    _refuse_evaluation(folder, facts)
    of = kind_of(facts)
    config = of.with_aligner(of.from_dict(facts["config"]), overrides)
    if name is not None and (Path(name).name != name or name == ".."):
        raise RunError(f"--name is the name of one folder, not {name!r}")
    if not folder.tasks():
        raise RunError(f"{folder.path} has not learned a task yet; 'elign resume {folder.path}' goes on with it")
    target = RunFolder(folder.path / "evaluations" / (name or "_".join(overrides).replace(os.sep, "-")))
    if target.exists and target.facts()["config"]["aligner"] != describe(config)["aligner"]:
        raise RunError(f"{target.path} is another evaluation; give another --name")
    with target.locked():
        bench, _ = _open(facts, devices=1)
        target.write_facts({**facts, "config": describe(config), "evaluation": list(overrides)})
        with watch_run(console, len(bench.protocol.tasks)) as (_, say):
            evaluate(of, bench, folder, target, config.aligner, say)
        target.complete()
    return target


def default_folder(config: Any) -> str:
    """A folder for a run that was given none: its most telling settings, and a digest that tells it from all others."""
    split = config.protocol.name or f"first-{config.protocol.first}-then-{config.protocol.increment}"
    return f"out/{config.learner.name}-{config.data.name}-{split}-seed{config.seed}-{config.digest()[:6]}"
