"""The project's own TOML tables, read once, and what else is made from them, kept beside its sources as Python keeps bytecode.

Parsing the tables and preparing the search for their literals takes longer than reading a small run.  The kept form stands in
`__pycache__` and holds for the key it was stored under.  It is never needed, and not written where Python writes no bytecode.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forensics

HOME = Path(__file__).resolve().parent.parent


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file.  Raises what `open` and `tomllib.loads` raise.  Only files of the project are kept parsed."""
    if not path.is_relative_to(HOME):
        return tomllib.loads(path.read_text(encoding="utf-8"))
    about = path.stat()
    table: dict[str, Any] | None = None

    def make() -> bytes:
        nonlocal table
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return json.dumps(table, ensure_ascii=False).encode()

    text = kept(path, ".json", f"{forensics.__version__} {about.st_mtime_ns} {about.st_size}", make)
    return json.loads(text) if table is None else table


def kept(source: Path, suffix: str, key: str, make: Callable[[], bytes]) -> bytes:
    """What `make` returns, or what it returned for this key (one line of text) before; kept in the `__pycache__` beside `source`."""
    try:
        place = Path(importlib.util.cache_from_source(str(source))).with_suffix(suffix)
    except NotImplementedError:  # an interpreter that keeps no bytecode
        return make()
    head = key.encode() + b"\n"
    with contextlib.suppress(OSError):
        data = place.read_bytes()
        if data.startswith(head):
            return data[len(head) :]
    made = make()
    if not sys.dont_write_bytecode:
        from forensics.files import write_whole

        with contextlib.suppress(OSError):  # a folder that cannot be written
            place.parent.mkdir(exist_ok=True)
            write_whole(place, lambda target: target.write_bytes(head + made))
    return made
