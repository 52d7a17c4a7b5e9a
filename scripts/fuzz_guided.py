"""One reader under atheris, which looks for inputs that reach new lines of it. Started by `scripts/fuzz --guided`.

python scripts/fuzz_guided.py READER FOLDER [options of libFuzzer]
"""

from __future__ import annotations

import gzip
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["elign.lab.data", "elign.lab.detection.data", "elign.lab.storage"]):
    from elign.lab.data import mnist as idx

from elign import ElignError


def main() -> None:
    """Fuzz the reader until libFuzzer's time is over; anything but a named error ends it with a failure."""
    reader, folder, *options = sys.argv[1:]
    read, seeds = _reader(reader, Path(folder))
    corpus = Path(folder) / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    def once(content: bytes) -> None:
        with suppress(ElignError):
            read(content)

    atheris.Setup([sys.argv[0], *options, str(corpus)], once)
    atheris.Fuzz()


def _reader(name: str, folder: Path) -> tuple[Callable[[bytes], object], list[bytes]]:
    file = folder / "input"

    def reads(read: Callable[[Path], object], path: Path = file) -> Callable[[bytes], object]:
        def stored(content: bytes) -> object:
            path.write_bytes(content)
            return read(path)

        return stored

    if name == "idx":
        whole = struct.pack(">4BI", 0, 0, 8, 1, 3) + b"abc"
        return reads(lambda path: idx.read_idx(path, (3,))), [whole, gzip.compress(whole)]
    return _other_reader(name, folder, reads)


def _other_reader(
    name: str, folder: Path, reads: Callable[..., Callable[[bytes], object]]
) -> tuple[object, list[bytes]]:
    if name in ("voc", "coco"):
        return _annotations(name, folder, reads)
    import safetensors.torch
    import torch

    from elign.lab.runs.run_dir import read_results
    from elign.lab.storage import read_tensors
    from elign.utils.fitted import FittedModule

    tensors = [safetensors.torch.save({"a": torch.zeros(2)}, {"format": "elign", "facts": "{}", "digest": "x"})]
    results = [b'{"kind": "run", "version": 1, "lines": 0, "facts": {}}\n']
    return {
        "results": (reads(read_results), results),
        "tensors": (reads(read_tensors), tensors),
        "aligner": (reads(FittedModule.load), tensors),
    }[name]


def _annotations(
    name: str, folder: Path, reads: Callable[..., Callable[[bytes], object]]
) -> tuple[object, list[bytes]]:
    from elign.lab.detection.data.coco import Coco
    from elign.lab.detection.data.voc import Voc

    whole = (
        b'{"images": [{"id": 1, "file_name": "a.png", "width": 9, "height": 9}], "categories": [], "annotations": []}'
    )
    for part in ("JPEGImages", "Annotations", "ImageSets/Main", "annotations", "train", "val"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for picture in ("JPEGImages/a.png", "JPEGImages/b.png", "train/a.png", "val/a.png"):
        (folder / picture).touch()
    (folder / "ImageSets/Main/train.txt").write_text("a\n")
    (folder / "ImageSets/Main/test.txt").write_text("b\n")
    size = b"<annotation><size><width>9</width><height>9</height></size></annotation>"
    (folder / "Annotations/b.xml").write_bytes(size)
    (folder / "annotations/instances_val.json").write_bytes(whole)
    if name == "voc":
        return reads(lambda path: Voc("voc").read(folder), folder / "Annotations/a.xml"), [size]
    return reads(lambda path: Coco("coco").read(folder), folder / "annotations/instances_train.json"), [whole]


if __name__ == "__main__":
    main()
