"""The machine-readable report."""

from __future__ import annotations

import json
import math
from typing import Any

from forensics.report.model import PostMortem, localise

SCHEMA = "forensics.postmortem/1"


def render_json(model: PostMortem, lang: str = "en") -> str:
    """The document of schema `forensics.postmortem/1`, indented, UTF-8, with one line feed at its end.

    Numbers JSON does not know (nan, inf) become null: the document must be readable by every JSON reader.
    """
    document = {"schema": SCHEMA, **localise(model.facts, lang)}
    return json.dumps(_plain(document), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


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
