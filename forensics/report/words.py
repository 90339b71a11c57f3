"""The report's own words, from `words.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from forensics.packs import read_toml
from forensics.report.model import LANGUAGES


@cache
def table() -> dict[str, dict[str, dict[str, str]]]:
    """Section -> key -> language -> text, as it stands in `words.toml`."""
    return read_toml(Path(__file__).with_name("words.toml"))


class Words:
    """The words of one language.  `lang` outside `LANGUAGES` raises ValueError."""

    def __init__(self, lang: str):
        if lang not in LANGUAGES:
            raise ValueError(f"no words in language {lang!r}; known: {', '.join(LANGUAGES)}")
        self.lang = lang

    def __call__(self, key: str, **fill: Any) -> str:
        """The text of `section.key` with its placeholders filled; values are inserted as they are."""
        section, _, name = key.partition(".")
        text = table()[section][name][self.lang]
        return text.format(**fill) if fill else text

    def get(self, key: str, default: str) -> str:
        """The text of `section.key`, or `default` where the table has none."""
        section, _, name = key.partition(".")
        return table().get(section, {}).get(name, {}).get(self.lang, default)
