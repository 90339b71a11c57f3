"""What the process rules share: whether training went on, which tracebacks a signature explains, and how findings are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

# Exceptions that only tell that another process failed or that somebody ended this one.
VICTIMS = frozenset(
    [
        "ChildFailedError",
        "SignalException",
        "CalledProcessError",
        "KeyboardInterrupt",
        "SystemExit",
        "BrokenPipeError",
        "ConnectionResetError",
        "ConnectionAbortedError",
        "ActorDiedError",
        "RayActorError",
        "WorkerCrashedError",
        "ActorUnavailableError",
        "OwnerDiedError",
        "NodeDiedError",
        "LocalRayletDiedError",
        "RayTaskError",
        "ProcessExitedException",
        "RendezvousClosedError",
        "RendezvousConnectionError",
        "RendezvousGracefulExitError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "GeneratorExit",
        "CancelledError",
        "EngineDeadError",
        "ServerDisconnectedError",
        "ClientOSError",
        "AbortedError",
        "ProcessRaisedException",
        "BrokenProcessPool",
    ]
)
# Frames of programs that only start others: their tracebacks repeat what a worker already said.
LAUNCHER_FRAMES = (
    "/torchrun",
    "torch/distributed/run.py",
    "torch/distributed/launcher/",
    "accelerate/commands/launch.py",
    "deepspeed/launcher/",
    "/bin/accelerate",
    "torch/distributed/launch.py",
)


def short_type(name: str) -> str:
    """The class name of an exception without its module; the inner one of Ray's wrapper."""
    if name.endswith(")") and "(" in name:
        name = name[name.index("(") + 1 : -1]
    return name.rsplit(".", 1)[-1]


def went_on(run: Run, event: Event) -> bool:
    """Whether training progressed after this event: further down in the same file, or clearly later by the clock."""
    at = run.last_progress_at
    if at is None:
        return False
    if at.file == event.source:
        return at.line > (event.end_line or event.line)
    return event.time is not None and run.last_progress is not None and run.last_progress > event.time + 5.0


def ended_badly(run: Run, after: Event) -> bool:
    """Whether a process ended with an error after this event and no restart followed it."""
    exits = [
        e for e in run.kind("exit") if e.fields.get("exitcode") not in (0, None) and not e.fields.get("by_launcher") and later(e, after)
    ]
    return bool(exits) and not any(later(r, after) for r in run.kind("restart"))


def later(event: Event, than: Event) -> bool:
    """Whether an event stands after another: by line in one file, else by time; False where neither is known."""
    if event.source == than.source:
        return event.line > than.line
    return event.time is not None and than.time is not None and event.time >= than.time


def order(event: Event) -> tuple[bool, float, str, int]:
    """Sort key: time where known, then file and line."""
    return (event.time is None, event.time or 0.0, event.source, event.line)


def is_launcher(event: Event) -> bool:
    """Whether a traceback is a launcher's own, about a process it started."""
    frames = event.fields.get("frames") or []
    name = short_type(str(event.fields.get("type", "")))
    if name in ("ChildFailedError", "CalledProcessError", "SignalException"):
        return True
    return (
        bool(frames)
        and any(any(part in str(f["file"]) for part in LAUNCHER_FRAMES) for f in frames[:4])
        and name not in ("FileNotFoundError", "ModuleNotFoundError")
    )


def at_error(event: Event, text: str | None = None) -> Evidence:
    """The place of a traceback's `Type: message` line (where the header is, if it was cut off)."""
    line = event.fields.get("error_line") or event.line
    return Evidence(event.source, int(line), (text or event.text)[:400], event.time)


def frame_text(frame: dict[str, Any] | None) -> str:
    """A frame as people write it: `file:line in function`."""
    if not frame:
        return ""
    return f"{frame.get('file')}:{frame.get('line')} in {frame.get('func') or '?'}"


def signed(run: Run) -> dict[str, list[Event]]:
    """Signature events by file, once per run."""
    known: dict[str, list[Event]] | None = getattr(run, "signed_lines", None)
    if known is None:
        known = {}
        for event in run.events:
            if event.signature:
                known.setdefault(event.source, []).append(event)
        run.signed_lines = known  # type: ignore[attr-defined]
    return known


def roles(run: Run, event: Event) -> set[str]:
    """What the findings of signatures say about the lines of a traceback: their roles (`root`, `symptom` …), empty if none."""
    ids = {
        e.signature
        for e in signed(run).get(event.source, [])
        if event.line <= e.line <= max(event.end_line or event.line, int(event.fields.get("error_line") or 0))
        and (e.rank in (None, event.rank) or e.line == event.fields.get("error_line"))  # its text may name another rank than its writer
    }
    return {f.role for f in run.findings if f.rule in ids} if ids else set()


def finding(rule: str, events: list[Event], evidence: list[Evidence], **more: Any) -> Finding:
    """A finding on events: time, rank, host, pid, GPU of the first, ranks of all."""
    first = events[0]
    ranks = sorted({e.rank for e in events if e.rank is not None})
    values: dict[str, Any] = {
        "time": first.time,
        "rank": first.rank,
        "host": first.host,
        "gpu": first.gpu,
        "pid": first.pid,
        "ranks": ranks if len(ranks) <= 64 else [],
        "count": len(events),
    }
    values.update(more)
    return Finding(rule, evidence=evidence, **values)
