"""Versions of packages and drivers, compared as PEP 440 orders them (release, then pre-release, then post-release)."""

from __future__ import annotations

import re

from rules.base import Evidence

_VERSION = re.compile(
    r"\s*v?(?P<release>\d{1,6}(?:\.\d{1,8}){0,5})(?:[-_.]?(?P<pre>a|b|rc|alpha|beta|dev)[-_.]?(?P<n>\d{0,8}))?(?:[-_.]?post[-_.]?(?P<post>\d{0,8}))?"
)
_RANK = {"dev": -4, "a": -3, "alpha": -3, "b": -2, "beta": -2, "rc": -1}
Key = tuple[tuple[int, ...], int, int, int]


def key(text: str) -> Key | None:
    """A sort key of a version; the local part (`+cu121`) does not count.  None for a text that is no version."""
    found = _VERSION.match(text[:80])
    if found is None:
        return None
    release = [int(part) for part in found["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    rank = _RANK.get(found["pre"] or "", 0)
    return tuple(release), rank, int(found["n"] or 0), int(found["post"] or 0)


def holds(version: str, condition: str) -> bool:
    """Whether a version fulfils all parts of a condition such as `>=4.46,<4.50`; False where either cannot be read.

    A pre-release counts as its release, as installers that were told to take one do.
    """
    mine = key(version)
    if mine is None:
        return False
    for part in condition.split(","):
        found = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*", part)
        other = key(found[2]) if found else None
        if found is None or other is None:
            return False
        one, two = (mine[0], mine[3]), (other[0], other[3])
        sign = found[1]
        good = {">=": one >= two, "<=": one <= two, "==": one == two, "!=": one != two, ">": one > two, "<": one < two}[sign]
        if not good:
            return False
    return True


def gathered(facts: list[tuple[str, str, object, int]]) -> dict[str, list[tuple[str, Evidence]]]:
    """`version.*` facts by package: each different value with the place where it first stands."""
    out: dict[str, list[tuple[str, Evidence]]] = {}
    for name, file, value, line in facts:
        if not name.startswith("version."):
            continue
        known = out.setdefault(name[8:], [])
        text = str(value)
        if len(known) < 16 and all(text != other for other, _ in known):
            known.append((text, Evidence(file, line, f"{name[8:]} {text}"[:200])))
    return out
