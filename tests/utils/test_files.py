"""Whole files or none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from elign.utils.files import write_bytes_atomic, write_text_atomic


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_writes_text_as_utf8_without_changing_line_ends_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b" / "page.md"
    assert write_text_atomic(path, "Grüße\r\nline\n") == path
    assert path.read_bytes() == "Grüße\r\nline\n".encode()


@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace")])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch, owner, step, error):
    path = tmp_path / "data.bin"
    write_bytes_atomic(path, b"old")

    def fail(*arguments, **options):
        raise error("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fail)
        with pytest.raises(error, match="stopped"):
            write_bytes_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["data.bin"]


def test_a_folder_in_the_way_is_an_error_without_rubbish(tmp_path):
    (tmp_path / "taken" / "inner").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        write_bytes_atomic(tmp_path / "taken", b"new")
    assert names(tmp_path) == ["taken"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_file_is_as_readable_as_any_other_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_bytes_atomic(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    target, seen = tmp_path / "file", []
    target.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", lambda number: seen.append(target.read_bytes()))
    write_bytes_atomic(target, b"new")
    assert (seen, target.read_bytes()) == ([b"old"], b"new")


ODD = pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")


@pytest.mark.parametrize("name", ["file", *(pytest.param(n, marks=ODD) for n in ("epoch**", "run[1]", "what?"))])
def test_leftovers_of_a_killed_process_are_swept_after_a_day_and_no_name_is_a_pattern(tmp_path, name):
    stale, recent, other = (tmp_path / f".{middle}.part" for middle in (f"{name}.aa", f"{name}.bb", "run1.aa"))
    day_ago = time.time() - 24 * 3600 - 1
    for path in (stale, recent, other):
        path.touch()
    for path in (stale, other):
        os.utime(path, (day_ago, day_ago))
    write_bytes_atomic(tmp_path / name, b"new")
    assert names(tmp_path) == sorted([name, recent.name, other.name])
