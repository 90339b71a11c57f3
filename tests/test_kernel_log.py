"""Kernel lines in every wrapper, and what each kind says.  Shapes: Linux 2.6.32 to 6.18, NVIDIA drivers 390 to 595."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.kernel_text import KEEP, canonical_pci
from tests.support_kernel import PARSERS, one, read

WRAPPERS = [
    "{}",
    "[12345.678901] {}",
    "[12345.678901][ T1234] {}",
    "<4>[12345.678901] {}",
    "kern  :err   : [12345.678901] {}",
    "[Sun Nov  2 09:33:00 2025] {}",
    "[  +0.000033] {}",
    "2025-11-02T09:33:00,001108-08:00 {}",
    "kern  :warn  : 2025-11-02T09:33:00,001108+00:00 {}",
    "4,1234,12345678901,-;{}",
    "Nov  2 09:33:00 node7 kernel: {}",
    "Nov  2 09:33:00 node7 kernel: [12345.678901] {}",
    "2025-11-02T09:33:00+0100 node7 kernel: {}",
    "2025-11-02T09:33:00.123456+01:00 node7 kernel: [12345.678901] {}",
    "<4>1 2025-11-02T09:33:00.123Z node7 kernel - - - {}",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_bodies_are_found_behind_every_prefix(wrapper: str) -> None:
    xid = one(wrapper.format("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."), "xid")
    assert (xid.fields["code"], xid.fields["pci"], xid.gpu, xid.pid) == (79, "0000:3b:00.0", "0000:3b:00", None)
    crash = one(
        wrapper.format(
            "pt_main_thread[31337]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]"
        ),
        "segfault",
    )
    assert (crash.fields["comm"], crash.pid, crash.fields["lib"]) == ("pt_main_thread", 31337, "libnccl.so.2")
    hung = one(wrapper.format("INFO: task python3:4242 blocked for more than 120 seconds."), "hung_task")
    assert (hung.fields["comm"], hung.pid, hung.fields["seconds"]) == ("python3", 4242, 120)
    kill = one(
        wrapper.format(
            "Out of memory: Killed process 31337 (python3) total-vm:52428800kB, anon-rss:48000000kB, file-rss:1024kB, shmem-rss:2048kB"
        ),
        "oom_kill",
    )
    assert (kill.fields["victim"], kill.fields["scope"], kill.fields["anon_kb"]) == (31337, "host", 48000000)
    assert xid.host == ("node7" if "node7 kernel:" in wrapper else None)


@pytest.mark.parametrize(
    ("line", "code", "pid", "name"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, None, None),  # driver 390
        ("NVRM: Xid (PCI:0000:3b:00): 31, Ch 00000010, intr 10000000.", 31, None, None),  # 440
        ("NVRM: Xid (PCI:0000:db:00): 31, pid=13641, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_10 faulted @ 0x7fd7_90743000.", 31, 13641, None),
        ("NVRM: Xid (PCI:0000:2a:00): 94, pid=5512, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No", 94, 5512, "python"),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).", 94, 7194, None),
        ("NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x0 0x0 0x0 0x4)", 145, 876767, "ray::WorkerDict"),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal", 13, None, None),
    ],
)  # fmt: skip
def test_xid_wordings(line: str, code: int, pid: int | None, name: str | None) -> None:
    event = one(f"[  1.000001] {line}", "xid")
    assert (event.fields["code"], event.pid, event.fields.get("name")) == (code, pid, name)


def test_xid_details() -> None:
    named = one("[1.0] NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149", "xid")
    assert named.fields["caused_by"] == 149
    action = one("[1.0] NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "xid")
    assert action.fields["action"] == "Drain and Reset"
    link = one("[1.0] NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x0 0x0 0x0 0x0)", "xid")
    assert (link.fields["fatal"], link.fields["link"], link.fields["unit"]) == (True, 8, "NETIR_LINK_EVT")
    sm = one(
        "[1.0] NVRM: Xid (PCI:0000:3b:00): 13, pid=9, name=python3, Graphics SM Warp Exception on (GPC 7, TPC 6, SM 1): Out Of Range Address",
        "xid",
    )
    assert sm.fields["unit"] == "GPC 7 TPC 6 SM 1"


def test_switch_errors_are_one_event_of_three_lines() -> None:
    text = """\
[1.0] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
[1.1] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00
[1.2] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000}
[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61"""
    first, second = [e for e in read(text).events if e.kind == "sxid"]
    assert (first.fields["code"], first.fields["fatal"], first.fields["link"], first.line) == (12028, False, 32, 1)
    assert (second.fields["code"], second.fields["fatal"], second.fields["reporter"]) == (20034, True, "fabric-manager")


def test_memory_kill_block_is_one_event() -> None:
    # Linux 6.1, cgroup limit of a Slurm job.
    text = """\
[100.0] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[100.0] CPU: 46 PID: 81200 Comm: python3 Tainted: P           OE     6.1.0-41-amd64 #1
[100.0] Call Trace:
[100.0]  oom_kill_process.cold+0xb/0x10
[100.0] memory: usage 67108864kB, limit 67108864kB, failcnt 43210
[100.0] Tasks state (memory values in pages):
[100.0] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[100.0] [    717]     0   717    91293      431    44408        0             0 slurm script
[100.0] [  81121]  1001 81121  3023424 12582912  7863424        0             0 python3
[100.0] [  81122]  1001 81122  3023424  1258291  7863424        0             0 pt_data_worker
[100.0] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0-1,oom_memcg=/system.slice/slurmstepd.scope/job_4242,task_memcg=/system.slice/slurmstepd.scope/job_4242/step_0/user/task_3,task=python3,pid=81121,uid=1001
[100.0] Memory cgroup out of memory: Killed process 81121 (python3) total-vm:12093696kB, anon-rss:50331648kB, file-rss:0kB, shmem-rss:12kB, UID:1001 pgtables:7639kB oom_score_adj:0
[100.2] oom_reaper: reaped process 81121 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"""
    event = one(text, "oom_kill")
    fields = event.fields
    assert (event.line, fields["first_line"], fields["kill_line"]) == (12, 1, 12)
    assert (fields["scope"], fields["memcg"], fields["invoker"], fields["invoker_pid"]) == (
        "cgroup",
        "/system.slice/slurmstepd.scope/job_4242",
        "python3",
        81200,
    )
    assert fields["limit_kb"] == 67108864
    assert [(t["name"], t["rss_mb"]) for t in fields["top"][:2]] == [("python3", 49152), ("pt_data_worker", 4915)]


def test_old_memory_kill_wording_names_the_victim_at_its_announcement() -> None:
    # Linux 2.6.32 to 5.0: announcement, then the kill, perhaps of a child.
    text = """\
Mar 10 01:33:03 c62 kernel: monitord invoked oom-killer: gfp_mask=0x280da, order=0, oom_adj=0, oom_score_adj=0
Mar 10 01:33:03 c62 kernel: Pid: 3312, comm: monitord Not tainted 2.6.32-431.el6.x86_64 #1
Mar 10 01:33:03 c62 kernel: [ pid ]   uid  tgid total_vm      rss cpu oom_adj oom_score_adj name
Mar 10 01:33:03 c62 kernel: [ 3312]     0  3312 52011200 51988112   7       0             0 monitord
Mar 10 01:33:03 c62 kernel: [19881]  5001 19881  6411002  5866112  13       0             0 python
Mar 10 01:33:03 c62 kernel: Out of memory: Kill process 19881 (python) score 212 or sacrifice child
Mar 10 01:33:03 c62 kernel: Killed process 19890, UID 5001, (python) total-vm:25644008kB, anon-rss:23461220kB, file-rss:3228kB"""
    event = one(text, "oom_kill")
    assert (event.line, event.end_line, event.fields["victim"], event.fields["child"]) == (6, 7, 19881, 19890)
    assert event.fields["top"][0]["name"] == "monitord"
    assert event.fields["anon_kb"] == 23461220
    memcg = one(
        "[1.0] Task in /slurm/uid_1000/job_4242/step_0 killed as a result of limit of /slurm/uid_1000/job_4242\n[1.0] memory: usage 10kB, limit 10kB, failcnt 3\n[1.0] Memory cgroup out of memory: Kill process 31340 (python) score 1001 or sacrifice child\n[1.0] Killed process 31340 (python) total-vm:5kB, anon-rss:4kB, file-rss:0kB",
        "oom_kill",
    )
    assert (memcg.fields["scope"], memcg.fields["memcg"]) == ("cgroup", "/slurm/uid_1000/job_4242")


def test_user_space_killers() -> None:
    oomd = one(
        "Nov 02 09:33:00 n1 systemd-oomd[812]: Killed /user.slice/user-1000.slice/session-3.scope due to memory pressure for /user.slice being 61.05% > 60.00%",
        "oom_kill",
    )
    assert (oomd.fields["killer"], oomd.fields["scope"]) == ("systemd-oomd", "host")
    early = one(
        'sending SIGTERM to process 31337 uid 1000 "python3": oom_score 912, oom_score_adj 0, VmRSS 480000 MiB, cmdline "python3 train.py"',
        "oom_kill",
    )
    assert (early.fields["victim"], early.fields["anon_kb"]) == (31337, 480000 * 1024)


def test_boots() -> None:
    text = """\
[    0.000000] Linux version 5.15.0-1053-nvidia (buildd@lcy02) (gcc 11.4.0) #54-Ubuntu SMP
[    0.000000] Command line: BOOT_IMAGE=/boot/vmlinuz-5.15.0 iommu=pt pci=realloc=off
[ 5000.000000] NVRM: Xid (PCI:0000:3b:00): 45, pid=1, name=python3, Ch 00000001
[    3.000000] NVRM: Xid (PCI:0000:3b:00): 31, pid=2, name=python3, Ch 00000001
[    5.000000] mce: [Hardware Error]: Machine check events logged"""
    rows = read(text)
    assert [e.fields["first"] for e in rows.events if e.kind == "boot"] == [True]
    assert ("version.kernel", "5.15.0-1053-nvidia", 1) in rows.facts
    assert {k: v for k, v, _ in rows.facts}["kernel.command_line"].endswith("pci=realloc=off")
    later = "\n".join(
        [
            "[ 9000.000000] INFO: task a:1 blocked for more than 120 seconds.",
            *["[ 9000.1] x"] * 60,
            "[   12.000000] INFO: task b:2 blocked for more than 120 seconds.",
        ]
    )
    assert [e.fields["how"] for e in read(later).events if e.kind == "boot"] == ["stamps restart"]
    assert one("\n" * 3 + "-- Reboot --", "boot").line == 4
    journal = "Nov 02 10:01:55 n1 kernel: x\n-- Reboot --\nNov 02 10:07:12 n1 kernel: Linux version 5.15.0-1053-nvidia (buildd@lcy02) #54"
    assert (one(journal, "boot").line, one(journal, "boot").fields["first"]) == (3, False)
    dump = read("Linux version 5.15.0-1053-nvidia (buildd@lcy02) #54\nCommand line: python train.py --lr 1e-4")
    assert [k for k, _, _ in dump.facts] == ["version.kernel"]
    assert not dump.events


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("pcieport 0000:3a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", "corrected"),  # up to 6.8
        ("pcieport 0000:3a:00.0: AER: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)", "corrected"),
        ("nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)", "fatal"),
        ("nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester ID)", "nonfatal"),
        ("pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0", "fatal"),
        ("pcieport 0000:00:01.0: AER: Multiple Corrected error message received from 0000:3b:00.0", "corrected"),
    ],
)
def test_pcie_error_wordings(line: str, severity: str) -> None:
    assert one(f"[1.0] {line}", "aer").fields["severity"] == severity


def test_floods_are_counted_not_kept() -> None:
    text = "\n".join(f"[{i}.000000] pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3b:00.0" for i in range(1000))
    events = [e for e in read(text).events if e.kind == "aer"]
    assert len(events) == KEEP
    assert events[-1].fields["repeats"] == 1000 - KEEP
    assert events[-1].fields["last_seconds"] == 999.0


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        ("Kernel panic - not syncing: hung_task: blocked tasks", "panic", {"why": "hung_task: blocked tasks"}),
        ("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:31337]", "lockup", {"what": "soft", "cpu": 18, "comm": "python3", "pid": 31337}),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", "lockup", {"what": "rcu"}),
        ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010090", "mce", {"status": "8c00004000010090"}),
        ("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400", "mce", {"uncorrected": True}),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1)", "mce", {"uncorrected": True, "dimm": "CPU_SrcID#0_MC#0_Chan#1_DIMM#0"}),
        ("MCE: Killing python3:31337 due to hardware memory corruption fault at 7f1234567000", "mce", {"pid": 31337, "uncorrected": True}),
        ("pcieport 0000:3a:00.0: pciehp: Slot(12): Link Down", "pcie_link", {"what": "Link Down", "pci": "0000:3a:00.0"}),
        ("pcieport 0000:3a:00.0: DPC: containment event, status:0x1f01 source:0x0000", "pcie_link", {"what": "containment event"}),
        ("blk_update_request: critical medium error, dev nvme1n1, sector 1624907375 op 0x0:(READ) flags 0x80700", "io_error", {"dev": "nvme1n1"}),
        ("EXT4-fs (md0): Remounting filesystem read-only", "io_error", {"dev": "md0", "readonly": True}),
        ("nvme nvme4: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10", "io_error", {"dev": "nvme4"}),
        ("nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller", "io_error", {"precursor": True}),
        ("XFS (md127): Metadata I/O Error (0x1) detected at xfs_trans_read_buf_map+0x1a2/0x330 [xfs] (fs/xfs/xfs_trans_buf.c:296).  Shutting down filesystem.", "io_error", {"dev": "md127"}),
        ("nfs: server 192.0.2.16 not responding, still trying", "fs_stall", {"fs": "nfs", "state": "lost", "server": "192.0.2.16"}),
        ("nfs: server 192.0.2.16 OK", "fs_stall", {"state": "ok"}),
        ("Lustre: scratch-OST0003-osc-ffff8888: Connection to scratch-OST0003 (at 192.0.2.10@o2ib) was lost; in progress operations using this service will wait for recovery to complete", "fs_stall", {"fs": "lustre", "state": "lost"}),
        ("mlx5_core 0000:5c:00.0: poll_health:852:(pid 0): device's health compromised - reached miss count", "ib_error", {"pci": "0000:5c:00.0"}),
        ("mlx5_core 0000:5c:00.0 ens1f0np0: Link down", "nic_link", {"device": "ens1f0np0", "state": "down"}),
        ("ice 0000:17:00.0 eth2: NIC Link is Down", "nic_link", {"device": "eth2", "state": "down"}),
        ("mlx5_core 0000:84:00.0 mlx5_0: Port: 1 Link ACTIVE", "nic_link", {"device": "mlx5_0", "state": "up"}),
        ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out", "nic_stall", {"device": "eth0"}),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:2427)", "rm_init_failed", {"step": "0x62:0x40:2427"}),
        ("NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949", "gsp_timeout", {"what": "heartbeat"}),
        ("amdgpu 0000:dd:00.0: amdgpu: GPU reset begin!", "amdgpu_fault", {"pci": "0000:dd:00.0"}),
        ("traps: python3[31337] trap invalid opcode ip:7f1234 sp:7ffd error:0 in libfoo.so[7f1234000000+200000]", "segfault", {"trap": "trap invalid opcode", "lib": "libfoo.so"}),
        ("python3[31340]: segfault at 0 ip 0000000000000000 sp 00007ffd1234 error 14 likely on CPU 12 (core 6, socket 0)", "segfault", {"pid": 31340}),
    ],
)  # fmt: skip
def test_host_lines(line: str, kind: str, fields: dict[str, object]) -> None:
    event = one(f"[12.5] {line}", kind)
    assert {name: event.fields.get(name) for name in fields} == fields


def test_mismatch_reads_its_three_lines() -> None:
    text = """\
[12.1] NVRM: API mismatch: the client 'python3' (pid 31337)
[12.1] NVRM: has the version 535.183.01, but this kernel module has
[12.1] NVRM: the version 535.129.03.  Please make sure that this"""
    event = one(text, "driver_mismatch")
    assert (event.fields["client"], event.fields["module"].rstrip("."), event.pid) == ("535.183.01", "535.129.03", 31337)


def test_a_gpu_dead_at_driver_load_is_told_once() -> None:
    text = """\
[12.1] NVRM: The NVIDIA GPU 0000:18:00.0
[12.1] NVRM: (PCI ID: 10de:2901) installed in this system has
[12.1] NVRM: fallen off the bus and is not responding to commands."""
    assert one(text, "gpu_lost").fields["pci"] == "0000:18:00.0"


def test_hung_task_names_what_it_waits_for() -> None:
    text = """\
[1.0] INFO: task pt_data_worker:814783 blocked for more than 120 seconds.
[1.0]       Tainted: P           OE     5.15.0-1053-nvidia #54-Ubuntu
[1.0] Call Trace:
[1.0]  io_schedule+0x46/0x80
[1.0]  nfs_wait_bit_killable+0x1e/0x90 [nfs]"""
    assert one(text, "hung_task").fields["waits_on"] == "nfs"


def test_ordinary_lines_say_nothing() -> None:
    text = """\
[1.0] veth1683ce6: left promiscuous mode
[2.0] mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5)
[3.0] nfs: RPC call returned error 512
[4.0] audit: type=1400 audit(1738179964.083:214356): apparmor="STATUS" operation="profile_replace"
[5.0] IPv6: ADDRCONF(NETDEV_CHANGE): vethb632df8: link becomes ready
[6.0] CPU4: Package temperature/speed normal
[7.0] EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Opts: (null)
NCCL INFO Connected all rings, link is up to date
2025-01-01 step 5 loss 2.0 timeout, retrying"""
    assert read(text).events == []


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("3b:00.0", "0000:3b:00.0"),
        ("0000:3B:00", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0018:01:00", "0018:01:00.0"),
        ("x", None),
        ("", None),
    ],
)
def test_one_spelling_of_pci_ids(text: str, want: str | None) -> None:
    assert canonical_pci(text) == want


FRAGMENTS = st.sampled_from(
    [
        *(t for p in PARSERS for t in p.triggers),
        "NVRM: ",
        "(PCI:0000:3b:00): ",
        "pid=",
        "[",
        "\x00",
        "9" * 40,
        "\r",
        "\n",
        "é",
        "Link ",
        "mlx5_core ",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(FRAGMENTS, st.text(max_size=12)), max_size=25))
def test_no_text_makes_a_parser_raise(parts: list[str]) -> None:
    read("".join(parts))
    read(" ".join(parts))
