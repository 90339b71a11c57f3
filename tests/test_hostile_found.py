"""Inputs that fuzzing found once: a first line with the target's name, then the bytes (see tests/fuzz/run.py)."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "fuzz"
sys.path.insert(0, str(HERE))

import targets  # noqa: E402

import parsers  # noqa: E402
from parsers.base import Head  # noqa: E402

FOUND = sorted(path for path in (HERE / "found").glob("*") if path.is_file())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_an_input_found_by_fuzzing_is_read(path: Path) -> None:
    name, _, data = path.read_bytes().partition(b"\n")
    started = time.process_time()
    targets.target(name.decode())(data)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("name", targets.names())
def test_every_target_takes_its_seeds_and_their_damaged_copies(name: str) -> None:
    function = targets.target(name)
    for number, seed in enumerate(targets.seeds(name)):
        if number > {"analyze": 0, "stamps": 8}.get(name, 25):
            break
        function(seed)
        function(seed[: len(seed) // 2] + b"\x00\xff" + seed[len(seed) // 2 :][::-1])


@pytest.mark.parametrize("name", [name for name in targets.names() if name.startswith("file:")])
def test_the_fuzzer_begins_with_files_that_the_reader_takes(name: str) -> None:
    """Seeds that no reader recognises would leave coverage to luck."""
    parser = next(p for p in parsers.load()[1] if p.name == name.partition(":")[2])
    taken = 0
    for seed in targets.seeds(name):
        path, data = targets.NAMES[seed[0] % len(targets.NAMES)], seed[1:]
        taken += parser.recognises(Head(path, data, data.decode("utf-8", "replace"))) > 0.5
    assert taken


@pytest.mark.parametrize("name", [name for name in targets.names() if name.startswith("line:")])
def test_the_fuzzer_begins_with_lines_of_the_samples_and_tests(name: str) -> None:
    parser = next(p for p in parsers.load()[0] if p.name == name.partition(":")[2])
    pool = set(targets._lines())
    assert any(seed[1:].split(b"\n")[0] in {line[:2500] for line in pool} for seed in targets.seeds(name)), parser.name


NUMBER = re.compile(rb"\d[\d.,]*")
SPOILT = (b"1..2", b"1.2.3", b".", b",", b"1e", b"-", b"9" * 400, b"1,,0", b"")


@pytest.mark.parametrize("name", [name for name in targets.names() if name.startswith("line:")])
def test_a_number_cut_or_spoilt_in_a_line_is_no_error(name: str) -> None:
    """What matches a loose `[\\d.]+` need not be a number: each number of the seeds in turn, all of them at once."""
    function = targets.target(name)
    for number, seed in enumerate(targets.seeds(name)):
        head, line = seed[:1], seed[1:]
        spoil = SPOILT[number % len(SPOILT)]
        for match in list(NUMBER.finditer(line))[:40]:
            function(head + line[: match.start()] + spoil + line[match.end() :])
            function(head + line[: match.start()] + b"1..2" + line[match.end() :])
        function(head + NUMBER.sub(spoil, line))
