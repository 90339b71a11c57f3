"""What has been done so far, one line per thing done, so that nothing finished is lost or done twice.

The journal is only ever appended to; a line that a crash or a full disk cut short is dropped when it is opened again.  Lines stay on disk:
in memory is where each begins.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.evidence import Unusable


@dataclass(slots=True)
class Entry:
    """Where a line lies, and what decides whether it still holds."""

    offset: int
    stamp: str
    hash: str | None
    options: str
    runs: tuple[str, ...]
    parts: tuple[str, ...]
    failed: bool


class Journal:
    """The journal of one output folder; only one process may have it open (Unusable for a second)."""

    def __init__(self, path: Path, keep: bool):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a+b")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.file.close()
            raise Unusable(f"{path.parent.parent}: another `forensics bulk` is writing there") from error
        self.entries: dict[str, Entry] = {}
        self.named: set[str] = set()  # every run a line was ever written for
        self._load()
        if not keep:
            self.file.truncate(0)
            self.entries = {}

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, line: dict[str, Any]) -> None:
        """Append a line and make sure of it; a later line of the same key replaces an earlier one."""
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode("utf-8", "surrogatepass") + b"\n"
        self.file.seek(0, os.SEEK_END)
        offset = self.file.tell()
        try:
            self.file.write(data)
            self.file.flush()
        except OSError:
            self.file.truncate(offset)
            raise
        self._note(line, offset)

    def read(self, key: str) -> dict[str, Any]:
        """The line of a key."""
        self.file.seek(self.entries[key].offset)
        return json.loads(self.file.readline())  # type: ignore[no-any-return]

    def lines(self, keys: list[str]) -> Iterator[dict[str, Any]]:
        """The lines of keys, in their order, one in memory at a time."""
        for key in keys:
            yield self.read(key)

    def _note(self, line: dict[str, Any], offset: int) -> None:
        runs = tuple(record["run"] for record in line.get("runs", ()))
        self.named.update(runs)
        failed = any(kind in ("died", "timeout", "memory", "error") for _, kind, _ in line.get("left", ()))
        self.entries[line["key"]] = Entry(
            offset, line["stamp"], line.get("hash"), line["options"], runs, tuple(line.get("parts", ())), failed
        )

    def _load(self) -> None:
        self.file.seek(0)
        offset = 0
        for data in self.file:
            try:
                if not data.endswith(b"\n"):
                    raise ValueError
                self._note(json.loads(data), offset)
            except (ValueError, KeyError, TypeError):
                if not data.endswith(b"\n"):
                    self.file.truncate(offset)
                    break
            offset += len(data)
