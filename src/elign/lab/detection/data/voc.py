"""PASCAL VOC 2007 and other folders in its format.

M. Everingham et al., "The PASCAL Visual Object Classes (VOC) Challenge", IJCV 2010. A folder has

- `ImageSets/Main/trainval.txt` and `test.txt` (else `train.txt` and `test.txt`, else `train.txt` and `val.txt`): the
  names of the images to learn from and to evaluate with, one in each line;
- `JPEGImages/NAME.jpg` (or .png, .webp and so on) for each of them;
- `Annotations/NAME.xml` for each: size, and class, box and difficult flag of each object.

In these files the pixels are counted from 1 and the last row and column belong to the box. Here coordinates are
continuous and start at 0, so xmin, ymin, xmax, ymax become xmin - 1, ymin - 1, xmax, ymax: the area is that of the
pixels, and the overlap of two boxes is the one of the official evaluation, which adds 1 to every side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from elign.lab.data.base import DamagedFileError, DatasetNotFoundError
from elign.lab.data.folders import SUFFIXES, FolderLayoutError
from elign.lab.data.pictures import read_picture
from elign.lab.detection.data.annotated import (
    REMEDY,
    Annotation,
    Named,
    checked_box,
    found_classes,
    open_annotated,
    own_folder,
    read_annotations,
)
from elign.lab.detection.data.base import DETECTION_DATASETS, DetectionData, DetectionRequest

_CLASSES = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant sheep "
    "sofa train tvmonitor"
)
VOC2007_CLASSES = tuple(_CLASSES.split())
"""The 20 classes of VOC 2007, in the order of the literature."""

VOC_PLACES = ("VOCdevkit/VOC2007", "VOC2007")
"""Where the official archives put the folder, relative to where they are unpacked."""

VOC_FILES = (
    "JPEGImages/*.jpg",
    "Annotations/*.xml",
    "ImageSets/Main/trainval.txt and test.txt (or train.txt with test.txt or val.txt)",
)
"""The files a folder must hold, in words."""

_NEEDED = "; ".join(VOC_FILES)
_LISTS = (("trainval", "test"), ("train", "test"), ("train", "val"))
_MAX_BYTES = 1 << 26


@DETECTION_DATASETS.register("voc")
def open_voc(request: DetectionRequest) -> DetectionData:
    """Open a folder of your own in VOC's format."""
    request.refuse("scenes")
    own = own_folder(request, VOC_FILES)
    folder = find_voc(own)
    if folder is None:
        raise FolderLayoutError(own, "it has no ImageSets/Main", _NEEDED)
    train, test = read_voc(folder)
    return open_annotated(request, request.classes or found_classes(train), train, test)


@DETECTION_DATASETS.register("voc2007")
def open_voc2007(request: DetectionRequest) -> DetectionData:
    """Open VOC 2007 itself, from its own folder or the data folder."""
    request.refuse("scenes", "classes")
    own = request.root if request.path is None else own_folder(request, VOC_FILES)
    folder = find_voc(own)
    if folder is None and request.path is not None:
        raise FolderLayoutError(own, "it has no ImageSets/Main", _NEEDED)
    if folder is None:
        tries = [f"no {own / place / 'ImageSets' / 'Main'}" for place in VOC_PLACES]
        raise DatasetNotFoundError(request.name, own / VOC_PLACES[0], VOC_FILES, tries)
    return open_annotated(request, VOC2007_CLASSES, *read_voc(folder))


def find_voc(path: Path) -> Path | None:
    """Return the folder in VOC's format: `path`, or where the official archives put it in there; else None."""
    places = (path, *(path / place for place in VOC_PLACES))
    return next((place for place in places if (place / "ImageSets" / "Main").is_dir()), None)


def read_voc(root: Path) -> tuple[list[Annotation], list[Annotation]]:
    """Read the annotations of the training and of the test images, in the order of the lists.

    Raises:
        FolderLayoutError: A folder or list is missing, or an image is in both lists.
        DamagedFileError: A list or an annotation is broken, or an image or annotation is missing; it is named.
    """
    for part in ("JPEGImages", "Annotations"):
        if not (root / part).is_dir():
            raise FolderLayoutError(root, f"it has no folder {part}", _NEEDED)
    lists = root / "ImageSets" / "Main"
    pair = next((pair for pair in _LISTS if all((lists / f"{name}.txt").is_file() for name in pair)), None)
    if pair is None:
        raise FolderLayoutError(lists, "the lists of training and test images are missing", _NEEDED)
    # Sorted: where a name has two pictures, the choice is the same on every machine.
    # Regular files only: a pipe could keep a reader waiting for ever.
    entries = sorted((root / "JPEGImages").iterdir())
    pictures = {path.stem: path for path in entries if path.suffix.lower() in SUFFIXES and path.is_file()}
    files = [lists / f"{name}.txt" for name in pair]
    train, test = map(_names, files)
    both = sorted(set(train) & set(test))
    if both:
        raise FolderLayoutError(lists, f"the image {both[0]!r} is for training and for testing", _NEEDED)
    learned, tested = (
        [_annotation(root, pictures, name, file) for name in names]
        for names, file in zip((train, test), files, strict=True)
    )
    return learned, tested


def _names(path: Path) -> list[str]:
    try:
        lines = read_annotations(path, _MAX_BYTES).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DamagedFileError(path, f"it cannot be read ({error})", "replace it by a good copy") from error
    names = [parts[0] for parts in map(str.split, lines) if parts]
    if not names:
        raise DamagedFileError(path, "it names no image", "replace it by a good copy")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DamagedFileError(path, f"it names the image {twice!r} twice", "remove one of the lines")
    return names


def _annotation(root: Path, pictures: Mapping[str, Path], name: str, named_by: Path) -> Annotation:
    picture, source = pictures.get(name), root / "Annotations" / f"{name}.xml"
    # A name with a folder in it has no picture, so no file elsewhere is ever opened.
    if picture is None:
        problem = f"it names the image {name!r}, and there is no such picture in {root / 'JPEGImages'}"
        raise DamagedFileError(named_by, problem, "add the picture, or remove the line")
    if not source.is_file():
        problem = f"it names the image {name!r}, and there is no file {source}"
        raise DamagedFileError(named_by, problem, "add the annotation, or remove the line")
    content = read_annotations(source, _MAX_BYTES)
    try:
        element = _parsed(content)
        size = _size(element) or read_picture(picture).size
        return Annotation.of(source, picture, size, (_object(each, size) for each in element.iterfind("object")))
    except (ElementTree.ParseError, ValueError, OverflowError, LookupError) as error:
        raise DamagedFileError(source, str(error), REMEDY) from error


class _Builder(ElementTree.TreeBuilder):
    """Build the elements of a document without a document type."""

    def doctype(self, *declaration: str | None) -> None:
        raise ValueError("it has a document type (DOCTYPE), which could declare entities; VOC's annotations have none")


def _parsed(content: bytes) -> ElementTree.Element:
    parser = ElementTree.XMLParser(target=_Builder())  # noqa: S314 - the builder refuses what makes XML dangerous
    parser.feed(content)
    root: ElementTree.Element = parser.close()
    if root.tag != "annotation":
        raise ValueError(f"its outermost element is {root.tag!r}, not 'annotation'")
    return root


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    """Return width and height; None where a tool left them out or wrote 0."""
    element = root.find("size")
    if element is None:
        return None
    width, height = (int(_number(element, side)) for side in ("width", "height"))
    return (width, height) if width > 0 and height > 0 else None


def _object(element: ElementTree.Element, size: tuple[int, int]) -> Named:
    name = (element.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object has no name")
    corners = element.find("bndbox")
    if corners is None:
        raise ValueError(f"the object {name!r} has no bndbox")
    x1, y1, x2, y2 = (_number(corners, side) for side in ("xmin", "ymin", "xmax", "ymax"))
    try:
        box = checked_box((x1 - 1, y1 - 1, x2, y2), size)
    except ValueError as error:
        raise ValueError(f"object {name!r}: {error} (counted from 0)") from None
    flag = (element.findtext("difficult") or "0").strip()
    if flag not in ("0", "1"):
        raise ValueError(f"the object {name!r} has difficult {flag!r}, which must be 0 or 1")
    return name, box, flag == "1"


def _number(element: ElementTree.Element, name: str) -> float:
    text = (element.findtext(name) or "").strip()
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, not {text!r}") from None
