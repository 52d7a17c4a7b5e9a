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

from elign.lab.data.base import GOOD_COPY, DamagedFileError, read_file, read_lines
from elign.lab.data.folders import SUFFIXES, FolderLayoutError
from elign.lab.data.pictures import read_picture
from elign.lab.detection.data import DETECTION_DATASETS
from elign.lab.detection.data.annotated import REMEDY, Annotation, FolderSource, Named, checked_box

_CLASSES = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant sheep "
    "sofa train tvmonitor"
)
_LISTS = (("trainval", "test"), ("train", "test"), ("train", "val"))
_MAX_BYTES = 1 << 26


@DETECTION_DATASETS.register("voc")
class Voc(FolderSource):
    """A folder of the user's in VOC's format, or with one where the official archives put it."""

    files = (
        "JPEGImages/*.jpg",
        "Annotations/*.xml",
        "ImageSets/Main/trainval.txt and test.txt (or train.txt with test.txt or val.txt)",
    )
    inside = ("VOCdevkit/VOC2007", "VOC2007")
    """Where the official archives put the folder, relative to where they are unpacked."""

    def find(self, root: Path) -> Path | None:
        """Return the folder in VOC's format: `root`, or where the official archives put it in there; else None."""
        places = (root, *(root / place for place in self.inside))
        return next((place for place in places if (place / "ImageSets" / "Main").is_dir()), None)

    def read(self, folder: Path) -> tuple[list[Annotation], list[Annotation], tuple[str, ...]]:
        """Read the annotations in the order of the lists.

        Raises:
            FolderLayoutError: A folder or list is missing, or an image is in both lists.
            DamagedFileError: A list or an annotation is broken, or an image or annotation is missing; it is named.
        """
        needed, root = "; ".join(self.files), self.find(folder)
        if root is None:
            raise FolderLayoutError(folder, "it has no ImageSets/Main", needed)
        for part in ("JPEGImages", "Annotations"):
            if not (root / part).is_dir():
                raise FolderLayoutError(root, f"it has no folder {part}", needed)
        lists = root / "ImageSets" / "Main"
        pair = next((pair for pair in _LISTS if all((lists / f"{name}.txt").is_file() for name in pair)), None)
        if pair is None:
            raise FolderLayoutError(lists, "the lists of training and test images are missing", needed)
        # Sorted: where a name has two pictures, the choice is the same on every machine.
        # Regular files only: a pipe could keep a reader waiting for ever.
        entries = sorted((root / "JPEGImages").iterdir())
        pictures = {path.stem: path for path in entries if path.suffix.lower() in SUFFIXES and path.is_file()}
        files = [lists / f"{name}.txt" for name in pair]
        names = [_names(file) for file in files]
        both = sorted(set(names[0]) & set(names[1]))
        if both:
            raise FolderLayoutError(lists, f"the image {both[0]!r} is for training and for testing", needed)
        train, test = (
            [_annotation(root, pictures, name, file) for name in some] for some, file in zip(names, files, strict=True)
        )
        # Sorted as the literature on VOC does.
        return train, test, tuple(sorted({each.name for annotation in train for each in annotation.objects}))


@DETECTION_DATASETS.register("voc2007")
class Voc2007(Voc):
    """VOC 2007 itself, from its own folder or the data folder."""

    needs_path = False
    places = Voc.inside
    classes = tuple(_CLASSES.split())


def _names(path: Path) -> list[str]:
    names = [parts[0] for parts in map(str.split, read_lines(path, _MAX_BYTES, GOOD_COPY)) if parts]
    if not names:
        raise DamagedFileError(path, "it names no image", GOOD_COPY)
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise DamagedFileError(path, f"it names the image {name!r} twice", "remove one of the lines")
    return names


def _annotation(root: Path, pictures: Mapping[str, Path], name: str, named_by: Path) -> Annotation:
    # A name with a folder in it has no picture, so no file elsewhere is ever opened.
    picture, source = pictures.get(name), root / "Annotations" / f"{name}.xml"
    if picture is None or not source.is_file():
        lacks = f"picture in {root / 'JPEGImages'}" if picture is None else f"file {source}"
        problem = f"it names the image {name!r}, and there is no such {lacks}"
        raise DamagedFileError(named_by, problem, "add it, or remove the line")
    content = read_file(source, _MAX_BYTES, GOOD_COPY)
    try:
        element = _parsed(content)
        size = _size(element) or read_picture(picture).size
        objects = tuple(_object(each, size) for each in element.iterfind("object"))
    except (ElementTree.ParseError, ValueError, OverflowError, LookupError) as error:
        raise DamagedFileError(source, str(error), REMEDY) from error
    return Annotation(source, picture, size, objects)


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
    corners = element.find("bndbox")
    if not name or corners is None:
        raise ValueError(f"the object {name!r} has no name or no bndbox")
    x1, y1, x2, y2 = (_number(corners, side) for side in ("xmin", "ymin", "xmax", "ymax"))
    try:
        box = checked_box((x1 - 1, y1 - 1, x2, y2), size)
    except ValueError as error:
        raise ValueError(f"object {name!r}: {error} (counted from 0)") from None
    flag = (element.findtext("difficult") or "0").strip()
    if flag not in ("0", "1"):
        raise ValueError(f"the object {name!r} has difficult {flag!r}, which must be 0 or 1")
    return Named(name, box, flag == "1")


def _number(element: ElementTree.Element, name: str) -> float:
    text = (element.findtext(name) or "").strip()
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, not {text!r}") from None
