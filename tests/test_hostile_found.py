"""Inputs that fuzzing found once: a first line with the target's name, then the bytes (see tests/fuzz/run.py)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "fuzz"
sys.path.insert(0, str(HERE))

import targets  # noqa: E402

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
