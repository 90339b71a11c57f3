"""A large run's first verdict comes from the ends of its files."""

from __future__ import annotations

import forensics
from forensics import analysis, evidence

STEP = "2026-03-01 00:{:02d}:{:02d} trainer step={} loss={:.3f} grad_norm=0.5\n"


def test_the_ends_of_large_files_and_their_first_line(tmp_path):
    (tmp_path / "big.csv").write_text("header,line\n" + "".join(f"{n},x\n" for n in range(5000)))
    (tmp_path / "small.log").write_text("one\ntwo\n")
    with evidence.gather(tmp_path) as found, evidence.tails(found, 1000) as short:
        text = {m.path: m.real.read_text() for m in short.members}
    assert text["small.log"] == "one\ntwo\n"
    assert text["big.csv"].startswith("header,line\n")
    assert text["big.csv"].endswith("4999,x\n")
    assert len(text["big.csv"]) < 1100


def test_first_verdict_before_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "FIRST_LOOK", 10_000)
    monkeypatch.setattr(analysis, "TAIL", 4_000)
    steps = "".join(STEP.format(n // 60 % 60, n % 60, n, 2.0 - n / 2000) for n in range(1000))
    end = 'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    save()\nOSError: [Errno 28] No space left on device\n'
    (tmp_path / "train.log").write_text(steps + end)
    first = []
    report = forensics.analyze(tmp_path, on_first=first.append)
    assert [v.cause for v in first] == ["disk-full"]
    assert report.verdict.cause == "disk-full"
    assert report.verdict.first.line == 1004
