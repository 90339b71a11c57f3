"""Who died first, of what signal, and what that alone can mean (L4.4, L0.6).

A launcher's "first observed failure" is the order of its polling.  Signals sent by the launcher to survivors accuse nobody.
SIGKILL without a kernel or scheduler record stays undecided between an out-of-memory kill that nobody recorded and a kill from
outside; SIGABRT follows whatever aborted; SIGSEGV and SIGBUS are native crashes (SIGBUS most often a full /dev/shm).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding, Rule
from rules.process_view import finding, frame_text, is_launcher, later, order, went_on

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

KILLERS = ("oom_kill", "ray_oom", "systemd_oomd", "earlyoom", "cgroup_oom", "memcg_oom")
BY_SIGNAL: dict[str, tuple[str, str | None, float]] = {
    "SIGSEGV": ("exits.segfault", "infra/native-crash", 0.5),
    "SIGBUS": ("exits.bus-error", "infra/shm-too-small", 0.45),
    "SIGILL": ("exits.illegal-instruction", "infra/library-incompatibility", 0.55),
    "SIGFPE": ("exits.arithmetic", "infra/native-crash", 0.4),
    "SIGXFSZ": ("exits.file-size", "infra/disk-full", 0.5),
    "SIGXCPU": ("exits.cpu-time", "infra/time-limit", 0.5),
    "SIGHUP": ("exits.hangup", "none/interrupted-by-user", 0.5),
}


def failed(run: Run) -> list[Event]:
    """Processes that ended badly on their own account, in order; echoes of one death (same pid, or same rank and code) once."""
    seen: set[tuple[Any, ...]] = set()
    out = []
    for event in sorted(run.kind("exit"), key=order):
        code = event.fields.get("exitcode")
        if code in (0, None) or event.fields.get("by_launcher") or event.fields.get("echo"):
            continue
        key = ("pid", event.pid) if event.pid else ("rank", event.rank, code, event.fields.get("source"))
        if key in seen:
            continue
        seen.add(key)
        out.append(event)
    return out


def _place(event: Event) -> Evidence:
    return Evidence(event.source, event.line, event.text[:400], event.time)


def _scheduler_kill(run: Run) -> bool:
    return any(
        e.fields.get("what") in ("oom", "memory-limit", "time-limit", "preempted", "cancelled", "node-fail") for e in run.kind("slurm")
    ) or any(e.fields.get("what") in ("oom", "memory", "time-limit", "preempted", "evicted", "node-fail") for e in run.kind("platform"))


def _judge(run: Run) -> Iterator[Finding]:
    exits = failed(run)
    fatal = sorted((e for e in run.kind("fatal_error") if not went_on(run, e)), key=order)
    yield from _crashes(run, exits, fatal)
    if not exits:
        return
    blamed = next((e for e in exits if e.fields.get("first_observed")), None)
    first = exits[0]
    who = first if first.rank is not None or blamed is None else blamed
    facts = {
        "exitcode": who.fields.get("exitcode"),
        "signal": who.fields.get("signal") or "",
        "source": who.fields.get("source"),
        "local_rank": who.fields.get("local_rank"),
        "deaths": len(exits),
    }
    yield finding(
        "exits.order",
        [who],
        [_place(e) for e in exits[:5]],
        cause=None,
        role="context",
        weight=0.2,
        severity="info",
        facts=facts,
        covers=("L4.4",),
    )
    if blamed is not None and blamed.fields.get("signal") in ("SIGABRT", "SIGTERM"):
        yield finding(
            "exits.first-observed",
            [blamed],
            [_place(blamed)],
            cause=None,
            role="symptom",
            weight=0.0,
            severity="info",
            facts=facts,
            covers=("L4.4",),
        )
    killed = [e for e in exits if e.fields.get("signal") == "SIGKILL"]
    if killed:
        yield _killed(run, killed)
    silent = [e for e in exits if isinstance(e.fields.get("exitcode"), int) and e.fields["exitcode"] > 0]
    if silent and not killed and not any(not is_launcher(t) for t in run.kind("traceback")) and not run.kind("exception", "gpu_oom"):
        yield finding(
            "exits.silent",
            silent,
            [_place(e) for e in silent[:3]],
            outcome="undecided",
            cause=None,
            role="symptom",
            weight=0.1,
            facts=facts,
            covers=("L4.4",),
            needs="the failing rank's own output (standard error)",
        )


def _killed(run: Run, killed: list[Event]) -> Finding:
    evidence = [_place(e) for e in killed[:5]]
    facts = {"deaths": len(killed), "pid": killed[0].pid or ""}
    recorded = any(run.kind(kind) for kind in KILLERS) or _scheduler_kill(run)
    if recorded:
        return finding("exits.killed-recorded", killed, evidence, cause=None, role="symptom", weight=0.0, facts=facts, covers=("L0.6",))
    others_failed_before = [t for t in run.kind("traceback") if not is_launcher(t) and later(killed[0], t) and not went_on(run, t)]
    if others_failed_before:
        return finding("exits.killed-after", killed, evidence, cause=None, role="symptom", weight=0.0, facts=facts, covers=("L0.6",))
    single = len(killed) == 1
    return finding(
        "exits.killed",
        killed,
        evidence,
        cause="infra/host-oom-kill",
        weight=0.4 if single else 0.32,
        facts=facts,
        covers=("L0.6", "S12"),
        needs="the kernel log of the host (dmesg -T), the scheduler's accounting record and the container's memory events",
    )


def _crashes(run: Run, exits: list[Event], fatal: list[Event]) -> Iterator[Finding]:
    signals: dict[str, list[Event]] = {}
    for event in [*fatal, *exits]:
        signal = event.fields.get("signal")
        if signal in BY_SIGNAL and not (event.kind == "exit" and went_on(run, event)):
            signals.setdefault(signal, []).append(event)
    for signal, events in signals.items():
        rule, cause, weight = BY_SIGNAL[signal]
        lead = next((e for e in events if e.kind == "fatal_error"), events[0])
        evidence = [_place(e) for e in ([lead] + [e for e in events if e is not lead])[:5]]
        inner = lead.fields.get("innermost")
        facts = {"signal": signal, "frame": frame_text(inner), "deaths": len(events)}
        if signal == "SIGBUS" and lead.fields.get("source") == "dataloader":
            weight = 0.75
        if signal == "SIGSEGV" and lead.fields.get("source") == "dataloader":
            weight = 0.45
        if signal == "SIGSEGV" and lead.kind == "fatal_error" and inner:
            weight = 0.58
        role: Any = "stop" if cause and cause.startswith("none/") else "root"
        yield finding(
            rule,
            [lead, *[e for e in events if e is not lead]],
            evidence,
            cause=cause,
            role=role,
            weight=weight,
            facts=facts,
            covers=("L4.4",),
        )
    aborted = [e for e in exits if e.fields.get("signal") == "SIGABRT"]
    ended = sorted(run.kind("terminate"), key=order)
    if aborted or ended:
        what = next((e for e in ended if e.fields.get("what")), ended[0] if ended else None)
        shown = [e for e in (what, *aborted[:3]) if e is not None]
        facts = {"what": str(what.fields.get("what"))[:200] if what else "", "exception": what.fields.get("exception") if what else ""}
        yield finding(
            "exits.aborted", shown, [_place(e) for e in shown], cause=None, role="symptom", weight=0.1, facts=facts, covers=("L4.4",)
        )


RULES = (Rule("exits", _judge, covers=("L4.4", "L0.6")),)
