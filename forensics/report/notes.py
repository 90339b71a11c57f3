"""Remarks on files in the reader's language: readers write them in English, `notes.toml` holds their translations."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

GAP = re.compile(r"\\\{(\w+)\\\}")
DEPTH = 3  # a reason inside a remark inside a remark


@cache
def _table(lang: str) -> tuple[dict[str, str], tuple[tuple[re.Pattern[str], str], ...]]:
    """(whole texts, patterns of those with gaps, the longest first) of a language; both empty where there is none."""
    entries: dict[str, str] = tomllib.loads(files("forensics.report").joinpath("notes.toml").read_text("utf-8")).get(lang, {})
    gaps = sorted((text for text in entries if "{" in text), key=lambda text: (-len(re.sub(r"\{\w+\}", "", text)), text))
    patterns = tuple((re.compile(GAP.sub(r"(?P<\1>.+?)", re.escape(text)), re.DOTALL), entries[text]) for text in gaps)
    return {text: told for text, told in entries.items() if "{" not in text}, patterns


def translate(text: str, lang: str, depth: int = DEPTH) -> str:
    """A remark in `lang`; as it is where no translation is known."""
    whole, patterns = _table(lang)
    if text in whole:
        return whole[text]
    if not depth or len(text) > 2000:
        return text
    for pattern, told in patterns:
        if match := pattern.fullmatch(text):
            return told.format(**{name: translate(value, lang, depth - 1) for name, value in match.groupdict().items()})
    return text
