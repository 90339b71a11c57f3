"""Readers of what a training run leaves behind, one module per kind of source."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from parsers.base import FileParser, LineParser


@cache
def load() -> tuple[tuple[LineParser, ...], tuple[FileParser, ...]]:
    """Every parser of this package: (line parsers, file parsers), in module-name order."""
    lines: list[LineParser] = []
    files: list[FileParser] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        found = getattr(importlib.import_module(f"{__name__}.{module.name}"), "PARSER", ())
        for parser in found if isinstance(found, tuple) else (found,):
            (lines if isinstance(parser, LineParser) else files).append(parser)
    return tuple(lines), tuple(files)
