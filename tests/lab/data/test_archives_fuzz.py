"""Tar archives from anywhere: the members that were asked for, or the named error; nothing is ever unpacked."""

import gzip
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, damaged, fuzz

from elign.lab.data.archives import MAX_ARCHIVE_BYTES, read_members
from elign.lab.data.errors import DamagedFileError

CONTENT = bytes(range(256)) * 2
LIMITS = {"a/one": 600, "b" * 120: 600}


def tar_of(form: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, kind in (("a/one", tarfile.REGTYPE), ("b" * 120, tarfile.REGTYPE), ("../x", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name if form != tarfile.USTAR_FORMAT else name[:99])
            member.type, member.linkname = kind, "c" * 90
            member.size = len(CONTENT) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(CONTENT))
    return buffer.getvalue()


def sparse() -> bytes:
    """A file with holes in GNU's old form, which goes on in a second header."""
    block = bytearray(tarfile.TarInfo("a/one").tobuf())
    block[156:157] = tarfile.GNUTYPE_SPARSE
    block[257:265] = b"ustar  \0"
    block[386:410] = b"00000000000\0" * 2
    block[482:483] = b"\x01"
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 8 * 32)
    return bytes(block) + bytes(1024)


TARS = (*(tar_of(form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)), sparse())
ZIPPED = tuple(gzip.compress(tar, mtime=0) for tar in TARS)


@fuzz(150)
@given(content=st.one_of(damaged(TARS).map(gzip.compress), damaged(ZIPPED)))
def test_damaged_archives_give_members_or_are_named(tmp_path, content):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    found = answer(lambda: read_members(path, LIMITS), names=path)
    assert found is None or all(len(content) <= LIMITS[name] for name, content in found.items())
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tar.gz"]


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def pax(record: bytes) -> bytes:
    return header(tarfile.XHDTYPE, len(record)) + record.ljust(512, b"\0")


@pytest.mark.parametrize(
    "tar",
    [
        header(tarfile.XHDTYPE, 100 << 20) + bytes(100 << 20),
        header(tarfile.GNUTYPE_LONGNAME, 100 << 20) + bytes(100 << 20),
        (header(tarfile.XGLTYPE, 12) + b"12 comment=x".ljust(512, b"\0")) * 3000,
        sparse()[:512],
        header(tarfile.REGTYPE, -512),
        pax(b"20 size=-1234567890\n") + header(tarfile.REGTYPE, 0, "a/one"),
        pax(b"25 GNU.sparse.major=1\n25 GNU.sparse.minor=0\n") + header(tarfile.REGTYPE, 0, "a/one"),
    ],
    ids=["extended header", "long name", "recursion", "cut sparse", "negative", "negative in words", "sparse in words"],
)
def test_headers_that_ask_for_too_much_are_refused_in_little_memory(tmp_path, tar):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(tar, compresslevel=1))
    found = answer(lambda: read_members(path, LIMITS), names=path, megabytes=48)
    assert found in (None, {}, {"a/one": b""})


def test_what_is_inflated_counts_and_not_what_headers_say(tmp_path, monkeypatch):
    monkeypatch.setattr("elign.lab.data.archives.MAX_ARCHIVE_BYTES", 1 << 16)
    assert MAX_ARCHIVE_BYTES > 1 << 16
    many = (header(tarfile.XHDTYPE, 512) + bytes(512) + header(tarfile.REGTYPE, 0)) * 100
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(many))
    with pytest.raises(DamagedFileError, match=r"unpacks to more|cannot be unpacked"):
        read_members(tmp_path / "x.tar.gz", LIMITS)
