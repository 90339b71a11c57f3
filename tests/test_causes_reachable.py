"""Every cause can be named: a signature's cause, or a cause written in a rule's module or in the rules' data."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from forensics.knowledge import load

RULES = Path(__file__).parent.parent / "rules"
VERDICT = Path(__file__).parent.parent / "forensics" / "verdict.py"
KNOWN = load()
NAMED = re.compile(r"(?:infra|data|model|training|comms|reward|none)/[a-z0-9-]+")


def strings(path: Path) -> set[str]:
    """The causes in a module's string constants, docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            found.update(NAMED.findall(node.value))
    return found


def values(data: object) -> set[str]:
    """The causes that stand as whole values in a table of data (a catalogue of codes)."""
    if isinstance(data, dict):
        return {cause for key, item in data.items() if key not in ("en", "zh", "leads_to") for cause in values(item)}
    if isinstance(data, list):
        return {cause for item in data for cause in values(item)}
    return {data} if isinstance(data, str) and NAMED.fullmatch(data) else set()


def reachable() -> set[str]:
    found = {s.cause for s in KNOWN.signatures if s.cause and s.role in ("root", "consequence", "precursor", "stop", "done")}
    for path in [*RULES.glob("*.py"), VERDICT]:
        if path.name != "guide_steps.py":  # it names beginnings of causes, to sort findings into steps
            found |= strings(path)
    for path in RULES.glob("catalogue/*.toml"):
        found |= values(tomllib.loads(path.read_text(encoding="utf-8")))
    return found


REACHABLE = reachable()


@pytest.mark.parametrize("cause", sorted(KNOWN.causes))
def test_cause_is_reachable(cause: str) -> None:
    assert cause in REACHABLE


def test_nothing_names_a_cause_that_is_not_described() -> None:
    assert REACHABLE - KNOWN.causes.keys() == set()
