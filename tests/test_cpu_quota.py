"""CPU quota: counters read in their forms, and blamed only where something was slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_lines import feed

import forensics
from parsers import cpu_limits

BARE = "usage_usec 91230\nuser_usec 80000\nsystem_usec 11230\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 5120000\n"
NAMED = "".join(f"/sys/fs/cgroup/cpu.stat: {line}\n" for line in BARE.splitlines())


@pytest.mark.parametrize("form", [BARE, NAMED], ids=["bare", "with its path"])
def test_counters_of_a_control_group(form: str) -> None:
    rows = feed(cpu_limits.PARSER, form.format(periods=20000, throttled=9000))
    assert [e.fields for e in rows.events if e.kind == "cpu_throttling"] == [{"periods": 20000, "throttled": 9000}]


def analysed(tmp_path: Path, throttled: int, slow: bool) -> dict[str, Any]:
    run = tmp_path / "run"
    run.mkdir()
    lines = []
    for step in range(60):
        wait = 9.0 if slow and step > 20 else 0.2
        lines.append(
            f"2026-11-28 10:{step:02d}:00 INFO step {step} loss {2 - step * 0.01:.3f} data_time {wait} step_time {wait + 1:.1f} "
            f"{{'loss': {2 - step * 0.01:.3f}, 'data_time': {wait}, 'step_time': {wait + 1}, 'step': {step}}}"
        )
    (run / "train.log").write_text("\n".join(lines) + "\n")
    (run / "cgroup.txt").write_text(NAMED.format(periods=20000, throttled=throttled))
    return forensics.analyze(run).to_dict()


def test_a_slow_run_under_a_short_quota(tmp_path: Path) -> None:
    report = analysed(tmp_path, 12000, slow=True)
    assert (report["verdict"]["layer"], report["verdict"]["cause"]) == ("infra", "cpu-overload")
    assert report["verdict"]["first_failure"]["file"] == "cgroup.txt"


def test_throttling_alone_accuses_nobody(tmp_path: Path) -> None:
    report = analysed(tmp_path, 12000, slow=False)
    assert report["verdict"]["layer"] == "none"
    assert any(f["rule"] == "env.cpu-throttled" and f["cause"] is None for f in report["findings"])


def test_an_ample_quota_is_excluded(tmp_path: Path) -> None:
    report = analysed(tmp_path, 12, slow=True)
    assert report["verdict"]["cause"] != "cpu-overload"
    assert any(f["rule"] == "env.cpu-quota" and f["outcome"] == "excluded" for f in report["findings"])
