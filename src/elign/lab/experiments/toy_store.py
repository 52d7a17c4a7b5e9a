"""Files of a toy experiment: each finished seed is kept at once, so that an interrupted run goes on where it was.

`settings.json` says what was run, `seed-N.json` holds the numbers of a seed, `picture.npz` the arrays of the first one.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from elign.lab.experiments.toy_result import Picture, SeedResult
from elign.lab.json_file import read_object, write_object
from elign.utils.files import write_bytes_atomic, write_text_atomic

_MAX_PICTURE_BYTES = 1 << 30


class ToyStore:
    """The folder of one experiment.

    Args:
        folder: Where it is; made where needed.
        settings: What is run. Results of other settings in the same folder are not used, and are replaced.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self._settings = folder / "settings.json"
        text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
        if not self._settings.exists() or self._settings.read_bytes() != text.encode():
            for stale in [*folder.glob("seed-*.json"), folder / "picture.npz"]:
                stale.unlink(missing_ok=True)
            write_text_atomic(self._settings, text)

    def seed(self, number: int) -> SeedResult | None:
        """The numbers of a seed, if it is finished; a damaged file counts as not finished."""
        try:
            result = SeedResult(**read_object(self._seed_file(number))[0])
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return result if result.seed == number and _is_whole(result) else None

    def save_seed(self, result: SeedResult) -> None:
        """Keep the numbers of a finished seed."""
        write_object(self._seed_file(result.seed), asdict(result))

    def picture(self) -> Picture | None:
        """The arrays of the first seed, if they are there."""
        path = self.folder / "picture.npz"
        try:
            with zipfile.ZipFile(path) as packed:
                if sum(member.file_size for member in packed.infolist()) > _MAX_PICTURE_BYTES:
                    return None
            with np.load(path, allow_pickle=False) as stored:
                arrays = dict(stored)
            energy = {name.removeprefix("energy/"): arrays.pop(name) for name in list(arrays) if "/" in name}
            names = tuple(str(name) for name in arrays.pop("class_names"))
            return Picture(**arrays, energy=energy, class_names=names)
        except Exception:  # damaged bytes can make these readers fail in any way at all
            return None

    def save_picture(self, picture: Picture) -> None:
        """Keep the arrays of the first seed."""
        arrays: dict[str, Any] = {field.name: getattr(picture, field.name) for field in fields(picture)}
        arrays |= {f"energy/{name}": values for name, values in arrays.pop("energy").items()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        write_bytes_atomic(self.folder / "picture.npz", buffer.getvalue())

    def _seed_file(self, number: int) -> Path:
        return self.folder / f"seed-{number}.json"


def _is_whole(result: SeedResult) -> bool:
    """Whether every number is there and is one, for files without a digest."""
    if not isinstance(result.readings, dict):
        return False
    numbers = [getattr(result, field.name) for field in fields(result) if field.name != "readings"]
    return all(type(number) in (int, float) for number in (*numbers, *result.readings.values()))
