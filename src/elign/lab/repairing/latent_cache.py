"""Latents of the pictures in a folder, extracted once for each model and kept in chunks."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from elign.lab.data.base import DamagedFileError
from elign.lab.data.pictures import read_picture
from elign.lab.repairing.checkpoints import Checkpoint, Transform
from elign.lab.repairing.class_folders import ClassFolder, ClassFolderError
from elign.lab.storage import DamagedRunError, digest_of, read_tensors, write_tensors
from elign.utils.extraction import evaluating

CHUNK = 1024  # pictures of a file: 5 MB of latents of dimension 1280
_SAY_EVERY = 30.0  # seconds between two lines, where there is no terminal
_VERSION = 1
_NAME = "[0-9a-f]{24}"  # of the folder of a model and a folder of pictures

_Batch = tuple[list[int], Tensor | None, int]
"""The rows that could be read, their inputs, and how many rows there were."""
_Advance = Callable[[int], None]


@dataclass(frozen=True)
class Features:
    """Latents of the pictures that could be read.

    Args:
        z: Latents (N, D), on the CPU.
        rows: The picture of each, a place in the folder's files.
        skipped: How many pictures could not be read.
        computed: How many went through the model now, not in an earlier call.
    """

    z: Tensor
    rows: Tensor
    skipped: int
    computed: int


@dataclass(frozen=True)
class LatentCache:
    """Where latents are kept, and how they are extracted.

    A file for each model, folder of pictures and chunk; its name depends on the weights, the list of files with their
    sizes and times, and the transform. An extraction that was killed goes on behind its last chunk.
    """

    folder: Path
    console: Console
    device: torch.device
    batch_size: int = 64
    workers: int = 0

    def extract(self, checkpoints: Sequence[Checkpoint], pictures: ClassFolder) -> list[Features]:
        """Return the latents of all pictures under each model; each picture is decoded once for all of them."""
        places = [self.place(checkpoint, pictures) for checkpoint in checkpoints]
        chunks = [
            range(start, min(start + CHUNK, len(pictures.files))) for start in range(0, len(pictures.files), CHUNK)
        ]
        held = [[_read(place, number) for number in range(len(chunks))] for place in places]
        missing = [number for number in range(len(chunks)) if any(part[number] is None for part in held)]
        computed = [sum(len(chunks[number]) for number in missing if part[number] is None) for part in held]
        if missing:
            transform = checkpoints[0].transform
            batches = [rows for number in missing for rows in _batches(chunks[number], self.batch_size)]
            loader = DataLoader(
                _Pictures(pictures, transform),
                batch_sampler=batches,
                collate_fn=_kept,
                num_workers=self.workers,
                # Otherwise the loader draws a seed from the global random numbers, which belong to the caller.
                generator=torch.Generator(),
            )
            arriving = iter(loader)
            with _progress(self.console, f"latents of {pictures.option}", sum(computed)) as advance:
                for number in missing:
                    wanted = [place for place, part in enumerate(held) if part[number] is None]
                    count = len(_batches(chunks[number], self.batch_size))
                    made = self._chunk([checkpoints[place] for place in wanted], arriving, count, advance)
                    for place, (z, rows) in zip(wanted, made, strict=True):
                        write_tensors(_file(places[place], number), {"z": z, "rows": rows})
                        held[place][number] = z, rows
        return [
            _joined([part for part in parts if part is not None], pictures, count)
            for parts, count in zip(held, computed, strict=True)
        ]

    def _chunk(
        self, checkpoints: Sequence[Checkpoint], arriving: Iterator[_Batch], batches: int, advance: _Advance
    ) -> list[tuple[Tensor, Tensor]]:
        found: list[list[Tensor]] = [[] for _ in checkpoints]
        rows: list[int] = []
        models = [checkpoint.latents.to(self.device) for checkpoint in checkpoints]
        with evaluating(*models), torch.no_grad():
            for _ in range(batches):
                kept, x, count = next(arriving)
                rows += kept
                for part, model in zip(found, models, strict=True):
                    if x is not None:
                        part.append(model(x.to(self.device)).float().cpu())
                    advance(count)
        dims = [checkpoint.dim for checkpoint in checkpoints]
        return [
            (torch.cat(part) if part else torch.empty(0, dim), torch.tensor(rows, dtype=torch.int64))
            for part, dim in zip(found, dims, strict=True)
        ]

    def place(self, checkpoint: Checkpoint, pictures: ClassFolder) -> Path:
        """Return the folder of the chunks of a model and a folder of pictures."""
        files = [[name, *stamp] for name, stamp in zip(pictures.files, pictures.stamps, strict=True)]
        key = {"version": _VERSION, "model": checkpoint.key, "transform": checkpoint.prepared, "files": files}
        return self.folder / digest_of({**key, "chunk": CHUNK})[:24]

    def prune(self, used: Sequence[Path]) -> None:
        """Remove the latents of other models or pictures."""
        for folder in self.folder.glob("*"):
            if re.fullmatch(_NAME, folder.name) and folder not in used:
                shutil.rmtree(folder, ignore_errors=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    @staticmethod
    def is_one(folder: Path) -> bool:
        """Return whether a folder holds latents and nothing else."""
        return folder.is_dir() and all(re.fullmatch(_NAME, entry.name) for entry in folder.iterdir())


class _Pictures(TorchDataset[tuple[int, Tensor | None]]):
    """The rows of a folder's pictures with their inputs, None where one cannot be read."""

    def __init__(self, pictures: ClassFolder, transform: Transform) -> None:
        self._pictures, self._transform = pictures, transform

    def __len__(self) -> int:
        return len(self._pictures.files)

    def __getitem__(self, row: int) -> tuple[int, Tensor | None]:
        try:
            return row, self._transform(read_picture(self._pictures.root / self._pictures.files[row]))
        except DamagedFileError:
            return row, None


def _kept(items: Sequence[tuple[int, Tensor | None]]) -> _Batch:
    inputs = [x for _, x in items if x is not None]
    return [row for row, x in items if x is not None], torch.stack(inputs) if inputs else None, len(items)


def _batches(rows: range, size: int) -> list[list[int]]:
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


def _file(place: Path, number: int) -> Path:
    return place / f"{number:06}.safetensors"


def _read(place: Path, number: int) -> tuple[Tensor, Tensor] | None:
    """Return a chunk; None if it is not there, or damaged."""
    try:
        tensors, _ = read_tensors(_file(place, number), expect=("z", "rows"))
    except (DamagedRunError, FileNotFoundError):
        return None
    return tensors["z"], tensors["rows"]


def _joined(parts: Sequence[tuple[Tensor, Tensor]], pictures: ClassFolder, computed: int) -> Features:
    z, rows = (torch.cat(side) for side in zip(*parts, strict=True))
    if not len(rows):
        raise ClassFolderError(f"none of the pictures in {pictures.option} {pictures.root} can be read")
    return Features(z, rows, len(pictures.files) - len(rows), computed)


@contextmanager
def _progress(console: Console, what: str, total: int) -> Iterator[_Advance]:
    """Show how far something is, with the time left: live on a terminal, else a line now and then."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda count: progress.advance(task, count)
        return
    start = last = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal done, last
        done, now = done + count, time.monotonic()
        if now - last >= _SAY_EVERY:
            last, left = now, (now - start) / done * (total - done)
            console.print(f"{what}: {done} of {total}, {left:.0f} s left", soft_wrap=True, markup=False)

    yield advance
