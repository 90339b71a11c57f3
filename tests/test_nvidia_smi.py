"""`nvidia-smi --query-gpu` as CSV: the forms it is logged in (drivers 470 to 590)."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_lines import facts, head, parse_file

from parsers import nvidia_smi
from parsers.base import Rows

PARSER = nvidia_smi.PARSER
# driver 535, `--format=csv -l 5`
HEADED = """timestamp, index, name, pci.bus_id, temperature.gpu, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], clocks.current.sm [MHz]
2026/03/14 06:17:40.101, 0, NVIDIA A100-SXM4-80GB, 00000000:07:00.0, 61, 97 %, 70011 MiB, 81920 MiB, 389.12 W, 1410 MHz
2026/03/14 06:17:40.104, 1, NVIDIA A100-SXM4-80GB, 00000000:0F:00.0, 58, 0 %, 70015 MiB, 81920 MiB, 92.40 W, 210 MHz
2026/03/14 06:17:45.101, 0, NVIDIA A100-SXM4-80GB, 00000000:07:00.0, 61, 99 %, 70013 MiB, 81920 MiB, 391.00 W, 1410 MHz
2026/03/14 06:17:45.104, 1, NVIDIA A100-SXM4-80GB, 00000000:0F:00.0, 58, 98 %, 70015 MiB, 81920 MiB, 388.70 W, 1395 MHz
"""


def read(text: str, path: str = "gpu.csv") -> tuple[Rows, list[dict[str, Any]]]:
    data = text.encode()
    assert PARSER.recognises(head(path, data)) > 0.5
    rows = parse_file(PARSER, path, data)
    table = pl.concat(rows.samples, how="diagonal_relaxed") if rows.samples else pl.DataFrame()
    return rows, table.to_dicts()


def test_header_and_units() -> None:
    rows, samples = read(HEADED)
    assert [s["line"] for s in samples] == [2, 3, 4, 5]
    first = samples[0]
    assert (first["gpu"], first["pci"], first["utilization"], first["memory_used"], first["power"], first["sm_clock"]) == (
        "0",
        "0000:07:00.0",
        97.0,
        70011.0,
        389.12,
        1410.0,
    )
    assert samples[2]["local"] - first["local"] == pytest.approx(5.0)
    assert facts(rows, "gpu.name") == ["NVIDIA A100-SXM4-80GB"]


def test_nounits_keeps_the_units_in_the_header_only() -> None:
    bare = "\n".join(
        line if number == 0 else line.replace(" %", "").replace(" MiB", "").replace(" W", "").replace(" MHz", "")
        for number, line in enumerate(HEADED.splitlines())
    )
    _, samples = read(bare)
    _, dressed = read(HEADED)
    assert [s["memory_used"] for s in samples] == [s["memory_used"] for s in dressed]
    assert [s["power"] for s in samples] == [s["power"] for s in dressed]


def test_noheader_is_told_by_its_values() -> None:
    _, samples = read(HEADED.partition("\n")[2])
    assert [(s["gpu"], s["memory_used"], s["memory_total"], s["utilization"]) for s in samples[:2]] == [
        ("0", 70011.0, 81920.0, 97.0),
        ("1", 70015.0, 81920.0, 0.0),
    ]


def test_guides_hardware_snapshot_without_a_time() -> None:
    """S1: index,name,temperature.gpu,utilization.gpu,memory.used,memory.total with noheader,nounits."""
    _, samples = read("0, NVIDIA H100 80GB HBM3, 41, 97, 79012, 81559\n1, NVIDIA H100 80GB HBM3, 39, 0, 521, 81559\n")
    assert [(s["gpu"], s["memory_used"], s["memory_total"]) for s in samples] == [("0", 79012.0, 81559.0), ("1", 521.0, 81559.0)]
    assert all(s.get("local") is None for s in samples)


def test_a_restarted_logger_writes_another_header() -> None:
    text = "timestamp, index, memory.used [MiB], utilization.gpu [%]\n2026/03/14 06:17:40.101, 0, 100 MiB, 1 %\n" + (
        "timestamp, index, utilization.gpu [%], memory.used [MiB]\n2026/03/14 06:18:40.101, 0, 2 %, 200 MiB\n"
    )
    _, samples = read(text)
    assert [(s["memory_used"], s["utilization"], s["line"]) for s in samples] == [(100.0, 1.0, 2), (200.0, 2.0, 4)]


def test_missing_values_are_null_and_no_evidence() -> None:
    text = HEADED.replace("389.12 W", "[N/A]").replace("61, 97 %", "[Not Supported], 97 %")
    rows, samples = read(text)
    assert samples[0]["power"] is None
    assert samples[0]["temperature"] is None
    assert samples[0]["status"] is None
    assert not [e for e in rows.events if e.kind == "gpu_status"]


@pytest.mark.parametrize("word", ["[GPU is lost]", "[Unknown Error]", "[GPU requires reset]"])
def test_error_words_are_evidence(word: str) -> None:
    text = (
        HEADED
        + f"2026/03/14 06:17:50.104, 1, NVIDIA A100-SXM4-80GB, 00000000:0F:00.0, {word}, {word}, {word}, 81920 MiB, {word}, {word}\n" * 3
    )
    rows, samples = read(text)
    (event,) = [e for e in rows.events if e.kind == "gpu_status"]
    assert (event.gpu, event.line, event.fields["status"]) == ("1", 6, word.strip("[]"))
    assert samples[-1]["status"] == word.strip("[]")
    assert samples[-1]["memory_used"] is None


def test_a_failed_query_inside_the_file() -> None:
    rows, samples = read(HEADED + "Unable to determine the device handle for GPU0000:0F:00.0: Unknown Error\n")
    assert len(samples) == 4
    assert [(e.kind, e.line) for e in rows.events] == [("nvml_error", 6)]


def test_flags_that_ask_for_a_reset() -> None:
    text = "timestamp, index, memory.used [MiB], remapped_rows.pending, gpu_recovery_action\n2026/07/14 08:12:38.696, 0, 10 MiB, Yes, Reset\n2026/07/14 08:12:38.696, 1, 10 MiB, No, None\n"
    rows, _ = read(text)
    assert {(e.fields["what"], e.gpu) for e in rows.events if e.kind == "gpu_health"} == {("remap_pending", "0"), ("recovery", "0")}


def test_one_column_per_reason_makes_the_mask() -> None:
    text = (
        "timestamp, index, utilization.gpu [%], clocks_throttle_reasons.hw_thermal_slowdown, clocks_throttle_reasons.sw_power_cap\n"
        "2026/07/14 08:12:38.696, 0, 99 %, Active, Active\n2026/07/14 08:12:39.696, 0, 99 %, Not Active, Active\n"
    )
    _, samples = read(text)
    assert [s["throttle"] for s in samples] == [0x44, 0x4]


@pytest.mark.parametrize(
    "text",
    [
        "step,loss,grad_norm\n1,2.31,0.5\n2,2.30,0.4\n3,2.29,0.4\n",
        "2026-03-14 06:17:40 INFO step 3, loss 2.1\n" * 5,
        "id,prompt,answer\n1,hello, world\n",
        "",
    ],
)
def test_other_files_are_not_claimed(text: str) -> None:
    assert PARSER.recognises(head("metrics.csv", text.encode())) <= 0.5


@given(st.binary(max_size=400))
def test_nothing_breaks_on_junk(junk: bytes) -> None:
    data = HEADED.encode() + junk + b"\n2026/03/14 06:17:50.104, 1"
    PARSER.recognises(head("gpu.csv", data))
    assert sum(frame.height for frame in parse_file(PARSER, "gpu.csv", data).samples) >= 4
