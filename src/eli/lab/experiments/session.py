"""A run from its command line to its folder, new or gone on with. Imported by the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from eli.lab.environment import describe_environment
from eli.lab.experiments.bench import Bench, open_bench
from eli.lab.experiments.board import open_board
from eli.lab.experiments.run_config import RunConfig, compose, describe, from_dict, with_overrides
from eli.lab.experiments.run_folder import RunError, RunFolder
from eli.lab.experiments.runner import evaluate, run
from eli.lab.experiments.speed import Speed
from eli.lab.run_progress import watch_run


def begin(overrides: Sequence[str], console: Console, *, tensorboard: bool = False) -> RunFolder:
    """Start the run that `overrides` describe; if it was started before, go on with it.

    Args:
        overrides: What to run.
        console: For the progress.
        tensorboard: Whether to write files for TensorBoard into the run's folder, too.

    Raises:
        RunError: The folder holds another run.
    """
    config = compose(overrides)
    folder = RunFolder(config.out or default_folder(config))
    if folder.exists:
        if from_dict(folder.facts()["config"]).digest() != config.digest():
            raise RunError(
                f"{folder.path} holds another run ('eli show {folder.path}'); give out=DIR for a folder of its own"
            )
        console.print(f"going on with the run in {folder.path}", soft_wrap=True)
        go_on(folder, console, tensorboard=tensorboard)
    else:
        bench, speed = open_bench(config)
        _work(bench, folder, console, facts=_facts(bench, speed, overrides), tensorboard=tensorboard)
    return folder


def go_on(folder: RunFolder, console: Console, *, tensorboard: bool = False) -> None:
    """Do what is not done yet of a run."""
    facts = folder.facts()
    bench, _ = open_bench(from_dict(facts["config"]), speed=Speed(**facts["speed"]))
    _work(bench, folder, console, tensorboard=tensorboard)


def _work(
    bench: Bench,
    folder: RunFolder,
    console: Console,
    *,
    facts: Mapping[str, Any] | None = None,
    tensorboard: bool = False,
) -> None:
    # Of several processes the first one speaks and writes.
    main = bench.engine.is_main
    with folder.locked() if main else nullcontext():
        if facts is not None and main:
            folder.write_facts(facts)
        with watch_run(console if main else Console(quiet=True), len(bench.protocol.tasks)) as (show, say):
            if tensorboard and main:
                with open_board(folder.path / "tensorboard") as board:
                    run(bench, folder, board.beside(show), say, board.results)
            else:
                run(bench, folder, show, say)
    bench.engine.wait()
    if not main:
        raise SystemExit(0)  # what follows, tables say, is for one process to do


def _facts(bench: Bench, speed: Speed, overrides: Sequence[str]) -> dict[str, Any]:
    return {
        "overrides": list(overrides),
        "config": describe(bench.config),
        "classes": list(bench.data.classes),
        "sizes": list(bench.protocol.sizes),
        "first_task": bench.first_task,
        "speed": asdict(speed),
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
    config = with_overrides(facts["overrides"], overrides)
    if not folder.tasks():
        raise RunError(f"{folder.path} has not learned a task yet; 'eli resume {folder.path}' goes on with it")
    target = RunFolder(folder.path / "evaluations" / (name or "_".join(overrides).replace("/", "-")))
    if target.exists and target.facts()["config"]["aligner"] != describe(config)["aligner"]:
        raise RunError(f"{target.path} is another evaluation; give another --name")
    with target.locked():
        target.write_facts({**facts, "config": describe(config), "evaluation": list(overrides)})
        bench, _ = open_bench(from_dict(facts["config"]), speed=Speed(**facts["speed"]))
        with watch_run(console, len(bench.protocol.tasks)) as (_, say):
            evaluate(bench, folder, target, config.aligner, say)
    return target


def default_folder(config: RunConfig) -> str:
    """A folder for a run that was given none: its most telling settings, and a digest that tells it from all others."""
    split = config.protocol.name or f"first-{config.protocol.first}-then-{config.protocol.increment}"
    return f"out/{config.learner.name}-{config.data.name}-{split}-seed{config.seed}-{config.digest()[:6]}"
