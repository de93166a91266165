"""A folder, a .tar.gz or a .zip, read the same way: names and binary streams.

Room: `retrieve`. May import: record, backends.
"""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from maxsim_bench.retrieve.dataset import DataError

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")


class Files:
    """Files of one data set; names are relative to the folder that holds them, `/` between parts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Every file, sorted."""
        raise NotImplementedError

    def _raw(self, name: str) -> tuple[IO[bytes], list[IO[bytes]]]:
        """A stream and what else must be closed after it."""
        raise NotImplementedError

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Binary stream of one file; DataError if there is none of that name."""
        if name not in self.names():
            raise DataError(
                f"{self.label(name)}: there is no such file. Found: {', '.join(self.names()) or 'nothing'}."
            )
        stream, others = self._raw(name)
        try:
            yield stream
        finally:
            stream.close()
            for other in others:
                other.close()

    def label(self, name: str) -> str:
        """How messages name a file: the path of the folder or archive, then the file."""
        return f"{self.path}/{name}" if self.path.is_dir() else f"{self.path}:{name}"

    def sha256(self, name: str) -> str:
        """Hash of one file's bytes as unpacked, hexadecimal."""
        digest = hashlib.sha256()
        with self.open(name) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()


class Folder(Files):
    """Files below a directory."""

    def names(self) -> list[str]:
        return sorted(p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if p.is_file())

    def _raw(self, name: str) -> tuple[IO[bytes], list[IO[bytes]]]:
        return (self.path / name).open("rb"), []


class Archive(Files):
    """Members of a tar or zip; a single top folder around everything is looked through."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._members = self._list()

    def _list(self) -> dict[str, str]:
        try:
            if self.path.suffix == ".zip":
                with zipfile.ZipFile(self.path) as archive:
                    members = [i.filename for i in archive.infolist() if not i.is_dir()]
            else:
                with tarfile.open(self.path) as archive:
                    members = [m.name for m in archive if m.isfile()]
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise DataError(f"{self.path}: cannot be read as an archive: {error}. Download it again.") from error
        parts = {m: PurePosixPath(m).parts for m in members if not PurePosixPath(m).name.startswith("._")}
        tops = {p[0] for p in parts.values()}
        wrapped = len(tops) == 1 and all(len(p) > 1 for p in parts.values())
        return {"/".join(p[1:] if wrapped else p): m for m, p in parts.items()}

    def names(self) -> list[str]:
        return sorted(self._members)

    def _raw(self, name: str) -> tuple[IO[bytes], list[IO[bytes]]]:
        member = self._members[name]
        if self.path.suffix == ".zip":
            zipped = zipfile.ZipFile(self.path)
            return zipped.open(member), [zipped]  # type: ignore[list-item]  # closes like a stream
        archive = tarfile.open(self.path)  # noqa: SIM115  # closed by `open`, after the member
        stream = archive.extractfile(member)
        assert stream is not None  # members are regular files
        return stream, [archive]  # type: ignore[list-item]


def open_files(path: Path) -> Files:
    """The files of a folder or archive; DataError for a path that is neither."""
    if path.is_dir():
        return Folder(path)
    if path.is_file() and path.name.endswith(SUFFIXES):
        return Archive(path)
    raise DataError(f"{path}: neither a folder nor an archive ({', '.join(SUFFIXES)}). Check the path.")
