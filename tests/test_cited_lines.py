"""The lines shown around a citation are those that `sed -n` prints, wherever in a file they stand and however it is stored."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from forensics import evidence, page, scan
from forensics.analysis import reader_for

CITED = (1, 2, scan.INDEXED - 1, scan.INDEXED, scan.INDEXED + 1, 2 * scan.INDEXED + 1, 20_000, 29_995, 30_000)


def lines() -> list[str]:
    out = [f"2026-03-01 10:{n // 600:02d}:{n // 10 % 60:02d},{n % 10}00 - INFO - line number {n}" for n in range(1, 30_001)]
    out[19_990] = "x" * (3 << 20)  # one line longer than what is read at once
    return out


@pytest.mark.parametrize("name", ["train.log", "train.log.gz", "wide.log"])
def test_context_is_what_sed_prints(name: str, tmp_path: Path) -> None:
    text = "\n".join(lines()) + "\n"
    data = text.encode("utf-16") if name == "wide.log" else text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with evidence.gather(tmp_path) as gathered:
        reader_for(()).read(gathered)
        assert bool(gathered.members[0].index) == (name == "train.log")
        shown = page.context(gathered, [(name, line) for line in CITED])
    for line in CITED:
        near = shown[f"{name}:{line}"]
        assert [n for n, _ in near] == [n for n in range(line - page.AROUND, line + page.AROUND + 1) if 1 <= n <= 30_000]
        assert all(shown_text == lines()[n - 1][:600] for n, shown_text in near if n != 19_991)
