"""Messages of torch.distributed over its versions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_lines import feed

from parsers import activity
from parsers.process_group import PARSER

WORK = "WorkNCCL(SeqNum=78, OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, Timeout(ms)=600000) ran for 600081 milliseconds before timing out."
CAUGHT = f"Watchdog caught collective operation timeout: {WORK}"


def of(kind: str, text: str) -> list:
    return [e for e in feed(PARSER, text).events if e.kind == kind]


@pytest.mark.parametrize(
    ("head", "rank"),
    [
        ("[E ProcessGroupNCCL.cpp:821] [Rank 1] ", 1),  # torch 1.13, 2.0
        ("[rank5]:[E ProcessGroupNCCL.cpp:523] [Rank 1] ", 5),  # 2.2
        ("[rank5]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 1] ", 5),  # 2.4 on
        ("[rank1]:[rank5]:[E823 06:11:21.142554481 ProcessGroupNCCL.cpp:616] [Rank 1] ", 5),  # behind torchrun's own label
    ],
)
def test_timeout_tells_global_and_group_rank_apart(head: str, rank: int) -> None:
    (event,) = of("watchdog_timeout", head + CAUGHT)
    assert event.rank == rank
    assert event.fields["group_rank"] == 1
    assert (event.fields["seq"], event.fields["op"], event.fields["numel_in"]) == (78, "ALLREDUCE", 4194304)
    assert (event.fields["timeout_ms"], event.fields["ran_ms"]) == (600000, 600081)


def test_old_form_with_a_shape() -> None:
    (event,) = of(
        "watchdog_timeout",
        "[E ProcessGroupNCCL.cpp:737] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, TensorShape=[2, 4], Timeout(ms)=1800000) ran for 1800401 milliseconds before timing out.",
    )
    assert event.fields["op"] == "BROADCAST"
    assert event.fields["shape"] == "[2, 4]"
    assert "seq" not in event.fields


def test_the_repeats_of_one_timeout_are_one_event() -> None:
    head = "[rank1]:[E813 12:25:30.692194747 ProcessGroupNCCL.cpp:632] "
    text = f"{head}[Rank 1] {CAUGHT}\n{head}[PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: [Rank 1] {CAUGHT}\n[rank1]:  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: [Rank 1] {CAUGHT}"
    assert len(of("watchdog_timeout", text)) == 1
    assert of("watchdog_exception", text) == []


@pytest.mark.parametrize(
    "tail",
    [
        "[PG 0 (default_pg) Rank 1] Timeout at NCCL work: 78, last enqueued NCCL work: 79, last completed NCCL work: 77.",  # 2.3
        "[PG 0 (default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at work: 78, last enqueued NCCL work: 79, last completed NCCL work: 77.",  # 2.4
        "[PG ID 0 PG GUID 0(default_pg) Rank 1]  failure detected by watchdog at work sequence id: 78 PG status: last enqueued work: 79, last completed work: 77",  # 2.6
    ],
)
def test_three_wordings_of_the_progress_pair(tail: str) -> None:
    (event,) = of("pg_status", f"[rank1]:[E813 12:25:30.948355712 ProcessGroupNCCL.cpp:2271] {tail}")
    assert (event.fields["work"], event.fields["last_enqueued"], event.fields["last_completed"]) == (78, 79, 77)
    assert (event.fields["pg"], event.fields["pg_name"], event.rank) == ("0", "default_pg", 1)


def test_dump_signals_are_kept_apart() -> None:
    line = "[rank0]:[E813 12:25:31.2 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump signal due to a collective timeout from {} and we will try our best to dump the debug info. Last enqueued NCCL work: 593, last completed NCCL work: 593."
    (told,) = of("dump_signal", line.format(" rank 6"))
    assert told.fields["origin"] == 6
    (own,) = of("dump_signal", line.format("this local rank"))
    assert own.fields["origin"] == "local"
    assert of("pg_status", line.format(" rank 6")) == []


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "ecc"),
        ("CUDA error: an illegal memory access was encountered", "illegal-access"),
        ("CUDA error: device-side assert triggered", "assert"),
        ("NCCL error: remote process exited or there was a network error, NCCL version 2.18.1", "remote"),
    ],
)
def test_what_ended_the_watchdog(inner: str, name: str) -> None:
    (event,) = of(
        "watchdog_exception", f"[rank12]:[E ProcessGroupNCCL.cpp:1182] [Rank 12] NCCL watchdog thread terminated with exception: {inner}"
    )
    assert (event.rank, event.fields["class"]) == (12, name)


def test_nccl_error_takes_the_last_error_below_it() -> None:
    text = (
        "[rank2]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3353, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2\n"
        "[rank2]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "[rank2]: Last error:\n"
        "[rank2]: socketPollConnect: connect to 10.0.0.12<50821> failed : Connection refused\n"
    )
    (event,) = of("nccl_error", text)
    assert event.fields["code"] == "ncclSystemError"
    assert event.fields["class"] == "connect"
    assert "Connection refused" in event.fields["inner"]


def test_store_and_rendezvous() -> None:
    (clients,) = of(
        "store_timeout", "torch.distributed.DistStoreError: Timed out after 31 seconds waiting for clients. 1/4 clients joined."
    )
    assert (clients.fields["joined"], clients.fields["expected"]) == (1, 4)
    waiting = "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 5, key: store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)"
    (wait,) = of("store_wait", waiting)
    assert (wait.fields["waiting"], wait.fields["joined"]) == (5, 7)
    (unique,) = of(
        "unique_id",
        "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but got error: x",
    )
    assert unique.fields == {"waiting": 3, "owner": 0}
    assert (
        len(of("rendezvous_timeout", "    raise RendezvousTimeoutError\ntorch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"))
        == 1
    )
    (port,) = of(
        "eaddrinuse",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29661, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    )
    assert port.fields["port"] == 29661


def test_gloo_barrier_desync_and_fingerprints() -> None:
    (late,) = of(
        "gloo_timeout",
        "[rank0]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 15000ms for send operation to complete",
    )
    assert (late.rank, late.fields) == (0, {"ms": 15000, "direction": "send"})
    (closed,) = of("gloo_closed", "[rank3]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4771")
    assert closed.rank == 3
    (barrier,) = of("barrier_missing", "RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 30000 ms")
    assert barrier.fields["missing"] == [1, 2]
    (desync,) = of("desync", "	 - [2, 5] finished collective #77, but didn't join collective #78 (count from 1)")
    assert desync.fields == {"missing": [2, 5], "seq": 78}
    (mismatch,) = of(
        "collective_mismatch",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=21, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long, TensorDeviceTypes=TensorOptions(dtype=float)), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=21, OpType=BARRIER, TensorShape=[], TensorDtypes=Long)",
    )
    assert mismatch.fields["a"] == {"rank": 1, "seq": 21, "op": "BROADCAST", "shape": "[1]", "dtype": "Long"}
    assert mismatch.fields["b"]["op"] == "BARRIER"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "[2025-05-10 09:03:10,756] [INFO] [logging.py:128:log_dist] [Rank 0] [Torch] Checkpoint global_step700 is about to be saved!",
            ("save", "start"),
        ),
        ("Saving latest checkpoint model trained for 3 complete epochs", ("save", "start")),
        ("[INFO] [Torch] Checkpoint global_step600 is ready now!", ("save", "end")),
        ("***** Running Evaluation *****", ("evaluate", "start")),
        ("[rank 0] eval dataset 9/30 finished in 126.4s", ("evaluate", "start")),
        ("Running tokenizer on dataset (num_proc=8):  12%|█▏        | 1200/10000", ("preprocess", "start")),
        ("rank 0 开始保存模型", ("save", "start")),
        ("RuntimeError: Error while saving checkpoint", None),
        ("save_strategy: steps", None),
    ],
)
def test_what_a_line_says_the_process_is_doing(line: str, found: tuple[str, str] | None) -> None:
    assert activity.activity(line) == found


def test_a_stretch_of_work_is_two_events_at_most() -> None:
    rows = feed(activity.PARSER, "\n".join(f"[rank 0] eval dataset {i}/30 finished in 100 s" for i in range(1, 29)))
    assert [(e.line, e.rank) for e in rows.events] == [(1, 0), (28, 0)]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    for trigger in PARSER.triggers:
        feed((PARSER, activity.PARSER), f"[rank1]:[E813 12:00:00 x.cpp:1] {trigger}{text}")
