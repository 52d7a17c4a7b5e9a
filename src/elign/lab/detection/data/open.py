"""Data sets for object detection, by name."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elign.lab.data.errors import DataError
from elign.lab.data.fetch import data_dir as resolve_data_dir
from elign.lab.data.find_folders import FoldersNotFoundError
from elign.lab.data.image_folders import FolderLayoutError
from elign.lab.data.memory import random_order
from elign.lab.data.order import class_order
from elign.lab.detection.data.coco import COCO_FILES, read_coco
from elign.lab.detection.data.files import Annotation, check_classes, found_classes, make_split
from elign.lab.detection.data.scenes import SMALLEST_SIDE, digit_scenes
from elign.lab.detection.data.split import DetectionData
from elign.lab.detection.data.voc import VOC2007_CLASSES, VOC_FILES, VOC_PLACES, find_voc, read_voc
from elign.lab.seeds import derive_seed

DETECTION_DATASETS = ("digit-scenes", "voc2007", "voc", "coco")
"""The names that `open_detection_data` knows."""

_SCENES = (1000, 400)
_SIDE = 96
_DIGITS = tuple("0123456789")
_OWN = {"voc": VOC_FILES, "coco": COCO_FILES}


@dataclass(frozen=True)
class _Read:
    """What the files of a data set say."""

    train: Sequence[Annotation]
    test: Sequence[Annotation]
    classes: tuple[str, ...]


def open_detection_data(
    name: str,
    *,
    path: Path | str | None = None,
    data_dir: Path | str | None = None,
    order: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    classes: Sequence[str] | None = None,
    flips: bool = True,
    scenes: tuple[int, int] | None = None,
) -> DetectionData:
    """Open a data set for object detection by its name.

    Args:
        name: "digit-scenes", made from a seed; "voc2007"; "voc" or "coco" for a folder of one's own in that format.
        path: The data set's own folder. "voc" and "coco" need it; "voc2007" is looked for in the data folder without.
        data_dir: The data folder; default: the variable ELIGN_DATA, else the platform's cache folder of the user.
        order: Seed of the order in which classes arrive; None for the natural one: alphabetical, for COCO by ids.
        limit: For quick trials: each class draws this many training images of those that show it, and what no class
            drew is left out. A class may have more, on images that were drawn for another. Test images are all kept.
        seed: Decides the scenes, and the draw of `limit`.
        image_size: For folders, the most that the longer side of a picture may have; larger ones are scaled down with
            their boxes. For digit scenes, their height and width; default 96.
        classes: For "voc" and "coco", the names of all classes in their natural order; default: those that are found
            on the training images.
        flips: For folders, whether mirrored pictures may be learned from: not where they show text, say.
        scenes: How many training and test scenes to make; default 1000 and 400.

    Returns:
        The data set; labels are numbered in the order of arrival.

    Raises:
        DataError: There is no such data set, an option does not fit it, it is not there (`DatasetNotFoundError`) or
            lies otherwise (`FolderLayoutError`), or a file of it is broken (`DamagedFileError`).

    Example:
        >>> data = open_detection_data("digit-scenes", scenes=(4, 2), order=1993)
        >>> data.classes[:3], data.train.image(0).shape
        (('4', '2', '7'), torch.Size([3, 96, 96]))
    """
    _check_name(name)
    _check_options(name, path=path, classes=classes, scenes=scenes)
    _check_numbers(name, limit=limit, image_size=image_size)
    if name == "digit-scenes":
        return _scenes(scenes or _SCENES, image_size or _SIDE, order=order, limit=limit, seed=seed)
    read = _read(name, path, data_dir, classes)
    check_classes(name, read.classes, read.train)
    arrived = tuple(read.classes[label] for label in class_order(len(read.classes), seed=order))
    learned = read.train
    if limit is not None:
        rows = drawn_rows([annotation.names for annotation in learned], limit, seed=seed)
        learned = [learned[row] for row in rows.tolist()]
    train, test = (
        make_split(annotations, arrived, image_size=image_size, flips=flips) for annotations in (learned, read.test)
    )
    return DetectionData(name=name, classes=arrived, train=train, test=test)


def drawn_rows(shown: Sequence[Collection[str]], limit: int, *, seed: int) -> Tensor:
    """A choice of images in which each class is shown by at least `limit`, or all that show it.

    The classes draw in turn, the rarest first; images that were drawn before count. To allow no more than `limit` of a
    class would leave those without any that are never alone on an image. The order of arrival plays no part.

    Args:
        shown: The names of the classes on each image.
        limit: How many images a class draws at most.
        seed: Decides the draw; each class has its own stream.

    Returns:
        The places of the images, in their order: `int64`, (M,).
    """
    showing: dict[str, list[int]] = defaultdict(list)
    for row, names in enumerate(shown):
        for name in set(names):
            showing[name].append(row)
    drawn: set[int] = set()
    for name, rows in sorted(showing.items(), key=lambda item: (len(item[1]), item[0])):
        left = [row for row in rows if row not in drawn]
        missing = max(0, limit - (len(rows) - len(left)))
        order = random_order(len(left), derive_seed(seed, f"training images of {name}"))
        drawn.update(left[place] for place in order[:missing].tolist())
    return torch.tensor(sorted(drawn), dtype=torch.int64)


def _scenes(counts: tuple[int, int], side: int, *, order: int | None, limit: int | None, seed: int) -> DetectionData:
    train, test = digit_scenes(counts, side=side, seed=seed)
    if limit is not None:
        names = [[_DIGITS[label] for label in objects.labels.tolist()] for objects in train.objects]
        train = train.keep(drawn_rows(names, limit, seed=seed))
    arrival = class_order(len(_DIGITS), seed=order)
    place = torch.tensor(arrival).argsort()  # of a permutation: its inverse
    classes = tuple(_DIGITS[label] for label in arrival)
    return DetectionData("digit-scenes", classes, train.renumbered(place), test.renumbered(place))


def _read(name: str, path: Path | str | None, data_dir: Path | str | None, classes: Sequence[str] | None) -> _Read:
    own = Path(path).expanduser() if path is not None else None
    if own is not None and not own.is_dir():
        raise FolderLayoutError(own, "there is no such folder", "; ".join(_OWN.get(name, VOC_FILES)))
    if name == "coco" and own is not None:
        train, test = read_coco(own)
        return _Read(train.annotations, test.annotations, tuple(classes or train.categories))
    annotations = read_voc(_voc_folder(name, own, data_dir))
    found = VOC2007_CLASSES if name == "voc2007" else found_classes(annotations[0])
    return _Read(*annotations, tuple(classes or found))


def _voc_folder(name: str, own: Path | None, data_dir: Path | str | None) -> Path:
    if own is not None:
        folder = find_voc(own)
        if folder is None:
            raise FolderLayoutError(own, "it has no ImageSets/Main", "; ".join(VOC_FILES))
        return folder
    root = resolve_data_dir(data_dir)
    folder = find_voc(root)
    if folder is None:
        tries = [f"no {root / place / 'ImageSets' / 'Main'}" for place in VOC_PLACES]
        raise FoldersNotFoundError(name, root / VOC_PLACES[0], VOC_FILES, tries)
    return folder


def _check_name(name: str) -> None:
    if name not in DETECTION_DATASETS:
        near = difflib.get_close_matches(name.strip().lower(), DETECTION_DATASETS, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(DETECTION_DATASETS)
        raise DataError(f"There is no data set for detection {name!r}.{hint} Known are: {known}.")


def _check_options(
    name: str, *, path: Path | str | None, classes: Sequence[str] | None, scenes: tuple[int, int] | None
) -> None:
    if name in _OWN and path is None:
        raise DataError(f"{name!r} needs the path of your folder. Needed there: {'; '.join(_OWN[name])}.")
    if name == "digit-scenes" and path is not None:
        raise DataError("Digit scenes are made, not read: they take no path.")
    if name not in _OWN and classes is not None:
        raise DataError(f"The classes of {name!r} are fixed; classes are named for {' and '.join(_OWN)}.")
    if name != "digit-scenes" and scenes is not None:
        raise DataError(f"The option scenes is for digit-scenes, not for {name!r}.")


def _check_numbers(name: str, *, limit: int | None, image_size: int | None) -> None:
    smallest = SMALLEST_SIDE if name == "digit-scenes" else 1
    for option, value, least in (("limit", limit, 1), ("image_size", image_size, smallest)):
        if value is not None and value < least:
            raise DataError(f"{option} must be at least {least}, not {value}.")
