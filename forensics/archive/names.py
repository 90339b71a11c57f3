"""Names of runs: fit for a file, the same each time, never shared by two runs."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

from forensics.unpack import ARCHIVES

LONGEST = 120
BETWEEN = "__"  # stands for the / of a path
LOG = re.compile(r"(?:\.(?:log|txt|out|err|gz|zst|xz|bz2|jsonl))+$", re.I)


def assign(paths: list[str], prefix: str = "") -> list[str]:
    """A name for each path, in the same order; `prefix` goes before all (the archive's name, the root's label).

    Folders are joined by `__`.  Names that differ by case only, or of which one begins with another and `__`, get a hash of their path.
    """
    names = [_name(path, prefix) for path in paths]
    count = Counter(name.lower() for name in names)
    heads = Counter(head for name in names for head in _heads(name.lower()))
    return [
        name if count[name.lower()] == 1 and not heads[name.lower()] else f"{name}-{_hash(path)}"
        for name, path in zip(names, paths, strict=True)
    ]


def stem(name: str) -> str:
    """A file's name without the suffixes of archives and logs."""
    lower = name.lower()
    suffix = max((s for s in ARCHIVES if lower.endswith(s)), key=len, default="")
    return (name[: -len(suffix)] if suffix else LOG.sub("", name)) or name


def _name(path: str, prefix: str) -> str:
    folder, _, last = path.rpartition("/")
    parts = [*folder.split("/"), stem(last)]
    kept = BETWEEN.join(re.sub(r"[^\w.+=@-]", "_", part).strip("._") or "_" for part in parts if part)
    whole = f"{prefix}{BETWEEN}{kept}" if prefix and kept else prefix or kept or "run"
    return whole if len(whole) <= LONGEST else f"{whole[:LONGEST].rstrip('_.')}-{_hash(f'{prefix}/{path}')}"


def _heads(name: str) -> list[str]:
    pieces = name.split(BETWEEN)
    return [BETWEEN.join(pieces[:end]) for end in range(1, len(pieces))]


def _hash(path: str) -> str:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
