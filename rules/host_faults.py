"""Faults of the node itself: panics and unannounced reboots, logs that just stop, machine checks, lock-ups, native crashes, heat,
PCI Express."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from parsers.kernel_text import canonical_pci
from rules.base import Evidence, Finding, Rule
from rules.kernel_view import BEFORE, NEAR, View, ordered, view_of

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

LEAD_IN = 300.0  # seconds before a panic in which hung tasks, oopses and machine checks belong to it
FLOOD = 1.0  # corrected PCIe errors per second, kept up, that are more than the usual background
LOST_NEAR = 3600.0  # seconds around such a flood in which a GPU that can no longer be read makes it the link's fault
SILENT = 60.0  # seconds by which a node's logs must end before the others'
NAMED_GPU = re.compile(r"\bGPU ?((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
LIBRARIES = (
    ("libnccl", "nccl"),
    ("libcuda", "cuda"),
    ("libcudnn", "cudnn"),
    ("libtorch", "torch"),
    ("libc10", "torch"),
    ("libmlx5", "rdma"),
    ("libibverbs", "rdma"),
)


def judge_node(run: Run) -> Iterable[Finding]:
    """Findings `node.*`: panic, reboot, silence."""
    view = view_of(run)
    down: set[str | None] = set()
    for event in ordered(run.kind("panic")):
        if view.phase(event) in ("before", "after"):
            yield view.excluded("node.panic.aside", [event], "infra/node-down", "before", facts=_panic_facts(event))
            continue
        if view.went_on(event):
            yield view.excluded("node.panic.aside", [event], "infra/node-down", "went-on", facts=_panic_facts(event))
            continue
        host = view.host(event)
        if host in down and host is not None:
            continue
        down.add(host)
        yield _panic(view, event)
    boots: dict[str, list[Event]] = defaultdict(list)
    for event in ordered(run.kind("boot")):
        boots[event.source].append(event)
    for source, group in boots.items():
        yield from _reboots(view, source, group, down)
    yield from _oops(view, down)


def _panic_facts(event: Event) -> dict[str, Any]:
    return {"why": str(event.fields.get("why") or "?")[:160]}


def _panic(view: View, event: Event) -> Finding:
    why = str(event.fields.get("why") or "").lower()
    before = [
        e
        for e in view.run.kind("hung_task", "oops", "mce", "lockup")
        if e.source == event.source and e.line <= event.line and (e.time is None or event.time is None or event.time - e.time <= LEAD_IN)
    ]
    cause, weight = "infra/node-down", 0.93
    if "machine check" in why or any(e.kind == "mce" and e.fields.get("uncorrected") for e in before):
        cause = "infra/machine-check"
    elif "out of memory" in why:
        cause = "infra/host-oom-kill"
    # A panic made of hung tasks is told first by the tasks; other causes are told by the panic line itself.
    lead = [e for e in before if e.kind == "hung_task"] if "hung_task" in why else []
    places = [*lead[:1], event, *[e for e in before if e not in lead[:1]][:2]]
    return view.finding("node.panic", places, cause, "root", weight, facts=_panic_facts(event), severity="fatal", rank=None)


def _reboots(view: View, source: str, boots: list[Event], down: set[str | None]) -> Iterator[Finding]:
    run = view.run
    for boot in boots:
        host = view.host(boot)
        if view.phase(boot) in ("before", "after") or (boot.time is None and (boot.fields.get("first") or run.started is not None)):
            continue
        if boot.fields.get("first") and (run.started is None or boot.time is None or boot.time < run.started + BEFORE):
            continue  # the node was up when the run began; a log that begins later begins with a reboot
        orderly = [e for e in run.kind("shutdown") if e.source == source and boot.line - 400 <= e.line <= boot.line]
        if host in down:
            continue
        if view.went_on(boot):
            yield view.excluded("node.reboot.aside", [boot], "infra/node-down", "went-on")
            continue
        down.add(host)
        rule, weight = ("node.shutdown", 0.7) if orderly else ("node.reboot", 0.85)
        yield view.finding(rule, [*orderly[:1], boot], "infra/node-down", "root", weight, severity="fatal", rank=None)


def _oops(view: View, down: set[str | None]) -> Iterator[Finding]:
    for event in ordered(view.run.kind("oops")):
        if view.phase(event) not in ("during", "unknown") or view.host(event) in down or view.went_on(event):
            continue
        yield view.finding(
            "node.oops", [event], "infra/kernel-panic", "root", 0.55 if view.at_end(event) else 0.3, facts=_panic_facts(event)
        )
        return


def judge_silence(run: Run) -> Iterable[Finding]:
    """Finding `node.silent`: every file of one node ends at one instant while other nodes' logs go on."""
    view = view_of(run)
    ends: dict[str, list[tuple[float, str, int]]] = defaultdict(list)
    for path, info in run.files.items():
        if info.host and info.last_time is not None and info.used and info.stamped:
            ends[info.host].append((info.last_time, path, info.lines))
    if len(ends) < 2:
        return
    last = {host: max(places) for host, places in ends.items()}
    latest = max(place[0] for place in last.values())
    quiet = [host for host, place in last.items() if place[0] < latest - SILENT]
    if len(quiet) != 1 or run.last_progress is None or len(ends[quiet[0]]) < 2:
        return
    host = quiet[0]
    when, path, line = last[host]
    # A node is gone only if a log that never pauses (kernel, GPU samples) ends too, and no process of it said goodbye.
    kinds = {kind for _, name, _ in ends[host] for kind in run.files[name].kinds}
    spread = when - min(place[0] for place in ends[host])
    farewell = [e for e in run.kind("exit") if view.host(e) == host and e.time is not None and e.time <= when + SILENT]
    if "gpu" not in kinds or spread > SILENT or farewell or run.last_progress > when + SILENT:
        return
    yield Finding(
        "node.silent",
        "found",
        "infra/node-down",
        "consequence",
        0.5,
        time=when,
        host=host,
        evidence=[Evidence(path, line, "", when)],
        facts={"host": host, "files": len(ends[host])},
    )


def judge_processor(run: Run) -> Iterable[Finding]:
    """Findings `cpu.*`: machine checks, lock-ups, host temperature."""
    view = view_of(run)
    checks = ordered(run.kind("mce"))
    uncorrected = [e for e in checks if e.fields.get("uncorrected")]
    corrected = [e for e in checks if not e.fields.get("uncorrected")]
    if corrected:
        yield view.excluded(
            "cpu.corrected", corrected, "infra/machine-check", "corrected", facts={"dimm": corrected[0].fields.get("dimm") or "?"}
        )
    yield from _near_end(
        view,
        uncorrected,
        "cpu.machine-check",
        "infra/machine-check",
        0.9,
        lambda e: {"dimm": e.fields.get("dimm") or "?", "comm": e.fields.get("comm") or "?"},
    )
    yield from _near_end(
        view,
        ordered(run.kind("lockup")),
        "cpu.lockup",
        "infra/cpu-lockup",
        0.6,
        lambda e: {"what": e.fields.get("what"), "comm": e.fields.get("comm") or "?", "seconds": e.fields.get("seconds") or "?"},
    )
    hot = [e for e in ordered(run.kind("thermal")) if view.phase(e) in ("during", "unknown")]
    if hot:
        yield view.finding("cpu.hot", hot, "infra/gpu-thermal", "precursor", 0.15, facts={"what": hot[0].fields.get("what") or "cpu"})


FALLS = 10.0  # seconds between a fatal error of the port and the driver's notice that its card is gone


def _near_end(view: View, events: list[Event], rule: str, cause: str, weight: float, facts: Any) -> Iterator[Finding]:
    inside = [e for e in events if view.phase(e) in ("during", "unknown")]
    aside = [e for e in events if e not in inside]
    survived = [e for e in inside if view.went_on(e)]
    ended = [e for e in inside if e not in survived]
    for group, reason in ((aside, "before"), (survived, "went-on")):
        if group:
            yield view.excluded(f"{rule}.aside", group, cause, reason, facts=facts(group[0]))
    if ended:
        first = ended[0]
        yield view.finding(
            rule, ended, cause, "root", weight if first.time is None or view.at_end(first, 2 * NEAR) else weight * 0.6, facts=facts(first)
        )


def judge_crash(run: Run) -> Iterable[Finding]:
    """Findings `crash.*`: a process of the run that died in native code."""
    view = view_of(run)
    ended: list[Event] = []
    for event in ordered(run.kind("segfault")):
        facts = _crash_facts(event)
        mine = view.ours(event.pid, str(event.fields.get("comm") or ""))
        phase = view.phase(event)
        if phase == "before" or (phase == "after" and mine is not True):
            yield view.excluded("crash.aside", [event], "infra/native-crash", phase, facts=facts)
        elif mine is False:
            yield view.excluded("crash.aside", [event], "infra/native-crash", "other-process", facts=facts)
        elif view.went_on(event):
            yield view.excluded("crash.aside", [event], "infra/native-crash", "went-on", facts=facts)
        elif mine or view.at_end(event) or event.time is None:
            ended.append(event)
        else:
            yield view.excluded("crash.aside", [event], "infra/native-crash", "not-at-end", facts=facts)
    if ended:
        first = ended[0]
        weight = 0.88 if view.ours(first.pid, "") else 0.8
        signals = {str(e.fields.get("signal")) for e in run.kind("exit")}
        if signals & {"SIGSEGV", "SIGILL", "SIGBUS"}:
            weight = max(weight, 0.88)
        yield view.finding("crash.native", ended, "infra/native-crash", "root", weight, facts=_crash_facts(first))


def _crash_facts(event: Event) -> dict[str, Any]:
    library = str(event.fields.get("lib") or "?").rsplit("/", 1)[-1]
    return {
        "comm": event.fields.get("comm") or "?",
        "process": event.pid if event.pid is not None else "?",
        "library": library,
        "owner": next((owner for mark, owner in LIBRARIES if library.startswith(mark)), "?"),
        "trap": event.fields.get("trap") or "segfault",
    }


def judge_pcie(run: Run) -> Iterable[Finding]:
    """Findings `pcie.*`: uncorrected errors, links cut off, and floods of corrected ones beside a GPU that cannot be read."""
    view = view_of(run)
    events = ordered(run.kind("aer"))
    severe = [e for e in events if e.fields.get("severity") in ("fatal", "nonfatal")]
    fallen = [e for e in [*run.kind("gpu_lost"), *run.kind("xid")] if e.kind == "gpu_lost" or e.fields.get("code") == 79]
    fatal = [e for e in severe if e.fields["severity"] == "fatal"]
    lost = any(view.host(e) == view.host(f) and 0 <= gap <= FALLS for e in fatal for f in fallen if (gap := _gap(e, f)) is not None)
    # A card that drops off the bus is reported first by the port above it: one event, named by what fell.
    yield from _near_end(view, fatal, "pcie.fatal", "infra/gpu-fell-off-bus" if lost else "infra/pcie-error", 0.85, _pcie_facts)
    yield from _near_end(
        view, [e for e in severe if e.fields["severity"] == "nonfatal"], "pcie.nonfatal", "infra/pcie-error", 0.45, _pcie_facts
    )
    cut = [e for e in ordered(run.kind("pcie_link")) if e.fields.get("what") != "successful"]
    slot = [e for e in cut if e.fields.get("what") in ("Link Down", "Card not present", "Power fault")]
    gone = any(view.host(e) == view.host(c) for e in fallen for c in slot)
    yield from _near_end(view, slot, "pcie.slot", "infra/gpu-fell-off-bus" if gone else "infra/pcie-error", 0.8, _pcie_facts)
    yield from _near_end(view, [e for e in cut if e not in slot], "pcie.contained", "infra/pcie-error", 0.8, _pcie_facts)
    yield from _flood(view, [e for e in events if e.fields.get("severity") == "corrected"], fallen)


def _gap(first: Event, second: Event) -> float | None:
    """Seconds from one event to another of the same clock; None where either has no stamp."""
    if first.stamp is None or second.stamp is None or first.source != second.source:
        return None
    return second.stamp.seconds - first.stamp.seconds


def _flood(view: View, events: list[Event], fallen: list[Event]) -> Iterator[Finding]:
    if not events:
        return
    run = view.run
    first, last = events[0], events[-1]
    count = len(events) + sum(int(e.fields.get("repeats", 0)) for e in events)
    begin = first.stamp.seconds if first.stamp else None
    end = max((float(e.fields.get("last_seconds") or (e.stamp.seconds if e.stamp else 0.0)) for e in events), default=None)
    rate = count / max(end - begin, 1.0) if begin is not None and end is not None and end >= begin else None
    unreadable = [e for e in ordered(run.kind("gpu_status", "nvml_error")) if view.phase(e) in ("during", "unknown")]
    facts = _pcie_facts(first) | {"count": count, "rate": round(rate, 2) if rate is not None else "?"}
    near = fallen or [
        e
        for e in unreadable
        if e.time is None or first.time is None or first.time - LOST_NEAR <= e.time <= (last.time or first.time) + LOST_NEAR
    ]
    inside = [e for e in events if view.phase(e) in ("during", "unknown")]
    if inside and near and not view.went_on(inside[-1]) and count >= 10:
        weight = 0.7 if rate is not None and rate >= FLOOD else 0.55
        lost = next((gpu for e in near if (gpu := e.gpu or _named_gpu(e.text))), None)
        finding = view.finding(
            "pcie.flood",
            [*inside[:3], *near[:2]],
            "infra/pcie-error",
            "root",
            weight,
            facts=facts | {"lost": lost or "?"},
            gpu=lost,
            count=count,
        )
        pci = canonical_pci(lost or "")
        finding.rank = view.rank_of(view.host(near[0]), pci) if pci else finding.rank
        yield finding
        return
    yield view.excluded("pcie.corrected", events, "infra/pcie-error", "corrected", facts=facts, count=count)


def _named_gpu(text: str) -> str | None:
    found = NAMED_GPU.search(text)
    return found[1] if found else None


def _pcie_facts(event: Event) -> dict[str, Any]:
    return {"device": event.fields.get("pci_text") or "?", "kind": event.fields.get("type") or event.fields.get("what") or "?"}


RULES = (
    Rule("node", judge_node, covers=("S12",)),
    Rule("node-silence", judge_silence, covers=("S12", "L4.4"), after=("node",)),
    Rule("processor", judge_processor, covers=("S12",)),
    Rule("native-crash", judge_crash, covers=("S12",)),
    Rule("pcie", judge_pcie, covers=("S12",)),
)
