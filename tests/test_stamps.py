"""Stamps: every form that logs write, and what only looks like one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forensics.stamps import find_stamp, find_stamps, zone_seconds


def seconds(*parts: int, fraction: float = 0.0) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp() + fraction  # type: ignore[arg-type]


DATED = [
    # line, form, Unix seconds as UTC (zone applied where written), zone
    ("[Sun Nov 29 09:33:00 2026] NVRM: Xid", "ctime", seconds(2026, 11, 29, 9, 33), None),  # dmesg -T
    ("kern  :warn  : [Sun Nov 29 09:33:00 2026] x", "ctime", seconds(2026, 11, 29, 9, 33), None),  # dmesg -T -x
    ("2026-11-29T09:33:00,001108-08:00 x", "iso-t,-zone", seconds(2026, 11, 29, 17, 33, fraction=0.001108), -28800.0),
    ("Sun 2026-11-29 09:33:00 PST host kernel: x", "iso-zone", seconds(2026, 11, 29, 17, 33), -28800.0),  # journalctl short-full
    ("2025-01-06T15:04:05+0100 host kernel: x", "iso-t-zone", seconds(2025, 1, 6, 14, 4, 5), 3600.0),  # short-iso before systemd 255
    ("<6>1 2025-01-06T15:04:05.123Z host kernel - - - x", "iso-t.-zone", seconds(2025, 1, 6, 15, 4, 5, fraction=0.123), 0.0),
    (
        "192.0.2.1: kern: warning: [2026-04-22T21:27:51.291660856Z]: NVRM: x",
        "iso-t.-zone",
        seconds(2026, 4, 22, 21, 27, 51, fraction=0.291661),
        0.0,
    ),
    ("2025-06-12T09:30:00.188123456Z stdout F step 1", "iso-t.-zone", seconds(2025, 6, 12, 9, 30, fraction=0.188123), 0.0),  # CRI
    ("2026/07/14 08:12:38.696, 0, 97 %", "iso/.", seconds(2026, 7, 14, 8, 12, 38, fraction=0.696), None),  # nvidia-smi CSV
    ("Tue Jul 14 08:12:38 2026", "ctime", seconds(2026, 7, 14, 8, 12, 38), None),
    ("Thu Jun 12 09:30:00 UTC 2025", "ctime-zone", seconds(2025, 6, 12, 9, 30), 0.0),  # date(1)
    ("[2025-01-06T15:04:05.123] error: x", "iso-t.", seconds(2025, 1, 6, 15, 4, 5, fraction=0.123), None),  # slurmctld
    ("[Feb 25 2025 13:59:45] [ERROR] [tid 12727] x", "dayname", seconds(2025, 2, 25, 13, 59, 45), None),  # fabricmanager
    ("  time      : 2023-09-04_12:12:41", "iso-elastic", seconds(2023, 9, 4, 12, 12, 41), None),  # torchelastic
    ("[2025-06-12 09:30:12,347] [INFO] x", "iso,", seconds(2025, 6, 12, 9, 30, 12, fraction=0.347), None),
    ("[2026-11-29 18:05:48,516 I 5128 5128] (raylet) main.cc:283: x", "iso,", seconds(2026, 11, 29, 18, 5, 48, fraction=0.516), None),
    ("[2025-06-12 09:41:02] node-1:12:13 [0] transport/net.cc:3 NCCL WARN x", "iso", seconds(2025, 6, 12, 9, 41, 2), None),  # NCCL 2.26
    ("2026-11-29 18:00:49.646 | INFO     | __main__:<module>:3 - x", "iso.", seconds(2026, 11, 29, 18, 0, 49, fraction=0.646), None),
    ("06/12/2025 09:30:00 - INFO - __main__ - x", "us", seconds(2025, 6, 12, 9, 30), None),
    ("[11/29/26 18:00:49] INFO     x", "us2", seconds(2026, 11, 29, 18, 0, 49), None),  # rich
    ("29.11.2026 18:00:49 x", "dmy.", seconds(2026, 11, 29, 18, 0, 49), None),
    ("29.11.2026 18:00:49 x", "dmy.", seconds(2026, 11, 29, 18, 0, 49), None),
    ("25/06/12 09:30:12 INFO TaskSetManager: x", "spark", seconds(2025, 6, 12, 9, 30, 12), None),
    ("11/29/2026 3:05:12 PM x", "us", seconds(2026, 11, 29, 15, 5, 12), None),
    ("11/29/2026 12:05:12 AM x", "us", seconds(2026, 11, 29, 0, 5, 12), None),
    ("2026年11月29日 下午 3:05:12 x", "cjk", seconds(2026, 11, 29, 15, 5, 12), None),
    ("[29/Nov/2026:09:33:00 +0000] GET /", "rfc2822-zone", seconds(2026, 11, 29, 9, 33), 0.0),
    ("Thu Jun 12 09:30:00 2025[1,0]<stdout>:step 15", "ctime", seconds(2025, 6, 12, 9, 30), None),  # Open MPI 4.1
    ("[日 11月 29 09:33:00 2026] x", "ctime", seconds(2026, 11, 29, 9, 33), None),  # dmesg -T, Japanese
    ("[dim. nov. 29 09:33:00 2026] x", "ctime", seconds(2026, 11, 29, 9, 33), None),
    ("1736175845.123456 host kernel: x", "epoch", seconds(2025, 1, 6, 15, 4, 5, fraction=0.123456), 0.0),  # short-unix
    (" 23%|██▎ | 451/2000 [01:12<04:07, 6.2it/s]2025-06-12 09:30:12 ERROR x", "iso", seconds(2025, 6, 12, 9, 30, 12), None),  # torn line
    (
        "slurmstepd-vm: error: *** JOB 1 ON vm CANCELLED AT 2026-11-29T18:01:04 DUE TO TIME LIMIT ***",
        "iso-t~",
        seconds(2026, 11, 29, 18, 1, 4),
        None,
    ),
]


@pytest.mark.parametrize(("line", "form", "when", "zone"), DATED, ids=[row[1] + str(n) for n, row in enumerate(DATED)])
def test_dated(line: str, form: str, when: float, zone: float | None) -> None:
    stamp = find_stamp(line)
    assert stamp is not None
    assert (stamp.form, stamp.zone, stamp.yearless, stamp.mono) == (form, zone, False, False)
    assert stamp.seconds == pytest.approx(when, abs=2e-6)


YEARLESS = [
    ("[rank1]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] x", "c10", (12, 6, 18, 44, 12)),
    ("[rank1]:[E813 18:44:12.715298746 ProcessGroupNCCL.cpp:607] x", "c10", (8, 13, 18, 44, 12)),
    ("[W106 01:02:03.715298746 socket.cpp:1] x", "c10", (1, 6, 1, 2, 3)),
    ("E1129 17:47:12.374000 28565 torch/distributed/elastic/multiprocessing/api.py:1002] failed", "glog", (11, 29, 17, 47, 12)),
    ("I0106 18:00:49.689592 140005913824128 logfmt.py:8] msg", "glog", (1, 6, 18, 0, 49)),
    ("INFO 06-12 09:30:00 [core.py:1] x", "md-", (6, 12, 9, 30, 0)),
    ("06/12 09:30:00 - mmengine - INFO - x", "md/", (6, 12, 9, 30, 0)),
    ("Jul 23 13:42:46 host kernel: [ 4015.437442] NVRM: x", "syslog", (7, 23, 13, 42, 46)),
    ("Jul  3 13:42:46 host kernel: x", "syslog", (7, 3, 13, 42, 46)),
    ("août 25 19:38:05 fujitsu kernel: x", "syslog", (8, 25, 19, 38, 5)),
    ("Mär 02 19:38:05 h kernel: x", "syslog", (3, 2, 19, 38, 5)),
    ("10月 02 19:38:05 h kernel: x", "syslog", (10, 2, 19, 38, 5)),
    ("Feb 29 19:38:05 h kernel: x", "syslog", (2, 29, 19, 38, 5)),
    ("[Nov29 09:33] x", "minute", (11, 29, 9, 33, 0)),  # dmesg -H
]


@pytest.mark.parametrize(("line", "form", "parts"), YEARLESS)
def test_yearless_is_read_in_2000(line: str, form: str, parts: tuple[int, ...]) -> None:
    stamp = find_stamp(line)
    assert stamp is not None
    assert (stamp.form, stamp.yearless, stamp.zone) == (form, True, None)
    assert int(stamp.seconds) == seconds(2000, *parts)


@pytest.mark.parametrize(
    ("line", "form", "value"),
    [
        ("[12345.678901] NVRM: Xid", "mono", 12345.678901),
        ("[12345.678901][ T1234] x", "mono", 12345.678901),
        ("<6>[    0.000000] Linux version 6.5", "mono", 0.0),
        ("kern  :info  : [    0.001108] x", "mono", 0.001108),
        ("[    0.001108 <    0.000033>] x", "mono", 0.001108),
        ("6,1,250,-;Command line:", "kmsg", 0.00025),
        ("6,1,1108000,c,caller=T12;x", "kmsg", 1.108),
        # The date in the body is not the line's own time.
        ("[    7.1] x [    7.250000] y", None, None),
        ("[    7.250000] rtc_cmos 00:02: setting system clock to 2023-10-24T18:10:04 UTC (1698171004)", "mono", 7.25),
    ],
)
def test_since_boot(line: str, form: str | None, value: float | None) -> None:
    stamp = find_stamp(line)
    if form is None:
        assert stamp is None
    else:
        assert stamp is not None
        assert (stamp.form, stamp.mono) == (form, True)
        assert stamp.seconds == pytest.approx(value)


@pytest.mark.parametrize(
    "line",
    [
        " 23%|██▎ | 451/2000 [01:12<04:07,  6.24it/s, loss=1.2]",
        "version 1.2.3 at 10.0.0.1:29500 ratio 3:45",
        "2025-02-30 10:00:00 no such day",
        "2025-13-01 10:00:00 no such month",
        "2025-06-12 25:00:00 no such hour",
        "[rank0]:[E1332 18:44:12.715298746 x.cpp:1] no such month",
        "resumed at step 12 10:30:00",
        "ETA: 1 day, 3:22:11",
        "elapsed 12:30:45.123",
        "[  +0.000033] x",
        "{'loss': 0.39, 'epoch': 0.12}",
        "layer 12 10:00",
        "worker 3 10:00:00",
        "[1234567] x",
        "Epoch 10-12 of 20",
        "",
    ],
)
def test_no_stamp(line: str) -> None:
    assert find_stamp(line) is None


def test_precision_and_body_times() -> None:
    line = "Jul 23 13:42:46 host kernel: [ 4015.437442] audit: type=1400 audit(1698171004.649:2): x"
    forms = {stamp.form: stamp.seconds for stamp in find_stamps(line)}
    assert forms["mono"] == 4015.437442
    assert forms["audit"] == 1698171004.649
    assert find_stamp(line).form == "syslog"  # type: ignore[union-attr]
    assert find_stamp("[Nov29 09:33] x").precision == 60  # type: ignore[union-attr]
    lustre = find_stamps("[99.000001] LustreError: [sent 1736175800/real 1736175800] x")
    assert {s.form for s in lustre} == {"mono", "lustre"}
    assert "mce" in {s.form for s in find_stamps("[99.000001] mce: [Hardware Error]: PROCESSOR 0:606a6 TIME 1736175845 SOCKET 0")}


def test_zone_names() -> None:
    assert zone_seconds("+05:45") == 20_700
    assert zone_seconds("-0330") == -12_600
    assert zone_seconds("CET") == 3600
    assert zone_seconds("CST") is None  # China or Chicago
    assert zone_seconds("+99:00") is None


@given(st.text(max_size=400))
@example("1:00" * 80)
@example("[" * 300)
@example("9" * 300 + ":00")
@example("2025-01-01 " * 30)
def test_hostile_text(text: str) -> None:
    for stamp in [find_stamp(text), *find_stamps(text)]:
        assert stamp is None or abs(stamp.seconds) < 1e17


@given(st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2099, 12, 31)))
def test_round_trip(when: datetime) -> None:
    whole = when.replace(microsecond=0, tzinfo=UTC)
    for pattern in ("%Y-%m-%d %H:%M:%S", "[%a %b %d %H:%M:%S %Y] x", "%m/%d/%Y %I:%M:%S %p", "%Y/%m/%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"):
        stamp = find_stamp(whole.strftime(pattern))
        assert stamp is not None
        assert stamp.seconds == whole.timestamp()
