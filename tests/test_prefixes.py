"""Launcher prefixes: taken off in any order, and only where they are labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.prefixes import Prefixed, Style, clean, strip, survey

LABELLED = Style(numbered=True, hosts=frozenset({"node-0", "10.0.0.1"}))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[rank3]: RuntimeError: x", Prefixed("RuntimeError: x", 3)),
        ("[rank3]:[E1206 18:44:12.7 ProcessGroupNCCL.cpp:607] x", Prefixed("[E1206 18:44:12.7 ProcessGroupNCCL.cpp:607] x", 3)),
        ("[default3]:step 11", Prefixed("step 11", 3)),
        ("[default3]:[rank19]: x", Prefixed("x", 19)),  # local rank 3 of the third node
        ("[1,3]<stdout>:step 10", Prefixed("step 10", 3)),
        ("Thu Jun 12 09:30:00 2025[1,0]<stderr>:x", Prefixed("x", 0)),
        ("(WorkerDict pid=4123, ip=10.0.0.12) step 12", Prefixed("step 12", None, "10.0.0.12", 4123, "WorkerDict")),
        ("(raylet, ip=10.0.0.12) x", Prefixed("x", None, "10.0.0.12", None, "raylet")),
        ("(autoscaler +12s) x", Prefixed("x", None, None, None, "autoscaler")),
        ("(TaskRunner pid=9) (WorkerDict pid=12, ip=10.0.0.3) [rank2]: x", Prefixed("x", 2, "10.0.0.3", 12, "WorkerDict")),
        ("2025-06-12T09:30:00.188123456Z stdout F [rank0]: x", Prefixed("x", 0)),
        ("2025-06-12T09:30:00.188123456Z step 4", Prefixed("step 4")),
        ('{"log":"step 2 \\"a\\"\\u00e9\\n","stream":"stdout","time":"2025-06-12T09:30:12.1Z"}', Prefixed('step 2 "a"é')),
        ("[pod/train-worker-0/pytorch] step 3", Prefixed("step 3", None, "train-worker-0")),
        ("worker-0  | step 6", Prefixed("step 6", None, "worker-0")),
        ("train-worker-0 pytorch › step 5", Prefixed("step 5", None, "train-worker-0")),
        # Not labels: a rank within its group, tables, indentation, words before a number.
        ("[Rank 3] Watchdog caught", Prefixed("[Rank 3] Watchdog caught")),
        ("[step3]: x", Prefixed("[step3]: x")),
        ("| 1 | 2 |", Prefixed("| 1 | 2 |")),
        ("gpu0 | 30C", Prefixed("gpu0 | 30C")),
        ("    File x.py", Prefixed("    File x.py")),
        ("3: loss 0.1", Prefixed("3: loss 0.1")),
        ("node-0: x", Prefixed("node-0: x")),
        # Kept, but read.
        ("h1:12:13 [0] NCCL INFO x", Prefixed("h1:12:13 [0] NCCL INFO x", None, "h1", 12)),
        ("Jun 12 09:30:00 node-7 train[2101]: x", Prefixed("Jun 12 09:30:00 node-7 train[2101]: x", None, "node-7", 2101)),
    ],
)
def test_strip(line: str, expected: Prefixed) -> None:
    assert strip(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0: [rank0]: Traceback", Prefixed("Traceback", 0)),
        (" 3: step 8", Prefixed("step 8", 3)),
        ("node-0: [rank3]:[E1206 x", Prefixed("[E1206 x", 3, "node-0")),
        ("10.0.0.1: x", Prefixed("x", None, "10.0.0.1")),
        ("2: node-0: x", Prefixed("x", 2, "node-0")),
        ("ValueError: x", Prefixed("ValueError: x")),
    ],
)
def test_strip_with_survey(line: str, expected: Prefixed) -> None:
    assert strip(line, LABELLED) == expected


def test_survey() -> None:
    assert survey(f"{i % 8}: step {i}" for i in range(100)) == Style(True)
    assert survey(f"node-{i % 2}: step {i}" for i in range(100)) == Style(False, frozenset({"node-0", "node-1"}))
    # An enumeration never repeats its numbers; a word before a colon is no host.
    assert survey(f"{i}: loss 3" for i in range(100)) == Style()
    assert survey(f"step {i}: loss 3" for i in range(100)) == Style()
    assert survey(["ValueError: x", "INFO: y", "loss: 1"] * 30) == Style()
    assert survey([]) == Style()


def test_clean() -> None:
    assert clean(b"\x1b[36m(WorkerDict pid=1)\x1b[0m a\tb\x00c\r") == "(WorkerDict pid=1) a\tbc"
    assert clean(b"\x1b]0;title\x07x\x1b[Ay") == "xy"
    assert clean(b"caf\xc3 \xe2\x96") == "caf\ufffd \ufffd"
    assert len(clean(b"x" * 1_000_000)) == 64 << 10


@given(st.binary(max_size=500))
def test_hostile_bytes(raw: bytes) -> None:
    text = clean(raw)
    assert "\x1b[" not in text
    assert "\x00" not in text
    assert len(strip(text, LABELLED).text) <= max(len(text), 1)
    survey([text] * 5)
