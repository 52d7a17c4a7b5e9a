"""What `scripts/soak` is made of: runs in processes of their own, ways to disturb them, and what must hold afterwards.

A process is forked from this one, which has imported everything: a run of seconds need not wait for torch each time. It
is a real process all the same, with its own memory, files and end; `fresh=True` starts a new interpreter instead.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch

from elign import ElignError
from elign.lab.cli.main import main
from elign.lab.runs.run_dir import RunDir, read_results
from elign.lab.storage import read_tensors
from elign.utils.fitted import FittedModule

QUICK = {
    "classification": "run data=digits preset=smoke protocol.first=5 protocol.increment=5 data.limit=12 "
    "train.first_epochs=2 train.epochs=2 train.batch_size=16 aligner.iterations=10 aligner.steps=2",
    "detection": "detect run preset=smoke protocol=5+5 data.scenes=[16,14] data.image_size=64 model.min_size=64 "
    "model.anchors=[16,32] model.rois=16 model.proposals=12 train.first_epochs=2 train.epochs=2 train.batch_size=4 "
    "train.learning_rate=0.01 aligner.iterations=10 aligner.steps=2",
}
"""Runs of seconds that go through every step of a long one."""


class LostError(Exception):
    """A fault that ended neither in equal results nor in a clear line that leads to them."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Negative for a signal."""
    said: str
    seconds: float

    @property
    def line(self) -> str:
        """The one line of an error.

        Raises:
            LostError: It is not one line, or a traceback.
        """
        lines = [line for line in self.said.splitlines() if line.startswith("elign: ")]
        if self.code != 1 or len(lines) != 1 or "Traceback" in self.said:
            raise LostError(f"ended with code {self.code}, without one clear line: {self.said[-1500:]}")
        return lines[0]


class Runs:
    """Starts runs of one kind and seed, and goes on with them.

    Args:
        kind: "classification" or "detection".
        seed: Of the runs.
        log: A file for what processes say.
        fresh: Whether each process is a new interpreter.
    """

    def __init__(self, kind: str, seed: int, log: Path, *, fresh: bool = False) -> None:
        if not fresh:
            _import_all(kind)
        self._settings = [*QUICK[kind].split(), f"seed={seed}", "train.threads=1", "train.checkpoint_minutes=0"]
        self._log, self._fresh = log, fresh

    def go(self, folder: Path, *, kill_after: float | None = None, largest_file: int | None = None) -> Ended:
        """Start a run in a folder or go on with it, to its end or until it is killed.

        Args:
            folder: The run's.
            kill_after: Seconds after which the process gets SIGKILL.
            largest_file: The most bytes that a file may get, after which writing fails.
        """
        words = ["resume", str(folder)] if (folder / "run.json").exists() else [*self._settings, f"out={folder}"]
        begun = time.monotonic()
        self._log.write_bytes(b"")
        process = self._start(words, largest_file)
        while (status := os.waitpid(process, os.WNOHANG))[0] == 0:
            if kill_after is not None and time.monotonic() - begun >= kill_after:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.005)
        code = os.waitstatus_to_exitcode(status[1])
        return Ended(code, self._log.read_text(errors="replace"), time.monotonic() - begun)

    def _start(self, words: list[str], largest_file: int | None) -> int:
        if self._fresh:
            limit = f"ulimit -f {largest_file // 512}; " if largest_file else ""
            command = ["sh", "-c", f'{limit}exec "$@"', "sh", sys.executable, "-m", "elign.lab.cli", *words]
            with self._log.open("ab") as log:
                return subprocess.Popen(command, stdout=log, stderr=log).pid  # noqa: S603  (words of our own)
        sys.stdout.flush()
        process = os.fork()
        return process or _become(words, self._log, largest_file)


def _import_all(kind: str) -> None:
    """Import what a run imports when it needs it, so that a forked process has it."""
    import lightning_fabric
    import sklearn.datasets
    import torch

    from elign.lab.runs import launch as session
    from elign.lab.runs.experiment import BENCHMARKS

    BENCHMARKS[kind].compose([])
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # the first optimiser of a process takes seconds
    del lightning_fabric, sklearn, session


def _become(words: list[str], log: Path, largest_file: int | None) -> int:
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
        code = main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def files_of(folder: Path) -> list[Path]:
    """The files of a run; hidden ones are a lock and what a killed process left half written."""
    return sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))


def differences(folder: Path, other: Path) -> list[str]:
    """What two runs differ in: results, and every number of every file of tensors; durations are not compared."""
    one, two = ({file.relative_to(root) for file in files_of(root)} for root in (folder, other))
    found = [f"{name} is in one of them only" for name in sorted(map(str, one ^ two))]
    for name in sorted(one & two):
        if name.suffix == ".safetensors":
            mine, theirs = (safetensors.torch.load_file(root / name) for root in (folder, other))
            same = mine.keys() == theirs.keys() and all(mine[key].equal(theirs[key]) for key in mine)
        elif name.name == "results.jsonl":
            same = read_results(folder / name).rows == read_results(other / name).rows
        else:
            same = name.name == "run.json" or (folder / name).read_bytes() == (other / name).read_bytes()
        found += [] if same else [f"{name} differs"]
    return found


def unreadable(folder: Path) -> list[tuple[Path, str]]:
    """The files of a run that cannot be read, each with the line that says so."""
    found = []
    for file in files_of(folder):
        try:
            if file.parent.name == "aligners":
                FittedModule.load(file)
            elif file.suffix == ".safetensors":
                read_tensors(file)
            elif file.name == "results.jsonl":
                read_results(file)
            elif file.name == "run.json":
                RunDir(folder).metadata()
        except ElignError as error:
            found.append((file, str(error)))
    return found


def damage(file: Path, how: str, random_numbers: random.Random) -> str:
    """Cut a file off somewhere, or flip one of its bits; returns what was done."""
    content = bytearray(file.read_bytes())
    place = random_numbers.randrange(max(1, len(content)))
    if how == "cut":
        file.write_bytes(content[:place])
        return f"{file.name} cut to {place} of {len(content)} bytes"
    if content:
        content[place] ^= 1 << random_numbers.randrange(8)
    file.write_bytes(content)
    return f"a bit of byte {place} of {file.name} flipped"


def settle(runs: Runs, folder: Path, original: Path, *, tries: int = 6) -> tuple[Path, list[str]]:
    """Go on with a disturbed run, follow the advice of every error, and compare the end with an undisturbed run.

    Returns:
        The folder of the run in the end, and the lines of errors on the way.

    Raises:
        LostError: An error was no clear line, or the end is not the undisturbed one.
    """
    lines: list[str] = []
    for _ in range(tries):
        ended = runs.go(folder)
        if ended.code == 0:
            left = unreadable(folder)
            if not left:
                break
            # The run did not need the file any more. Whoever does hears of it.
            for file, line in left:
                lines.append(line)
                _make_again(folder, file, line)
            continue
        lines.append(ended.line)
        folder = _follow(folder, ended.line)
    else:
        raise LostError(f"it did not come to an end: {lines}")
    different = differences(folder, original)
    if different:
        raise LostError(f"the results are others: {'; '.join(different[:5])}")
    return folder, lines


def _follow(folder: Path, line: str) -> Path:
    """Do what an error says."""
    named = next((file for file in files_of(folder) if str(file) in line), None)
    if "start it again in another folder" in line and named is not None:
        return folder.with_name(f"{folder.name}-anew")
    if "Remove this file" in line and named is not None:
        named.unlink()
        return folder
    raise LostError(f"the error does not name a file of the run and what to do: {line}")


def _make_again(folder: Path, file: Path, line: str) -> None:
    if file.name not in line:
        raise LostError(f"{file} is damaged, and the error does not name it: {line}")
    file.unlink()
    if file.parent.name == "aligners":
        # An aligner is written before the results of its task; docs/reliability.md says so.
        (file.parents[1] / "results.jsonl").unlink(missing_ok=True)
    elif "Remove this file" not in line and file.parent != folder:
        raise LostError(f"the error does not say what to do: {line}")


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """Make `folder` a disk of so many bytes; gives False where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    release(folder)
    mount = shutil.which("mount")
    mounted = (
        bool(mount) and os.geteuid() == 0 and _quiet([mount, "-t", "tmpfs", "-o", f"size={size}", "elign", folder])
    )
    try:
        yield mounted
    finally:
        release(folder)


def release(folder: Path) -> None:
    """Take a small disk away, one that a killed soak has left included."""
    if folder.is_mount():
        _quiet(["umount", "-l", folder])


def make_room(folder: Path) -> None:
    """Give a small disk more room than any run needs."""
    if not _quiet(["mount", "-o", "remount,size=1g", folder]):
        raise OSError(f"{folder} cannot be given more room")


def _quiet(command: list[str | Path]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603  (as above)
