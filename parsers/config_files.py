"""Configuration files of a run: JSON and YAML (DeepSpeed, accelerate, Hydra, wandb, TRL, LLaMA-Factory, axolotl).

YAML is read by its indentation, without anchors or tags: enough for flat and nested `key: value` settings, and nothing in
such a file can be executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from parsers.base import FileParser, Head, Rows, Source, lazy
from parsers.settings import flatten_settings, kept, name_of, value_of

_YAML_LINE = lazy(r"(\s{0,80})(?:- )?([A-Za-z_][\w./-]{0,100}):(?:\s{1,8}(\S.{0,400}))?\s*\Z")
_NAME = lazy(
    r"(?i)(?:\A|[/_.-])(?:config|args|arguments|hparams|training_args|overrides|recipe|settings|params|ds|accelerate|train|sft|dpo|grpo|ppo)(?:[/_.-]|\Z)"
)


def _yaml(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, dotted key, text of the value) of each `key: value`."""
    path: list[tuple[int, str]] = []
    for at, line in enumerate(text.splitlines()[:20_000], 1):
        if line.lstrip().startswith("#"):
            continue
        match = _YAML_LINE.match(line[:600])
        if match is None:
            continue
        depth = len(match[1])
        while path and path[-1][0] >= depth:
            path.pop()
        value = match[3]
        if value is None:
            if len(path) < 12:
                path.append((depth, match[2]))
            continue
        yield at, ".".join([name for _, name in path] + [match[2]]), re.split(r"\s#", value, maxsplit=1)[0]


def _yaml_recognises(head: Head) -> float:
    if not head.path.lower().endswith((".yaml", ".yml")):
        return 0.0
    known = sum(name_of(_plain(key)) is not None for _, key, _ in _yaml(head.text))
    return 0.8 if known >= 2 or (known and _NAME.search(head.path)) else 0.0


def _plain(key: str) -> str:
    return key.removesuffix(".value")


def _yaml_parse(source: Source, rows: Rows) -> None:
    for at, key, value in _yaml(source.text()):
        name = name_of(_plain(key))
        told = kept(name or "", value_of(value))
        if name is not None and told is not None:
            rows.fact(at, f"setting.{name}", told)


def _json_recognises(head: Head) -> float:
    if not head.path.lower().endswith(".json") or not head.text.lstrip().startswith("{") or '"log_history"' in head.text:
        return 0.0
    found = re.findall(r'"([A-Za-z_][\w.-]{0,80})"\s?:', head.text[:60_000])[:2000]
    known = sum(name_of(key) is not None for key in found)
    return 0.75 if known >= 2 and (_NAME.search(head.path) or known >= 4) else 0.0


def _json_parse(source: Source, rows: Rows) -> None:
    text = source.text()
    try:
        data: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    lines: dict[str, int] = {}
    for at, line in enumerate(text.splitlines()[:50_000], 1):
        match = re.match(r'\s{0,80}"([^"]{1,100})"\s?:', line)
        if match is not None and (name := name_of(match[1])) is not None:
            lines.setdefault(f"setting.{name}", at)
    for key, value in flatten_settings(data):
        rows.fact(lines.get(key, 1), key, value)


PARSER = (
    FileParser("yaml-config", "environment", _yaml_recognises, _yaml_parse),
    FileParser("json-config", "environment", _json_recognises, _json_parse),
)
