"""This file knows about files of results: a JSON line for each measurement, written whole as soon as it is there.

    {"key": {…}, "result": {…}}

The key holds everything that the result depends on, in full: what was measured (operator, shape, values, kernels with
the hashes of their sources, compilers, flags and layouts) and on what (versions, device, driver, threads, caches). A
measurement is found again only where every field of its key is the same. A run that is ended at any point loses at most
the measurement that was running: a last line without an end is dropped, and what follows is written in its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sublight.errors import InputError


class Results:
    """A file of results, open for more. Final."""

    def __init__(self, path: Path) -> None:
        """Raises InputError where the file cannot be read or written, or holds something else."""
        self.path, self.note = path, ""
        self._found: dict[str, dict[str, Any]] = {}
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InputError(f"cannot write results to {path}: {error.strerror}") from None
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                self._found[_text(row["key"])] = row["result"]
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{self.path.name}, line {number}: expected a result of the arena as JSON, got "
                                 f"{line[:60].decode('utf-8', 'replace')!r}; name another file") from None
        if len(whole) < len(data):
            os.ftruncate(self._descriptor, len(whole))
            self.note = f"{self.path.name}: its last line was not written whole; that measurement is made again"

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result with exactly this key."""
        return self._found.get(_text(key))

    def add(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Write a result in one piece, and wait until the disk has it."""
        line = json.dumps({"key": key, "result": result}, ensure_ascii=False, allow_nan=False, default=_plain).encode()
        os.write(self._descriptor, line + b"\n")
        os.fsync(self._descriptor)
        self._found[_text(key)] = json.loads(line)["result"]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, ensure_ascii=False, default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no place in a result")
