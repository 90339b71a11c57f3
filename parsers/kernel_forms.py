"""The forms of kernel lines about the host, one entry each: `parsers.kernel_log` reads them.

Wordings: Linux 3.10 to 6.18, Lustre 2.12 to 2.16 clients, mlx5_core and ice drivers, GPFS daemon lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import regex

from parsers.base import Context, Line, Severity, lazy_regex

BDF = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
COMM = r"(?P<comm>[^\s\[\];\"]{1,32})"


@dataclass(slots=True, frozen=True)
class Form:
    """One kind of line: what must stand in it (any of), its pattern, and what event it makes.  `extra` are constant fields."""

    kind: str
    severity: Severity
    triggers: tuple[str, ...]
    pattern: regex.Pattern[str]
    extra: tuple[tuple[str, Any], ...] = ()
    finish: Callable[[Line, Context, dict[str, Any]], Severity | None] | None = None


def _form(kind: str, severity: Severity, triggers: str | tuple[str, ...], pattern: str, finish: Any = None, **extra: Any) -> Form:
    names = (triggers,) if isinstance(triggers, str) else triggers
    return Form(kind, severity, names, lazy_regex(pattern), tuple(extra.items()), finish)


def _aer(_line: Line, _context: Context, fields: dict[str, Any]) -> Severity | None:
    words = fields.get("severity", "")
    name = "fatal" if words.endswith("(Fatal)") else "nonfatal" if "Non-Fatal" in words else "corrected"
    fields["severity"] = name
    return {"fatal": "fatal", "nonfatal": "error", "corrected": "info"}[name]  # type: ignore[return-value]


STACKS = (
    ("nfs", ("nfs_", "nfs4_", "rpc_wait_bit", "sunrpc", "[nfs")),
    ("lustre", ("ll_", "ptlrpc", "[lustre]", "osc_", "ldlm_", "cl_sync_io", "lov_")),
    ("gpfs", ("mmfs", "gpfs", "cxiWait")),
    ("ceph", ("ceph_",)),
    ("weka", ("wekafs",)),
    ("beegfs", ("beegfs", "FhgfsOps")),
    ("fuse", ("fuse_", "request_wait_answer")),
    ("block", ("xfs_", "jbd2_", "ext4_", "blk_mq", "submit_bio", "io_schedule", "btrfs_", "md_write")),
    ("nvidia", ("nvidia", "uvm_", "os_acquire_", "rm_ioctl", "nv_")),
    ("mlx5", ("mlx5_", "ib_uverbs")),
)


def _hung(_line: Line, context: Context, fields: dict[str, Any]) -> Severity | None:
    """Name what the task waits for from the stack printed below it; a remote file system goes before the block layer under it."""
    found: list[str] = []
    for below in context.following(40):
        if "blocked for more than" in below.text:
            break
        if "+0x" in below.text:
            found += [name for name, marks in STACKS if any(mark in below.text for mark in marks)]
    if found:
        fields["waits_on"] = next((name for name in found if name != "block"), "block")
    return None


def _mce(_line: Line, _context: Context, fields: dict[str, Any]) -> Severity | None:
    status = fields.pop("status", None)
    if fields.pop("exception", None):
        fields["uncorrected"] = True
    if status:
        fields["status"] = status
        if int(status, 16) >> 61 & 1:  # bit 61 of MCi_STATUS: the error was not corrected (x86 architecture)
            fields["uncorrected"] = True
    return "fatal" if fields.get("uncorrected") else "warning"


def _io(_line: Line, _context: Context, fields: dict[str, Any]) -> Severity | None:
    if "error 28" in fields.get("what", ""):
        fields["full"] = True
    return None


def _apei(_line: Line, _context: Context, fields: dict[str, Any]) -> Severity | None:
    if fields.get("level") == "fatal":
        fields["uncorrected"] = True
        return "fatal"
    return None


def _link(_line: Line, _context: Context, fields: dict[str, Any]) -> Severity | None:
    state = fields.get("state", "").lower()
    fields["state"] = "down" if state in ("down", "lost", "is not ready", "unplugged") else "up"
    return "warning" if fields["state"] == "down" else "info"


FORMS: tuple[Form, ...] = (
    # --- the node itself
    _form("panic", "fatal", "Kernel panic - not syncing", r"Kernel panic - not syncing: ?(?P<why>[^\n]{0,200})"),
    _form(
        "oops",
        "error",
        ("BUG: kernel NULL pointer", "BUG: unable to handle ", "general protection fault, ", "invalid opcode: 0000", "Oops: 0"),
        r"(?P<why>BUG: (?:kernel NULL pointer dereference|unable to handle [^:\n]{0,60})|general protection fault, [^\n]{0,60}|invalid opcode: 0000|Oops: 0\w{0,8})",
    ),
    _form(
        "shutdown",
        "warning",
        (
            "reboot: ",
            "Rebooting in ",
            "The system will reboot now",
            "System is rebooting",
            "System is powering down",
            "The system will power off",
        ),
        r"(?P<what>Rebooting in \d+ seconds|reboot: (?:Restarting system|Power down|System halted)|The system will (?:reboot|power off) now|System is (?:rebooting|powering down))",
    ),
    _form(
        "lockup",
        "error",
        "soft lockup - CPU#",
        rf"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<seconds>\d+)s! \[{COMM}:(?P<pid>\d+)\]",
        what="soft",
    ),
    _form("lockup", "fatal", "hard LOCKUP on cpu", r"hard LOCKUP on cpu (?P<cpu>\d+)", what="hard"),
    _form(
        "lockup",
        "error",
        ("self-detected stall on CPU", "stalls on CPUs/tasks"),
        r"(?P<flavor>rcu\w*) (?:self-detected stall on CPU|detected (?:expedited )?stalls on CPUs/tasks)",
        what="rcu",
    ),
    _form("lockup", "error", " kthread starved for ", r"(?P<flavor>rcu_\w+) kthread starved for (?P<jiffies>\d+) jiffies", what="rcu"),
    _form(
        "lockup",
        "error",
        "workqueue lockup - pool",
        r"workqueue lockup - pool cpus=(?P<cpus>\S+)[^\n]{0,120}stuck for (?P<seconds>\d+)s",
        what="workqueue",
    ),
    _form(
        "hung_task",
        "error",
        ("blocked for more than", "blocked in I/O wait for more than"),
        r"task (?P<comm>[^\n]{1,32}?):(?P<pid>\d+) blocked (?:in I/O wait )?for more than (?P<seconds>\d+) seconds",
        _hung,
    ),
    _form(
        "hung_task_owner",
        "info",
        "likely owned by task",
        r"task (?P<comm>[^\n]{1,32}?):(?P<pid>\d+)[^\n]{0,80}likely owned by task (?P<owner>[^\n]{1,32}?):(?P<owner_pid>\d+)",
    ),
    # --- processes
    _form(
        "segfault",
        "error",
        "]: segfault at ",
        rf"{COMM}\[(?P<pid>\d+)\]: segfault at (?P<address>[0-9a-f]+) ip (?P<ip>[0-9a-f]+) sp [0-9a-f]+ error (?P<error>[0-9a-f]+)(?: in (?P<lib>[^\[\s]{{1,120}})\[)?",
    ),
    _form(
        "segfault",
        "error",
        "traps: ",
        rf"traps: {COMM}\[(?P<pid>\d+)\] (?P<trap>general protection(?: fault)?|trap [\w -]{{1,30}}?) ip:(?P<ip>[0-9a-f]+) sp:[0-9a-f]+ error:[0-9a-f]+(?: in (?P<lib>[^\[\s]{{1,120}})\[)?",
    ),
    _form(
        "core_dump",
        "warning",
        ("over core_pipe_limit", "dumped core", "terminated abnormally without generating"),
        r"(?:Pid (?P<pid>\d+)\((?P<comm>[^)]{0,32})\) over core_pipe_limit|Process (?P<pid2>\d+) \((?P<comm2>[^)]{0,32})\) of user \d+ (?:dumped core|terminated abnormally))",
    ),
    _form(
        "mce",
        "fatal",
        "due to hardware memory corruption",
        r"(?:Killing|Sending SIGBUS to) (?P<comm>[^\n]{1,32}?):(?P<pid>\d+) due to hardware memory corruption",
        uncorrected=True,
    ),
    # --- processors and memory
    _form(
        "mce",
        "warning",
        "[Hardware Error]: CPU ",
        r"\[Hardware Error\]: CPU (?P<cpu>\d+): Machine Check(?P<exception> Exception)?: [0-9a-fA-F]+ Bank (?P<bank>\d+): (?P<status>[0-9a-fA-F]{16})",
        _mce,
    ),
    _form("mce", "warning", "Machine check events logged", r"\[Hardware Error\]: Machine check events logged", logged=True),
    _form(
        "mce",
        "fatal",
        ("EDAC MC", " UE memory"),
        r"EDAC MC(?P<mc>\d+): (?P<count>\d+) UE [^\n]{0,120}?on (?P<dimm>\S{1,120})",
        uncorrected=True,
    ),
    _form("mce", "info", "EDAC MC", r"EDAC MC(?P<mc>\d+): (?P<count>\d+) CE [^\n]{0,120}?on (?P<dimm>\S{1,120})"),
    _form(
        "mce",
        "warning",
        "[Hardware Error]: event severity: ",
        r"\[Hardware Error\]: event severity: (?P<level>corrected|recoverable|fatal|info)",
        _apei,
    ),
    _form(
        "thermal",
        "warning",
        "temperature",
        r"CPU(?P<cpu>\d+): (?P<level>Core|Package) temperature (?:is )?above threshold, cpu clock (?:is )?throttled \(total events = (?P<events>\d+)\)",
        what="cpu",
    ),
    _form("thermal", "error", "critical temperature reached", r"critical temperature reached[^\n]{0,60}", what="critical"),
    # --- PCI Express
    _form(
        "aer",
        "info",
        ("PCIe Bus Error: severity=", "severity=Uncorrect"),  # the rare kind apart from the flood
        rf"{BDF}: (?:AER: )?PCIe Bus Error: severity=(?P<severity>[A-Z][a-z]+(?: \((?:Non-)?Fatal\))?), type=(?P<type>[^,\n]{{1,40}})",
        _aer,
    ),
    _form(
        "aer",
        "info",
        "AER: ",
        rf"(?P<port>[0-9a-f]{{4}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}\.\d): AER: (?:Multiple )?(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-)?Fatal\)) error (?:message )?received(?: from|:) {BDF}",
        _aer,
    ),
    _form(
        "pcie_link",
        "fatal",
        ": DPC: ",
        rf"{BDF}: DPC: (?P<what>containment event|unmasked uncorrectable error detected|ERR_FATAL detected|ERR_NONFATAL detected|RP PIO error detected)",
    ),
    _form("pcie_link", "fatal", "device recovery failed", rf"{BDF}: (?:AER: )?device recovery (?P<what>failed)"),
    _form("pcie_link", "info", "device recovery successful", rf"{BDF}: (?:AER: )?device recovery (?P<what>successful)"),
    _form(
        "pcie_link",
        "fatal",
        ": pciehp: Slot(",
        rf"{BDF}: pciehp: Slot\((?P<slot>[^)]{{1,20}})\): (?P<what>Link Down|Card not present|Power fault)",
    ),
    _form(
        "pcie_narrow",
        "warning",
        "Gb/s available PCIe bandwidth, limited by",
        rf"{BDF}: (?P<gbps>[\d.]+) Gb/s available PCIe bandwidth, limited by (?P<speed>[\d.]+ GT/s)\S* (?:PCIe )?x(?P<width>\d+) link at (?P<at>\S+)",
    ),
    # --- disks and file systems
    _form(
        "io_error",
        "error",
        " error, dev ",
        r"(?P<what>I/O|critical (?:medium|target|space allocation|nexus)|timeout|protection|device offline) error, dev (?P<dev>[\w!/-]+), sector (?P<sector>\d+)(?: op 0x[0-9a-f]+:\((?P<op>\w+)\))?",
    ),
    _form("io_error", "error", "Buffer I/O error on dev", r"(?P<what>Buffer I/O error) on dev(?:ice)? (?P<dev>[^,\s]+), logical block \d+"),
    _form("io_error", "error", "EXT4-fs error (device", r"EXT4-fs (?P<what>error) \(device (?P<dev>[^)]+)\)(?P<message>[^\n]{0,160})"),
    _form(
        "io_error",
        "fatal",
        ("emounting filesystem read-only", "forced readonly"),
        r"(?:EXT4-fs|XFS|BTRFS)[^\n]{0,80}?\((?:device )?(?P<dev>[^)\s]+)\)[^\n]{0,60}(?P<what>[Rr]emounting filesystem read-only|forced readonly)",
        readonly=True,
    ),
    _form(
        "io_error",
        "error",
        (
            "previous I/O error to superblock",
            "I/O error while writing superblock",
            "Delayed block allocation failed for inode",
            "Data will be lost",
        ),
        r"EXT4-fs \((?P<dev>[^)]+)\): (?P<what>previous I/O error to superblock|I/O error while writing superblock|Delayed block allocation failed for inode[^\n]{0,120}|This should not happen!! Data will be lost)",
        _io,
    ),
    _form(
        "io_error",
        "fatal",
        "Shutting down filesystem",
        r"XFS \((?P<dev>[^)]+)\): (?P<what>[^\n]{1,80}?)(?: \(0x[0-9a-f]+\) detected at|[^\n]{0,120}Shutting down filesystem)",
    ),
    _form(
        "io_error",
        "error",
        ("log I/O error ", "metadata I/O error in "),
        r"XFS \((?P<dev>[^)]+)\): (?P<what>log I/O error -?\d+|metadata I/O error in)",
    ),
    _form(
        "io_error",
        "error",
        " timeout, ",
        r"nvme (?P<dev>nvme\d+): I/O [^\n]{0,80}?QID \d+ (?P<what>timeout, (?:reset controller|aborting|disable controller))",
        precursor=True,
    ),
    _form(
        "io_error",
        "fatal",
        (
            "controller is down; will reset",
            "Disabling device after reset failure",
            "Removing after probe failure",
            "Device not ready; aborting reset",
        ),
        r"nvme (?P<dev>nvme\d+): (?P<what>controller is down; will reset|Disabling device after reset failure|Removing after probe failure|Device not ready; aborting reset)",
    ),
    _form("io_error", "fatal", "no available path - failing I/O", r"block (?P<dev>nvme\w+): (?P<what>no available path)"),
    _form("io_error", "fatal", "Disk failure on ", r"md/\S{0,40}? ?(?P<what>Disk failure) on (?P<dev>\w+)"),
    _form("io_error", "error", "attempt to access beyond end of device", r"(?P<what>attempt to access beyond end of device)"),
    _form(
        "fs_stall",
        "error",
        " not responding",
        r"nfs: server (?P<server>\S+) not responding, (?P<what>still trying|timed out)",
        fs="nfs",
        state="lost",
    ),
    _form("fs_stall", "info", "nfs: server ", r"nfs: server (?P<server>\S+) OK", fs="nfs", state="ok"),
    _form(
        "fs_stall",
        "error",
        ("Lock reclaim failed", ": lost ", " failed on NFSv4 server "),
        r"(?:nfs4_reclaim_open_state: Lock reclaim failed|NFS: \S{1,80}: lost \d+ locks|NFS: state manager[^\n]{0,80} failed on NFSv4 server (?P<server>\S+))",
        fs="nfs",
        state="lost",
    ),
    _form(
        "fs_stall",
        "error",
        "was lost; in progress operations using this service will",
        r"(?P<server>\S+): Connection to \S+ \(at (?P<nid>\S+)\) was lost; in progress operations using this service will (?P<what>wait|fail)",
        fs="lustre",
        state="lost",
    ),
    _form(
        "fs_stall", "fatal", "This client was evicted by ", r"(?P<server>\S+): This client was evicted by ", fs="lustre", state="evicted"
    ),
    _form("fs_stall", "info", ": Connection restored to ", r"(?P<server>\S+): Connection restored to ", fs="lustre", state="ok"),
    _form(
        "fs_stall",
        "warning",
        "Request sent has ",
        r"Request sent has (?P<what>timed out for (?:slow reply|sent delay)|failed due to network error): \[sent (?P<sent>\d{10})/real \d+\]",
        fs="lustre",
        state="slow",
    ),
    _form(
        "fs_stall",
        "error",
        "ceph: mds",
        r"ceph: (?:\[[^\]]{1,80}\]: )?mds(?P<server>\d+) (?:hung|session blocklisted|caps stale|rejected session|closed our session|reconnect denied)",
        fs="ceph",
        state="lost",
    ),
    _form(
        "fs_stall",
        "info",
        "ceph: mds",
        r"ceph: (?:\[[^\]]{1,80}\]: )?mds(?P<server>\d+) (?:came back|reconnect success|caps renewed|recovery completed)",
        fs="ceph",
        state="ok",
    ),
    _form(
        "fs_stall",
        "warning",
        "session lost, hunting for new mon",
        r"libceph: mon(?P<server>\d+) [^\n]{0,80}session lost, hunting for new mon",
        fs="ceph",
        state="slow",
    ),
    _form(
        "fs_stall",
        "fatal",
        ("This node is being expelled from the cluster", "Unable to contact any quorum node", "Bad TCP state detected"),
        r"(?P<what>This node is being expelled from the cluster|Unable to contact any quorum node|Bad TCP state detected)",
        fs="gpfs",
        state="evicted",
    ),
    _form(
        "fs_stall",
        "warning",
        ("VERBS RDMA", "RDMA send error", "RDMA fatal connection error"),
        r"(?P<what>VERBS RDMA(?: disabled|: fatal async event| failed to start)|RDMA (?:send error|fatal connection error))",
        fs="gpfs",
        state="slow",
    ),
    # --- network
    _form(
        "ib_error",
        "fatal",
        ("device's health compromised", "health recovery f", "Fatal error ", "handling bad device here", "Driver is in error state"),
        rf"mlx5_core {BDF}:? ?(?:\w+:\d+:\(pid \d+\): )?(?P<what>device's health compromised|health recovery (?:failed|flow aborted)|Fatal error \d+ detected|handling bad device here|Driver is in error state)",
    ),
    _form(
        "ib_error",
        "info",
        "health recovery succeeded",
        rf"mlx5_core {BDF}:? ?(?:\w+:\d+:\(pid \d+\): )?(?P<what>health recovery succeeded)",
        state="ok",
    ),
    _form(
        "ib_error",
        "error",
        " timeout. Will cause a leak of a command resource",
        rf"mlx5_core {BDF}:? ?[^\n]{{0,60}}? (?P<what>[A-Z0-9_]{{3,40}}\(0x[0-9a-f]+\) timeout)",
    ),
    _form(
        "ib_error",
        "error",
        "Port module event",
        rf"mlx5_core {BDF}:? [^\n]{{0,60}}?Port module event(?P<error>\[error\])?: module \d+, (?P<what>Cable (?:error|unplugged)[^\n]{{0,60}})",
    ),
    _form("ib_symptom", "warning", ": WC error: ", r"WC error: (?P<status>\d+), Message: (?P<what>[^\n]{1,80})"),
    _form("ib_symptom", "warning", "dump error cqe", r"dump_cqe:\d+:\(pid (?P<pid>\d+)\): dump error cqe"),
    _form("thermal", "warning", "High temperature on sensors", rf"mlx5_core {BDF}:[^\n]{{0,60}}High temperature on sensors", what="nic"),
    _form(
        "nic_link",
        "warning",
        ("ink is ", "ink down", "ink up", "ink Down", "ink Up", "ink DOWN", "ink ACTIVE", "ink UP"),
        r"(?:(?P<driver>\w{2,16}) (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d):? )?(?P<device>[\w.@-]{2,24}): (?:Port: (?P<port>\d+) )?(?:NIC )?[Ll]ink (?:is |status )?(?P<state>up|down|Up|Down|DOWN|UP|ACTIVE)\b",
        _link,
    ),
    _form("nic_link", "warning", " carrier", r"(?P<device>[\w.@-]{2,24}): (?P<state>Lost|Gained) carrier", _link),
    _form(
        "nic_link",
        "warning",
        "): link status ",
        r"bond\w*: \(slave (?P<device>\S{1,24})\): link status (?:definitely )?(?P<state>up|down)",
        _link,
        bond=True,
    ),
    _form(
        "nic_link",
        "error",
        "now running without any active interface",
        r"(?P<device>bond\w*): now running without any active interface",
        state="down",
        bond=True,
    ),
    _form(
        "nic_link",
        "info",
        "link becomes ready",
        r"IPv6: ADDRCONF\(NETDEV_CHANGE\): (?P<device>[\w.@-]{2,24}): link (?P<state>becomes ready)",
        _link,
    ),
    _form(
        "nic_stall",
        "error",
        "NETDEV WATCHDOG: ",
        r"NETDEV WATCHDOG: (?:CPU: \d+: transmit queue|(?P<device>\S{2,24}) \((?P<driver>[^)]{1,24})\): transmit queue) (?P<queue>\d+) timed out",
    ),
)
NUMBERS = frozenset({"pid", "seconds", "cpu", "bank", "count", "owner_pid", "sent", "width", "events"})
VIRTUAL = ("veth", "docker", "br-", "cali", "lo", "cni", "flannel", "virbr", "tun", "tap", "vnet", "lxc", "cilium")
