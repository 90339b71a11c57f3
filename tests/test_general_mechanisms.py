"""Whole small runs that no rule was written for: what a verdict must not be led astray by, and what it must see without being told."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest

from rules.statistics import leaves, turn
from tests.test_culprit import read


def steps(count: int, start: int = 0, minute: int = 0, seconds: int = 2, loss: float = 3.0) -> str:
    """Stamped step lines of a home-made loop with a loss that falls by one percent a step."""
    noise = Random(start + 7)
    out = []
    for i in range(start, start + count):
        at = minute * 60 + (i - start) * seconds
        value = loss * 0.99**i + noise.gauss(0, 0.01)
        out.append(
            f"[2025-05-17 09:{at // 60:02d}:{at % 60:02d},000][train][INFO] - step {i} | loss {value:.4f} | lr 3.0e-04 | grad_norm 1.1"
        )
    return "\n".join(out) + "\n"


def timed_out(rank: int, clock: str = "09:31:00", op: str = "ALLREDUCE", inside: int | None = None) -> str:
    """A watchdog's report after the default thirty minutes."""
    return (
        f"[rank{rank}]:[E517 {clock}.120000000 ProcessGroupNCCL.cpp:616] [Rank {rank if inside is None else inside}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum=5501, OpType={op}, NumelIn=1024, NumelOut=1024, Timeout(ms)=1800000) ran for 1800021 milliseconds "
        "before timing out.\n"
    )


def traceback(error: str, path: str = "/workspace/train.py", rest: str = "") -> str:
    return f'Traceback (most recent call last):\n  File "{path}", line 41, in step\n    work()\n{error}\n{rest}'


def test_half_an_hour_of_silence_is_no_time_zone(tmp_path: Path) -> None:
    _, verdict = read(tmp_path, train_log=steps(60) + "".join(timed_out(rank) for rank in (0, 1, 2, 4, 5, 6, 7)))
    assert (verdict.cause, verdict.rank) == ("collective-timeout", 3)


def test_whole_hours_between_neighbouring_clocks_are_a_zone(tmp_path: Path) -> None:
    lines = steps(60).splitlines()
    for at in (58, 40, 20):
        lines.insert(at, "[rank0]:[W517 02:00:40.120000000 ProcessGroupNCCL.cpp:99] a remark of the group")
    run, _ = read(tmp_path, train_log="\n".join(lines) + "\n" + timed_out(0, "02:31:30") + timed_out(1, "02:31:30"))
    event = run.kind("watchdog_timeout")[0]
    assert run.last_progress is not None and event.time is not None and 1500 < event.time - run.last_progress < 1900


def test_groups_without_names_still_tell_who_is_missing(tmp_path: Path) -> None:
    reports = "".join(timed_out(rank, inside=rank // 2) for rank in (0, 2, 6))
    _, verdict = read(tmp_path, train_log=steps(60) + reports)
    assert verdict.rank == 4


@pytest.mark.parametrize("errno", ["97 - Address family not supported by protocol", "111 - Connection refused"])
def test_failed_first_attempts_belong_to_a_start(tmp_path: Path, errno: str) -> None:
    tries = "".join(
        f"[W517 08:59:0{i}.551 socket.cpp:697] [c10d] The client socket has failed to connect to [node-a]:29500 (errno: {errno}).\n"
        for i in range(4)
    )
    _, verdict = read(tmp_path, train_log=tries + steps(2))
    assert verdict.layer == "none"


def test_attempts_to_the_end_of_the_log_are_the_failure(tmp_path: Path) -> None:
    tries = "".join(
        f"[W517 09:{i // 6:02d}:{i % 6 * 10:02d}.551 socket.cpp:697] [c10d] The client socket has failed to connect to [node-a]:29500 "
        "(errno: 111 - Connection refused).\n"
        for i in range(30)
    )
    _, verdict = read(tmp_path, train_log="loading the configuration\n" + tries)
    assert (verdict.layer, verdict.cause) == ("comms", "connect-failed")


@pytest.mark.parametrize(
    "error", ["zlib.error: Error -3 while decompressing data: incorrect data check", "tarfile.ReadError: unexpected end of data"]
)
def test_exceptions_with_lower_case_names_are_read(tmp_path: Path, error: str) -> None:
    _, verdict = read(tmp_path, train_log=steps(30) + traceback(error))
    assert (verdict.layer, verdict.cause) == ("data", "corrupt-sample")


def test_a_log_that_ends_inside_a_traceback_is_not_healthy(tmp_path: Path) -> None:
    _, verdict = read(
        tmp_path, train_log=steps(30) + 'Traceback (most recent call last):\n  File "/workspace/train.py", line 41, in step\n'
    )
    assert verdict.layer == "unknown"


def test_a_falling_loss_is_lower_after_a_resume_too(tmp_path: Path) -> None:
    again = "[2025-05-17 09:06:00,000][train][INFO] - resuming from step 30\n" + steps(60, 30, minute=6)
    _, verdict = read(tmp_path, train_log=steps(30) + again + "Training complete\n")
    assert verdict.layer == "none"


def test_the_peer_that_closed_the_connection_is_named(tmp_path: Path) -> None:
    error = (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a "
        "network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgress: Connection closed by remote peer ip-10-0-0-7.internal<44210>"
    )
    _, verdict = read(tmp_path, rank0_log=steps(60) + traceback(error))
    assert (verdict.cause, verdict.host) == ("peer-lost", "ip-10-0-0-7")


def samples(idle: int | None, power: int, minutes: int = 50) -> str:
    """nvidia-smi rows of four cards, one a minute; after the third all spin (or one stands idle) at `power` watts."""
    rows = ["timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]"]
    for minute in range(minutes):
        for gpu in range(4):
            still = minute > 3 and gpu == idle
            watts = (95 if still else power) if minute > 3 else 560
            rows.append(f"2025/05/17 09:{minute:02d}:00.000, {gpu}, {0 if still else 100} %, 70000 MiB, {watts} W")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(("idle", "power", "gpu"), [(2, 300, "2"), (None, 180, None)])
def test_cards_that_spin_while_nothing_is_logged_are_a_hang(tmp_path: Path, idle: int | None, power: int, gpu: str | None) -> None:
    _, verdict = read(tmp_path, train_log=steps(100), gpu_csv=samples(idle, power))
    assert (verdict.cause, verdict.gpu) == ("collective-timeout", gpu)


@pytest.mark.parametrize("log", [steps(1400), steps(100) + "Training complete\n"])
def test_samples_beside_a_run_that_moves_or_has_ended_are_no_hang(tmp_path: Path, log: str) -> None:
    _, verdict = read(tmp_path, train_log=log, gpu_csv=samples(2, 180))
    assert verdict.cause != "collective-timeout"


def test_cards_that_work_on_after_a_log_was_cut_are_no_hang(tmp_path: Path) -> None:
    _, verdict = read(tmp_path, train_log=steps(100), gpu_csv=samples(None, 555))
    assert verdict.layer == "none"


def timers(slow: dict[int, float], onset: int = 0) -> str:
    noise = Random(3)
    return "\n".join(
        f"[rank{rank}] iter {i} fwd_bwd_ms {610 * (slow.get(rank, 1.0) if i >= onset else 1.0) + noise.gauss(0, 3):.1f} loss {3 * 0.99**i:.3f}"
        for i in range(60)
        for rank in range(8)
    )


def test_one_rank_that_needs_longer_in_every_step_has_a_slow_card(tmp_path: Path) -> None:
    _, verdict = read(tmp_path, train_log=timers({3: 1.08}))
    assert (verdict.cause, verdict.rank) == ("gpu-slow", 3)


@pytest.mark.parametrize("slow", [{7: 1.15}, {0: 1.1}, {2: 1.1, 5: 1.09}, {3: 1.02}])
def test_stages_and_small_differences_are_no_slow_card(tmp_path: Path, slow: dict[int, float]) -> None:
    _, verdict = read(tmp_path, train_log=timers(slow))
    assert verdict.layer == "none"


def rollouts(count: int, **curves: str) -> str:
    """verl's console line, with the given metrics as Python expressions of the step `i`."""
    noise = Random(5)
    out = []
    for i in range(1, count + 1):
        base = {
            "actor/pg_loss": noise.gauss(0, 0.01),
            "actor/grad_norm": 0.25 + noise.gauss(0, 0.02),
            "critic/score/mean": 0.3 + 0.002 * i,
        }
        values = base | {name: eval(text, {"i": i, "min": min, "max": max, "math": math}) for name, text in curves.items()}
        out.append(f"step:{i} - " + " - ".join(f"{name}:{value:.6g}" for name, value in values.items()))
    return "\n".join(out) + "\n"


@pytest.mark.parametrize(
    ("curves", "cause"),
    [
        ({"actor/entropy": "0.3 * 1.06 ** i"}, "entropy-explosion"),
        ({"val-core/math/acc/mean@1": "max(0.1, 0.6 - 0.006 * i)"}, "reward-hacking"),
        ({"actor/ratio_max": "1.7 if i < 30 else 4 * 1.4 ** (i - 30)"}, "policy-mismatch"),
    ],
)
def test_curves_that_leave_without_a_step(tmp_path: Path, curves: dict[str, str], cause: str) -> None:
    _, verdict = read(tmp_path, train_log=rollouts(60, **curves))
    assert verdict.cause == cause


def test_a_heavy_tail_of_single_ratios_is_normal(tmp_path: Path) -> None:
    _, verdict = read(tmp_path, train_log=rollouts(60, **{"actor/ratio_max": "1.8 if i % 9 else 40"}))
    assert verdict.layer == "none"


def test_a_port_that_reports_first_does_not_hide_the_fallen_card(tmp_path: Path) -> None:
    kernel = (
        "[Sat May 17 09:01:20 2025] pcieport 0000:a0:01.1: AER: Uncorrected (Fatal) error received: 0000:a0:01.1\n"
        "[Sat May 17 09:01:20 2025] pcieport 0000:a0:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)\n"
        "[Sat May 17 09:01:21 2025] NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    )
    _, verdict = read(tmp_path, train_log=steps(40), gn17__dmesg_log=kernel)
    assert verdict.cause == "gpu-fell-off-bus"


def test_a_log_that_begins_inside_the_first_traceback(tmp_path: Path) -> None:
    head = "[rank2]:     row = table[key]\n[rank2]: KeyError: 'response'\n"
    peers = "".join(
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/workspace/train.py", line 25, in main\n'
        f"[rank{rank}]:     loss.backward()\n"
        f"[rank{rank}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4771\n"
        for rank in (1, 3)
    )
    _, verdict = read(tmp_path, train_log=head + peers)
    assert verdict.layer in ("data", "training") and verdict.rank == 2


def test_ranks_of_home_made_labels(tmp_path: Path) -> None:
    log = "".join(f"Rank 0 | {line}\n" for line in steps(20).splitlines())
    log += "".join(f"Rank 6 | {line}\n" for line in traceback("RuntimeError: label count differs").splitlines())
    _, verdict = read(tmp_path, train_log=log)
    assert verdict.rank == 6


def test_the_peer_of_whom_several_hosts_complain_is_to_blame(tmp_path: Path) -> None:
    joined = "".join(
        f"h{host}:770:90 [0] NCCL INFO comm 0x1 rank {host} nranks 4 cudaDev 0 busId 1b000 - Init COMPLETE\n" for host in range(4)
    )
    complaints = "".join(
        f"h{host}:770:91 [0] transport/net_ib.cc:1300 NCCL WARN NET/IB : Got completion from peer h2<5001> with error 12, opcode 0, len 0, "
        "vendor err 129 (Recv)\n"
        for host in (0, 1, 3)
    )
    _, verdict = read(tmp_path, train_log=joined + steps(20) + complaints)
    assert (verdict.cause, verdict.host) == ("ib-error", "h2")


def test_the_node_of_which_no_rank_complains(tmp_path: Path) -> None:
    logs = {
        f"node{node}_log": "start\n" + steps(20) + ("" if node == 2 else "".join(timed_out(4 * node + card) for card in range(4)))
        for node in range(4)
    }
    _, verdict = read(tmp_path, **logs)
    assert (verdict.ranks, verdict.host) == ([8, 9, 10, 11], "node2")


def test_nobody_is_blamed_where_everybody_waited(tmp_path: Path) -> None:
    _, verdict = read(tmp_path, train_log="world_size: 8\n" + steps(60) + "".join(timed_out(rank) for rank in range(8)))
    assert verdict.cause == "collective-timeout" and verdict.rank is None and not verdict.ranks


def test_gloo_complaints_of_all_but_one(tmp_path: Path) -> None:
    error = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
    log = "".join(f"[rank{rank}]: {line}\n" for rank in (0, 1, 3) for line in traceback(error).splitlines())
    _, verdict = read(tmp_path, train_log=steps(20) + log)
    assert verdict.rank == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job_log", "May 17 09:02:00 h1 systemd[1]: train.service: Main process exited, code=exited, status=1/FAILURE\n"),
        ("sacct_txt", "JobID|JobName|State|ExitCode|NodeList\n11|sft|FAILED|1:0|n3\n"),
    ],
)
def test_a_recorded_failure_without_a_reason_is_not_healthy(tmp_path: Path, name: str, text: str) -> None:
    _, verdict = read(tmp_path, train_log=steps(40), **{name: text})
    assert verdict.layer == "unknown"


def test_exit_statuses_of_tools_on_the_way_are_no_failure(tmp_path: Path) -> None:
    _, verdict = read(tmp_path, train_log=steps(20) + "sandbox: program finished, exit code 1\n" + steps(20, 20, minute=1))
    assert verdict.layer == "none"


def test_another_programs_device_error_is_no_doubt_about_a_run(tmp_path: Path) -> None:
    kernel = "[Sat May 17 09:01:19 2025] NVRM: Xid (PCI:0000:9b:00): 43, pid=991, name=jupyter, Ch 00000010\n"
    _, verdict = read(tmp_path, train_log=steps(40), dmesg_txt=kernel)
    assert verdict.layer == "none"


@pytest.mark.parametrize("seed", range(6))
def test_a_level_is_left_wherever_its_best_reading_stands(seed: int) -> None:
    noise = Random(seed)
    values = [(0.5 if i < 45 else max(0.1, 0.5 - 0.013 * (i - 45))) + noise.gauss(0, 0.03) for i in range(100)]
    spot = leaves(values, up=False, floor=1e-3, relative=0.15)
    assert spot is not None and 45 <= spot.index <= 75


@pytest.mark.parametrize("seed", range(6))
def test_a_trend_from_the_first_reading_on_has_no_level_to_leave(seed: int) -> None:
    noise = Random(seed)
    assert turn([0.5 - 0.003 * i + noise.gauss(0, 0.02) for i in range(100)], up=False, floor=1e-3, relative=0.15) is None


def test_a_balance_loss_that_vanishes(tmp_path: Path) -> None:
    noise = Random(2)
    log = "".join(
        f"step {i} loss {5 * 0.995**i:.4f} router_aux_loss {1.01 + noise.gauss(0, 0.003) if i < 60 else max(1e-4, 1.01 * 0.85 ** (i - 60)):.5f}\n"
        for i in range(140)
    )
    _, verdict = read(tmp_path, train_log=log)
    assert verdict.cause == "moe-routing-collapse"


def test_the_error_below_a_spawned_process_is_its_own(tmp_path: Path) -> None:
    _, verdict = read(
        tmp_path,
        train_log=steps(10) + "\n-- Process 2 terminated with the following error:\n" + traceback("ZeroDivisionError: division by zero"),
    )
    assert verdict.rank == 2
