"""How a kernel line stands to the run: which boot, before, during or after it, whose process, whose GPU, and whether
training went on after it.  Shared by the rules on kernel lines; holds no rule itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding
from rules.gpu_codes import reasons

if TYPE_CHECKING:
    from forensics.run import RankInfo, Run
    from parsers.base import Event

SETTLE = 90.0  # seconds of progress after a fault that show it was survived: steps in flight still finish, buffers flush late
BEFORE = 60.0  # seconds before the run's first line that still count as its start (processes start before they print)
AFTER = 3600.0  # seconds after the run's last line in which a fault may still be the reason of the silence
PIDS = re.compile(r"\bpid:? ?=?(\d{2,8})\b")  # `(pid: 2103)`, `worker (pid 19150)`, `pid=31337`
MOST_PIDS = 20_000
UNSTAMPED = 3600.0  # seconds before the first stamp in which training may already have run, where its steps above carry none
NEAR = 300.0  # seconds around the run's end in which a death there is plausibly this one

# Names the kernel gives to processes of training jobs (cut to 15 characters).
TRAINERS = (
    "python", "pt_main", "pt_data", "pt_autograd", "pt_nccl", "pt_elastic", "pt_tcpstore", "torchrun", "accelerate", "deepspeed", "ray::", "VLLM",
    "vllm", "EngineCore", "sglang", "cuda-EvtHandlr", "nccl", "train", "dataloader", "worker", "megatron", "llamafactory", "swift", "mpirun", "orted",
)  # fmt: skip
TOOLS = (
    "nvidia-smi",
    "dcgm",
    "nv-hostengine",
    "gpud",
    "nvidia-persiste",
    "nv-fabricmanage",
    "node_exporter",
    "nvidia_gpu_exp",
    "kubelet",
    "telegraf",
    "nvtop",
)
KERNEL_KINDS = frozenset(
    [
        "xid",
        "sxid",
        "gpu_lost",
        "rm_init_failed",
        "gsp_timeout",
        "driver_mismatch",
        "reset_required",
        "gpu_identity",
        "nvlink_setup",
        "uvm_fatal",
        "amdgpu_fault",
        "oom_kill",
        "oom_group",
        "oom_unit",
        "panic",
        "oops",
        "shutdown",
        "lockup",
        "hung_task",
        "hung_task_owner",
        "segfault",
        "core_dump",
        "mce",
        "thermal",
        "aer",
        "pcie_link",
        "pcie_narrow",
        "io_error",
        "fs_stall",
        "ib_error",
        "ib_symptom",
        "nic_link",
        "nic_stall",
        "boot",
    ]
)


@dataclass
class View:
    """The run from the kernel's side; see `view_of`."""

    run: Run
    boots: dict[str, list[Event]] = field(default_factory=dict)  # file -> boots after its first line, in order of lines
    pids: set[int] = field(default_factory=set)  # processes the run's own lines name
    gpus: dict[tuple[str | None, str], str] = field(default_factory=dict)  # (host, pci) -> index, from samples
    finished: float | None = None  # when the run said that it reached its end
    dated: bool = True  # whether the training log tells its own times up to its end
    began: float | None = None  # the run's first instant, or an early guess where its first steps carry no time

    def __post_init__(self) -> None:
        for event in self.run.kind("boot"):
            if not event.fields.get("first"):
                self.boots.setdefault(event.source, []).append(event)
        for events in self.boots.values():
            events.sort(key=lambda e: e.line)
        for info in self.run.ranks.values():
            self.pids |= info.pids
        for event in self.run.events:
            if event.kind == "clock" or event.kind in KERNEL_KINDS or (event.signature or "").startswith("kernel-"):
                continue
            if event.pid is not None:
                self.pids.add(event.pid)
            pid = event.fields.get("pid")
            if isinstance(pid, int):
                self.pids.add(pid)
            if len(self.pids) < MOST_PIDS:
                self.pids.update(int(found) for found in PIDS.findall(event.text[:400]))
        self.dated = self._dated()
        self.began = self._began()
        self.finished = max(
            (e.time for e in self.run.kind("run_end") if e.time is not None and e.fields.get("reason") != "progress bar full"), default=None
        )
        frame = self.run.samples
        if frame is not None and frame.height and {"gpu", "pci"} <= set(frame.columns):
            names = ["host", "pci", "gpu"] if "host" in frame.columns else ["pci", "gpu"]
            for row in frame.select(names).unique().iter_rows(named=True):
                if row["pci"] and row["gpu"]:
                    self.gpus[(row.get("host"), row["pci"])] = str(row["gpu"])

    def _dated(self) -> bool:
        """A log that stamps only its first lines says nothing of when it ended."""
        place = self.run.last_progress_at
        info = self.run.files.get(place.file) if place is not None else None
        if place is None or info is None or info.lines < 20:
            return True
        late = (
            e for e in self.run.events if e.source == place.file and e.line >= 0.7 * info.lines and e.stamp is not None and not e.inherited
        )
        if next(late, None) is not None:
            return True
        return self.run.started is None or self.run.ended is None or self.run.ended - self.run.started > BEFORE

    def _began(self) -> float | None:
        """When the run began; a log whose steps carry no time and stand above its first stamp began well before it."""
        run, place = self.run, self.run.last_progress_at
        if run.started is None or place is None or run.progress_times:
            return run.started
        lines = run.progress_lines.get(place.file) or [place.line]
        stamped = (e for e in run.events if e.source == place.file and e.line <= lines[-1] and e.stamp is not None and not e.inherited)
        return run.started if next(stamped, None) is not None else run.started - UNSTAMPED

    # --- when

    def earlier_boot(self, event: Event) -> bool:
        """Whether the node was booted again after the event and before this run began."""
        for boot in self.boots.get(event.source, ()):
            if boot.line > event.line:
                if boot.time is not None and self.run.started is not None:
                    return boot.time < self.run.started + BEFORE
                return event.time is None or self.run.started is None or event.time < self.run.started - BEFORE
        return False

    def phase(self, event: Event) -> str:
        """`before`, `during`, `after` the run, or `unknown`."""
        run = self.run
        if self.earlier_boot(event):
            return "before"
        if event.time is None:
            return "unknown"
        if self.began is not None and event.time < self.began - BEFORE:
            return "before"
        if self.dated and run.ended is not None and event.time > run.ended + (AFTER if self.finished is None else BEFORE):
            return "after"
        return "during"

    def went_on(self, event: Event, settle: float = SETTLE) -> bool:
        """Whether training made progress well after the event."""
        last = self.run.last_progress
        if event.time is not None and self.finished is not None and self.finished >= event.time:
            return True
        return event.time is not None and last is not None and last > event.time + settle

    def at_end(self, event: Event, near: float = NEAR) -> bool:
        """Whether the event is close to the instant training stopped: its last progress or its last line."""
        if event.time is None:
            return False
        if not self.dated:
            return True
        marks = [mark for mark in (self.run.last_progress, self.run.ended) if mark is not None]
        return not marks or any(abs(event.time - mark) <= near for mark in marks) or (min(marks) <= event.time <= max(marks))

    # --- whose

    def host(self, event: Event) -> str | None:
        info = self.run.files.get(event.source)
        return event.host or (info.host if info else None)

    def index(self, event: Event) -> str | None:
        """Index of the GPU an event names by PCI id, from the GPU samples."""
        pci = event.fields.get("pci")
        return self.index_of(self.host(event), pci) if isinstance(pci, str) else None

    def index_of(self, host: str | None, pci: str) -> str | None:
        """Index of the GPU with this PCI id on a host; of any host where only one index goes with the id."""
        for key in ((host, pci), (None, pci)):
            if key in self.gpus:
                return self.gpus[key]
        known = {index for (_, name), index in self.gpus.items() if name == pci}
        return known.pop() if len(known) == 1 else None

    def rank(self, event: Event, pid: int | None = None) -> int | None:
        """Global rank of the process or GPU that an event names."""
        host = self.host(event)
        pid = pid if pid is not None else event.pid
        if pid is not None:
            mine = [r.rank for r in self._ranks(host) if pid in r.pids]
            if len(mine) == 1:
                return mine[0]
        pci = event.fields.get("pci")
        return self.rank_of(host, pci) if isinstance(pci, str) else None

    def rank_of(self, host: str | None, pci: str) -> int | None:
        """Global rank that uses the GPU with this PCI id, told by the rank itself or by the GPU's index."""
        ranks = self._ranks(host)
        mine = [r.rank for r in ranks if r.pci and same_pci(r.pci, pci)]
        index = self.index_of(host, pci)
        if not mine and index is not None and (host is not None or len(self.run.hosts) <= 1):
            mine = [r.rank for r in ranks if r.gpu == index or (r.gpu is None and r.local_rank is not None and str(r.local_rank) == index)]
            mine = mine or self._only_host(index)
        return mine[0] if len(mine) == 1 else None

    def _ranks(self, host: str | None) -> list[RankInfo]:
        return [r for r in self.run.ranks.values() if host is None or r.host is None or r.host == host]

    def _only_host(self, index: str) -> list[int]:
        """On a single host that tells no rank's GPU, ranks and GPU indices run alike if there are as many of them."""
        run = self.run
        if len(run.hosts) > 1 or not index.isdigit() or any(r.gpu or r.pci or r.local_rank is not None for r in run.ranks.values()):
            return []
        cards = len(set(self.gpus.values()))
        size = run.world_size or (max(run.ranks) + 1 if run.ranks else cards)
        return [int(index)] if size == cards and cards > 1 else []

    def ours(self, pid: int | None, comm: str | None) -> bool | None:
        """Whether a process belongs to the run: True by pid, None if its name would fit, False if neither."""
        if pid is not None and pid in self.pids:
            return True
        name = comm or ""
        return None if name.startswith(TRAINERS) or "python" in name else False

    def evidence(self, events: Iterable[Event], limit: int = 5) -> list[Evidence]:
        return [self.run.evidence(event) for event in list(events)[:limit]]

    def finding(self, rule: str, events: list[Event], cause: str | None, role: Any, weight: float, **more: Any) -> Finding:
        """A finding standing at the first of `events`, with its host, GPU, process and rank."""
        first = events[0]
        facts: dict[str, Any] = {"host": self.host(first) or "?", **more.pop("facts", {})}
        outcome = more.pop("outcome", "found")
        quiet = outcome != "found" or role in ("context", "recovery", "precursor", "symptom")
        return Finding(
            rule=rule,
            outcome=outcome,
            cause=cause,
            role=role,
            weight=weight,
            severity=more.pop("severity", "info" if quiet else "error"),
            time=first.time,
            evidence=self.evidence(events),
            rank=more.pop("rank", None) if "rank" in more else self.rank(first),
            host=self.host(first),
            gpu=more.pop("gpu", first.gpu),
            pid=first.pid,
            count=more.pop("count", len(events)) + sum(int(e.fields.get("repeats", 0)) for e in events),
            facts=facts,
            **more,
        )

    def excluded(self, rule: str, events: list[Event], cause: str | None, reason: str, **more: Any) -> Finding:
        """A finding that says why `events` are not what ended the run: `before`, `boot`, `went-on`, `other-process`, `corrected` …"""
        words = reasons()[reason]
        facts = {"aside": reason, "reason": words["en"], "reason_zh": words["zh"], **more.pop("facts", {})}
        return self.finding(
            rule, events, cause, "recovery" if reason == "went-on" else "context", 0.0, outcome="excluded", facts=facts, **more
        )


def missing(run: Run, rule: str, cause: str, covers: tuple[str, ...] = ()) -> list[Finding]:
    """The finding of a rule that has no kernel log to read; empty where there is one (its silence is weak evidence, though)."""
    if any("kernel" in info.kinds for info in run.files.values()):
        return []
    needs = "the kernel log of every node around the end of the run (dmesg -T or journalctl -k)"
    return [Finding(rule, "undecided", cause, "context", 0.0, "info", needs=needs, covers=covers)]


def view_of(run: Run) -> View:
    """The view of a run, made once and kept with it (its events do not change while rules run)."""
    kept = run.__dict__.get("_kernel_view")
    if not isinstance(kept, View):
        kept = View(run)
        run.__dict__["_kernel_view"] = kept
    return kept


def same_pci(one: str, other: str) -> bool:
    """Whether two PCI ids name one device, whatever their spelling."""
    return _short(one) == _short(other)


def _short(text: str) -> str:
    parts = text.lower().split(".")[0].split(":")
    return ":".join([(parts[-3] if len(parts) >= 3 else "0000")[-4:], *parts[-2:]])


def ordered(events: Iterable[Event]) -> list[Event]:
    """By time; those without one keep the place of their line in their file."""
    return sorted(events, key=lambda e: (e.time is None, e.time or 0.0, e.source, e.line))


def bursts(events: Iterable[Event], quiet: float) -> list[list[Event]]:
    """Events of one host parted where nothing came for `quiet` seconds; those without time are parted by their stamps, else not."""
    out: list[list[Event]] = []
    for event in ordered(events):
        last = out[-1][-1] if out else None
        if last is None or _apart(last, event) > quiet:
            out.append([event])
        else:
            out[-1].append(event)
    return out


def _apart(one: Event, other: Event) -> float:
    if one.time is not None and other.time is not None:
        return other.time - one.time
    if one.time is None and other.time is None and one.source == other.source and one.stamp is not None and other.stamp is not None:
        return abs(other.stamp.seconds - one.stamp.seconds)
    return 0.0 if (one.time is None) == (other.time is None) else float("inf")
