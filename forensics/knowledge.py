"""Signatures, causes and words: loading the declarative data, the project's and users' own packs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from forensics.packs import read_toml
from rules.base import Signature

RULES = Path(__file__).resolve().parent.parent / "rules"
LAYERS = ("infra", "data", "model", "training", "comms", "reward")
ROLES = ("root", "consequence", "symptom", "precursor", "context", "recovery", "stop", "done")


class PackError(ValueError):
    """A pack that cannot be used; the message names the file and the entry."""


@dataclass(slots=True)
class Cause:
    """One cause: `id` is `layer/cause-id`, `leads_to` its usual consequences, `texts` the words by language."""

    id: str
    leads_to: tuple[str, ...]
    restart: str
    texts: dict[str, dict[str, Any]]

    @property
    def layer(self) -> str:
        return self.id.partition("/")[0]

    def text(self, key: str, lang: str = "en") -> Any:
        """A text in the language, else in English, else empty."""
        return (self.texts.get(lang) or {}).get(key) or self.texts.get("en", {}).get(key) or ""


@dataclass
class Knowledge:
    """Everything declarative, loaded once."""

    signatures: list[Signature]
    causes: dict[str, Cause]
    words: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)  # rule id -> part -> language -> template

    @cached_property
    def by_id(self) -> dict[str, Signature]:
        return {signature.id: signature for signature in self.signatures}

    @cached_property
    def downstream(self) -> dict[str, frozenset[str]]:
        """cause -> everything it may lead to, directly or through others."""
        closed: dict[str, frozenset[str]] = {}
        for start in self.causes:
            seen: set[str] = set()
            pending = list(self.causes[start].leads_to)
            while pending:
                cause = pending.pop()
                if cause not in seen:
                    seen.add(cause)
                    pending.extend(self.causes[cause].leads_to if cause in self.causes else ())
            closed[start] = frozenset(seen - {start})
        return closed

    def phrase(self, rule: str, part: str, facts: dict[str, Any], lang: str = "en") -> str:
        """The rule's words filled with facts; an unknown rule gives an empty text, a missing fact a question mark."""
        texts = self.words.get(rule, {}).get(part, {})
        template = texts.get(lang) or texts.get("en") or ""
        if "{" not in template:
            return template
        try:
            return template.format_map(_Facts(facts))
        except (ValueError, AttributeError, IndexError, KeyError, TypeError):
            return template


class _Facts(dict):
    def __missing__(self, key: str) -> str:
        return "?"


@cache
def load(extra: tuple[str, ...] = ()) -> Knowledge:
    """The project's knowledge and that of `extra` packs (files or folders) and of the `train_forensics.rules` entry points.

    Raises PackError for a user's pack that cannot be used.
    """
    signatures = [s for path in sorted((RULES / "signatures").rglob("*.toml")) for s in read_pack(path)]
    known = {signature.id for signature in signatures}
    causes = read_causes(RULES / "causes")
    words: dict[str, dict[str, dict[str, str]]] = {}
    for path in sorted((RULES / "words").glob("*.toml")):
        words.update(_toml(path))
    for path in extra_packs(extra):
        for signature in read_pack(path):
            if signature.id in known:
                raise PackError(f"{path}: the id {signature.id} is taken")
            known.add(signature.id)
            signatures.append(signature)
    return Knowledge(signatures, causes, words)


def load_rules(*packs: str | Path) -> Knowledge:
    """The project's signatures and causes with those of further packs (files or folders).  Raises PackError for an unusable pack."""
    return load(tuple(str(pack) for pack in packs))


def extra_packs(extra: Iterable[str]) -> Iterator[Path]:
    """Pack files of users: paths given, and folders or files that installed packages name by entry point."""
    places = [Path(item) for item in extra]
    for point in entry_points(group="train_forensics.rules"):
        found = point.load()
        value = found() if callable(found) else found
        places.extend(Path(str(item)) for item in (value if isinstance(value, (list, tuple)) else [value]))
    for place in places:
        if place.is_dir():
            yield from sorted(place.rglob("*.toml"))
        elif place.exists():
            yield place
        else:
            raise PackError(f"{place}: no such pack")


def _toml(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PackError(f"{path}: not a TOML file that can be read: {error}") from error


def read_pack(path: Path) -> list[Signature]:
    """The signatures of one pack file.  Raises PackError where an entry lacks what it must have."""
    entries = _toml(path).get("signature", [])
    own = path.is_relative_to(RULES)
    return [_signature(entry, path, own) for entry in entries]


def _signature(entry: dict[str, Any], path: Path, own: bool) -> Signature:
    name = entry.get("id", "?")
    try:
        literal = entry["literal"]
        role = entry["role"]
        cause = entry.get("cause")
        if role not in ROLES:
            raise PackError(f"{path}: {name}: role {role!r} is none of {', '.join(ROLES)}")
        if cause is None and role in ("root", "consequence"):
            raise PackError(f"{path}: {name}: a {role} needs a cause")
        literals = tuple([literal] if isinstance(literal, str) else literal)
        if not literals or any(len(text) < 4 for text in literals):
            raise PackError(f"{path}: {name}: every literal needs at least 4 characters")
        title = entry["title"]
        return Signature(
            id=entry["id"],
            cause=cause,
            role=role,
            weight=float(entry.get("weight", 0.5)),
            literals=literals,
            pattern=entry.get("regex", ""),
            sources=tuple(entry.get("sources", ("any",))),
            title={"en": title} if isinstance(title, str) else dict(title),
            why=_words(entry.get("why")),
            fix=_words(entry.get("fix")),
            verify=entry.get("verify", ""),
            source=entry.get("source", ""),
            basis=entry.get("basis", ""),
            covers=tuple(entry.get("covers", ())),
            hits=tuple(entry.get("hits", ())),
            near_misses=tuple(entry.get("near_misses", ())),
            pack=path.stem,
            own=own,
        )
    except (KeyError, TypeError) as error:
        raise PackError(f"{path}: {name}: {error} is missing or of the wrong kind") from error


def _words(value: Any) -> dict[str, str]:
    return {} if value is None else {"en": value} if isinstance(value, str) else dict(value)


def read_causes(folder: Path) -> dict[str, Cause]:
    """Every cause below the folder, one file per layer."""
    causes: dict[str, Cause] = {}
    for path in sorted(folder.glob("*.toml")):
        for name, entry in _toml(path).items():
            key = f"{path.stem}/{name}"
            texts = {lang: entry[lang] for lang in ("en", "zh") if isinstance(entry.get(lang), dict)}
            causes[key] = Cause(key, tuple(entry.get("leads_to", ())), entry.get("restart", "unknown"), texts)
    return causes
