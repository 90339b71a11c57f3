"""Files that `forensics collect` writes itself: told from training logs, so that their times and notes are not the training's.

Each begins with `# forensics collect: <what>`; the readers of the forms inside work line by line.  `collected.json` lists the files
and what could not be had; its notes quote tools and are no evidence.  `ip -s link` has no reader of its own yet and is set apart too.
"""

from __future__ import annotations

import json

from parsers.base import FileParser, Head, Rows, Source, lazy

HEADER = "# forensics collect: "
SCHEMA = "forensics.collection/"
_LINK = lazy(r"\A1: \S{1,16}: <[A-Z,_-]{2,200}> mtu \d")


def _own(head: Head) -> float:
    return 0.9 if head.text.startswith(HEADER) or _LINK.match(head.text[:300]) else 0.0


def _manifest(head: Head) -> float:
    return 0.95 if head.text.lstrip().startswith("{") and f'"schema": "{SCHEMA}' in head.text[:400] else 0.0


def _nothing(source: Source, rows: Rows) -> None:
    """The line parsers read the file."""


def _notes(source: Source, rows: Rows) -> None:
    """What was missing, as remarks on the file."""
    try:
        notes = json.loads(source.text()).get("notes", [])
    except (RecursionError, AttributeError) as error:
        raise ValueError("not a list of collected files") from error
    missing = [str(note.get("file", "?"))[:80] for note in notes[:100] if isinstance(note, dict)] if isinstance(notes, list) else []
    if missing:
        rows.note("not collected: " + ", ".join(missing))


PARSER = (
    FileParser("collected state", "environment", _own, _nothing, scan=True),
    FileParser("collection's list", "environment", _manifest, _notes),
)
