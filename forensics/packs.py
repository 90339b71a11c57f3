"""The project's own TOML tables, read once and kept parsed beside their sources, as Python keeps bytecode.

Parsing them takes longer than reading a small run.  The kept form stands in `__pycache__`, holds for the version of the program, the
size and the time of the file it was made from, and is neither needed nor written where Python writes no bytecode.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import forensics
from forensics.files import write_text

HOME = Path(__file__).resolve().parent.parent


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file.  Raises what `open` and `tomllib.loads` raise.  Only files of the project are kept parsed."""
    if not path.is_relative_to(HOME):
        return tomllib.loads(path.read_text(encoding="utf-8"))
    about = path.stat()
    head = json.dumps([forensics.__version__, about.st_mtime_ns, about.st_size])
    try:
        kept = Path(importlib.util.cache_from_source(str(path))).with_suffix(".json")
        first, _, rest = kept.read_text(encoding="utf-8").partition("\n")
        if first == head:
            table: dict[str, Any] = json.loads(rest)
            return table
    except NotImplementedError:  # an interpreter that keeps no bytecode at all
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        pass
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError, TypeError):  # a folder that cannot be written; dates, which JSON does not know
            text = json.dumps(table, ensure_ascii=False)
            kept.parent.mkdir(exist_ok=True)
            write_text(kept, f"{head}\n{text}")
    return table
