"""Every signature pack of the project: loads, is unambiguous, matches what it must and nothing next to it."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import regex

from forensics.knowledge import LAYERS, ROLES, read_causes, read_pack
from forensics.lint import check, lint
from rules.base import Signature

RULES = Path(__file__).parent.parent / "rules"
PACKS = sorted((RULES / "signatures").rglob("*.toml"))
SIGNATURES = [(path, signature) for path in PACKS for signature in read_pack(path)]
CAUSES = read_causes(RULES / "causes").keys()
CJK = re.compile(r"[\u4e00-\u9fff\uff00-\uffef]")
SOURCES = {"train", "kernel", "nccl", "scheduler", "gpu", "any"}
BASES = {"source code", "real log", "report", "memory"}
each = pytest.mark.parametrize("signature", [pytest.param(s, id=f"{path.stem}:{s.id}") for path, s in SIGNATURES])


def test_there_are_packs_for_every_layer() -> None:
    assert {path.parent.name for path in PACKS} == set(LAYERS)


@pytest.mark.parametrize("path", PACKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_packs_are_toml_of_signatures_only(path: Path) -> None:
    assert set(tomllib.loads(path.read_text(encoding="utf-8"))) == {"signature"}


def test_ids_are_unique() -> None:
    counts = Counter(signature.id for _, signature in SIGNATURES)
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_two_signatures_are_the_same() -> None:
    shapes = Counter((signature.literals, signature.pattern) for _, signature in SIGNATURES)
    assert [shape for shape, count in shapes.items() if count > 1] == []


@each
def test_signature(signature: Signature) -> None:
    assert list(check(signature)) == []
    assert signature.role in ROLES
    assert signature.cause is None or signature.cause in CAUSES
    assert 0 <= signature.weight <= 1
    assert set(signature.sources) <= SOURCES
    assert signature.basis in BASES
    assert signature.title.get("en")
    assert CJK.search(signature.title.get("zh", ""))
    assert bool(signature.why.get("en")) == bool(signature.why.get("zh"))


@each
def test_a_literal_stands_inside_every_match(signature: Signature) -> None:
    """The scanner looks for literals first: a match without one would never be seen."""
    pattern = regex.compile(signature.pattern)
    for text in signature.hits:
        assert any(len(literal) >= 4 and literal in text for literal in signature.literals)
        assert pattern.search(text)


def test_lint_finds_what_is_wrong(tmp_path: Path) -> None:
    pack = tmp_path / "bad.toml"
    pack.write_text(
        """
[[signature]]
id = "bad"
cause = "training/loss-nan"
role = "root"
literal = ["went wrong"]
regex = "everything went (wrong|awry)$"
title = { en = "Wrong" }
source = "made up"
hits = ["nothing matches here", "everything went wrong today"]
near_misses = ["everything went wrong"]
""",
        encoding="utf-8",
    )
    problems = "\n".join(lint([pack], against_known=False))
    assert "no literal stands in the hit" in problems
    assert "does not match the hit 'everything went wrong today'" in problems
    assert "the near miss matches" in problems
