"""nvidia-smi's other outputs: table, -q, topo -m, nvlink -s, compute apps, dmon, pmon; and rocm-smi."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_lines import facts, feed, head, parse_file

from parsers import gpu_monitors, nvidia_smi_links, nvidia_smi_query, nvidia_smi_views
from parsers.base import FileParser, LineParser, Rows

VIEWS = tuple(p for p in nvidia_smi_views.PARSER if isinstance(p, LineParser))
(BARE,) = (p for p in nvidia_smi_views.PARSER if isinstance(p, FileParser))
ALL = (*VIEWS, nvidia_smi_query.PARSER, *nvidia_smi_links.PARSER, *gpu_monitors.PARSER)

# driver 535: Tesla-style rows of three lines, GI/CI columns in the process table
TABLE = """Sat Mar 14 06:17:40 2026
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |
| N/A   61C    P0             389W / 400W |  70011MiB / 81920MiB |     97%      Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+
|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:0F:00.0 Off |                    2 |
| N/A   ERR!  ERR!          ERR! / ERR!   |  70015MiB / 81920MiB |    ERR!      Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+

+---------------------------------------------------------------------------------------+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|        ID   ID                                                             Usage      |
|=======================================================================================|
|    0   N/A  N/A     41872      C   /opt/conda/bin/python                     69990MiB |
|    1   N/A  N/A     41873      C   ray::WorkerDict.actor_rollout             12000MiB |
|    1   N/A  N/A      2211      G   /usr/lib/xorg/Xorg                            4MiB |
+---------------------------------------------------------------------------------------+
"""
# driver 418: no GI/CI, no CUDA 12 widths
OLD = """+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.67       Driver Version: 418.67       CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  Off  | 00000000:1A:00.0 Off |                    0 |
| N/A   37C    P0    54W / 300W |  15120MiB / 16130MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0      9121      C   python                                     15110MiB |
+-----------------------------------------------------------------------------+
"""


def samples(rows: Rows) -> list[dict[str, Any]]:
    return pl.concat(rows.samples, how="diagonal_relaxed").to_dicts() if rows.samples else []


def events(rows: Rows, kind: str) -> list[tuple[Any, ...]]:
    return [(e.gpu, e.fields) for e in rows.events if e.kind == kind]


def test_table_gives_versions_samples_and_processes() -> None:
    rows = feed(VIEWS, TABLE)
    assert facts(rows, "version.driver") == ["535.104.05"]
    assert facts(rows, "version.cuda_driver") == ["12.2"]
    assert facts(rows, "gpu.name") == ["NVIDIA A100-SXM4-80GB"]
    assert facts(rows, "gpu.count") == [2]
    first, second = samples(rows)
    assert (first["pci"], first["memory_used"], first["memory_total"], first["utilization"], first["temperature"], first["power"]) == (
        "0000:07:00.0", 70011.0, 81920.0, 97.0, 61.0, 389.0,
    )  # fmt: skip
    assert second["ecc_uncorrected"] == 2
    assert second["status"] == "ERR!"
    assert second["temperature"] is None
    apps = [e.fields for e in rows.events if e.kind == "compute_app"]
    assert [(a["gpu"], a["pid"], a["name"], a["memory_mib"]) for a in apps] == [
        ("0", 41872, "python", 69990.0), ("1", 41873, "ray::WorkerDict.actor_rollout", 12000.0), ("1", 2211, "Xorg", 4.0),
    ]  # fmt: skip


def test_error_in_the_table_is_one_event_at_its_line() -> None:
    (event,) = [e for e in feed(VIEWS, TABLE).events if e.kind == "gpu_status"]
    assert (event.gpu, event.line, event.fields["pci"]) == ("1", 14, "0000:0f:00.0")


def test_a_fan_that_fails_is_no_lost_gpu() -> None:
    rows = feed(
        VIEWS,
        TABLE.replace("| N/A   61C    P0             389W", "|ERR!   61C    P0             389W")
        .replace("ERR!  ERR!          ERR! / ERR! ", "60C   P0            300W / 400W ")
        .replace("   ERR!      Default", "     5%      Default"),
    )
    assert events(rows, "gpu_status") == []


def test_table_of_an_old_driver() -> None:
    rows = feed(VIEWS, OLD)
    assert facts(rows, "version.cuda_driver") == ["10.1"]
    assert samples(rows)[0]["memory_used"] == 15120.0
    assert [f["pid"] for _, f in events(rows, "compute_app")] == [9121]


def test_newest_table_names_the_drivers_apart() -> None:
    """Drivers from 595 on print the kernel module's and the user-mode driver's versions under other names."""
    rows = feed(VIEWS, TABLE.replace("Driver Version: 535.104.05   CUDA Version: 12.2 ", "KMD Version: 595.80   CUDA UMD Version: 13.2  "))
    assert facts(rows, "version.driver") == ["595.80"]
    assert facts(rows, "version.cuda_driver") == ["13.2"]


def test_two_tables_do_not_run_together() -> None:
    rows = feed(VIEWS, TABLE + TABLE.replace("70011MiB", "80011MiB"))
    assert [s["memory_used"] for s in samples(rows) if s["gpu"] == "0"] == [70011.0, 80011.0]


def test_a_table_every_second_stays_a_few_frames() -> None:
    rows = feed(VIEWS, OLD * 600)
    assert len(rows.samples) < 300
    assert len(samples(rows)) == 600
    (app,) = [e for e in rows.events if e.kind == "compute_app"]
    assert app.line == 600 * OLD.count("\n") - 1


def test_list_of_cards() -> None:
    rows = feed(
        VIEWS,
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555556)\n",
    )
    assert facts(rows, "gpu.count") == [2]
    assert facts(rows, "gpu.name") == ["NVIDIA H100 80GB HBM3"]


def test_compute_apps_with_header_and_commas_in_names() -> None:
    rows = feed(
        VIEWS, "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-1111, 77, python -c a,b, 400 MiB\nGPU-1111, 78, x, [N/A]\nend\n"
    )
    ((gpu, fields),) = events(rows, "compute_app")
    assert (gpu, fields["pid"], fields["memory_mib"]) == ("GPU-1111", 77, 400.0)


def test_compute_apps_without_header() -> None:
    data = b"41872, python, 69990 MiB\n41873, /usr/bin/python3.10, 120 MiB\n"
    assert BARE.recognises(head("x.txt", data)) > 0.5
    assert [e.fields["pid"] for e in parse_file(BARE, "x.txt", data).events] == [41872, 41873]
    # Two numbers without units could be anything, unless the file says what it is.
    assert BARE.recognises(head("pairs.csv", b"1, 2\n3, 4\n")) == 0.0
    assert BARE.recognises(head("compute_apps.csv", b"41872, 69990\n41873, 120\n")) > 0.5


# driver 590, H100, shortened to the branches that are read
TREE = """==============NVSMI LOG==============

Timestamp                                 : Tue Jul 14 08:12:38 2026
Driver Version                            : 590.48.01
CUDA Version                              : 13.1

Attached GPUs                             : 2
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Minor Number                          : 0
    GPU Recovery Action                   : None
    GPU Link Info
        PCIe Generation
            Max                           : 5
            Current                       : 1
        Link Width
            Max                           : 16x
            Current                       : 16x
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 521 MiB
    Utilization
        GPU                               : 0 %
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 7
            SRAM Threshold Exceeded       : No
    Remapped Rows
        Pending                           : No
        Remapping Failure Occurred        : No
    Fabric
        State                             : Completed
        Status                            : Success
    Processes                             : None
GPU 00000000:4C:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Minor Number                          : 1
    GPU Recovery Action                   : Drain and Reset
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 3
            Link Width
                Max                       : 16x
                Current                   : 8x
    Clocks Throttle Reasons
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 79000 MiB
    Utilization
        Gpu                               : 98 %
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity     : 1
            DRAM Uncorrectable            : 2
    Remapped Rows
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 88 C
    Fabric
        State                             : In Progress
        Status                            : N/A
    Processes
        Process ID                        : 41873
            Type                          : C
            Name                          : python
            Used GPU Memory               : 78000 MiB
"""


def test_tree_of_a_healthy_and_a_bad_card() -> None:
    rows = feed(nvidia_smi_query.PARSER, TREE)
    good, bad = samples(rows)
    assert (good["gpu"], good["pci"], good["memory_used"], good["ecc_uncorrected"], good["throttle"]) == (
        "0",
        "0000:3b:00.0",
        521.0,
        0.0,
        1,
    )
    assert (bad["gpu"], bad["ecc_uncorrected"], bad["throttle"], bad["temperature"], bad["pcie_width"]) == ("1", 3.0, 0x48, 88.0, 8.0)
    health = {(e.gpu, e.fields["what"]): e for e in rows.events if e.kind == "gpu_health"}
    assert set(health) == {("1", w) for w in ("recovery", "remap_pending", "ecc_uncorrected", "fabric", "link_width", "link_generation")}
    assert health["1", "recovery"].fields["value"] == "Drain and Reset"
    assert health["1", "link_width"].fields["maximum"] == 16.0
    lines = TREE.splitlines()
    assert all(value in lines[e.line - 1] for key, value in (("recovery", "Drain"), ("remap_pending", "Yes")) for e in [health["1", key]])
    assert [f["memory_mib"] for _, f in events(rows, "compute_app")] == [78000.0]
    assert facts(rows, "gpu.count") == [2]


def test_tree_time_is_the_timestamp() -> None:
    frame = feed(nvidia_smi_query.PARSER, TREE).samples[0]
    assert frame["form"][0] == "ctime"


TOPO = """	\x1b[4mGPU0	GPU1	GPU2	GPU3	NIC0	CPU Affinity	NUMA Affinity	GPU NUMA ID\x1b[0m
GPU0	 X 	NV18	NV18	NV18	PXB	0-51	0		N/A
GPU1	NV18	 X 	NV18	{0}	SYS	0-51	0		N/A
GPU2	NV18	NV18	 X 	NV18	SYS	52-103	1		N/A
GPU3	NV18	{0}	NV18	 X 	SYS	52-103	1		N/A
NIC0	PXB	SYS	SYS	SYS	 X

Legend:
"""


@pytest.mark.parametrize(("cell", "uneven"), [("NV18", {}), ("NV12", {"1-3": 12}), ("SYS", {"1-3": 0})])
def test_topology(cell: str, uneven: dict[str, int]) -> None:
    rows = feed(nvidia_smi_links.PARSER, TOPO.format(cell))
    ((_, fields),) = events(rows, "gpu_topology")
    assert fields["cards"] == 4
    assert fields["nics"] == 1
    assert fields["kind"] == "NVLink"
    assert fields["uneven"] == uneven


def test_bridges_in_pairs_are_not_uneven() -> None:
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\tSYS\tSYS\t0-31\t0\nGPU1\tNV4\t X \tSYS\tSYS\t0-31\t0\nGPU2\tSYS\tSYS\t X \tNV4\t32-63\t1\nGPU3\tSYS\tSYS\tNV4\t X \t32-63\t1\n"
    ((_, fields),) = events(feed(nvidia_smi_links.PARSER, text), "gpu_topology")
    assert fields["uneven"] == {}


def test_topology_without_nvlink() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-31\t0\nGPU1\tPHB\t X \t0-31\t0\n"
    ((_, fields),) = events(feed(nvidia_smi_links.PARSER, text), "gpu_topology")
    assert fields["kind"] == "PHB"


def test_links_that_are_down() -> None:
    text = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaaaaaa-bbbb)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaaaaaa-bbbc)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\n"
    found = events(feed(nvidia_smi_links.PARSER, text), "nvlink_state")
    assert [(gpu, f["active"], f["inactive"]) for gpu, f in found] == [("0", 1, [1]), ("1", 2, [])]


DMON = """# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz
    0    632     55     60    100     40      0      0      0      0   2619   1980
    1     71     32      -      0      0      0      0      0      0   2619    345
"""


def test_dmon_maps_columns_by_name() -> None:
    one, two = samples(feed(gpu_monitors.PARSER, DMON))
    assert (one["gpu"], one["power"], one["utilization"], one["sm_clock"], one["memory_temperature"]) == ("0", 632.0, 100.0, 1980.0, 60.0)
    assert two["memory_temperature"] is None


def test_dmon_with_date_has_a_clock_and_with_time_alone_none() -> None:
    dated = "#Date       Time        gpu    pwr  gtemp     sm\n#YYYYMMDD   HH:MM:SS    Idx      W      C      %\n 20260714   08:12:38      0     69     32      5\n 20260714   08:12:39      0     70     32      6\n"
    rows = feed(gpu_monitors.PARSER, dated)
    first, second = samples(rows)
    assert second["local"] - first["local"] == 1.0
    timed = "#Time        gpu    pwr  gtemp     sm\n#HH:MM:SS    Idx      W      C      %\n 08:12:38      0     69     32      5\n"
    assert "local" not in samples(feed(gpu_monitors.PARSER, timed))[0]


def test_pmon_names_processes() -> None:
    text = "# gpu         pid   type     sm    mem    fb   command\n# Idx           #    C/G      %      %    MB   name\n    0      41872     C     97     60  19000   python\n    1          -     -      -      -      -   -\n"
    ((gpu, fields),) = events(feed(gpu_monitors.PARSER, text), "compute_app")
    assert (gpu, fields["pid"], fields["memory_mib"], fields["name"]) == ("0", 41872, 19000.0, "python")


# ROCm 5.7: `rocm-smi -a` lines and the short table
ROCM = """======================= ROCm System Management Interface =======================
GPU[0]		: Temperature (Sensor junction) (C): 52.0
GPU[0]		: Average Graphics Package Power (W): 302.0
GPU[0]		: GPU use (%): 97
GPU[0]		: VRAM Total Memory (B): 68702699520
GPU[0]		: VRAM Total Used Memory (B): 34359738368
GPU[1]		: Temperature (Sensor junction) (C): 50.0
GPU[1]		: GPU use (%): 0
============================= End of ROCm SMI Log ==============================
"""


def test_rocm_smi_text() -> None:
    one, two = samples(feed(gpu_monitors.PARSER, ROCM))
    assert (one["temperature"], one["power"], one["utilization"], one["memory_used"]) == (52.0, 302.0, 97.0, 32768.0)
    assert two["utilization"] == 0.0


def test_rocm_smi_short_table() -> None:
    text = "========================= ROCm System Management Interface =========================\nGPU  Temp (DieEdge)  AvgPwr  SCLK     MCLK     Fan  Perf  PwrCap  VRAM%  GPU%\n0    44.0c           101.0W  800Mhz   1600Mhz  0%   auto  560.0W   12%   97%\n"
    (card,) = samples(feed(gpu_monitors.PARSER, text))
    assert (card["temperature"], card["power"], card["power_limit"], card["sm_clock"], card["utilization"]) == (
        44.0,
        101.0,
        560.0,
        800.0,
        97.0,
    )


@given(
    st.lists(
        st.sampled_from(
            [
                *TABLE.splitlines(),
                *TREE.splitlines(),
                *TOPO.splitlines(),
                *DMON.splitlines(),
                *ROCM.splitlines(),
                "\x00|||",
                "GPU[",
                "|" * 300,
            ]
        ),
        max_size=60,
    )
)
def test_shuffled_pieces_raise_nothing(lines: list[str]) -> None:
    feed(ALL, "\n".join(lines))
