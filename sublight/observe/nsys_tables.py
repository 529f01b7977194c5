"""This file knows about the SQLite file of an Nsight Systems export: which tables and columns it has, and their numbers
as numpy columns.

Tables are made lazily and their columns differ by version, so that both are looked up and an absent one is an absent
section. Nothing is written, not even beside the file.
"""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from sublight.errors import InputError
from sublight.observe.source import label
from sublight.trace import I64

MAGIC = b"SQLite format 3\x00"
CHUNK_ROWS = 16_384
SEPARATOR = b"\x1f"                    # between texts of a chunk; a text that holds one is read in the slow way
STRING_ID = b"\x1e"                    # before a text's number in StringIds, where a row has that instead of a text
LAST_ROWID = (1 << 63) - 1
MOST_PARAMETERS = 500
# What reading a damaged file raises; UnicodeError where a message would name a column that is no text.
UNREADABLE = (sqlite3.Error, UnicodeError, OverflowError, MemoryError)


@dataclass(slots=True)
class Damage:
    """What reading lost. Filled while it goes on."""

    lost: int = 0                      # rows whose numbers are none
    cut_short: bool = False            # a page of the file could not be read: what follows in its table is missing


@dataclass(frozen=True, slots=True)
class Chunk:
    """Up to CHUNK_ROWS rows of a table. Shapes: one entry a row."""

    columns: Mapping[str, I64]
    texts: list[bytes]                 # empty where no text was asked for
    joined: bytes | None = None        # all texts in one, with SEPARATOR between them, where they were read so


@dataclass(frozen=True, slots=True)
class Export:
    """An open export."""

    name: str
    file_bytes: int
    tables: Mapping[str, Mapping[str, bool]]     # table -> column -> may it be NULL?
    database: sqlite3.Connection
    has_log: bool                      # a write-ahead log lies beside the file: what is in it alone is not read
    damage: Damage = field(default_factory=Damage)

    def close(self) -> None:
        self.database.close()

    def has(self, table: str, *columns: str) -> bool:
        return table in self.tables and all(column in self.tables[table] for column in columns)

    def first(self, pattern: str) -> str | None:
        """The table that a pattern finds; of several (NVTX_EVENTS and NVTX_EVENTS_V2) the first that has rows."""
        found = sorted(table for table in self.tables if re.fullmatch(pattern, table))
        with_rows = (table for table in found if self.rows(f'SELECT 1 FROM "{table}" LIMIT 1'))
        return next(with_rows, found[0] if found else None)

    def rows(self, query: str, parameters: Sequence[int] = ()) -> list[tuple[Any, ...]]:
        """All rows of a small answer; those before the damaged place where there is one."""
        out: list[tuple[Any, ...]] = []
        try:
            out.extend(self.database.execute(query, parameters))        # keeps what came before an error
        except UNREADABLE:
            self.damage.cut_short = True
        return out

    def count(self, table: str) -> int:
        """Rows of a table; 0 where it is absent or unreadable."""
        found = self.rows(f'SELECT count(*) FROM "{table}"') if table in self.tables else []
        return int(found[0][0]) if found else 0

    def strings(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Texts of StringIds by number: those asked for alone, as the table also holds what is never shown."""
        out: dict[int, bytes] = {}
        for at in range(0, len(ids) if self.has("StringIds", "id", "value") else 0, MOST_PARAMETERS):
            some = ids[at : at + MOST_PARAMETERS]
            marks = ",".join("?" * len(some))
            found = self.rows(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", some)
            out |= {number: value for number, value in found if isinstance(number, int) and isinstance(value, bytes)}
        return out

    def chunks(self, table: str, wanted: Mapping[str, int | None], text: str | None = None,
               where: str | None = None) -> Iterator[Chunk]:
        """The wanted columns of a table, chunk by chunk in the order of the file.

        `wanted` gives the value that stands for NULL and for an absent column; a row that lacks a column without one
        is lost. `text` is an expression whose value is a text and never NULL, `where` a condition.
        """
        there = [column for column in wanted if column in self.tables[table]]
        expressions = [self._number(table, column, wanted[column]) for column in there]
        condition = "" if where is None else f" AND ({where})"
        after: int | None = None
        counted = False
        while True:
            try:
                last = self._last_row(table, after, counted=counted)
            except UNREADABLE:
                self.damage.cut_short = True
                return
            if last is None:
                return
            if after is not None and last <= after:                # a damaged page leads back
                self.damage.cut_short = True
                return
            limits = f"rowid <= {last}" if after is None else f"rowid > {after} AND rowid <= {last}"
            numbers, texts, joined = (
                self._at_once(table, expressions, text, limits + condition)
                or self._one_by_one(table, there, wanted, text, limits + condition))
            count = len(numbers[0]) if numbers else 0
            columns = dict(zip(there, numbers, strict=True))
            for column in wanted.keys() - set(there):
                columns[column] = np.full(count, wanted[column], np.int64)
            yield Chunk(columns, texts, joined)
            if self.damage.cut_short:
                return
            after, counted = last, count < CHUNK_ROWS // 2

    def _number(self, table: str, column: str, instead: int | None) -> str:
        return f'"{column}"' if instead is None or not self.tables[table][column] else f'ifnull("{column}", {instead})'

    def _last_row(self, table: str, after: int | None, *, counted: bool) -> int | None:
        """The number of a chunk's last row, or one behind it; None where there is no row left.

        Rows are numbered without gaps as a rule. Where many numbers are missing, rows are counted, which reads them
        once more.
        """
        limits = "" if after is None else f" WHERE rowid > {after}"
        for order, offset in (("ASC", CHUNK_ROWS - 1), ("DESC", 0)) if counted else (("ASC", 0),):
            query = f'SELECT rowid FROM "{table}"{limits} ORDER BY rowid {order} LIMIT 1 OFFSET {offset}'
            found = self.database.execute(query).fetchone()
            if found:
                number = int(found[0])
                ahead = not counted and (after is None or number > after)
                return min(number + CHUNK_ROWS - 1, LAST_ROWID) if ahead else number
        return None

    def _at_once(
        self, table: str, expressions: list[str], text: str | None, condition: str,
    ) -> tuple[list[I64], list[bytes], bytes | None] | None:
        """A chunk's columns as one row of texts: half of the time that a tuple for each row takes. None where anything
        in it is not as it should be."""
        parts = [f"group_concat({e})" for e in expressions]
        if text is not None:
            parts.append(f"group_concat({text}, x'{SEPARATOR.hex()}')")
        try:
            count, *values = self.database.execute(
                f'SELECT count(*), {", ".join(parts)} FROM "{table}" WHERE {condition}').fetchone()
        except UNREADABLE:
            return None
        if not count:
            return [np.zeros(0, np.int64) for _ in expressions], [], None
        joined: bytes | None = values.pop() if text is not None else None
        texts = joined.split(SEPARATOR) if joined is not None else []
        if joined is not None and len(texts) != count:
            return None
        numbers = [_parsed(value) for value in values]
        if any(len(column) != count for column in numbers):
            return None
        return numbers, texts, joined

    def _one_by_one(
        self, table: str, there: list[str], wanted: Mapping[str, int | None], text: str | None, condition: str,
    ) -> tuple[list[I64], list[bytes], None]:
        """A chunk's columns row by row, up to a damaged place."""
        columns = ", ".join(f'"{column}"' for column in there)
        kept: list[list[int]] = []
        texts: list[bytes] = []
        try:
            cursor = self.database.execute(
                f'SELECT {text if text is not None else "NULL"}, {columns} FROM "{table}" WHERE {condition}')
            for said, *row in islice(cursor, CHUNK_ROWS):
                values = [value if isinstance(value, int) else wanted[column]
                          for column, value in zip(there, row, strict=True)]
                whole = [value for value in values if value is not None]
                if len(whole) < len(values):
                    self.damage.lost += 1
                    continue
                kept.append(whole)
                if text is not None:
                    texts.append(said if isinstance(said, bytes) else b"" if said is None else str(said).encode())
        except UNREADABLE:
            self.damage.cut_short = True
        table_of_all = np.array(kept, np.int64).reshape(-1, len(there))
        return [table_of_all[:, i] for i in range(len(there))], texts, None


def _parsed(text: bytes | None) -> I64:
    """Numbers between commas; fewer than there were where one is none, or does not fit 64 bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            out: I64 = np.fromstring(text or b"", np.int64, sep=",")
        except (DeprecationWarning, ValueError):
            return np.zeros(0, np.int64)
    return out


def is_sqlite(path: str) -> bool:
    """Does a file begin as SQLite files do? False for what is no file."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def open_export(path: str) -> Export:
    """Open an export for reading only. Raises InputError where it is damaged at its head, or no export."""
    name = label(path)
    uri = f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1"
    database = sqlite3.connect(uri, uri=True, isolation_level=None)
    database.text_factory = bytes      # names are decoded once each, whatever their bytes
    try:
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        names = [table.decode("utf-8", "replace") for (table,) in found if re.fullmatch(rb"\w+", table)]
        tables = {table: {row[1].decode("utf-8", "replace"): not row[3]
                          for row in database.execute(f'PRAGMA table_info("{table}")')} for table in names}
    except UNREADABLE:
        database.close()
        raise InputError(f"{name} is a damaged SQLite file: its list of tables cannot be read; export it again: "
                         "nsys export --type sqlite") from None
    log = Path(f"{path}-wal")
    return Export(name, Path(path).stat().st_size, tables, database, log.exists() and log.stat().st_size > 0)
