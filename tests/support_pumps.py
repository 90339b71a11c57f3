"""Lines that make a regular expression work hard, derived from the expression itself.

A pattern backtracks where a repetition is followed by something that does not come, and restarts where its beginning comes again
and again.  So for every repetition in the parse tree: a text that matches up to it, the repetition's own text many times over,
and an end that does not match; and the whole beginning many times over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

try:
    from re import _constants as sre
    from re import _parser as parser
except ImportError:  # pragma: no cover
    import sre_constants as sre  # type: ignore[no-redef]
    import sre_parse as parser  # type: ignore[no-redef]

ENDS = ("", "\x00", "!", " ", "\n")
_CATEGORY = {
    "CATEGORY_DIGIT": "7",
    "CATEGORY_SPACE": " ",
    "CATEGORY_WORD": "a",
    "CATEGORY_NOT_DIGIT": "a",
    "CATEGORY_NOT_SPACE": "a",
    "CATEGORY_NOT_WORD": " ",
}
_TRIED = "a0 .:/-_=,()[]{}|'\"x7\tA#%+é"


def _one(kind: str, value: Any) -> str:
    """A character that a single-character node matches."""
    if kind == "LITERAL":
        return chr(value)
    if kind == "NOT_LITERAL":
        return "a" if chr(value) != "a" else "b"
    if kind == "ANY":
        return "a"
    negated = bool(value) and str(value[0][0]) == "NEGATE"
    if not negated:
        first, argument = value[0]
        if str(first) == "LITERAL":
            return chr(argument)
        if str(first) == "RANGE":
            return chr(argument[0])
        return _CATEGORY.get(str(argument), "a")
    return next((c for c in _TRIED if _allowed(c, value[1:])), "a")


def _allowed(char: str, items: Any) -> bool:
    for kind, argument in items:
        name = str(kind)
        if name == "LITERAL" and ord(char) == argument:
            return False
        if name == "RANGE" and argument[0] <= ord(char) <= argument[1]:
            return False
        if name == "CATEGORY":
            which = str(argument)
            hit = {"CATEGORY_DIGIT": char.isdigit(), "CATEGORY_SPACE": char.isspace(), "CATEGORY_WORD": char.isalnum() or char == "_"}
            if hit.get(which, not hit.get(which.replace("_NOT", ""), True)):
                return False
    return True


def sample(tree: Any, groups: dict[int, str] | None = None) -> str:
    """A text that the tree roughly matches, shortest repetitions."""
    return "".join(_node(node, groups if groups is not None else {}) for node in tree)


def _node(node: tuple[Any, Any], groups: dict[int, str]) -> str:
    kind, value = str(node[0]), node[1]
    if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        return _one(kind, value)
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return sample(value[2], groups) * max(value[0], 1 if value[0] == 0 and value[1] > 1 else value[0])
    if kind == "SUBPATTERN":
        text = sample(value[3], groups)
        if value[0] is not None:
            groups[value[0]] = text
        return text
    if kind == "BRANCH":
        return sample(value[1][0], groups)
    if kind == "GROUPREF":
        return groups.get(value, "")
    if kind == "ATOMIC_GROUP":
        return sample(value, groups)
    return ""


def repetitions(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """(text before, text of one turn) of every open or long repetition in the tree, branches and groups included."""
    for node in tree:
        kind, value = str(node[0]), node[1]
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            if value[1] is sre.MAXREPEAT or value[1] > 20:
                yield before, sample(value[2])
            yield from repetitions(value[2], before)
        elif kind == "SUBPATTERN":
            yield from repetitions(value[3], before)
        elif kind == "BRANCH":
            for branch in value[1]:
                yield from repetitions(branch, before)
                yield before, sample(branch)
        elif kind in ("ASSERT", "ASSERT_NOT"):
            yield from repetitions(value[1], before)
        elif kind == "ATOMIC_GROUP":
            yield from repetitions(value, before)
        before += _node(node, {})


def attacks(pattern: str, flags: int = 0, size: int = 32 << 10, most: int = 60) -> Iterator[str]:
    """Texts of `size` characters for one pattern."""
    try:
        tree = parser.parse(pattern, flags & ~re.DEBUG)
    except (re.error, RecursionError):
        return
    seen: set[tuple[str, str]] = set()
    for before, turn in repetitions(tree):
        if not turn or (before, turn) in seen:
            continue
        seen.add((before, turn))
        if len(seen) > most:
            return
        for unit, lead in ((turn, before), (before + turn, ""), (before, "")):
            if unit:
                text = lead + unit * (size // len(unit) + 1)
                yield text[: size - 1] + "\x00"
    whole = sample(tree)
    if whole:
        yield (whole * (size // len(whole) + 1))[: size - 1] + "\x00"
        yield (whole[:-1] * (size // max(1, len(whole) - 1) + 1))[: size - 1] + "\x00"
