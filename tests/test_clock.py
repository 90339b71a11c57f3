"""Clocks: hand-made rows in, offsets out."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics import clock_dates as dates
from forensics.clock import Clocks, align
from forensics.run import FileInfo
from forensics.stamps import find_stamp
from parsers import anchors
from parsers.base import Context, Line, Rows

NOTHING = Context(lambda limit: iter(()), lambda limit: iter(()))


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


class Case:
    """Rows and files of a made-up run; every line is stamped as the reader would."""

    def __init__(self) -> None:
        self.rows: dict[str, Rows] = {}
        self.files: dict[str, FileInfo] = {}
        self.lines: dict[str, list[str]] = {}

    def file(self, name: str, kind: str = "train", host: str | None = None, modified: float | None = None) -> Rows:
        if name not in self.rows:
            self.rows[name] = Rows(name)
            self.files[name] = FileInfo(name, 1000, kinds=(kind,), host=host, modified=modified)
            self.lines[name] = []
        return self.rows[name]

    def add(self, name: str, text: str, kind: str = "line", severity: str = "info", number: int | None = None, **more: object) -> None:
        rows = self.rows[name]
        self.lines[name].append(text)
        number = number or len(self.lines[name])
        stamp = find_stamp(text)
        line = Line(name, number, text, text, stamp=stamp)
        for parser in anchors.PARSER:
            if any(trigger in text for trigger in (*parser.triggers, *parser.sparse)):
                parser.parse(line, rows, NOTHING)
        rows.event(line, kind, severity, **more)  # type: ignore[arg-type]

    def step(self, name: str, text: str, step: int) -> None:
        self.lines[name].append(text)
        line = Line(name, len(self.lines[name]), text, text, stamp=find_stamp(text))
        self.rows[name].metric(line, "loss", 1.0, step)

    def table(self, name: str, host: str | None, times: list[float], busy: list[bool], **more: list[int]) -> None:
        self.file(name, "gpu", host)
        self.rows[name].samples.append(
            pl.DataFrame(
                {
                    "local": times,
                    "form": ["iso/."] * len(times),
                    "line": list(range(2, len(times) + 2)),
                    "memory_used": [70_000.0 if b else 3.0 for b in busy],
                    "utilization": [97.0 if b else 0.0 for b in busy],
                    **more,
                }
            )
        )

    def clocks(self, zone: str | None = None) -> Clocks:
        return align(self.rows, self.files, zone)


def training(case: Case, start: str = "2025-06-12 09:30:00", steps: int = 60, name: str = "train.log") -> float:
    """A training log in a UTC container, a step every 10 seconds; gives the time of its last line."""
    case.file(name)
    first = at(start)
    for number in range(steps):
        stamp = datetime.fromtimestamp(first + 10 * number, UTC).strftime("%Y-%m-%d %H:%M:%S")
        case.step(name, f"[{stamp},000] [INFO] step {number} loss 1.0", number)
    return first + 10 * (steps - 1)


def time_of(clocks: Clocks, case: Case, name: str, number: int) -> float | None:
    stamp = find_stamp(case.lines[name][number - 1])
    assert stamp is not None
    return clocks.time(name, stamp, number)


def wall(seconds: float, pattern: str = "%Y-%m-%dT%H:%M:%S") -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(pattern)


def test_reference_is_the_log_with_metrics() -> None:
    case = Case()
    end = training(case)
    case.file("launcher.log")
    case.add("launcher.log", "W0612 09:29:55.000000 11 torch/distributed/run.py:793] x")
    clocks = case.clocks()
    assert clocks.reference == ("train.log", "iso,")
    assert clocks.of("train.log").basis == "reference"  # type: ignore[union-attr]
    assert clocks.of("launcher.log").offset_s == 0  # type: ignore[union-attr]
    assert time_of(clocks, case, "train.log", 60) == end
    # The year of glog stamps comes from the dated log beside.
    assert time_of(clocks, case, "launcher.log", 1) == at("2025-06-12 09:29:55")


def test_zone_in_the_text_against_a_utc_container() -> None:
    case = Case()
    end = training(case)
    case.add("train.log", f"[{wall(end + 2, '%Y-%m-%d %H:%M:%S')},000] [ERROR] CUDA error (pid: 4711)", "exit", "error", pid=4711)
    case.file("dmesg.txt", "kernel", "node-1")
    case.add("dmesg.txt", f"{wall(end + 7200)},500000+02:00 NVRM: Xid (PCI:0000:2a:00): 94, pid=4711", "xid", "error", pid=4711)
    clocks = case.clocks()
    assert clocks.of("dmesg.txt").offset_s == pytest.approx(7200)  # type: ignore[union-attr]
    assert time_of(clocks, case, "dmesg.txt", 1) == pytest.approx(end + 0.5)


def test_zone_in_the_text_against_a_container_in_the_same_zone() -> None:
    case = Case()
    end = training(case)
    case.add("train.log", f"[{wall(end + 2, '%Y-%m-%d %H:%M:%S')},000] [ERROR] CUDA error (pid: 4711)", "exit", "error", pid=4711)
    case.file("dmesg.txt", "kernel", "node-1")
    case.add("dmesg.txt", f"{wall(end)},500000+02:00 NVRM: Xid (PCI:0000:2a:00): 94, pid=4711", "xid", "error", pid=4711)
    assert case.clocks().of("dmesg.txt").offset_s == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("hours", [-8, -5, 0, 1, 5.5, 9])
def test_gpu_table_finds_the_zone_by_busy_and_idle(hours: float) -> None:
    case = Case()
    end = training(case, steps=360)
    start = at("2025-06-12 09:30:00")
    times = [start - 300 + 5 * n + hours * 3600 for n in range(int((end - start + 900) / 5))]
    busy = [start + 20 <= t - hours * 3600 <= end + 3 for t in times]
    case.table("gpu.csv", "node-1", times, busy)
    clock = case.clocks().of("gpu.csv")
    assert clock is not None
    assert (clock.offset_s, clock.basis) == (hours * 3600, "events")
    assert clock.certain


def test_nothing_told_is_said() -> None:
    case = Case()
    end = training(case)
    case.file("syslog", "kernel", "node-1")
    case.add("syslog", f"{wall(end, '%b %d %H:%M:%S')} node-1 kernel: docker0: port 2 entered forwarding state")
    clocks = case.clocks()
    clock = clocks.of("syslog")
    assert clock is not None
    assert (clock.offset_s, clock.basis, clock.certain) == (0, "assumed", False)
    assert not clocks.order_is_certain("syslog", "train.log", 30)
    assert clocks.order_is_certain("train.log", "train.log", 0.1)


def test_drift_is_taken_from_epochs_near_the_crash() -> None:
    case = Case()
    end = training(case)
    case.file("dmesg.txt", "kernel", "node-1")
    month = 30 * 86_400
    # dmesg -T in UTC-5 that lags by 43 seconds after a month; one epoch of a restored snapshot is far off.
    for back, drift in ((month, 0), (month / 2, -20), (3000, -43), (1000, -43), (100, -43)):
        true = end - back
        case.add("dmesg.txt", f"[{wall(true - 18_000 + drift, '%a %b %d %H:%M:%S %Y')}] audit: type=1400 audit({true:.3f}:1): x")
    case.add("dmesg.txt", f"[{wall(end - 90 - 18_000 - 43, '%a %b %d %H:%M:%S %Y')}] audit: type=1400 audit({end - 900_000:.3f}:1): x")
    case.add("dmesg.txt", f"[{wall(end - 60 - 18_000 - 43, '%a %b %d %H:%M:%S %Y')}] audit: type=1400 audit({end - 60:.3f}:1): x")
    case.add(
        "dmesg.txt", f"[{wall(end - 18_000 - 43, '%a %b %d %H:%M:%S %Y')}] NVRM: Xid (PCI:0000:2a:00): 79, pid=77", "xid", "error", pid=77
    )
    case.add("train.log", f"[{wall(end + 3, '%Y-%m-%d %H:%M:%S')},000] exitcode -6 (pid: 77)", "exit", "error", pid=77)
    clocks = case.clocks()
    clock = clocks.of("dmesg.txt")
    assert clock is not None
    assert clock.basis == "audit"
    assert clock.offset_s == pytest.approx(-18_043, abs=1)
    assert time_of(clocks, case, "dmesg.txt", 8) == pytest.approx(end, abs=1)
    # A month earlier the same log was right.
    assert time_of(clocks, case, "dmesg.txt", 1) == pytest.approx(end - month, abs=1)


def test_raw_kernel_log_by_epochs() -> None:
    case = Case()
    end = training(case)
    boot = end - 500_000.25
    case.file("dmesg.txt", "kernel", "node-1")
    for back in (7000, 900, 30):
        case.add("dmesg.txt", f"[{end - back - boot:.6f}] audit: type=1400 audit({end - back:.3f}:1): x")
    case.add("dmesg.txt", f"[{end - boot:.6f}] NVRM: Xid (PCI:0000:2a:00): 79, pid=77", "xid", "error", pid=77)
    clocks = case.clocks()
    clock = clocks.of("dmesg.txt")
    assert clock is not None
    assert clock.offset_s is None
    assert datetime.fromisoformat(clock.zero or "").timestamp() == pytest.approx(boot, abs=0.01)
    assert time_of(clocks, case, "dmesg.txt", 4) == pytest.approx(end, abs=0.01)


def test_raw_kernel_log_by_a_killed_process() -> None:
    case = Case()
    end = training(case)
    case.add("train.log", f"[{wall(end + 1, '%Y-%m-%d %H:%M:%S')},000] exitcode: -9 (pid: 4711)", "exit", "error", pid=4711)
    case.file("dmesg.txt", "kernel", "node-1")
    case.add("dmesg.txt", "[90000.000000] Killed process 4711 (python)", "oom_kill", "error", pid=4711)
    clocks = case.clocks()
    clock = clocks.of("dmesg.txt")
    assert clock is not None
    assert clock.basis == "events"
    assert time_of(clocks, case, "dmesg.txt", 1) == pytest.approx(end + 1, abs=2)


def test_several_boots_in_one_kernel_log() -> None:
    case = Case()
    end = training(case)
    case.file("kern.log", "kernel", "node-1")
    first, second = end - 90_000, end - 3000
    case.add("kern.log", f"[    5.000000] audit: type=1400 audit({first + 5:.3f}:1): x")
    case.add("kern.log", "[80000.000000] NVRM: Xid (PCI:0000:2a:00): 79", "xid", "error")
    case.add("kern.log", "[    0.000000] Linux version 6.5.0-1024-nvidia (gcc)")
    case.add("kern.log", f"[    4.000000] audit: type=1400 audit({second + 4:.3f}:1): x")
    case.add("kern.log", "[ 2999.000000] NVRM: Xid (PCI:0000:2a:00): 31", "xid", "error")
    clocks = case.clocks()
    assert time_of(clocks, case, "kern.log", 2) == pytest.approx(first + 80_000, abs=0.1)
    assert time_of(clocks, case, "kern.log", 5) == pytest.approx(second + 2999, abs=0.1)
    assert len(clocks.offset_table("kern.log", "mono")) == 2


def test_a_date_beside_the_log_tells_the_host_zone() -> None:
    case = Case()
    case.file("slurm.err")
    case.add("slurm.err", "W0302 12:25:40.305000 1390 torch/distributed/run.py:779] x")
    case.add("slurm.err", "Job 765745 on node-1 started at Sun Mar  2 20:25:40 2025")
    case.add("slurm.err", "W0302 12:25:40.371000 1390 torch/distributed/run.py:779] x")
    training(case, "2025-03-02 12:26:00")
    clocks = case.clocks()
    assert time_of(clocks, case, "slurm.err", 2) == pytest.approx(at("2025-03-02 12:25:40"), abs=2)


def test_new_year_in_a_yearless_log() -> None:
    case = Case()
    case.file("train.log", modified=at("2025-01-01 00:20:00"))
    for text in ("E1231 23:58:00.000000 1 a.py:1] x", "E1231 23:59:59.000000 1 a.py:1] x", "E0101 00:00:04.000000 1 a.py:1] x"):
        case.add("train.log", text)
    clocks = case.clocks()
    assert [time_of(clocks, case, "train.log", n) for n in (1, 2, 3)] == [
        at("2024-12-31 23:58:00"),
        at("2024-12-31 23:59:59"),
        at("2025-01-01 00:00:04"),
    ]


def test_user_zone_makes_the_axis_utc() -> None:
    case = Case()
    end = training(case)
    clocks = case.clocks("Asia/Shanghai")
    assert time_of(clocks, case, "train.log", 60) == end - 28_800
    assert clocks.iso(end - 28_800).startswith("2025-06-12T09:39:50")
    assert clocks.iso(0).endswith("+08:00")
    assert case.clocks("No/Such").zone is None


def test_other_hosts_are_aligned_by_their_steps() -> None:
    case = Case()
    end = training(case, name="node-1.log")
    case.files["node-1.log"].host = "node-1"
    first = at("2025-06-12 09:30:00") + 185
    case.file("node-2.log", host="node-2")
    for number in range(50):
        case.step("node-2.log", f"[{wall(first + 10 * number, '%Y-%m-%d %H:%M:%S')},000] [INFO] step {number} loss 1.0", number)
    clocks = case.clocks()
    clock = clocks.of("node-2.log")
    assert clock is not None
    assert (clock.offset_s, clock.basis) == (185, "events")
    assert time_of(clocks, case, "node-2.log", 50) == end - 100


def test_a_later_attempt_repeats_steps_but_is_no_skew() -> None:
    case = Case()
    training(case, name="node-1.log", steps=100)
    case.files["node-1.log"].host = "node-1"
    case.file("node-2.log", host="node-2")
    first = at("2025-06-12 09:30:00") + 5000
    for number in range(50, 90):
        case.step("node-2.log", f"[{wall(first + 7 * number, '%Y-%m-%d %H:%M:%S')},000] [INFO] step {number} loss 1.0", number)
    assert case.clocks().of("node-2.log").offset_s == 0  # type: ignore[union-attr]


def test_corrections_and_the_end_of_daylight_saving() -> None:
    base = at("2024-11-03 01:50:00")  # a Sunday
    local = [base, base + 500, base + 590, base - 3600 + 610, base - 3600 + 900]
    assert dates.unfold(local) == [base - 3600, base - 3100, base - 3010, base - 2990, base - 2700]
    weekday = [value + 86_400 for value in local]
    assert dates.unfold(weekday) == weekday
    assert dates.corrected([0.0, 100.0, 50.0, 60.0]) == ([-50.0, 50.0, 50.0, 60.0], 50.0)
    shuffled = [0.0, 100.0, 50.0, 90.0, 40.0, 80.0, 30.0]
    assert dates.corrected(shuffled) == (shuffled, 0.0)


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (["12/09/24 23:58:00", "13/09/24 00:01:00", "13/09/24 09:00:00"], "2024-09-12 23:58:00"),  # day first
        (["12/09/24 23:58:00", "12/10/24 00:01:00"], "2024-12-09 23:58:00"),  # month first: rich's default
        (["25/06/12 23:58:00", "25/06/13 00:01:00"], "2025-06-12 23:58:00"),  # year first: log4j of Spark
        (["25/06/12 09:58:00", "25/06/12 10:01:00"], "2025-06-12 09:58:00"),
        (["03/04/2025 09:58:00", "03/04/2025 10:01:00"], "2025-03-04 09:58:00"),
    ],
)
def test_order_of_day_and_month_is_settled_by_the_whole_file(texts: list[str], first: str) -> None:
    case = Case()
    case.file("train.log")
    for text in texts:
        case.add("train.log", f"[{text}] INFO x")
    assert time_of(case.clocks(), case, "train.log", 1) == at(first)


def test_order_of_day_and_month_by_another_file() -> None:
    case = Case()
    training(case, "2025-04-03 09:50:00")
    case.file("other.log")
    case.add("other.log", "03/04/2025 09:58:00 INFO x")
    assert time_of(case.clocks(), case, "other.log", 1) == at("2025-04-03 09:58:00")


def test_leap_days() -> None:
    assert dates.in_year(at("2000-02-28 12:00:00"), 2025) == at("2025-02-28 12:00:00")
    assert dates.in_year(at("2000-03-01 12:00:00"), 2025) == at("2025-03-01 12:00:00")
    assert dates.in_year(at("2000-03-01 12:00:00"), 2024) == at("2024-03-01 12:00:00")


def test_no_clock_at_all() -> None:
    case = Case()
    case.file("train.log")
    case.add("train.log", "step 1 loss 2")
    clocks = case.clocks()
    assert clocks.list == []
    assert clocks.time("train.log", None, 1) is None
    assert clocks.offset_table("x", "iso") == []


LINES = st.sampled_from(
    [
        "[Sun Nov 29 09:33:00 2026] x",
        "E1231 23:58:00.000000 1 a.py:1] x",
        "[1.000000] Linux version 6.5",
        "[99999.000000] audit(1698171004.649:2): x",
        "2026-11-29T09:33:00+05:30 h kernel: [5.000000] x",
        "Jan  1 00:00:00 h kernel: audit(1698171004.649:2): x",
        "9999999999 x",
        "[  0.5] x",
        "2199-12-31 23:59:59 x",
        "1970-01-01 00:00:00 x",
        "no stamp",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a.log", "b.txt", "c/dmesg"]), LINES, st.integers(1, 10_000)), max_size=25))
def test_any_mixture_is_placed_or_left(items: list[tuple[str, str, int]]) -> None:
    case = Case()
    for name, text, number in items:
        case.file(name, "kernel" if "dmesg" in name else "train")
        case.add(name, text, "xid" if number % 2 else "exit", "error", number=number, pid=number % 5)
    clocks = case.clocks()
    for rows in case.rows.values():
        for event in rows.events:
            if event.stamp is not None:
                assert clocks.time(event.source, event.stamp, event.line) is not None
    for clock in clocks.list:
        assert clock.uncertainty_s >= 0
        assert clock.offset_s is not None or clock.zero
