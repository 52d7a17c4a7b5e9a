"""Archives with hostile members: outside paths, absolute ones, links, devices. None is ever written or followed."""

import io
import tarfile

import pytest

from elign.lab.data.archives import read_members
from elign.lab.data.cifar100 import load_cifar100
from elign.lab.data.cifar_files import BINARY, CifarSpec
from elign.lab.data.errors import DamagedFileError

TINY = CifarSpec(urls=(), sha256="", archive_bytes=0, classes=2, train=2, test=1, side=1)
KINDS = {
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "character device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "folder": tarfile.DIRTYPE,
}


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"") -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, "/etc/hostname", len(content)
    return info, io.BytesIO(content)


def archive_of(path, *members):
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            tar.addfile(info, content)
    return path


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_no_plain_file_is_no_member(tmp_path, kind):
    archive = archive_of(tmp_path / "x.tar.gz", member("a", KINDS[kind]))
    assert read_members(archive, {"a": 100}) == {}
    assert everything(tmp_path) == ["x.tar.gz"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_data_set_is_not_taken_from_links_and_devices(tmp_path, kind):
    names = [f"{BINARY.folder}/{BINARY.train}", f"{BINARY.folder}/{BINARY.test}"]
    (tmp_path / "data").mkdir()
    archive_of(tmp_path / "data" / BINARY.archive, *(member(name, KINDS[kind]) for name in names))
    with pytest.raises(DamagedFileError, match="it lacks"):
        load_cifar100(TINY, data_dir=tmp_path / "data")
    assert everything(tmp_path) == ["data", f"data/{BINARY.archive}"]


@pytest.mark.parametrize(
    "evil", ["../evil", "/tmp/eli-evil", "cifar-100-binary/../../evil", "..", "./../evil", "C:\\evil"]
)
def test_paths_outside_are_not_written(tmp_path, evil):
    (tmp_path / "data").mkdir()
    train, test = bytes([0, 1, 9, 9, 9, 0, 0, 8, 8, 8]), bytes([0, 1, 7, 7, 7])
    archive_of(
        tmp_path / "data" / BINARY.archive,
        member(evil, content=b"evil"),
        member(f"{BINARY.folder}/{BINARY.train}", content=train),
        member(f"{BINARY.folder}/{BINARY.test}", content=test),
    )
    assert load_cifar100(TINY, data_dir=tmp_path / "data").train_labels.tolist() == [1, 0]
    inside = [f"data/{BINARY.folder}", f"data/{BINARY.folder}/{BINARY.test}", f"data/{BINARY.folder}/{BINARY.train}"]
    assert everything(tmp_path) == sorted(["data", f"data/{BINARY.archive}", *inside])


def test_a_link_that_lies_where_a_file_goes_is_not_written_through(tmp_path):
    (tmp_path / "data" / BINARY.folder).mkdir(parents=True)
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "data" / BINARY.folder / BINARY.train).symlink_to(tmp_path / "victim")
    train, test = bytes([0, 1, 9, 9, 9, 0, 0, 8, 8, 8]), bytes([0, 1, 7, 7, 7])
    archive_of(
        tmp_path / "data" / BINARY.archive,
        member(f"{BINARY.folder}/{BINARY.train}", content=train),
        member(f"{BINARY.folder}/{BINARY.test}", content=test),
    )
    with pytest.raises(DamagedFileError, match="it is not the one in"):
        load_cifar100(TINY, data_dir=tmp_path / "data")
    assert (tmp_path / "victim").read_bytes() == b"precious"
