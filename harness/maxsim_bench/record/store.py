"""The store: rows in a CSV that a killed run leaves readable and a second run can go on with.

Room: `record`. May import: declare. One row is one line; a line that has no newline yet was never finished.
Beside `<name>.csv` lie `<name>.samples.jsonl.gz` (raw samples by row key), `environment.json` (by environment id) and,
while somebody writes, `<name>.csv.lock`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from maxsim_bench.record.files import StoreError, append_durably, hold, replace_file
from maxsim_bench.record.row import SCHEMA_VERSION, Row


class Store:
    """The rows of one CSV file. The file need not exist; the first append makes it.

    Reading never changes the file and needs no lock. Every method raises `StoreError` with the file, the line and what
    to do.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._holding = 0
        self._seen: tuple[int, int] | None = None  # size and time of change of the file that _rows was read from
        self._rows: dict[str, Row] = {}

    def rows(self) -> list[Row]:
        """Every finished row, in the order of the file. A torn last line is not one."""
        return list(self._load().values())

    def cut(self) -> str | None:
        """What a kill or a copy cut off the file, in words; None of a whole file, or where there is none."""
        if not self.path.exists():
            return None
        header, end = self._header_and_end()
        if header is None:
            return "no header: not read"
        count = len(self.rows())
        return f"the last line is cut; {count} rows read" if end < self.path.stat().st_size else None

    def has(self, key: str) -> bool:
        """Whether a finished row has this identity (`Row.key`)."""
        return key in self._load()

    def append(self, rows: Iterable[Row]) -> None:
        """Write whole rows and wait until they are on the disk; a torn tail of an earlier run is cut off first.

        Refuses a key that is there already with other values; an equal row is not written twice. If the disk is full,
        the file is left as it was.
        """
        with self.lock():
            known = self._load()
            fresh: dict[str, Row] = {}
            for row in rows:
                present = fresh.get(row.key) or known.get(row.key)
                if present is None:
                    fresh[row.key] = row
                elif not present.same_as(row):
                    raise StoreError(f"{self.path}: {row.key} is measured already. Use --force to measure it again.")
            if not fresh:
                return
            header, finished = self._header_and_end()
            if header in (None, Row.columns()):
                append_durably(self.path, _encode(fresh.values(), header=header is None), at=finished)
                self._remember({**known, **fresh})
            else:  # written before an axis or a field was added: every row gets the new columns, empty
                self._rewrite({**known, **fresh})

    def replace(self, rows: Iterable[Row]) -> None:
        """Like `append`, but a row with a known key takes its place: what --force measured again."""
        with self.lock():
            self._rewrite({**self._load(), **{row.key: row for row in rows}})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the store for writing. A second process is refused with the name of the holder; one process may nest."""
        if self._holding:
            self._holding += 1
            try:
                yield
            finally:
                self._holding -= 1
            return
        with hold(self.path.with_name(self.path.name + ".lock"), what=str(self.path)):
            self._holding = 1
            try:
                yield
            finally:
                self._holding = 0

    def _load(self) -> dict[str, Row]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._seen, self._rows = None, {}
            return self._rows
        if self._seen != (status.st_size, status.st_mtime_ns):
            self._rows, self._seen = self._parse(), (status.st_size, status.st_mtime_ns)
        return self._rows

    def _remember(self, rows: dict[str, Row]) -> None:
        """What was just written, so that a sweep does not parse its own file again for every row."""
        status = self.path.stat()
        self._rows, self._seen = rows, (status.st_size, status.st_mtime_ns)

    def _parse(self) -> dict[str, Row]:
        header, end = self._header_and_end()
        if header is None:
            return {}
        if not {"cell_hash", "backend"} & set(header):  # columns of every version of the schema
            raise StoreError(
                f"{self.path}:1: no header of a results file: the first line names no columns. If it was cut off, put "
                "back the first line of another CSV that the same version wrote; else move the file away."
            )
        unknown = [name for name in header if name not in Row.columns()]
        if unknown:
            raise StoreError(
                f"{self.path}:1: unknown columns {', '.join(unknown)}: the file was written by another version of "
                f"maxsim-bench (this one writes schema {SCHEMA_VERSION}). Read it with that version, or move it away."
            )
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise StoreError(f"{self.path}:1: names {', '.join(twice)} twice. Put back the line that was written.")
        found: dict[str, Row] = {}
        lines = self.path.read_bytes()[:end].split(b"\n")[1:-1]
        for number, line in enumerate(lines, start=2):
            row = self._parse_line(header, line, number)
            if row.key in found:
                raise StoreError(f"{self.path}:{number}: {row.key} is there twice. Remove the line that is wrong.")
            found[row.key] = row
        return found

    def _parse_line(self, header: list[str], line: bytes, number: int) -> Row:
        where = f"{self.path}:{number}"
        try:
            fields = next(csv.reader([line.decode("utf-8")], strict=True), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise StoreError(f"{where}: not a line of CSV: {error}. Restore the file, or delete this line.") from None
        if len(fields) != len(header):
            raise StoreError(
                f"{where}: {len(fields)} fields where the header names {len(header)}. "
                "Restore the file, or delete this line: its cell is then measured again."
            )
        record = {name: _unescape(field) for name, field in zip(header, fields, strict=True)}
        if record.get("schema_version") != str(SCHEMA_VERSION):
            raise StoreError(
                f"{where}: schema {record.get('schema_version') or 'unknown'}, but this version of maxsim-bench "
                f"reads schema {SCHEMA_VERSION}. Move the file away and measure again, or read it with its own version."
            )
        try:
            return Row.from_record(record)
        except ValidationError as error:
            first = error.errors()[0]
            place, told = ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
            raise StoreError(f"{where}: {place + ': ' if place else ''}{told}. Restore or delete it.") from None
        except ValueError as error:
            raise StoreError(f"{where}: {error}. Restore or delete it.") from None

    def _header_and_end(self) -> tuple[list[str] | None, int]:
        """Column names, or None if not even they are finished; and where the last finished line ends, in bytes."""
        if not self.path.exists():
            return None, 0
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end == 0:
            whole = _encode([], header=True)
            if not whole.startswith(content):
                raise StoreError(f"{self.path}:1: no header of a results file. Is this the right file? Move it away.")
            return None, 0
        first = content[: content.index(b"\n")].decode("utf-8", "replace")
        return first.removeprefix("\ufeff").rstrip("\r").split(","), end  # a spreadsheet puts a mark before, \r behind

    def _rewrite(self, rows: dict[str, Row]) -> None:
        replace_file(self.path, _encode(rows.values(), header=True))
        self._remember(rows)


def _encode(rows: Iterable[Row], *, header: bool) -> bytes:
    """CSV lines. Newlines inside a field are escaped, so that a line break always ends a row."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(Row.columns())
    for row in rows:
        record = row.to_record()
        writer.writerow([_escape(record[name]) for name in Row.columns()])
    return out.getvalue().encode("utf-8", "backslashreplace")


_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
_BACK = {v: k for k, v in _ESCAPES.items()}


def _escape(value: object) -> object:
    return "".join(_ESCAPES.get(c, c) for c in value) if isinstance(value, str) else value


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return re.sub(r"\\[\\nr0]", lambda found: _BACK[found[0]], text)
