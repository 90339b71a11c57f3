"""Checks of signature packs: what a pack must fulfil before it may judge runs."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import regex

from forensics.knowledge import PackError, load, read_pack
from rules.base import Signature

SLOW = 0.05  # seconds one pattern may take on a long line that almost matches
TIMEOUT = 1.0


def lint(files: Iterable[Path], against_known: bool = True) -> Iterator[str]:
    """One line per problem.  Ids, literals and patterns are compared with each other and, if wanted, with the project's own."""
    files = [path.resolve() for path in files]
    ids: dict[str, str] = {}
    shapes: dict[tuple[tuple[str, ...], str], str] = {}
    if against_known:
        own = {s.id: s for s in load().signatures}
        mine: set[str] = set()
        for path in files:
            try:
                mine |= {s.id for s in read_pack(path)}
            except PackError:
                continue
        is_own = any("rules/signatures" in str(path) for path in files)
        for name, signature in own.items():
            if not (is_own and name in mine):
                ids[name] = "the project's own packs"
                shapes[(signature.literals, signature.pattern)] = name
    for path in files:
        try:
            signatures = read_pack(path)
        except PackError as error:
            yield str(error)
            continue
        if not signatures:
            yield f"{path}: no [[signature]] entry"
        for signature in signatures:
            where = f"{path.name}: {signature.id}"
            if signature.id in ids:
                yield f"{where}: the id stands in {ids[signature.id]} too"
            ids[signature.id] = path.name
            shape = (signature.literals, signature.pattern)
            if shape in shapes:
                yield f"{where}: the same literal and pattern as {shapes[shape]}"
            shapes[shape] = signature.id
            yield from (f"{where}: {problem}" for problem in check(signature))


def check(signature: Signature) -> Iterator[str]:
    """Problems of one signature."""
    if not signature.hits:
        yield "no hits: give at least one whole line that must match"
    if not signature.near_misses:
        yield "no near misses: give a similar line that must not match"
    if signature.cause is not None and signature.cause not in load().causes:
        near = difflib.get_close_matches(signature.cause, load().causes, 2, 0.5)
        yield f"no such cause: {signature.cause}" + (
            f"; did you mean {' or '.join(near)}?" if near else "; all causes: forensics explain --list"
        )
    if not signature.title.get("en"):
        yield "no English title"
    if not signature.source:
        yield "no source: say where the wording was seen"
    try:
        pattern = regex.compile(signature.pattern)
    except regex.error as error:
        yield f"the pattern does not compile: {error}"
        return
    for text in signature.hits:
        if not any(literal in text for literal in signature.literals):
            yield f"no literal stands in the hit {text[:80]!r}"
        if not _found(pattern, text):
            yield f"the pattern does not match the hit {text[:80]!r}"
    for text in signature.near_misses:
        if any(literal in text for literal in signature.literals) and _found(pattern, text):
            yield f"the near miss matches: {text[:80]!r}"
    for text in signature.hits[:2]:
        # A line of the hit's own pieces without its end: what makes a nested repetition explode.
        long = (text[:-1] * (20_000 // max(1, len(text)) + 1))[:20_000] + "\x00"
        started = time.perf_counter()
        try:
            pattern.search(long, timeout=TIMEOUT)
        except TimeoutError:
            yield "the pattern does not end in time on a long line: avoid repetitions inside repetitions"
            break
        if time.perf_counter() - started > SLOW * 10:
            yield f"the pattern is slow on a long line ({time.perf_counter() - started:.2f} s)"
            break


def _found(pattern: regex.Pattern, text: str) -> bool:
    try:
        return pattern.search(text, timeout=TIMEOUT) is not None
    except TimeoutError:
        return False
