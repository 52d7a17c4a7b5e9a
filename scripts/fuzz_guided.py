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

with atheris.instrument_imports(
    include=["elign.lab.data", "elign.lab.detection.data", "elign.lab.json_file", "tarfile"]
):
    import tarfile

    from elign.lab.data import archives, idx, pickles

from elign import ElignError
from elign.lab.data.errors import DataError


def main() -> None:
    """Fuzz the reader until libFuzzer's time is over; anything but a named error ends it with a failure."""
    reader, folder, *options = sys.argv[1:]
    read, seeds = _reader(reader, Path(folder))
    corpus = Path(folder) / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    def once(content: bytes) -> None:
        with suppress(ElignError, DataError):
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
        return reads(idx.read_idx), [struct.pack(">4BI", 0, 0, 8, 1, 3) + b"abc", gzip.compress(b"\0\0\x08\x01")]
    if name == "pickle":
        import pickle

        import numpy as np

        content = {"data": np.zeros((2, 2), np.uint8), "fine_labels": [1, 2]}
        return reads(pickles.read_pickle), [pickle.dumps(content, protocol=protocol) for protocol in range(6)]
    if name == "archive":
        members = {"x": 100}
        # The tar itself is made up, not its compression: almost every change of that ends at a checksum.
        read = reads(lambda path: archives.read_members(path, members))
        return lambda content: read(gzip.compress(content, 1)), [tarfile.TarInfo("x").tobuf() + bytes(1024)]
    return _other_reader(name, folder, reads)


def _other_reader(
    name: str, folder: Path, reads: Callable[..., Callable[[bytes], object]]
) -> tuple[object, list[bytes]]:
    if name in ("voc", "coco"):
        return _annotations(name, folder, reads)
    import safetensors.torch
    import torch

    from elign.lab.evaluation.results import read_results
    from elign.lab.tensor_file import read_tensors
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
    from elign.lab.detection.data.coco import read_coco
    from elign.lab.detection.data.voc import read_voc

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
        return reads(lambda path: read_voc(folder), folder / "Annotations/a.xml"), [size]
    return reads(lambda path: read_coco(folder), folder / "annotations/instances_train.json"), [whole]


if __name__ == "__main__":
    main()
