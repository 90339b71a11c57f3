"""Readers of the host's state: limits, memory, containers, processes, links, disks, bug reports."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_lines import facts, feed, head, parse_file

import forensics
from parsers import bug_report, disk_state, fabric_state, host_limits, host_memory, host_processes
from parsers.base import FileParser, LineParser

MODULES = (host_limits, host_memory, host_processes, fabric_state, disk_state)
LINES = tuple(p for module in MODULES for p in module.PARSER if isinstance(p, LineParser))


def files(module: Any, name: str) -> FileParser:
    return next(p for p in module.PARSER if isinstance(p, FileParser) and p.name == name)


def fields(text: str, kind: str) -> list[dict[str, Any]]:
    return [e.fields for e in feed(LINES, text).events if e.kind == kind]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("open files                      (-n) 1024", "limit.open_files", 1024),  # bash 5.0
        ("open files                              (-n) 1048576", "limit.open_files", 1048576),  # bash 5.1
        ("max locked memory       (kbytes, -l) unlimited", "limit.memlock", "unlimited"),
        ("max locked memory               (kbytes, -l) 65536", "limit.memlock", 65536),
        ("max user processes                      (-u) 4127", "limit.processes", 4127),
        ("-n: file descriptors                1024", "limit.open_files", 1024),  # zsh
        ("Max open files            1024                 524288               files", "limit.open_files", 1024),  # /proc/PID/limits
        ("Max locked memory         8388608              8388608              bytes", "limit.memlock", 8192),
        ("$ ulimit -n\n65535", "limit.open_files", 65535),
        ("$ srun bash -c 'ulimit -l'\n64", "limit.memlock", 64),
        ("vm.swappiness = 60", "swappiness", 60),
        ("$ cat /proc/sys/vm/swappiness\n1", "swappiness", 1),
        ("MemTotal:       2113460896 kB", "host.memory_gib", 2015.55),
        ("               total        used        free      shared  buff/cache   available\nMem:            2015         104         800           2        1110        1898", "host.memory_gib", 2015.0),
        ("              total        used        free      shared  buff/cache   available\nMem:      528280996   104857600   324000000         512    99423396   419430400", "host.memory_gib", 503.81),
        ("               total        used        free      shared  buff/cache   available\nMem:           503Gi        99Gi       300Gi       1.0Gi       103Gi       400Gi", "host.memory_gib", 503.0),
        ("CPU(s):                             192", "host.cpus", 192),
        ("$ cat /sys/fs/cgroup/memory.max\n68719476736", "container.memory", 64.0),
        ("/sys/fs/cgroup/memory.max: max", "container.memory", "unlimited"),
        ("$ cat /sys/fs/cgroup/memory/memory.limit_in_bytes\n9223372036854771712", "container.memory", "unlimited"),
        ("/sys/fs/cgroup/cpu.max:1600000 100000", "container.cpus", 16.0),
    ],
)  # fmt: skip
def test_limits_and_memory(text: str, key: str, value: Any) -> None:
    assert facts(feed(LINES, text), key) == [value]


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 24] Too many open files: '/data/shard-0001'",
        "please raise your ulimit -n to 65536",
        "warning: max locked memory is too low for RDMA",
        "Mem: using pinned buffers",
        "cpu.max could not be read",
    ],
)
def test_sentences_are_no_limits(line: str) -> None:
    assert feed(LINES, line + "\nnext line\n").facts == []


def test_kills_that_a_cgroup_counted() -> None:
    assert fields("low 0\nhigh 0\nmax 412\noom 3\noom_kill 3\noom_group_kill 0\n", "cgroup_kills") == [{"oom_kill": 3}]
    assert fields("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n", "cgroup_kills") == []


@pytest.mark.parametrize(
    ("path", "text", "key", "value"),
    [("pod/memory.max", "34359738368\n", "container.memory", 32.0), ("cpu.max", "max 100000\n", "container.cpus", "unlimited")],
)
def test_cgroup_files(path: str, text: str, key: str, value: Any) -> None:
    parser = files(host_memory, "cgroup file")
    assert parser.recognises(head(path, text.encode())) > 0.5
    assert facts(parse_file(parser, path, text.encode()), key) == [value]


def test_docker_inspect() -> None:
    item = {
        "Name": "/trainer",
        "State": {"Status": "exited", "OOMKilled": True, "ExitCode": 137},
        "HostConfig": {"Memory": 68719476736, "NanoCpus": 8000000000, "ShmSize": 67108864, "IpcMode": "private", "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}]},
        "Config": {"Image": "nvcr.io/nvidia/pytorch:24.05-py3", "Env": ["NCCL_DEBUG=INFO", "HF_TOKEN=hf_x", "PATH=/usr/bin"]},
    }  # fmt: skip
    data = json.dumps([item], indent=4).encode()
    parser = files(host_memory, "docker inspect")
    assert parser.recognises(head("inspect.json", data)) > 0.5
    rows = parse_file(parser, "inspect.json", data)
    told = {key: value for key, value, _ in rows.facts}
    assert told["container.memory"] == 64.0
    assert told["container.cpus"] == 8.0
    assert told["shm.size"] == 0.06
    assert told["limit.memlock"] == "unlimited"
    assert told["env.NCCL_DEBUG"] == "INFO"
    assert "env.HF_TOKEN" not in told
    (event,) = rows.events
    assert event.fields["oom_killed"] is True
    assert "OOMKilled" in data.decode().splitlines()[event.line - 1]
    with pytest.raises(ValueError, match=r"Unterminated|Expecting|delimiter"):
        parse_file(parser, "inspect.json", data[:100])


def test_proc_status() -> None:
    text = "Name:\tpython\nUmask:\t0022\nState:\tD (disk sleep)\nTgid:\t41872\nPid:\t41872\nPPid:\t41800\nVmPeak:\t 98304000 kB\nVmSize:\t 98304000 kB\nVmHWM:\t 20480000 kB\nVmRSS:\t 10240000 kB\nVmSwap:\t       0 kB\nThreads:\t120\n"
    (found,) = fields(text, "proc_status")
    assert (found["pid"], found["name"], found["state"], found["vm_peak_mib"], found["vm_rss_mib"], found["threads"]) == (
        41872,
        "python",
        "D",
        96000.0,
        10000.0,
        120,
    )


PS_AUX = """USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND
root           1  0.0  0.0   2792  1024 ?        Ss   Mar13   0:01 /sbin/init
trainer    41872 99.1  2.3 98304000 10240000 ?   Rl   06:00 120:34 python -u train.py --config a.yaml
trainer    41899  0.0  0.4 90304000 2048000 ?    D    06:00   0:03 python -u train.py --config a.yaml
root       50000  0.0  0.0   8172   720 pts/0    S+   06:40   0:00 grep python
"""


def test_process_lists() -> None:
    rows = fields(PS_AUX, "ps_process")
    assert [(r["pid"], r["state"], r["rss_mib"]) for r in rows] == [(41872, "Rl", 10000.0), (41899, "D", 2000.0)]
    tree = "    PID    PPID STAT   RSS WCHAN  COMMAND\n  41872       1 Sl   1024 futex_ python train.py\n  41899   41872 D    1024 rpc_wa python train.py\n"
    assert [(r["ppid"], r["state"], r["wchan"]) for r in fields(tree, "ps_process")] == [(1, "Sl", "futex_"), (41872, "D", "rpc_wa")]


def test_process_list_without_its_header() -> None:
    data = "\n".join(PS_AUX.splitlines()[2:4]).encode()
    parser = files(host_processes, "ps list")
    assert parser.recognises(head("ps.txt", data)) > 0.5
    assert [e.fields["pid"] for e in parse_file(parser, "ps.txt", data).events] == [41872, 41899]
    assert parser.recognises(head("train.log", b"2026-03-14 06:17:40 step 1 loss 2\n" * 9)) == 0.0


IBSTAT = """CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 400
		Link layer: InfiniBand
CA 'mlx5_1'
	CA type: MT4129
	Number of ports: 1
	Port 1:
		State: Down
		Physical state: Polling
		Rate: 10
		Link layer: InfiniBand
"""


def test_infiniband_ports_in_three_spellings() -> None:
    assert [(p["device"], p["state"], p["physical"], p["rate"]) for p in fields(IBSTAT, "ib_port")] == [
        ("mlx5_0", "Active", "LinkUp", 400.0),
        ("mlx5_1", "Down", "Polling", 10.0),
    ]
    devinfo = "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\tphys_port_cnt:\t\t\t2\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tlink_layer:\t\tInfiniBand\n\t\tport:\t2\n\t\t\tstate:\t\t\tPORT_DOWN (1)\n"
    assert [(p["port"], p["state"]) for p in fields(devinfo, "ib_port")] == [(1, "Active"), (2, "Down")]
    status = "Infiniband device 'mlx5_0' port 1 status:\n\tdefault gid:\t fe80::1\n\tstate:\t\t 2: INIT\n\tphys state:\t 5: LinkUp\n\trate:\t\t 200 Gb/sec (4X HDR)\n\tlink_layer:\t InfiniBand\n"
    assert [(p["state"], p["physical"], p["rate"]) for p in fields(status, "ib_port")] == [("Initializing", "LinkUp", 200.0)]


LSPCI = """3b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
	Subsystem: NVIDIA Corporation Device 16c1
		LnkCap:	Port #0, Speed 32GT/s, Width x16, ASPM not supported
		LnkSta:	Speed 32GT/s, Width x8 (downgraded)
00:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge
		LnkSta:	Speed 2.5GT/s (downgraded), Width x4 (downgraded)
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
"""


def test_lspci() -> None:
    (link,) = fields(LSPCI, "lspci_link")  # the bridge's own link says nothing
    assert (link["pci"], link["width"], link["width_cap"], link["downgraded"]) == ("0000:3b:00.0", 8.0, 16.0, True)
    (acs,) = fields(LSPCI, "lspci_acs")
    assert (acs["pci"], acs["redirect"]) == ("0000:00:01.1", True)
    off = LSPCI.replace("ReqRedir+ CmpltRedir+", "ReqRedir- CmpltRedir-")
    assert [a["redirect"] for a in fields(off, "lspci_acs")] == [False]


def test_quotas() -> None:
    linux = "Disk quotas for user alice (uid 1000): \n     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace\n      /dev/sda1  20971520* 20000000 20971520   6days   12345       0       0        \n"
    (found,) = fields(linux, "quota_usage")
    assert (found["mount"], found["what"], found["percent"], found["over"]) == ("/dev/sda1", "blocks", 100.0, True)
    lustre = "Disk quotas for usr alice (uid 1000):\n      Filesystem    used   quota   limit   grace   files   quota   limit   grace\n        /lustre  4.5T     10T     10T       -  3999999       0 4000000       -\n"
    assert [(q["what"], q["percent"], q["over"]) for q in fields(lustre, "quota_usage")] == [
        ("blocks", 45.0, False),
        ("files", 100.0, False),
    ]


def test_disk_tables_become_facts() -> None:
    rows = feed(
        LINES,
        "Filesystem      Size  Used Avail Use% Mounted on\n/dev/nvme1n1    100G   97G    3G  97% /workspace\nshm              64M   1M    63M   2% /dev/shm\n",
    )
    assert facts(rows, "disk./workspace.used_pct") == [97]
    assert facts(rows, "shm.size") == [0.06]


REPORT = f"""____________________________________________

Start of NVIDIA bug report log file.  Please include this file, along
with a detailed description of your problem, when reporting a graphics
driver bug via the NVIDIA Linux forum.

nvidia-bug-report.sh Version: 35082124

____________________________________________

*** /proc/driver/nvidia/./version
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
____________________________________________

/usr/bin/lspci -nntv

{LSPCI}
____________________________________________

/usr/bin/nvidia-smi --query

==============NVSMI LOG==============

Timestamp                                 : Sat Mar 14 06:40:00 2026
Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Remapped Rows
        Pending                           : Yes
____________________________________________
"""


def test_bug_report_is_split_into_its_parts(tmp_path: Any) -> None:
    data = REPORT.encode()
    assert bug_report.PARSER.recognises(head("nvidia-bug-report.log", data)) > 0.5
    (tmp_path / "nvidia-bug-report.log.gz").write_bytes(gzip.compress(data))
    run = forensics.analyze(tmp_path).run
    (info,) = run.files.values()
    assert info.kinds[0] == "gpu"
    assert "train" not in info.kinds
    assert run.fact("version.driver") == "550.54.15"
    assert [e.fields["what"] for e in run.kind("gpu_health")] == ["remap_pending"]
    assert [e.fields["width"] for e in run.kind("lspci_link")] == [8.0]


PIECES = [line for text in (PS_AUX, IBSTAT, LSPCI, REPORT) for line in text.splitlines()]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=60)), max_size=50))
def test_any_order_of_lines_raises_nothing(lines: list[str]) -> None:
    feed(LINES, "\n".join(lines))
