"""Installed packages: `pip list`, `pip freeze`, `conda list`, `uv pip list`, requirement files, and pip's own "Successfully installed".

Facts `version.<package>` with the name in lower case and `-` for `_` and `.` (PEP 503); torch's build tag gives `version.cuda` too
(`2.4.0+cu121`: 12.1).  Only packages that matter to a training run, and at most 600 others of a whole list.
"""

from __future__ import annotations

import re

from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source, lazy
from parsers.prefixes import clean
from parsers.snapshots import once

MAX_LINES = 1500
MAX_PACKAGES = 600
# Packages whose version may stand alone in a log line `name==version`.
KNOWN = [
    "torch",
    "torchvision",
    "torchaudio",
    "triton",
    "transformers",
    "accelerate",
    "trl",
    "peft",
    "datasets",
    "tokenizers",
    "vllm",
    "sglang",
    "deepspeed",
    "flash-attn",
    "xformers",
    "bitsandbytes",
    "numpy",
    "ray",
    "verl",
    "openrlhf",
    "liger-kernel",
    "transformer-engine",
    "apex",
    "megatron-core",
    "nvidia-nccl-cu11",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12",
    "lightning",
    "pytorch-lightning",
    "wandb",
    "safetensors",
    "huggingface-hub",
    "unsloth",
    "pydantic",
    "setuptools",
]

_NAME = lazy(r"[-_.]+")
_FREEZE = lazy(
    r"\A\s{0,8}(?:\[(?:pip3?|conda)\]\s{1,4})?(?P<name>[A-Za-z0-9][\w.-]{0,80})(?:\[[\w,-]{1,60}\])?\s{0,2}(?:={2,3}|@)\s{0,2}(?P<version>[^\s;]{1,300})(?:\s{0,4};[^\n]{0,200})?\s{0,4}\Z"
)
_ROW = lazy(r"\A\s{0,8}(?P<name>[A-Za-z0-9][\w.-]{0,80})\s{1,80}(?P<version>\d[\w.+!-]{0,60})(?:\s{1,200}\S{1,300}){0,3}\s{0,8}\Z")
_RULE = lazy(r"\A\s{0,8}-{3,120}\s{1,8}-{3,60}(?:\s{1,8}-{3,200}){0,3}\s{0,8}\Z")
_INSTALLED = lazy(r"(?P<name>[A-Za-z0-9][\w.-]{0,80}?)-(?P<version>\d[\w.+!]{0,60})\Z")
_BUILD = lazy(r"\+cu(\d{2,3})(\d)\b")
_WHEEL = lazy(r"/(?P<name>[A-Za-z0-9_.]{1,80})-(?P<version>\d[^-/]{0,60})-[^/]{1,120}\.whl")
_ENTRY = lazy(r"(?:-e |--?[a-z-]{1,30}[ =]|git\+|https?://|#|\s*\Z)")


def canonical(name: str) -> str:
    """A package's name in the form of PEP 503."""
    return _NAME.sub("-", name).lower()


def tell(rows: Rows, context: Context, line: Line, name: str, version: str) -> None:
    """The facts of one installed package."""
    name = canonical(name)
    if version.startswith(("http", "file:", "git+")):
        wheel = _WHEEL.search(version)
        if wheel is None:
            return
        version = wheel["version"].replace("%2B", "+")
    version = version[:60]
    once(rows, context, line, f"version.{name}", version)
    if name == "torch" and (build := _BUILD.search(version)):
        once(rows, context, line, "version.cuda", f"{build[1]}.{build[2]}")


def _known(name: str) -> bool:
    return canonical(name) in KNOWN or name.lower().startswith("nvidia-")


def _line(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:2000]
    if "Successfully installed " in text:
        for word in text.partition("Successfully installed ")[2].split()[:400]:
            found = _INSTALLED.match(word)
            if found and _known(found["name"]):
                tell(rows, context, line, found["name"], found["version"])
        return
    found = _FREEZE.match(text)
    if found and _known(found["name"]):
        tell(rows, context, line, found["name"], found["version"])


def _listed(line: Line, rows: Rows, context: Context) -> None:
    """A table below `Package … Version` and its rule (pip, uv), or below conda's header."""
    conda = line.text.startswith("# packages in environment at")
    if not conda and not re.match(r"\A\s{0,8}Package\s{1,120}Version\b", line.text):
        return
    count = missed = 0
    for near in context.following(MAX_LINES):
        text = near.text[:600]
        if _RULE.match(text) or (conda and text.startswith("#")):
            continue
        found = _ROW.match(text)
        if found is None:
            missed += 1
            if missed > 2 or not text.strip():
                break
            continue
        missed = 0
        count += 1
        if count <= MAX_PACKAGES or _known(found["name"]):
            tell(rows, context, near, found["name"], found["version"])


def _recognises(head: Head) -> float:
    """Nearly all lines are requirements with exact versions."""
    lines = head.written
    if len(lines) < 3 or not any(_FREEZE.match(line[:600]) for line in lines[:8]):
        return 0.0
    exact = sum(_FREEZE.match(line[:600]) is not None for line in lines)
    other = sum(_ENTRY.match(line) is not None for line in lines)
    return 0.9 if exact >= 3 and exact + other >= 0.9 * len(lines) else 0.0


def _parse(source: Source, rows: Rows) -> None:
    context = Context(lambda _: iter(()), lambda _: iter(()))
    count = 0
    for at, raw in enumerate(source.text().splitlines()[:5000], 1):
        text = clean(raw.encode("utf-8", "replace"))
        found = _FREEZE.match(text[:600])
        if found:
            count += 1
            if count <= MAX_PACKAGES or _known(found["name"]):
                tell(rows, context, Line(source.path, at, text, text), found["name"], found["version"])


PARSER = (
    LineParser("packages", ("Successfully installed ", *(f"{name}==" for name in (*KNOWN, "flash_attn", "liger_kernel"))), _line),
    LineParser("package list", ("Package  ", "Package Version", "# packages in environment at"), _listed),
    FileParser("pip freeze", "environment", _recognises, _parse),
)
