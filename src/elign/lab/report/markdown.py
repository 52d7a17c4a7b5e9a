"""Generated blocks in markdown pages: tables that a command writes between two markers."""

from __future__ import annotations

from pathlib import Path

from elign.utils.errors import ElignError
from elign.utils.files import write_text_atomic


class PageError(ElignError):
    """A page that is not there, or whose markers are missing, doubled or in the wrong order."""


def update_section(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` in a markdown file.

    The markers and everything outside them stay as they are, line ends included; the file is replaced as a whole.

    Args:
        path: The file to change.
        name: Which block.
        text: Its new content.

    Raises:
        PageError: If a marker is missing or doubled, or the end comes before the beginning.
    """
    head, tail = around_section(path, name)
    line_end = "\r\n" if "\r\n" in head + tail else "\n"
    block = "\n".join(text.strip("\r\n").splitlines()).replace("\n", line_end)
    write_text_atomic(path, f"{head}{line_end}{block}{line_end}{tail}")


def around_section(path: Path, name: str) -> tuple[str, str]:
    """What stands before and after a block, its markers included; the same errors as `update_section`.

    A command that will update a block at its end calls this at its start, so that a wrong file is known at once.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if not path.is_file():
        raise PageError(f"there is no page {path}: make one that holds the lines {begin} and {end}")
    # Bytes, since reading as text would turn Windows line ends into others.
    page = path.read_bytes().decode("utf-8")
    for marker in (begin, end):
        found = page.count(marker)
        if found != 1:
            problem = "has no marker" if found == 0 else f"has {found} times the marker"
            raise PageError(f"{path} {problem} {marker}: exactly one is needed")
    head, rest = page.split(begin)
    if end not in rest:
        raise PageError(f"{path}: {end} comes before {begin}")
    return head + begin, end + rest.split(end)[1]
