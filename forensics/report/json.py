"""The machine-readable report."""

from __future__ import annotations

import json
import math
from json.encoder import encode_basestring as quoted
from typing import Any

from forensics.report.model import PostMortem, localise

SCHEMA = "forensics.postmortem/1"


def render_json(model: PostMortem, lang: str = "en") -> str:
    """The document of schema `forensics.postmortem/1`, indented, UTF-8, with one line feed at its end.

    Numbers JSON does not know (nan, inf) become null: the document must be readable by every JSON reader.
    """
    document = {"schema": SCHEMA, **localise(model.facts, lang)}
    out: list[str] = []
    _write(document, "\n", out)
    return "".join(out) + "\n"


def _write(value: Any, line: str, out: list[str]) -> None:
    """Append the text of `value` as `json.dumps(_plain(value), ensure_ascii=False, indent=1)` writes it.

    The standard library leaves its fast encoder where a document is to be indented.  line: a line feed and the indentation.
    """
    kind = type(value)
    if kind is str:
        out.append(quoted(value if value.isascii() else _plain(value)))
    elif kind is dict and value:
        separator, deeper = "{", line + " "
        items = (
            value if all(type(key) is str and key.isascii() for key in value) else {_plain(str(key)): item for key, item in value.items()}
        )
        for key, item in items.items():
            out.append(f"{separator}{deeper}{quoted(key)}: ")
            _write(item, deeper, out)
            separator = ","
        out.append(f"{line}}}")
    elif kind in (list, tuple) and value:
        separator, deeper = "[", line + " "
        for item in value:
            out.append(separator + deeper)
            _write(item, deeper, out)
            separator = ","
        out.append(f"{line}]")
    elif kind in (set, frozenset):
        _write(list(value), line, out)
    else:
        out.append(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    """`value` made of what JSON knows; a lone surrogate (undecodable file name) becomes a replacement character."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _plain(str(value))
