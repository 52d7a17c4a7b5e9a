import gzip
import io
import tarfile

import pytest

from elign.lab.data.archives import read_members
from elign.lab.data.errors import DamagedFileError

CONTENT = bytes(range(256)) * 40


def archive_of(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_members_come_back_by_name_and_nothing_is_written(tmp_path):
    archive = archive_of(tmp_path / "x.tar.gz", {"../evil": b"evil", "a/one": CONTENT, "a/two": b"2", "/abs": b"3"})
    assert read_members(archive, {"a/one": len(CONTENT), "a/none": 5}) == {"a/one": CONTENT}
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar.gz"]
    assert not (tmp_path.parent / "evil").exists()


def test_links_are_passed_over(tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        for name, kind in (("soft", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("folder", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/hostname"
            tar.addfile(member)
    assert read_members(tmp_path / "x.tar.gz", {"soft": 99, "hard": 99, "folder": 99}) == {}


def test_a_member_that_is_too_long_is_refused(tmp_path):
    archive = archive_of(tmp_path / "x.tar.gz", {"one": CONTENT})
    with pytest.raises(DamagedFileError, match="one has 10240 bytes, above 10239"):
        read_members(archive, {"one": len(CONTENT) - 1})


def test_an_archive_bomb_is_not_unpacked(tmp_path):
    member = tarfile.TarInfo("filler")
    member.size = 1 << 32
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(member.tobuf()))
    with pytest.raises(DamagedFileError, match="unpacks to more"):
        read_members(tmp_path / "x.tar.gz", {"one": 5})


@pytest.mark.parametrize("keep", [0, 5, 60, -20, -1])
def test_a_cut_archive_is_refused(tmp_path, keep):
    archive = archive_of(tmp_path / "x.tar.gz", {"one": CONTENT})
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(DamagedFileError, match="cannot be unpacked"):
        read_members(archive, {"one": len(CONTENT)})


def test_the_checksum_at_the_end_is_checked(tmp_path):
    archive = archive_of(tmp_path / "x.tar.gz", {"one": CONTENT})
    content = bytearray(archive.read_bytes())
    content[-6] ^= 1
    archive.write_bytes(content)
    with pytest.raises(DamagedFileError, match="CRC"):
        read_members(archive, {"one": len(CONTENT)})


@pytest.mark.parametrize("content", [b"no archive at all", gzip.compress(b"no tar inside" * 100)], ids=["text", "gzip"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(DamagedFileError, match="cannot be unpacked"):
        read_members(tmp_path / "x.tar.gz", {"one": 5})
