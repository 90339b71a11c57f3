"""Kernel lines judged against the run: root, echo, decoy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import rules
from parsers.base import Event
from rules import gpu_codes, gpu_driver, host_faults, host_links, oom_kill, sxid, xid
from rules.base import Finding
from tests.support_kernel import at, found, make_run, ranks_of

DAY = "2025-11-02T"
RUN = {"started": DAY + "10:00:00", "ended": DAY + "12:30:00", "last_progress": DAY + "12:00:00"}
BOOT = "Linux version 5.15.0-1053-nvidia (buildd@lcy02) #54\nCommand line: BOOT_IMAGE=/boot/vmlinuz-5.15.0 ro"
WORDS = tomllib.loads((Path(rules.__file__).parent / "words" / "kernel.toml").read_text(encoding="utf-8"))


def iso(time: str, body: str) -> str:
    return f"{DAY}{time},000000+00:00 {body}"


def xids(time: str, *bodies: str) -> str:
    return "\n".join(iso(time, f"NVRM: Xid (PCI:{body}") for body in bodies)


def judged(module: object, run: object) -> list[Finding]:
    findings = [f for rule in module.RULES for f in rule.judge(run)]  # type: ignore[attr-defined]
    for finding in findings:
        assert finding.rule in WORDS, finding.rule
        for part in ("title", "why"):
            for lang in ("en", "zh"):
                WORDS[finding.rule][part][lang].format_map(_Strict(finding.facts))
    return findings


class _Strict(dict):  # type: ignore[type-arg]
    def __missing__(self, key: str) -> str:
        raise AssertionError(f"the words use {{{key}}}, which the facts lack")


# --- Xid


def test_earliest_hardware_code_is_the_root_and_joins_the_rank() -> None:
    text = "\n".join(
        [
            xids(
                "12:00:05",
                "0000:2a:00): 63, pid=5513, name=python3, Row Remapper: New row (0x1) marked for remapping, reset gpu to activate.",
            ),
            xids("12:00:05", "0000:2a:00): 94, pid=5513, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: No"),
            xids("12:00:06", "0000:2a:00): 45, pid=5513, name=python3, Ch 00000008"),
            xids("12:00:07", "0000:3b:00): 74, pid=5514, name=python3, NVLink: fatal error detected on link 3"),
        ]
    )
    findings = judged(xid, make_run({"n1/dmesg.txt": text}, ranks=ranks_of("n1", [5512, 5513, 5514]), **RUN))
    root = next(f for f in findings if f.role == "root")
    assert (root.cause, root.evidence[0].line, root.rank, root.gpu, root.host) == ("infra/gpu-ecc-uncorrectable", 2, 1, "0000:2a:00", "n1")
    assert {(f.role, f.cause) for f in findings if f.role != "root"} == {("consequence", "infra/gpu-nvlink-error"), ("symptom", None)}


def test_teardown_codes_alone_accuse_nobody() -> None:
    text = xids("12:00:05", "0000:2a:00): 45, pid=1, name=python3, Ch 00000008", "0000:2a:00): 43, pid=1, name=python3, Ch 00000008")
    assert [f.role for f in found(judged(xid, make_run({"dmesg.txt": text}, **RUN))) if f.cause] in ([], ["consequence"])
    only45 = xids("12:00:05", "0000:2a:00): 45, pid=1, name=python3, Ch 00000008")
    (echo,) = judged(xid, make_run({"dmesg.txt": only45}, **RUN))
    assert (echo.role, echo.cause) == ("symptom", None)


def test_a_45_that_names_its_cause_speaks_for_it() -> None:
    text = xids("12:00:05", "0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 95")
    (root, *_) = found(judged(xid, make_run({"dmesg.txt": text}, **RUN)))
    assert (root.role, root.cause) == ("root", "infra/gpu-ecc-uncorrectable")


def test_nonfatal_nvlink5_counts_only_where_it_killed_channels() -> None:
    line = "0000:66:00): 145, RLW_CTRL Nonfatal XC0 i0 Link 11 (0x0409a0c2 0x80000000 0x0 0x0 0x0 0x4)"
    alone = found(judged(xid, make_run({"dmesg.txt": xids("12:00:05", line)}, **RUN)))
    assert [f.role for f in alone] == ["precursor"]
    deadly = xids("12:00:05", line, "0000:66:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 145")
    root = found(judged(xid, make_run({"dmesg.txt": deadly}, **RUN)))[0]
    assert (root.role, root.cause, root.evidence[0].line) == ("root", "infra/gpu-nvlink-error", 1)


def test_program_code_is_no_hardware_unless_one_gpu_repeats_it() -> None:
    fault = "0000:db:00): 31, pid={}, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_10 faulted @ 0x7fd7_90743000."
    error = Event(
        "traceback", "train.log", 9, "RuntimeError: CUDA error: an illegal memory access was encountered", time=at(DAY + "12:00:06")
    )
    once = found(judged(xid, make_run({"dmesg.txt": xids("12:00:05", fault.format(9))}, events=[error], **RUN)))
    assert [(f.role, f.weight) for f in once] == [("consequence", 0.3)]
    silent = found(judged(xid, make_run({"dmesg.txt": xids("12:00:05", fault.format(9))}, **RUN)))
    assert [(f.role, f.weight) for f in silent] == [("consequence", 0.45)]
    times = ("10:20:00", "11:00:00", "12:00:05")
    again = "\n".join(xids(time, fault.format(pid)) for pid, time in enumerate(times, 100))
    (root,) = [f for f in found(judged(xid, make_run({"dmesg.txt": again}, **RUN))) if f.role == "root"]
    assert (root.rule, root.cause, root.evidence[0].line, root.facts["times"]) == ("xid.repeated", "infra/gpu-mmu-fault", 3, 3)
    spread = "\n".join(xids(time, fault.format(pid).replace("db:00", f"0{pid % 7}:00")) for pid, time in enumerate(times, 100))
    assert not [f for f in found(judged(xid, make_run({"dmesg.txt": spread}, **RUN))) if f.role == "root"]


def test_program_code_followed_by_a_context_switch_timeout_stays_the_program() -> None:
    text = xids(
        "12:00:05",
        "0000:3b:00): 13, pid=9, name=python3, Graphics Exception",
        "0000:3b:00): 109, pid=9, name=python3, Ch 1, errorString CTX SWITCH TIMEOUT",
    )
    assert [f.role for f in found(judged(xid, make_run({"dmesg.txt": text}, **RUN)))] == ["consequence"]


def test_gsp_timeout_blames_no_caller_and_yields_to_a_fallen_gpu() -> None:
    rpc = "0000:9d:00): 119, pid=3239, name=nvidia-smi, Timeout waiting for RPC from GSP4! Expected function 76 (GSP_RM_CONTROL) (0x20801348 0x410)."
    ranks = ranks_of("n1", [3239, 700])
    root = found(judged(xid, make_run({"n1/dmesg.txt": xids("12:00:05", rpc)}, ranks=ranks, **RUN)))[0]
    assert (root.cause, root.pid, root.rank, root.facts["caller"]) == ("infra/gpu-gsp-timeout", None, None, "nvidia-smi")
    fell = xids("12:00:05", rpc) + "\n" + xids("12:00:20", "0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert next(f for f in found(judged(xid, make_run({"dmesg.txt": fell}, **RUN))) if f.role == "root").cause == "infra/gpu-fell-off-bus"


def test_other_times_boots_and_survived_faults_are_set_aside() -> None:
    bad = "0000:2a:00): 48, pid=5, name=python3, An uncorrectable double bit error (DBE) has been detected"
    for time, reason in (("08:00:00", "before"), ("11:00:00", "went-on"), ("14:00:00", "after")):
        (finding,) = judged(xid, make_run({"dmesg.txt": xids(time, bad)}, **RUN))
        assert (finding.outcome, finding.facts["aside"]) == ("excluded", reason)
    banner = iso("09:30:00", BOOT)
    rebooted = "\n".join([xids("09:00:00", bad), *["x"] * 60, banner])
    (finding,) = judged(xid, make_run({"dmesg.txt": rebooted}, **RUN))
    assert finding.facts["aside"] == "boot"


def test_a_fault_before_the_end_of_a_finished_run_ended_nothing() -> None:
    text = xids("12:29:30", "0000:2a:00): 79, GPU has fallen off the bus.")
    late = {**RUN, "last_progress": DAY + "12:29:40"}
    assert [f.outcome for f in judged(xid, make_run({"d": text}, **late))] == ["found"]
    end = Event("run_end", "train.log", 99, "", fields={"reason": "train_runtime"}, time=at(DAY + "12:29:50"))
    assert [f.outcome for f in judged(xid, make_run({"d": text}, events=[end], **late))] == ["excluded"]


def test_another_jobs_process_is_set_aside() -> None:
    text = xids("12:00:05", "0000:3d:00): 13, pid=77, name=blender, Graphics Exception")
    (finding,) = judged(xid, make_run({"n1/dmesg.txt": text}, ranks=ranks_of("n1", [5512]), **RUN))
    assert (finding.outcome, finding.facts["aside"]) == ("excluded", "other-process")


def test_a_gpu_handed_over_broken() -> None:
    text = "\n".join(
        [
            xids("06:00:00", "0000:ab:00): 95, pid=33, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"),
            xids("06:00:00", "0000:ab:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
            iso(
                "10:00:05",
                "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status",
            ),
        ]
    )
    run = make_run({"dmesg.txt": text}, started=DAY + "10:00:00", ended=DAY + "10:00:09")
    dirty = [f for f in found(judged(xid, run)) if f.role == "root"]
    assert [(f.rule, f.cause, f.evidence[0].line) for f in dirty] == [("xid.dirty", "infra/gpu-ecc-uncorrectable", 1)]
    fine = make_run({"dmesg.txt": text}, **RUN)
    assert not [f for f in found(judged(xid, fine)) if f.role == "root"]


# --- SXid


def test_switch_errors() -> None:
    fatal = iso("12:00:05", "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert [(f.role, f.cause) for f in found(judged(sxid, make_run({"d": fatal}, **RUN)))] == [("root", "infra/gpu-nvlink-error")]
    harmless = iso("11:00:00", "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 19084, Non-fatal, Link 32 AN1 Heartbeat Timeout Error")
    assert [f.outcome for f in judged(sxid, make_run({"d": harmless}, **RUN))] == ["excluded"]
    stalls = iso("12:00:05", "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)")
    assert found(judged(sxid, make_run({"d": stalls}, **RUN)))[0].role == "root"
    after = xids("12:00:00", "0000:9d:00): 79, GPU has fallen off the bus.") + "\n" + fatal
    assert [f.role for f in found(judged(sxid, make_run({"d": after}, **RUN)))] == ["symptom"]


# --- memory kills

KILL = (
    "oom-kill:constraint={c},nodemask=(null),cpuset=/,mems_allowed=0-1,{m},task_memcg={g},task={t},pid={p},uid=1000",
    "{s}: Killed process {p} ({t}) total-vm:92345678kB, anon-rss:62345678kB, file-rss:4096kB, shmem-rss:0kB, UID:1000 pgtables:140000kB oom_score_adj:0",
)


def kill(time: str, comm: str, pid: int, group: str | None = None) -> str:
    words = {"t": comm, "p": pid, "g": group or "/user.slice", "c": "CONSTRAINT_MEMCG" if group else "CONSTRAINT_NONE"}
    words |= {"m": f"oom_memcg={group}" if group else "global_oom", "s": "Memory cgroup out of memory" if group else "Out of memory"}
    return "\n".join(iso(time, line.format(**words)) for line in KILL)


@pytest.mark.parametrize(("group", "cause"), [(None, "infra/host-oom-kill"), ("/system.slice/docker-1.scope", "infra/cgroup-oom-kill")])
def test_constraint_tells_host_from_group(group: str | None, cause: str) -> None:
    run = make_run({"n1/dmesg": kill("12:00:02", "python3", 31337, group)}, ranks=ranks_of("n1", [31336, 31337]), **RUN)
    (root,) = found(judged(oom_kill, run))
    assert (root.cause, root.rank, root.evidence[0].line, root.weight > 0.9) == (cause, 1, 2, True)


def test_kill_in_a_container_matches_by_name_and_time() -> None:
    run = make_run({"d": kill("12:00:02", "pt_main_thread", 99999)}, **RUN)
    (root,) = found(judged(oom_kill, run))
    assert root.role == "root"
    assert 0.4 < root.weight < 0.95


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (kill("08:00:00", "python3", 31337), "before"),
        (kill("11:00:00", "python3", 99), "went-on"),
        (kill("12:00:02", "uwsgi", 99, "/system.slice/docker-9.scope"), "other-process"),
        (kill("12:00:02", "python3", 99, "/system.slice/slurmstepd.scope/job_777/step_0"), "other-job"),
    ],
)
def test_decoy_kills_are_set_aside(text: str, reason: str) -> None:
    job = Event("slurm", "slurm.out", 1, "", fields={"what": "task-failure", "id": "4242.0"}, time=at(DAY + "12:01:00"))
    (finding,) = judged(oom_kill, make_run({"d": text}, events=[job], **RUN))
    assert (finding.outcome, finding.facts["aside"]) == ("excluded", reason)


def test_own_job_in_the_groups_path_makes_the_kill_ours() -> None:
    job = Event("slurm", "slurm.out", 1, "", fields={"what": "oom", "id": "4242.0"}, time=at(DAY + "12:01:00"))
    run = make_run({"d": kill("12:00:02", "train_app", 99, "/system.slice/slurmstepd.scope/job_4242/step_0")}, events=[job], **RUN)
    assert found(judged(oom_kill, run))[0].weight > 0.9


def test_foreign_hog_is_named() -> None:
    table = [
        iso("12:00:02", "monitord invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
        iso("12:00:02", "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name"),
        iso("12:00:02", "[   3312]     0  3312 52011200 51988112  7863424        0             0 monitord"),
        iso("12:00:02", "[  31337]  5001 31337  6411002  5866112  7863424        0             0 python3"),
    ]
    run = make_run({"d": "\n".join([*table, kill("12:00:02", "python3", 31337)])}, ranks=ranks_of("n1", [31337]), **RUN)
    (root,) = found(judged(oom_kill, run))
    assert (root.rule, root.facts["hog"]) == ("oom.foreign-hog", "monitord")


# --- the node


def test_panic_and_boot_are_one_finding_on_the_node() -> None:
    text = "\n".join(
        [
            iso("12:00:00", "BUG: kernel NULL pointer dereference, address: 0000000000000010"),
            iso("12:00:00", "Kernel panic - not syncing: Fatal exception in interrupt"),
            *["x"] * 60,
            iso("12:04:00", BOOT),
        ]
    )
    (root,) = found(judged(host_faults, make_run({"n2/console.log": text}, **RUN)))
    assert (root.rule, root.cause, root.host, root.evidence[0].line) == ("node.panic", "infra/node-down", "n2", 2)


def test_unannounced_reboot() -> None:
    text = "\n".join([iso("11:59:00", "eth0: renamed from veth1"), *["x"] * 60, iso("12:04:00", BOOT)])
    (root,) = found(judged(host_faults, make_run({"n2/kern.log": text}, **RUN)))
    assert (root.rule, root.cause) == ("node.reboot", "infra/node-down")
    after = make_run({"n2/dmesg": iso("12:04:00", BOOT)}, **RUN)  # captured after the reboot: the log begins with it
    assert [f.rule for f in found(judged(host_faults, after))] == ["node.reboot"]
    assert not found(judged(host_faults, make_run({"n2/dmesg": iso("09:00:00", BOOT)}, **RUN)))
    assert not found(judged(host_faults, make_run({"n2/env.txt": BOOT}, **RUN)))
    orderly = text.replace("x\n", iso("12:02:00", "reboot: Restarting system") + "\n", 1)
    assert found(judged(host_faults, make_run({"n2/kern.log": orderly}, **RUN)))[0].rule == "node.shutdown"


def test_corrected_errors_are_noise_and_uncorrected_ones_are_not() -> None:
    corrected = iso("12:00:00", "EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1_DIMM#0 (channel:0 slot:0)")
    assert [f.outcome for f in judged(host_faults, make_run({"d": corrected}, **RUN))] == ["excluded"]
    broken = iso("12:00:00", "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400")
    assert found(judged(host_faults, make_run({"d": broken}, **RUN)))[0].cause == "infra/machine-check"


def test_pcie_flood_needs_a_gpu_that_cannot_be_read() -> None:
    lines = "\n".join(iso(f"12:00:{s:02d}", "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0") for s in range(40))
    assert [f.outcome for f in judged(host_faults, make_run({"d": lines}, **RUN))] == ["excluded"]
    lost = Event(
        "nvml_error", "gpu.csv", 9, "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error", time=at(DAY + "12:01:00")
    )
    (root,) = found(judged(host_faults, make_run({"d": lines}, events=[lost], **RUN)))
    assert (root.cause, root.gpu) == ("infra/pcie-error", "0000:03:00.0")


def test_crash_of_a_rank_and_of_somebody_else() -> None:
    crash = "pt_main_thread[31337]: segfault at 10 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]"
    (root,) = found(judged(host_faults, make_run({"n1/d": iso("12:00:05", crash)}, ranks=ranks_of("n1", [31337]), **RUN)))
    assert (root.cause, root.rank, root.facts["library"]) == ("infra/native-crash", 0, "libnccl.so.2")
    other = crash.replace("pt_main_thread", "collectd")
    assert not found(judged(host_faults, make_run({"n1/d": iso("12:00:05", other)}, ranks=ranks_of("n1", [5]), **RUN)))


# --- storage and network


def test_stall_that_ends_and_stall_that_kills() -> None:
    lost = "nfs: server nas01 not responding, still trying"
    short = iso("11:00:00", lost) + "\n" + iso("11:00:20", "nfs: server nas01 OK")
    assert [(f.outcome, f.facts["aside"]) for f in judged(host_links, make_run({"d": short}, **RUN))] == [("excluded", "went-on")]
    long = iso("12:00:02", lost) + "\n" + iso("12:03:00", "INFO: task pt_data_worker:9 blocked for more than 120 seconds.")
    (root,) = found(judged(host_links, make_run({"d": long}, **RUN)))
    assert (root.cause, root.evidence[0].line, root.weight > 0.8) == ("infra/filesystem-stall", 1, True)
    blip = iso("12:00:20", lost) + "\n" + iso("12:00:40", "nfs: server nas01 OK")
    assert [f.role for f in found(judged(host_links, make_run({"d": blip}, **RUN)))] == ["precursor"]


def test_link_flap_and_dead_card() -> None:
    flap = iso("12:00:05", "mlx5_core 0000:4f:00.0 ibs1: Link down") + "\n" + iso("12:00:08", "mlx5_core 0000:4f:00.0 ibs1: Link up")
    assert [f.role for f in found(judged(host_links, make_run({"d": flap}, **RUN)))] == ["precursor"]
    down = iso("12:00:05", "mlx5_core 0000:4f:00.0 mlx5_2: Port: 1 Link DOWN")
    assert found(judged(host_links, make_run({"d": down}, **RUN)))[0].cause == "comms/ib-error"
    card = iso("12:00:05", "mlx5_core 0000:5c:00.0: poll_health:852:(pid 0): device's health compromised - reached miss count")
    assert found(judged(host_links, make_run({"d": card}, **RUN)))[0].cause == "infra/nic-failure"


def test_disk_that_goes_read_only() -> None:
    text = "\n".join(
        [
            iso("12:00:05", "critical medium error, dev nvme1n1, sector 1624907375 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2"),
            iso("12:00:06", "EXT4-fs (nvme1n1): Remounting filesystem read-only"),
        ]
    )
    (root,) = found(judged(host_links, make_run({"d": text}, **RUN)))
    assert (root.cause, root.evidence[0].line, root.count) == ("infra/filesystem-io-error", 1, 2)


def test_driver_lines() -> None:
    init = iso("10:00:05", "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:2427)")
    early = {"started": DAY + "10:00:00", "ended": DAY + "10:00:30"}
    assert found(judged(gpu_driver, make_run({"d": init}, **early)))[0].cause == "infra/gpu-init-failure"
    after = xids("10:00:02", "0000:3b:00): 79, GPU has fallen off the bus.") + "\n" + init
    assert [f.role for f in found(judged(gpu_driver, make_run({"d": after}, **early)))] == ["symptom"]


# --- catalogues


def test_catalogues_are_whole_and_name_known_causes() -> None:
    causes = tomllib.loads((Path(rules.__file__).parent / "causes" / "infra.toml").read_text(encoding="utf-8"))
    codes = gpu_codes.xids()
    assert len(codes) == 177
    for code in codes.values():
        assert code.cause is None or code.cause.partition("/")[2] in causes, code
        assert code.kind in {"hardware", "driver", "application", "symptom", "precursor", "verdict", "noise"}
    assert all(codes[n].kind in ("symptom", "verdict") for n in (43, 45, 137, 154))
    assert all("zh" in codes[n].name for n in (13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 120, 145, 149, 154))
    assert len(gpu_codes.sxids()) == 420
    assert gpu_codes.nvlink5(145, "RLW_REMAP", 0x40) == {
        "severity": "Fatal",
        "immediate": "RESET_GPU",
        "then": "CONTACT_SUPPORT",
        "crash": True,
    }
    assert gpu_codes.nvlink5(145, "RLW_REMAP", None) == {}


def test_rules_hold_on_a_run_without_times() -> None:
    text = "\n".join(
        [
            "[1.000000] NVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus.",
            "[2.000000] Kernel panic - not syncing: x",
            kill("12:00:00", "python3", 5),
        ]
    )
    run = make_run({"d": text})
    for event in run.events:
        event.time = None
    for module in (xid, sxid, oom_kill, gpu_driver, host_faults, host_links):
        judged(module, run)


def test_without_a_kernel_log_the_rules_say_what_is_needed() -> None:
    run = make_run({}, **RUN)
    for module in (xid, oom_kill):
        (finding,) = judged(module, run)
        assert (finding.outcome, "dmesg" in finding.needs) == ("undecided", True)
