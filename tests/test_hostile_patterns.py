"""No pattern is worse than linear on hostile lines: texts derived from each pattern itself (tests/support_pumps.py)."""

from __future__ import annotations

import inspect
import re
import time
from itertools import islice

import pytest
import regex
from support_pumps import attacks

from forensics import knowledge
from forensics.analysis import reader_for
from forensics.matcher import CONFIRM, compiled
from parsers.base import Context, Line, Rows

# Processor seconds for one line; a pattern worse than linear takes many times as long.  The best of three, for busy machines.
LIMIT = 0.06
FILL = (" ", "a", "0", ".", "a=", "[")


def seconds(function, *arguments) -> float:
    best = 9.0
    for _ in range(3):
        started = time.process_time()
        function(*arguments)
        best = min(best, time.process_time() - started)
        if best < LIMIT:
            break
    return best


def test_signatures_on_lines_made_to_hurt_them():
    slow = []
    for signature in knowledge.load(()).signatures:
        pattern = compiled(signature)
        for text in islice(attacks(signature.pattern, 0, CONFIRM, 8), 16):
            taken = seconds(pattern.search, text)
            if taken > LIMIT:
                slow.append(f"{signature.id}: {taken:.2f} s on {text[:40]!r}…")
                break
    assert slow == []


def patterns_of(module) -> list[str]:
    kinds = (re.Pattern, type(regex.compile("")))
    return [v.pattern for v in vars(module).values() if isinstance(v, kinds) and isinstance(v.pattern, str)]


@pytest.mark.parametrize("parser", reader_for(()).matcher.parsers, ids=lambda parser: parser.name)
def test_line_parsers_on_lines_made_to_hurt_them(parser):
    size = 32 << 10
    triggers = (*parser.triggers, *parser.sparse)
    texts = [triggers[0] + fill * (size // len(fill)) for fill in FILL]
    texts += [((trigger + "a") * (size // len(trigger)))[:size] for trigger in triggers[:6]]
    for number, pattern in enumerate(patterns_of(inspect.getmodule(parser.parse))):
        trigger = triggers[number % len(triggers)]
        texts += [trigger + text for text in islice(attacks(pattern, 0, size - len(trigger), 3), 4)]
    for text in texts:
        line = Line("a.log", 1, text, text)

        def parse(line=line):
            parser.parse(line, Rows("a.log"), Context(lambda n: iter(()), lambda n: iter(()), {}))

        taken = seconds(parse)
        assert taken < LIMIT * 1.5, f"{taken:.2f} s on {text[:60]!r}…"
