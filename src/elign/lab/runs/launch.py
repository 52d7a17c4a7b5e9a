"""Start, resume and re-evaluate runs: one loop over tasks, and the progress that it shows."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from elign.lab.config.schema import describe
from elign.lab.data.scenario import Memory
from elign.lab.environment import MissingExtraError, describe_environment
from elign.lab.runs.experiment import BENCHMARKS, Evaluation, Experiment, benchmark_of, evaluated_by, protocol_of
from elign.lab.runs.run_dir import Results, RunDir, RunError, refuse_archived, resume_command
from elign.lab.storage import MAKE_AGAIN, DamagedRunError
from elign.lab.training.device import Precision, choose_precision
from elign.lab.training.trainer import Step, TrainingProgress
from elign.utils.errors import ElignError, OptionError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class RunDisplay:
    """Shows a run: one line on a terminal; elsewhere, such as in a log file, a line for each epoch.

    `board` is TensorBoard's writer; it gets losses and results as well.
    """

    def __init__(self, console: Console, tasks: int, progress: Progress, board: SummaryWriter | None = None) -> None:
        self._console, self._tasks, self._progress, self._board = console, tasks, progress, board
        self._line = progress.add_task("starting", total=None)

    def show(self, progress: TrainingProgress) -> None:
        """Show how far the training of a task is."""
        text = progress_text(progress, self._tasks)
        ends_epoch = progress.step == progress.steps
        if self._console.is_terminal:
            done = progress.epoch * progress.steps + progress.step
            total = progress.epochs * progress.steps
            self._progress.update(self._line, description=text, completed=done, total=total)
        elif ends_epoch:
            self._console.print(text, soft_wrap=True)
        if self._board and ends_epoch:
            name, epoch = f"task {progress.task + 1}", progress.epoch + 1
            self._board.add_scalar(f"loss/{name}", progress.loss, epoch)
            if progress.accuracy is not None:
                self._board.add_scalar(f"training accuracy/{name}", progress.accuracy, epoch)

    def say(self, text: str) -> None:
        """Say what starts."""
        self._progress.update(self._line, description=text, total=None)
        if not self._console.is_terminal:
            self._console.print(text, soft_wrap=True)

    def finished(self, results: Results) -> None:
        """Write the methods of a task to TensorBoard; the task is the step."""
        if self._board is None:
            return
        for row in results.rows:
            for part in ("accuracy", "old", "new"):
                value = getattr(row, part)
                if value is not None:
                    # A slash would make a group of its own.
                    name = f"{part} ({row.classifier})/{row.method.replace('/', ' ')}"
                    self._board.add_scalar(name, value, row.task)
        self._board.flush()


@contextmanager
def show_run(console: Console, tasks: int, board: Path | None = None) -> Iterator[RunDisplay]:
    """Yield the display of a run; `board` is a folder for TensorBoard.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with _board(board) if board else nullcontext() as writer, bar as progress:
        yield RunDisplay(console, tasks, progress, writer)


def _board(folder: Path) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError(
            "--tensorboard needs the package tensorboard: pip install 'elign[lab,tensorboard]'"
        ) from None
    return SummaryWriter(str(folder))


def progress_text(progress: TrainingProgress, tasks: int) -> str:
    """Describe the progress of a training in one line.

    Example:
        >>> progress_text(TrainingProgress(0, 1, 4, 5, 10, 0.5, 0.75, 30.0), 6)
        'task 1/6  epoch 2/4  loss 0.500  accuracy 75.0 %  left in this task 0:00:50'
    """
    epochs = progress.epoch + progress.step / progress.steps
    done = (epochs - progress.first_epoch) / (progress.epochs - progress.first_epoch)
    left = timedelta(seconds=round(progress.seconds * (1 / done - 1)))
    accuracy = "" if progress.accuracy is None else f"accuracy {100 * progress.accuracy:.1f} %  "
    return (
        f"task {progress.task + 1}/{tasks}  epoch {progress.epoch + 1}/{progress.epochs}  loss {progress.loss:.3f}  "
        f"{accuracy}left in this task {left}"
    )


def run_tasks(experiment: Experiment, evaluation: Evaluation, tasks: int, display: RunDisplay) -> None:
    """Train and evaluate the tasks of a run that are not finished yet; those of an evaluation are all learned."""
    engine, learner, memory = experiment.engine, experiment.learner(), experiment.memory()
    run, target, _ = evaluation
    finished: list[Results] = []
    resumed = False
    for number in range(tasks):
        experiment.grow(learner, number)
        if engine.of_first(partial(run.is_learned, number)):
            trained = _load(experiment, run, number, learner, memory)
        else:
            trained = _train(experiment, run, number, learner, memory, display)
        results = engine.of_first(partial(_stored_results, experiment, number, evaluation))
        if results is not None:
            resumed = True
            finished.append(results)
            continue
        display.say(f"task {number + 1}: extracting latents")
        latents = experiment.extract(learner, memory, number, evaluation)
        if engine.is_main:
            display.say(f"task {number + 1}: fitting aligners")
            rows, metadata = experiment.evaluate(learner, latents, number, evaluation)
            metadata["seconds"]["train"] = trained
            metadata |= {"task": number + 1, "evaluation_version": experiment.version}
            finished.append(Results({}, rows, [metadata]))
            target.write_task_results(number, finished[-1])
            target.write_results(finished)
            display.finished(finished[-1])
        engine.wait()
    if engine.is_main and resumed:
        target.repair_results(finished)


def _stored_results(experiment: Experiment, number: int, evaluation: Evaluation) -> Results | None:
    """Return the results of a finished task if their methods are those of today; refuse those of a newer elign."""
    results = evaluation.target.results(number) if experiment.is_complete(number, evaluation) else None
    if results is None:
        return None
    if evaluated_by(results.tasks, type(experiment)) == "newer":
        path = evaluation.target.path
        raise RunError(f"{path} was evaluated by a newer elign: upgrade this one, or give another folder")
    current = all(task["evaluation_version"] == experiment.version for task in results.tasks)
    return results if current else None


def _train(
    experiment: Experiment, run: RunDir, number: int, learner: Any, memory: Memory, display: RunDisplay
) -> float:
    """Train a task, choose its exemplars, write both; return the seconds of training."""
    config, engine = experiment.config, experiment.engine
    callback = _RunCallback(experiment, run, number, display)
    if number == 0 and config.start_from is not None:
        state, _, metadata = engine.of_first(partial(RunDir(config.start_from).load_model, 0))
        _load_weights(RunDir(config.start_from), 0, learner, state)
        callback.before = metadata["seconds"]
    else:
        experiment.train(learner, memory, number, callback=callback, resume=engine.of_first(callback.resume))
    display.say(f"task {number + 1}: choosing exemplars")
    experiment.update_memory(learner, memory, number)
    seconds = callback.seconds()
    if engine.is_main:
        metadata = {"run": config.training_digest(), "seconds": seconds, "processes": engine.processes}
        run.save_model(number, learner.state(), memory.ranked, metadata)
        run.drop_progress()
    return seconds


def _load(experiment: Experiment, run: RunDir, number: int, learner: Any, memory: Memory) -> float:
    """Load the model and the exemplars after a task; return the seconds of its training."""
    state, ranked, metadata = experiment.engine.of_first(partial(run.load_model, number))
    if not experiment.engine.of_first(partial(_belongs, run, metadata)):
        raise DamagedRunError(f"{run.task_file(number, 'model')} is of another run. {MAKE_AGAIN}")
    _load_weights(run, number, learner, state)
    memory.restore(ranked)
    return float(metadata["seconds"])


def _load_weights(run: RunDir, number: int, learner: Any, state: Mapping[str, Tensor]) -> None:
    try:
        learner.load_state(state)
    except (RuntimeError, OptionError) as error:
        file, why = run.task_file(number, "model"), str(error).splitlines()[-1]
        raise DamagedRunError(f"{file} does not fit this run's model: {why}") from error
    learner.eval()


def _belongs(run: RunDir, metadata: Mapping[str, Any]) -> bool:
    """Return whether a file of tensors is of this run; runs of version 0.1 did not keep their digest."""
    own = run.metadata().get("training_digest")
    return own is None or metadata.get("run", own) == own


class _RunCallback:
    """Passes the progress on, saves the state of a task now and then, and knows how long it took so far."""

    def __init__(self, experiment: Experiment, run: RunDir, number: int, display: RunDisplay) -> None:
        self._run, self._number, self._display = run, number, display
        self._digest = experiment.config.training_digest()
        self._every = 60 * experiment.config.train.checkpoint_minutes if experiment.engine.is_main else math.inf
        self._start = self._saved = time.monotonic()
        self.before = 0.0

    def resume(self) -> tuple[Step, dict[str, Tensor]] | None:
        """Return what was saved of this task, if anything."""
        saved = self._run.progress(self._number)
        if saved is None or not _belongs(self._run, saved[1]):
            return None
        state, metadata = saved
        self.before = metadata["seconds"]
        return Step(metadata["epoch"], metadata["step"]), state

    def on_step(self, progress: TrainingProgress) -> None:
        self._display.show(progress)

    def checkpoint(self, step: Step, state: Callable[[], Mapping[str, Tensor]]) -> None:
        if time.monotonic() - self._saved >= self._every:
            metadata = {"run": self._digest, "seconds": self.seconds(), **step._asdict()}
            self._run.save_progress(self._number, state(), metadata)
            self._saved = time.monotonic()

    def seconds(self) -> float:
        return self.before + time.monotonic() - self._start


def start_run(config: Any, console: Console, *, tensorboard: bool = False, overrides: Sequence[str] = ()) -> RunDir:
    """Start a run in `config.out`; if it was started before, resume it.

    Args:
        config: Of any benchmark.
        console: For the progress.
        tensorboard: Whether to write files for TensorBoard into the run's folder.
        overrides: What the user typed, to be kept in `run.json` for readers.

    Raises:
        RunError: The folder holds another run.
    """
    benchmark = BENCHMARKS[config.benchmark]
    run = RunDir(config.out or default_folder(config))
    if run.exists:
        metadata = run.metadata()
        if benchmark_of(metadata) is not benchmark or _config_of(metadata).digest() != config.digest():
            raise RunError(
                f"{run.path} holds another run ('elign show {run.path}'); give out=DIR for a folder of its own"
            )
        refuse_archived(run, metadata)
        console.print(f"resuming the run in {run.path}", soft_wrap=True, markup=False)
        # Settings that do not decide results may change, such as the folder of the data.
        metadata |= {"config": describe(config), "overrides": list(overrides)}
        experiment = open_run(metadata)
    else:
        precision = choose_precision(fast=config.train.fast, accelerator=config.train.accelerator)
        if config.start_from is not None:
            check_start(config, RunDir(config.start_from))
        experiment = benchmark(config, precision)
        metadata = {
            "benchmark": benchmark.name,
            "overrides": list(overrides),
            "config": describe(config),
            "classes": list(experiment.data.classes),
            "sizes": list(experiment.protocol.sizes),
            "precision": precision.name,
            "channels_last": precision.channels_last,
            "threads": config.train.threads,
            "training_digest": config.training_digest(),
            "environment": describe_environment(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    _work(experiment, run, console, metadata=metadata, tensorboard=tensorboard)
    return run


def resume_run(run: RunDir, console: Console, *, tensorboard: bool = False) -> None:
    """Finish a run; raise `RunError` if the folder holds an evaluation or an archive."""
    metadata = run.metadata()
    _refuse_copies(run, metadata)
    _work(open_run(metadata), run, console, metadata=metadata, tensorboard=tensorboard)


def reevaluate_run(run: RunDir, config: Any, console: Console, *, name: str | None = None) -> RunDir:
    """Fit other aligners to the models of a run and evaluate it again.

    Args:
        run: Its models stay as they are.
        config: Of the run, with other settings of the aligner; `elign.lab.config.schema.TREE.with_aligner` makes it.
        console: For the progress.
        name: Of the evaluation, a folder below the run's; by default made from the settings that differ.

    Raises:
        RunError: The run has learned nothing yet, or another evaluation has this name.
    """
    metadata = run.metadata()
    _refuse_copies(run, metadata)
    own = _config_of(metadata)
    if own.training_digest() != config.training_digest():
        raise RunError(f"{run.path} was trained with other settings; only those of the aligner can change")
    if name is not None and (Path(name).name != name or name == ".."):
        raise RunError(f"--name is the name of one folder, not {name!r}")
    if not run.tasks():
        raise RunError(f"{run.path} has not learned a task yet; 'elign resume {run.path}' resumes it")
    changes = aligner_changes(own, config)
    target = run.evaluation(name or "_".join(changes).replace(os.sep, "-"))
    if target.exists and _config_of(target.metadata()).aligner != config.aligner:
        raise RunError(f"{target.path} is another evaluation; give another --name")
    experiment = open_run(metadata, devices=1)
    evaluated = {**metadata, "config": describe(config), "evaluation": changes}
    evaluation = Evaluation(run, target, config.aligner)
    _work(experiment, run, console, metadata=evaluated, evaluation=evaluation)
    return target


def _work(
    experiment: Experiment,
    run: RunDir,
    console: Console,
    *,
    metadata: Mapping[str, Any],
    evaluation: Evaluation | None = None,
    tensorboard: bool = False,
) -> None:
    # Of several processes the first one prints and writes.
    engine, main = experiment.engine, experiment.engine.is_main
    tasks = run.tasks() if evaluation else len(experiment.protocol.tasks)
    evaluation = evaluation or Evaluation(run, run, experiment.config.aligner)
    target = evaluation.target
    with target.locked() if main else nullcontext():
        if main and (not target.exists or target.metadata() != metadata):
            target.write_metadata(metadata)
        board = run.tensorboard if tensorboard and main else None
        with show_run(console if main else Console(quiet=True), tasks, board) as display, engine.together():
            run_tasks(experiment, evaluation, tasks, display)
    engine.wait()
    if not main:
        raise SystemExit(0)  # what follows, such as tables, is for one process to do


def _config_of(metadata: Mapping[str, Any]) -> Any:
    return benchmark_of(metadata).from_dict(metadata["config"])


def open_run(metadata: Mapping[str, Any], *, devices: int | None = None) -> Experiment:
    """Open a run, given by its metadata, with the precision that it started with."""
    precision = Precision(metadata["precision"], metadata["channels_last"])
    return benchmark_of(metadata)(_config_of(metadata), precision, devices=devices)


def check_start(config: Any, other: RunDir) -> None:
    """Raise `RunError` if the first task of another run is not that of this configuration, or not learned."""
    metadata = other.metadata()
    refuse_archived(other, metadata)
    benchmark = benchmark_of(metadata)
    if benchmark is not BENCHMARKS[config.benchmark]:
        raise RunError(f"{other.path} is a run of another benchmark")
    precision = choose_precision(fast=config.train.fast, accelerator=config.train.accelerator)
    # Equal data have equally many classes.
    sizes = protocol_of(config, len(metadata["classes"])).sizes
    mine = benchmark.first_task(config) | {"precision": tuple(precision), "classes": sizes[0]}
    theirs = benchmark.first_task(_config_of(metadata))
    theirs |= {"precision": (metadata["precision"], metadata["channels_last"]), "classes": metadata["sizes"][0]}
    different = [key for key in mine if theirs.get(key) != mine[key]]
    if different:
        raise RunError(f"{other.path} has another first task: {', '.join(different)} differ")
    if not other.is_learned(0):
        raise RunError(f"{other.path} has not finished its first task yet")


def find_start(config: Any, runs: Iterable[RunDir]) -> RunDir | None:
    """Return the first of some runs whose model of the first task this configuration can take over."""
    for other in runs:
        try:
            check_start(config, other)
        except ElignError:
            continue  # another run, or one that is damaged or from another elign
        return other
    return None


def _refuse_copies(run: RunDir, metadata: Mapping[str, Any]) -> None:
    refuse_archived(run, metadata)
    if metadata.get("evaluation") is not None:
        raise RunError(
            f"{run.path} is an evaluation of the run {run.path.parent.parent}; "
            f"'{resume_command(run, metadata)}' resumes it"
        )


def aligner_changes(own: Any, config: Any) -> list[str]:
    """Return the settings of the aligner that differ, as the user types them; one that is equal if none do."""
    before, after = describe(own)["aligner"], describe(config)["aligner"]
    texts = {
        name: f"aligner.{name}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for name, value in after.items()
    }
    return [texts[name] for name, value in after.items() if before[name] != value] or [texts["iterations"]]


def default_folder(config: Any) -> str:
    """Return a folder for a run: its main settings, and a digest that tells it from all others."""
    split = config.protocol.name or f"first-{config.protocol.first}-then-{config.protocol.increment}"
    return f"out/{config.learner.name}-{config.data.name}-{split}-seed{config.seed}-{config.digest()[:6]}"
