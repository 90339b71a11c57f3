"""What makes a start quick: patterns compiled when used, tables and the search kept like bytecode, and that neither changes a result."""

from __future__ import annotations

import gc
import json
import math
import random
import re
import sys
from pathlib import Path

import polars as pl
import pytest

import parsers
import rules
from forensics import packs
from forensics.report.json import _plain, _write
from forensics.run import Run
from forensics.timeline import METRICS
from parsers.base import LazyPattern, lazy, lazy_regex


def test_every_late_pattern_compiles() -> None:
    parsers.load()
    rules.load()
    late = [item for item in gc.get_objects() if isinstance(item, LazyPattern)]
    assert len(late) > 500
    assert all(item.pattern for item in late)


def test_late_pattern_is_its_compiled_one() -> None:
    number = lazy(r"(?P<n>\d+)", re.IGNORECASE)
    assert number.ready is None  # type: ignore[attr-defined]
    found = number.search("step 12")
    assert found is not None
    assert found["n"] == "12"
    assert number.search.__self__ is number.ready  # type: ignore[attr-defined]
    assert (number.flags & re.IGNORECASE, number.groupindex["n"]) == (re.IGNORECASE, 1)
    assert lazy_regex(r"a++b").fullmatch("aab") is not None
    with pytest.raises(re.error):
        lazy("(").search("")


def test_toml_is_kept_parsed_and_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "HOME", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    table = tmp_path / "table.toml"
    table.write_text('name = "é"\nweights = [0.5, 1]\n', encoding="utf-8")
    fresh = packs.read_toml(table)
    (kept,) = (tmp_path / "__pycache__").iterdir()
    kept.write_bytes(kept.read_bytes().replace("é".encode(), "ê".encode()))
    assert packs.read_toml(table) == {**fresh, "name": "ê"}  # it was read from there
    table.write_text('name = "longer"\n', encoding="utf-8")
    assert packs.read_toml(table) == {"name": "longer"}
    table.write_text('name = "other!"\n', encoding="utf-8")
    assert packs.read_toml(table) == {"name": "other!"}
    monkeypatch.setattr(packs, "HOME", tmp_path / "elsewhere")
    kept.unlink()
    assert packs.read_toml(table) == {"name": "other!"}
    assert not kept.exists()  # beside files of others nothing is written


def test_json_is_written_as_the_standard_library_would() -> None:
    value = {
        "text": 'quote " slash \\ tab \t é 中 \udc80',
        "empty": [{}, [], "", None, True],
        "numbers": [0, -1, 1.5, 1e300, 1e-7, math.nan, math.inf, True],
        "nested": {"list": [[1, [2, {"a": (3,)}]]], 5: "key", "\udcff": {1}},
        "path": Path("a/b"),
    }
    out: list[str] = []
    _write(value, "\n", out)
    assert "".join(out) == json.dumps(_plain(value), ensure_ascii=False, indent=1, allow_nan=False)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_series_is_one_file_one_spelling_one_rank(ranks: int) -> None:
    rng = random.Random(5)
    rows = [
        (float(i), float(i), None if ranks == 1 else i % ranks, "loss", rng.random(), "loss", f"rank{i % ranks}.log", 1000 - i)
        for i in range(60)
    ]
    rows += [(float(i), float(i), 0, "loss", 0.0, "train/loss", "other.log", i) for i in range(19)]
    run = Run("x", metrics=pl.DataFrame(rows, schema=METRICS, orient="row"))
    series = run.series("loss")
    assert set(series.source) == {"rank0.log"}  # of equally many readings the lowest rank's
    assert series.line == sorted(series.line)
    assert len(series) == 60 // ranks
    assert run.series("loss", 2).source == ([] if ranks == 1 else ["rank2.log"] * 20)
    assert not len(run.series("reward"))
