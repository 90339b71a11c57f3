"""From log texts to findings on communication, through the real reader and engine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from forensics import engine, evidence, knowledge
from forensics.reading import Reader
from forensics.run import Run
from rules.base import Finding


@cache
def reader() -> Reader:
    return Reader(knowledge.load(()).signatures)


def judged(tmp_path: Path, files: dict[str, str]) -> tuple[Run, list[Finding]]:
    folder = tmp_path / "run"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with evidence.gather(folder) as found:
        run = reader().read(found, None, None)
        return run, engine.judge(run, knowledge.load(()))


def rule(findings: list[Finding], name: str) -> Finding:
    return next(f for f in findings if f.rule == name and f.outcome == "found")


def rules(findings: list[Finding]) -> set[str]:
    return {f.rule for f in findings if f.outcome == "found"}


STEPS = "".join(f"2026-03-01 10:00:{n:02d},000 INFO step {n} loss: {2.5 - 0.01 * n:.4f} lr: 0.001\n" for n in range(1, 20))


def watchdog(
    rank: int, seq: int = 500, op: str = "ALLREDUCE", size: int = 4194304, clock: str = "10:10:20", enqueued: int | None = None
) -> str:
    """Rank's report as torch 2.6 prints it: 600 s after it entered the collective."""
    head = f"[rank{rank}]:[E301 {clock}.{100000000 + rank} ProcessGroupNCCL.cpp"
    return (
        f"{head}:632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600005 milliseconds before timing out.\n"
        f"{head}:2271] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued or seq}, last completed work: {seq - 1}\n"
    )


def test_the_silent_rank_is_the_suspect(tmp_path: Path) -> None:
    run, found = judged(tmp_path, {"train.log": STEPS + "".join(watchdog(r) for r in (0, 1, 3, 4, 5, 6, 7))})
    finding = rule(found, "collective-timeout-missing")
    assert finding.ranks == [2]
    assert (finding.cause, finding.role) == ("comms/collective-timeout", "consequence")
    assert finding.facts["left_at"] is not None
    assert run.last_progress is not None
    assert abs(finding.facts["left_at"] - run.last_progress) < 3


def test_the_rank_with_fewest_enqueued_is_the_suspect(tmp_path: Path) -> None:
    text = "".join(watchdog(r, enqueued=504) for r in range(7)) + watchdog(7, enqueued=500)
    _, found = judged(tmp_path, {"train.log": STEPS + text})
    assert rule(found, "collective-timeout-missing").ranks == [7]


def test_when_all_report_nobody_is_accused(tmp_path: Path) -> None:
    _, found = judged(tmp_path, {"train.log": STEPS + "".join(watchdog(r) for r in range(8))})
    assert rule(found, "collective-timeout").ranks == []
    assert "collective-timeout-missing" not in rules(found)


def test_another_operation_under_the_same_number_is_a_mismatch(tmp_path: Path) -> None:
    _, found = judged(
        tmp_path, {"train.log": STEPS + "".join(watchdog(r) for r in (0, 1, 2)) + watchdog(3, op="_ALLGATHER_BASE", size=513_000)}
    )
    finding = rule(found, "collective-mismatch")
    assert (finding.cause, finding.ranks) == ("comms/collective-mismatch", [3])
    assert "[rank3]" in finding.evidence[0].text or finding.evidence[0].line > 20


def test_sizes_of_uneven_operations_are_no_mismatch(tmp_path: Path) -> None:
    text = "".join(watchdog(r, op="ALLTOALL_BASE", size=1_000_000 + r) for r in range(4))
    _, found = judged(tmp_path, {"train.log": STEPS + text})
    assert "collective-mismatch" not in rules(found)


def test_a_rank_ahead_in_another_operation_is_out_of_order(tmp_path: Path) -> None:
    _, found = judged(tmp_path, {"train.log": STEPS + "".join(watchdog(r, op="BROADCAST") for r in (1, 2, 3)) + watchdog(0, seq=502)})
    assert rule(found, "collective-order").ranks == [0]


def test_waiting_at_a_barrier_while_the_rest_step_means_uneven_batches(tmp_path: Path) -> None:
    _, found = judged(
        tmp_path, {"train.log": STEPS + "".join(watchdog(r) for r in (0, 1, 2, 4, 5, 6, 7)) + watchdog(3, op="BARRIER", size=1)}
    )
    finding = rule(found, "uneven-batches")
    assert (finding.cause, finding.ranks) == ("data/uneven-batches", [3])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("2026-03-01 10:00:19,500 INFO [rank 0] Saving checkpoint to /ckpt/step-19\n", "training/checkpoint-save"),
        ("2026-03-01 10:00:19,500 INFO [rank 0] running validation suite\n", "training/evaluation-stall"),
        ("2026-03-01 10:00:19,500 INFO [rank 0] Tokenizing the next shard\n", "data/preprocessing-timeout"),
    ],
)
def test_a_rank_busy_with_other_work_is_blamed_for_that_work(tmp_path: Path, line: str, cause: str) -> None:
    _, found = judged(tmp_path, {"train.log": STEPS + line + "".join(watchdog(r) for r in range(1, 8))})
    finding = rule(found, "busy-rank")
    assert (finding.cause, finding.rank) == (cause, 0)
    assert finding.time is not None


def test_work_that_ended_before_is_not_blamed(tmp_path: Path) -> None:
    done = (
        "2026-03-01 10:00:19,300 INFO [rank 0] Saving checkpoint to /ckpt/step-19\n2026-03-01 10:00:19,600 INFO [rank 0] Checkpoint saved\n"
    )
    _, found = judged(tmp_path, {"train.log": STEPS + done + "".join(watchdog(r) for r in range(1, 8))})
    assert "busy-rank" not in rules(found)


def test_a_rank_that_waits_itself_was_not_busy(tmp_path: Path) -> None:
    line = "2026-03-01 10:00:19,500 INFO [rank 0] Saving checkpoint to /ckpt/step-19\n"
    _, found = judged(tmp_path, {"train.log": STEPS + line + "".join(watchdog(r) for r in range(8))})
    assert "busy-rank" not in rules(found)


def test_gloo_accuses_the_rank_that_found_its_peers_gone(tmp_path: Path) -> None:
    late = "[rank{}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 15000ms for send operation to complete\n"
    gone = "[rank3]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4771\n"
    _, found = judged(tmp_path, {"train.log": STEPS + "".join(late.format(r) for r in (0, 1, 2)) + gone})
    assert rule(found, "gloo.timeout-missing").ranks == [3]


def test_store_barrier_names_who_is_missing(tmp_path: Path) -> None:
    line = "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: {}, key: store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)\n"
    _, found = judged(tmp_path, {"train.log": "".join(line.format(r) for r in (0, 1, 2, 3, 5, 6, 7))})
    finding = rule(found, "store.clients-missing")
    assert (finding.cause, finding.ranks) == ("comms/rendezvous-timeout", [4])


def nccl(host: str, peer: str) -> str:
    return f"\n{host}:21:29 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer {peer}<41233> with error 12, opcode 0, len 0, vendor err 129\n"


def test_the_peer_that_many_hosts_complain_of_is_accused(tmp_path: Path) -> None:
    text = "".join(f"node-{i}:2{i}:3 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{i}<0>\n" for i in range(1, 5))
    text += "".join(nccl(f"node-{i}", "10.0.0.4") for i in range(1, 4))
    _, found = judged(tmp_path, {"nccl.log": text})
    finding = rule(found, "nccl.ib-completion")
    assert (finding.cause, finding.host) == ("comms/ib-error", "node-4")


def test_a_port_that_flapped_in_a_run_that_finished_accuses_nobody(tmp_path: Path) -> None:
    flap = "node-1:21:29 [0] NCCL INFO NET/IB : mlx5_0:1 Got async event : port error\n"
    _, found = judged(tmp_path, {"train.log": STEPS, "nccl.log": flap})
    assert rule(found, "nccl.ib-port").role == "precursor"
    _, hurt = judged(tmp_path / "b", {"train.log": STEPS + watchdog(0) + watchdog(1), "nccl.log": flap})
    finding = rule(hurt, "nccl.ib-port")
    assert (finding.role, finding.host) == ("root", "node-1")


def test_the_odd_nccl_version_is_that_named_second(tmp_path: Path) -> None:
    text = "n0:1:1 [0] init.cc:1021 NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 8 version 22105\n"
    _, found = judged(tmp_path, {"nccl.log": text})
    assert rule(found, "nccl.version").ranks == [8]


def test_ecc_behind_the_watchdog_is_hardware(tmp_path: Path) -> None:
    text = "[rank5]:[E301 10:00:21.1 ProcessGroupNCCL.cpp:1182] [Rank 5] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n"
    _, found = judged(tmp_path, {"train.log": STEPS + text})
    finding = rule(found, "watchdog-end-ecc")
    assert (finding.cause, finding.role, finding.rank) == ("infra/gpu-ecc-uncorrectable", "root", 5)


def test_a_timeout_after_which_training_went_on_is_not_the_failure(tmp_path: Path) -> None:
    later = "".join(f"2026-03-01 11:00:{n:02d},000 INFO step {n} loss: {2.5 - 0.01 * n:.4f} lr: 0.001\n" for n in range(20, 50))
    _, found = judged(tmp_path, {"train.log": STEPS + watchdog(0) + watchdog(1) + later})
    assert not {"collective-timeout", "collective-timeout-missing"} & rules(found)


def test_the_rank_whose_own_time_grows_is_the_straggler(tmp_path: Path) -> None:
    rows = [
        f"2026-03-01 10:{n:02d}:{r:02d},000 [rank {r}] INFO step {n} loss 2.{n:02d} data_time {0.01 if r != 2 or n < 6 else n * 0.8:.2f}s step_time {0.5 if n < 6 else n * 0.8 + 0.5:.2f}s\n"
        for n in range(1, 13)
        for r in range(4)
    ]
    _, found = judged(tmp_path, {"train.log": "".join(rows)})
    finding = rule(found, "straggler-own-time")
    assert finding.ranks == [2]
    assert finding.evidence[0].line == 5 * 4 + 3


def test_even_ranks_have_no_straggler(tmp_path: Path) -> None:
    rows = [
        f"2026-03-01 10:{n:02d}:{r:02d},000 [rank {r}] INFO step {n} loss 2.{n:02d} data_time {0.2 + 0.01 * r:.2f}s step_time 0.90s\n"
        for n in range(1, 13)
        for r in range(4)
    ]
    _, found = judged(tmp_path, {"train.log": "".join(rows)})
    assert "straggler-own-time" not in rules(found)


def test_every_rule_has_words_in_both_languages() -> None:
    words = knowledge.load(()).words
    from rules import collectives, nccl_messages

    names = {f"nccl.{name}" for name in nccl_messages.CAUSES} | {f"watchdog-end-{name}" for name in collectives._ENDS}
    names |= {
        "collective-timeout",
        "collective-timeout-missing",
        "collective-mismatch",
        "collective-order",
        "busy-rank",
        "uneven-batches",
        "straggler-own-time",
    }
    assert [
        n for n in sorted(names) if not all(words.get(n, {}).get(part, {}).get(lang) for part in ("title", "why") for lang in ("en", "zh"))
    ] == []
