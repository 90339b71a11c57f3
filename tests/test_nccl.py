"""NCCL's log lines over its versions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_lines import feed

from parsers.nccl import PARSER, PER_CLASS, classify, pci_address


def events(text: str, kind: str) -> list:
    return [e for e in feed(PARSER, text).events if e.kind == kind]


@pytest.mark.parametrize(
    ("line", "file", "status"),
    [
        (
            "n0:21:29 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.12<41233> with error 12, opcode 0, len 0, vendor err 129 (Recv)",
            "transport/net_ib.cc:1295",
            12,
        ),  # 2.18
        (
            "[2025-06-12 09:41:02] n0:21:29 [0] transport/net_ib.cc:2449 NCCL WARN NET/IB: Got completion from peer 10.0.0.12<41233> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_0",
            "transport/net_ib.cc:2449",
            12,
        ),  # 2.27
        (
            "[2026-06-12 09:41:02] n0:21:29 [0] net_ib/p2p.cc:449 (ncclIbTest) NCCL WARN NET/IB: Got completion from peer 10.0.0.12<41233> with status=IBV_WC_WR_FLUSH_ERR(5) opcode=IBV_WC_SEND(0)",
            "net_ib/p2p.cc:449",
            5,
        ),  # 2.30
    ],
)
def test_warn_lines_of_three_generations(line: str, file: str, status: int) -> None:
    (event,) = events(line, "nccl_warn")
    assert (event.host, event.pid, event.gpu) == ("n0", 21, "0")
    assert event.fields["class"] == "ib-completion"
    assert event.fields["file"] == file
    assert event.fields["status"] == status
    assert event.fields["peer"] == "10.0.0.12<41233>"


def test_the_rank_comes_from_the_communicator_line_not_from_the_device() -> None:
    text = (
        "n1:50:60 [3] NCCL INFO ncclCommInitRank comm 0x55d0 rank 11 nranks 16 cudaDev 3 nvmlDev 3 busId 1b000 commId 0x9a1b - Init COMPLETE\n"
        "n1:50:60 [3] NCCL INFO comm 0x77 rank 1 nranks 2 cudaDev 3 nvmlDev 3 busId 1b000 commId 0x9a1c - Init COMPLETE\n"
        "n1:50:61 [3] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer node-0<39122>\n"
    )
    (warn,) = events(text, "nccl_warn")
    assert warn.rank == 11
    assert warn.fields["class"] == "peer-closed"
    first = events(text, "nccl_comm")[0]
    assert first.fields["pci"] == "0000:1b:00.0"
    assert first.fields["cudaDev"] == 3


def test_repeated_communicator_lines_and_retry_storms_stay_few() -> None:
    comm = "n1:50:60 [3] NCCL INFO comm 0x55d0 rank 11 nranks 16 cudaDev 3 busId 1b000 - Init COMPLETE\n"
    storm = "n1:50:60 [3] NCCL INFO socketPollConnect: connect to 10.0.0.2<5000> returned Connection refused, retrying (1/34)\n"
    rows = feed(PARSER, comm * 500 + storm * 500)
    assert sum(e.kind == "nccl_comm" for e in rows.events) == 1
    assert sum(e.kind == "nccl_info" for e in rows.events) == PER_CLASS
    assert rows.notes


def test_facts_version_network_settings_and_address() -> None:
    text = (
        "NCCL version 2.18.5+cuda12.1\n"
        "n0:1:2 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
        "n0:1:2 [0] NCCL INFO Using network Socket\n"
        "n0:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.11<0>\n"
    )
    rows = feed(PARSER, text)
    facts = {key: value for key, value, _ in rows.facts}
    assert facts == {"version.nccl": "2.18.5+cuda12.1", "nccl.env.NCCL_IB_DISABLE": "1", "nccl.network": "Socket"}
    assert [e.fields["ip"] for e in rows.events if e.kind == "nccl_address"] == ["10.0.0.11"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Mismatched NCCL version detected : rank 0 version 22703 rank 8 version 22105", "version"),
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000", "duplicate-gpu"),
        ("Error: failed to extend /dev/shm/nccl-ab12 to 33030532 bytes, error: No space left on device (28)", "shm"),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "memlock"),
        ("NET/IB : mlx5_3:1 Got async event : port error", "ib-port"),
        ("Cuda failure 2 'out of memory'", "cuda-oom"),
        ("NVLS multicast support is not available on dev 0", "other"),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401", "nvls"),
    ],
)
def test_classes(text: str, name: str) -> None:
    assert classify(text) == name


def test_ordinary_info_lines_make_no_events() -> None:
    text = "n0:1:2 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA\nn0:1:2 [0] NCCL INFO Connected all rings\n"
    assert feed(PARSER, text).events == []


def test_bus_numbers() -> None:
    assert pci_address("1b000") == "0000:1b:00.0"
    assert pci_address("10000c3000") is None or pci_address("10000c3000").endswith("c3:00.0")
    assert pci_address("0000:1b:00.0") is None


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_survived(text: str) -> None:
    for head in ("n0:1:2 [0] NCCL WARN ", "NCCL version ", "comm 0x1 rank 1 nranks ", ""):
        feed(PARSER, head + text + " set by environment to")
