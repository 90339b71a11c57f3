"""Every item of the guide is judged: a rule or a signature names it in `covers`, or it is a step that the report shows."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

import rules
from forensics.knowledge import load
from rules.guide_steps import LOOKS_FOR, READINGS, STEPS

ITEMS = """
L0.1 L0.2 L0.3 L0.4 L0.5 L0.6
L1.1 L1.2 L1.3
L2.1 L2.2 L2.3
L3.1 L3.2 L3.3 L3.4
L4.1 L4.2 L4.3 L4.4
L5.1 L5.2 L5.3
S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11 S12
P1 P2 P3 P4 P5
Q1 Q2 Q3 Q4 Q5 Q6 Q7 Q8 Q9 Q10 Q11 Q12
H1 H2 H3
""".split()


def covering() -> dict[str, set[str]]:
    """Item -> ids of the rules and signatures that name it."""
    found: dict[str, set[str]] = defaultdict(set)
    for rule in rules.load():
        for item in rule.covers:
            found[item].add(rule.id)
    for signature in load().signatures:
        for item in signature.covers:
            found[item].add(signature.id)
    return found


COVERING = covering()


def test_the_list_is_whole() -> None:
    assert len(ITEMS) == len(set(ITEMS)) == 55


@pytest.mark.parametrize("item", ITEMS)
def test_item_is_judged(item: str) -> None:
    assert COVERING[item], f"no rule or signature covers {item}"


def test_no_rule_covers_what_the_guide_does_not_have() -> None:
    assert set(COVERING) - set(ITEMS) == set()
    assert all(re.fullmatch(r"[LSPQH]\d{1,2}(?:\.\d)?", item) for item in COVERING)


def test_the_report_shows_all_twelve_steps() -> None:
    assert [item for item in ITEMS if item.startswith("S")] == list(STEPS)
    assert set(LOOKS_FOR) == set(READINGS) == set(STEPS)
