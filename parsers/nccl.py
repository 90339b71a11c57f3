"""NCCL's own log lines (NCCL_DEBUG=WARN or INFO, versions 2.10 to 2.30; RCCL prints the same shapes).

A line reads `host:pid:tid [gpu] NCCL INFO text` or `host:pid:tid [gpu] file.cc:123 NCCL WARN text`; from 2.26 on a WARN starts
with `[YYYY-mm-dd HH:MM:SS] ` and from 2.30 the file is followed by `(function)`.  `[gpu]` is the CUDA device of the thread, never
the rank: the rank comes from the communicator lines (`comm 0x.. rank 3 nranks 16 .. Init COMPLETE`) of the same host and process.

Events: `nccl_warn` (every WARN, with `class`), `nccl_info` (INFO texts that can decide a case), `nccl_comm` (one per rank and
state, also the map from host:pid to rank), `nccl_address` (the address a host's NCCL listens on).  Facts: `version.nccl`, `nccl.network`, `nccl.env.<NAME>`.
"""

from __future__ import annotations

import re
from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy

# Only the front of a line is searched: NCCL cuts its lines at 1023 characters.
LIMIT = 1400
MAX_EVENTS = 4000  # WARN/INFO events kept per file: a retry storm prints hundreds of thousands
PER_CLASS = 64  # of one class and process

_HEAD = lazy(
    r"(?P<host>[A-Za-z0-9][\w\-]{0,62}):(?P<pid>\d{1,8}):(?P<tid>\d{1,8}) (?:\[(?P<gpu>\d{1,3})\] )?"
    r"(?:(?P<file>[\w./\-]{1,80}\.(?:cc|cu|h|c|cpp|hpp)):(?P<fline>\d{1,6}) )?(?:\((?P<func>\w{1,80})\) )?NCCL (?P<level>WARN|INFO) ?(?P<body>.*)"
)
_COMM = lazy(
    r"comm 0x(?P<comm>[0-9a-f]{1,16}) rank (?P<rank>\d{1,6}) n[rR]anks (?P<nranks>\d{1,6})(?: nNodes \d+ localRanks \d+ localRank \d+)?"
    r"(?: cudaDev (?P<dev>\d{1,3}))?(?: nvmlDev (?P<nvml>\d{1,3}))?(?: busId (?P<bus>[0-9a-fA-F:.]{1,16}))?(?: commId 0x(?P<id>[0-9a-f]{1,16}))?"
    r"[^-]{0,60}- (?P<state>(?:Init|Abort|Destroy|Revoke|Finalize) (?:START|COMPLETE))"
)
_VERSION = lazy(r"\b(?P<lib>NCCL|RCCL) version (?P<version>\d+\.\d+\.\d+[\w.+\-:]{0,40})")
_NETWORK = lazy(r"Using network (?P<net>[A-Za-z][\w /.\-]{0,40})")
_ENVIRONMENT = lazy(r"(?P<name>NCCL_[A-Z0-9_]{2,40}) set (?:by environment )?to (?P<value>[^\s.,;]{1,80})")
_ADDRESS = lazy(r"(?:Bootstrap ?: Using |OOB )(?P<interface>[\w.\-@]{1,30}):(?P<ip>[0-9a-fA-F.:]{3,45})(?:%\w+)?<\d+>")
_STATUS = lazy(r"\b(?:with error|error|status)[ =](?:[A-Z_]+\()?(?P<code>\d{1,2})\)?")
PEER = lazy(r"\b(?:peer|remote peer|to|from) (?P<peer>[\w.:\-]{1,60}<\d{1,5}>)")
_HCA = lazy(r"\b(?P<hca>(?:mlx\d|bnxt_re|rdmap|efa|irdma|hns|erdma|rocep|ibp)[\w\-]{0,20})(?::(?P<port>\d{1,2}))?")
_TWO_RANKS = lazy(r"rank (?P<a>\d{1,6})\b.{0,40}?\brank (?P<b>\d{1,6})\b")

# Class of a WARN or INFO text: first match wins.  (class, compiled test).  Text as in NCCL's sources, 2.10 to 2.30.
_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, lazy(pattern))
    for name, pattern in (
        ("ib-completion", r"Got completion (?:from peer|with error)"),
        ("ib-port", r"[Gg]ot async event ?: ?(?:port error|device fatal|device error|GID table change|LID change)"),
        ("ib-async", r"async fatal event|Got async error event|[Gg]ot async event"),
        ("memlock", r"ibv_(?:reg_mr|reg_mr_iova2|reg_dmabuf_mr|create_cq|create_qp)\b.{0,80}Cannot allocate memory"),
        (
            "ib-call",
            r"Call to (?:wrap_)?ibv_\w+|ibv_\w+\(?\)? ?(?:failed|returned)|Unable to (?:open|query) (?:device|port)|ibv_modify_qp failed",
        ),
        (
            "shm",
            r"/dev/shm|shared memory segment|unable to extend|[Ff]ailed to extend|posix_fallocate|Error while (?:creating|attaching to) shared memory",
        ),
        ("version", r"Mismatched NCCL version|NCCL version mismatch"),
        ("driver", r"CUDA [Dd]river version (?:found is|is insufficient)|Minimum requirement is|driver version is insufficient"),
        ("duplicate-gpu", r"Duplicate GPU detected"),
        (
            "nvls",
            r"Failed to bind NVLink SHARP|(?:NVLS|[Mm]ulticast|Fabric ?Manager).{0,80}(?:[Ff]ail|error|usually caused)|MNNVL.{0,80}not working|Check the IMEX",
        ),
        ("p2p-hardware", r"P2P is disabled between NVLINK connected GPUs|NVLink.{0,40}(?:error|down)"),
        ("truncated", r"[Mm]essage truncated|message truncated"),
        ("cuda-oom", r"(?:Cuda|CUDA|HIP) failure.{0,20}out of memory|Failed to (?:CUDA|HIP) (?:m|c|host )?alloc"),
        ("cuda", r"(?:Cuda|CUDA|HIP|hip) (?:failure|error)"),
        (
            "no-interface",
            r"no socket interface found|no usable (?:listening )?interface|no interface found|no device found (?:matching|after)",
        ),
        ("plugin", r"OFI|libfabric|aws-ofi|\bEFA\b|NET/Plugin.{0,40}[Ff]ailed|Failed to initialize any NET plugin"),
        ("too-many-files", r"Too many open files"),
        (
            "peer-closed",
            r"Connection closed by remote peer|Connection reset by peer|Broken pipe|socket progress error|"
            r"Call to (?:recv|send|recvmsg|sendmsg)\b.{0,80} failed",
        ),
        (
            "connect",
            r"[Cc]onnect(?:ion)? (?:to .{1,80}(?:failed|returned)|refused|timed out)|Call to connect|No route to host|exceeded (?:error )?retr|"
            r"Network is unreachable",
        ),
        ("bootstrap", r"[Bb]ootstrap.{0,60}(?:mismatch|failed|already checked in|timed? ?out)|wrong (?:magic|type)"),
        ("ras", r"RAS (?:declaring|detected)"),
        (
            "argument",
            r"is not a valid pointer|invalid (?:root|type|reduction|device)|argument is NULL|Invalid (?:config|rank|device)|is NULL",
        ),
        ("abort", r"[Aa]bort|destroy|already been destroyed"),
        ("proxy", r"\[Proxy|[Pp]roxy|\[Service thread\]|ncclProxy|opId"),
        ("internal", r"[Ii]nternal error|ncclInternalError|unhandled"),
        ("guide-timeout", r"Timed out waiting for operation"),
    )
)
#: classes of WARN that only tell of somebody else's end or of NCCL's own teardown
CONSEQUENCES = frozenset({"peer-closed", "abort", "proxy", "internal", "ras", "bootstrap"})

_DECISIVE = lazy(
    r"[Cc]onnection refused|loopback address as fallback|[Gg]ot async event ?: ?(?:port error|device|GID|LID)|(?:Cuda|CUDA) failure|"
    r"No route to host|[Cc]onnection timed out|Network is unreachable|RAS declaring|No IB devices? found|failed to open libibverbs|"
    r"P2P is disabled|[Ii]nconsistent|[Ff]ailed to initialize|ncclSystemError|[Cc]ould not enable P2P|port \d+ is down|link[- ]down|Too many open files"
)


def classify(text: str) -> str:
    """The class of a NCCL message (`ib-completion`, `shm`, `peer-closed` …); `other` where none fits."""
    return next((name for name, test in _CLASSES if test.search(text)), "other")


def _details(body: str, name: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if name in ("ib-completion", "ib-port", "ib-async", "ib-call", "memlock"):
        if (found := _STATUS.search(body)) and name == "ib-completion":
            out["status"] = int(found["code"])
        if found := _HCA.search(body):
            out["hca"] = found["hca"]
            if found["port"]:
                out["port"] = int(found["port"])
    if found := PEER.search(body):
        out["peer"] = found["peer"]
    if name in ("version", "duplicate-gpu", "p2p-hardware") and (found := _TWO_RANKS.search(body)):
        out["ranks"] = [int(found["a"]), int(found["b"])]
    if name == "version":
        versions = re.findall(r"version (\d{4,6})\b", body[:400])
        if len(versions) == 2:
            out["versions"] = [int(v) for v in versions]
    return out


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:LIMIT]
    state: dict[Any, Any] = context.state
    if found := _VERSION.search(text):
        key = ("version", found["lib"], found["version"])
        if key not in state and len(state) < 20_000:
            state[key] = True
            rows.fact(line, f"version.{found['lib'].lower()}", found["version"])
    head = _HEAD.search(text)
    if head is None:
        _facts(line, text, rows, state)
        return
    body = head["body"]
    host, pid = head["host"], int(head["pid"])
    rank = state.get(("rank", host, pid), line.rank)
    if found := _COMM.search(body):
        _communicator(line, rows, state, found, host, pid)
        return
    _facts(line, body, rows, state)
    if found := _ADDRESS.search(body):
        key = ("address", host, found["ip"])
        if key not in state and len(state) < 60_000:
            state[key] = True
            rows.event(
                line, "nccl_address", "debug", host=host, pid=pid, rank=rank, fields={"ip": found["ip"], "interface": found["interface"]}
            )
        return
    warn = head["level"] == "WARN"
    if not warn and not _DECISIVE.search(body):
        return
    name = classify(body)
    if name == "cuda" and (head["file"] or "").endswith("nvls.cc"):
        name = "nvls"
    count_key = ("count", name, host, pid)
    seen = state[count_key] = state.get(count_key, 0) + 1
    total = state["total"] = state.get("total", 0) + 1
    if seen > PER_CLASS or total > MAX_EVENTS:
        rows.note(f"NCCL messages of one kind repeat; only the first {PER_CLASS} of each process were kept")
        return
    fields: dict[str, Any] = {"class": name, "body": body[:600], **_details(body, name)}
    if head["file"]:
        fields["file"] = f"{head['file']}:{head['fline']}"
    rows.event(
        line,
        "nccl_warn" if warn else "nccl_info",
        "warning" if not warn or name in CONSEQUENCES else "error",
        host=host,
        pid=pid,
        rank=rank,
        gpu=head["gpu"],
        fields=fields,
    )


def _communicator(line: Line, rows: Rows, state: dict[Any, Any], found: re.Match[str], host: str, pid: int) -> None:
    """Keep one event per process, world size and state; remember which rank the process is in its largest communicator."""
    rank, size, what = int(found["rank"]), int(found["nranks"]), found["state"]
    largest = state.get(("size", host, pid), 0)
    if size >= largest:
        state["size", host, pid] = size
        state["rank", host, pid] = rank
    key = ("comm", host, pid, size, what)
    if key in state or len(state) > 60_000:
        return
    state[key] = True
    fields = {"rank": rank, "nranks": size, "state": what, "comm": found["comm"]}
    if found["dev"]:
        fields["cudaDev"] = int(found["dev"])
    if found["bus"]:
        fields["busId"] = found["bus"]
        if pci := pci_address(found["bus"]):
            fields["pci"] = pci
    if found["id"]:
        fields["commId"] = found["id"]
    rows.event(line, "nccl_comm", "debug", host=host, pid=pid, rank=line.rank, gpu=found["dev"], fields=fields)


def pci_address(bus: str) -> str | None:
    """NCCL's bus id (`1b000`: domain, bus, device and function as one hexadecimal number) as `dddd:bb:dd.f`."""
    try:
        number = int(bus, 16)
    except ValueError:  # with colons and a dot: an address already
        return None
    if number >> 36:
        return None
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def _facts(line: Line, text: str, rows: Rows, state: dict[Any, Any]) -> None:
    if found := _NETWORK.search(text):
        _once(line, rows, state, "nccl.network", found["net"].strip())
    if found := _ENVIRONMENT.search(text):
        _once(line, rows, state, "nccl.env." + found["name"], found["value"])


def _once(line: Line, rows: Rows, state: dict[Any, Any], key: str, value: str) -> None:
    if (key, value) not in state and len(state) < 20_000:
        state[key, value] = True
        rows.fact(line, key, value)


PARSER = LineParser(
    "nccl",
    triggers=(
        "NCCL WARN",
        "NCCL version ",
        "RCCL version ",
        "Using network ",
        "Bootstrap : Using ",
        "Bootstrap: Using ",
        "onnection refused",
        "loopback address as fallback",
        "async event",
        "Cuda failure",
        "RAS declaring",
        "No route to host",
        "onnection timed out",
        "Network is unreachable",
        "P2P is disabled",
        "Could not enable P2P",
        "Too many open files",
        "set by environment to",
    ),
    parse=_parse,
    sparse=(" nranks ", " nRanks "),
    kind="nccl",
)
