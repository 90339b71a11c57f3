"""Runs that were ended by a decision: the user, a time limit, a preemption; and runs that simply finished.

`CANCELLED AT` with no reason is ambiguous: srun writes it too when it tears a step down after a failure.  It counts as the
user's doing only if nothing had failed before; after a finished run it is nothing.  A time limit that follows a failure or a long
silence is not the cause.  submitit cannot tell preemption from a time limit: Slurm's own words decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rules.base import Evidence, Finding, Rule
from rules.process_view import VICTIMS, finding, is_launcher, later, order, short_type, went_on

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

POLITE = frozenset(("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT"))
HANG = 1800.0  # seconds without progress before a stop from which on somebody probably ended a run that hung


def failures(run: Run) -> list[Event]:
    """Everything that failed by itself, in order: no victims, no launchers' reports, nothing that was survived or done by polite signals."""
    out: list[Event] = []
    for event in run.kind("traceback"):
        if not is_launcher(event) and short_type(str(event.fields.get("type", ""))) not in VICTIMS and not went_on(run, event):
            out.append(event)
    for event in run.kind("exit"):
        code, signal = event.fields.get("exitcode"), event.fields.get("signal")
        if (
            code not in (0, None)
            and signal not in POLITE
            and code not in (-15, -2, -1)
            and not event.fields.get("by_launcher")
            and not event.fields.get("echo")
        ):
            out.append(event)
    out += [e for e in run.kind("gpu_oom", "fatal_error", "watchdog_timeout", "oom_kill", "ray_oom", "terminate") if not went_on(run, e)]
    out += [e for e in run.kind("slurm") if e.fields.get("what") in ("oom", "memory-limit", "node-fail", "task-failure")]
    return sorted(out, key=order)


def _failed_before(run: Run, stop: Event) -> Event | None:
    """The first failure that stands before a stop (by time or, in one file, by line)."""
    return next(
        (
            e
            for e in failures(run)
            if not later(e, stop) or (e.kind == "slurm" and e.source == stop.source and abs(e.line - stop.line) <= 8)
        ),
        None,
    )


def _finished(run: Run) -> list[Finding]:
    return [f for f in run.findings if f.outcome == "found" and f.role == "done"]


def _places(events: list[Event]) -> list[Evidence]:
    return [Evidence(e.source, e.line, e.text[:400], e.time) for e in events[:4]]


def _silent(run: Run, stop: Event) -> float:
    """Seconds without progress before a stop; 0 where unknown or not told by stamps."""
    if stop.time is None or run.last_progress is None or run.last_progress_at is None:
        return 0.0
    info = run.files.get(run.last_progress_at.file)
    if info is None or info.stamped < max(5, 0.02 * info.lines):
        return 0.0  # progress lines without stamps of their own borrow old ones
    return max(0.0, stop.time - run.last_progress)


def _what(run: Run, *names: str) -> list[Event]:
    return sorted((e for e in run.kind("slurm", "platform") if e.fields.get("what") in names), key=order)


def _state(run: Run, *names: str) -> list[Event]:
    return [e for e in run.kind("slurm") if str(e.fields.get("state")) in names]


def _judge(run: Run) -> Iterator[Finding]:
    limit = _what(run, "time-limit") + _state(run, "TIMEOUT", "DEADLINE")
    preempted = _what(run, "preempted") + _state(run, "PREEMPTED")
    decided = bool(limit or preempted)
    claimed_limit, claimed_preempted = _what(run, "claimed-time-limit"), _what(run, "claimed-preempted")
    if limit:
        yield _policy(run, [*limit, *claimed_limit, *claimed_preempted], "stops.time-limit", "infra/time-limit")
    elif preempted and not (_reached_limit(run) and not _what(run, "preempted")):
        yield _policy(run, [*preempted, *claimed_preempted], "stops.preempted", "infra/preempted")
    elif (reached := _reached_limit(run)) is not None and (
        claim := [*claimed_limit, *claimed_preempted, *_what(run, "requeue", "cancelled")]
    ):
        claim.sort(key=order)
        facts = {"after": "", "silent": 0, "limit": round(reached[0] / 60), "ran": round(reached[1] / 60)}
        yield finding("stops.limit-reached", claim, _places(claim), cause="infra/time-limit", weight=0.85, facts=facts)
        decided = True
    elif claimed_limit or claimed_preempted:
        claim = claimed_limit or claimed_preempted
        rule, cause = ("stops.time-limit", "infra/time-limit") if claimed_limit else ("stops.preempted", "infra/preempted")
        yield finding(rule, claim, _places(claim), cause=cause, weight=0.55, facts={"after": "", "silent": 0})
    elif requeued := _what(run, "requeue"):
        before = _failed_before(run, requeued[0])
        weight = 0.3 if before is not None else 0.6
        yield finding(
            "stops.requeued",
            requeued,
            _places(requeued),
            cause="infra/preempted",
            role="consequence" if before else "root",
            weight=weight,
            facts={"after": before.text[:160] if before else "", "silent": 0},
        )
        decided = True
    yield from _cancelled(run, decided)
    yield from _interrupted(run, decided)
    for event in _state(run, "COMPLETED"):
        if not failures(run):
            yield finding("stops.completed", [event], _places([event]), cause="none/healthy", role="done", weight=0.7, severity="info")
            break


def _reached_limit(run: Run) -> tuple[float, float] | None:
    """(limit, run time) in seconds where the run lasted as long as the job asked for, up to the warning signal's lead; else None.

    The tolerance is the lead of `--signal` plus two minutes for the start of the program, at least 1 % of the limit.
    """
    limit, lead = run.fact("slurm.limit_seconds"), run.fact("slurm.signal_lead")
    if not isinstance(limit, (int, float)) or run.started is None or run.ended is None:
        return None
    ran = run.ended - run.started
    tolerance = max(float(lead or 0) + 120.0, 0.01 * limit)
    return (float(limit), ran) if abs(limit - ran) <= tolerance else None


def _policy(run: Run, stops: list[Event], rule: str, cause: str) -> Finding:
    before = _failed_before(run, stops[0])
    silent = _silent(run, stops[0])
    facts = {"after": before.text[:160] if before else "", "silent": round(silent)}
    if before is not None and before.kind != "exit":
        return finding(f"{rule}-after", stops, _places(stops), cause=cause, role="consequence", weight=0.35, facts=facts)
    weight = 0.92 if silent < HANG else 0.6
    return finding(rule, stops, _places(stops), cause=cause, weight=weight, facts=facts)


def _cancelled(run: Run, decided: bool) -> Iterator[Finding]:
    cancelled = _what(run, "cancelled")
    by_user = [e for e in _state(run, "CANCELLED") if e.fields.get("uid") not in ("0", None)]
    by_root = [e for e in _state(run, "CANCELLED") if e.fields.get("uid") == "0"]
    owner = _what(run, "owner")
    stops = [*owner, *by_user, *cancelled]
    if decided or not (stops or by_root):
        return
    first = (cancelled or stops or by_root)[0]
    before = _failed_before(run, first)
    silent = _silent(run, first)
    facts = {"after": before.text[:160] if before else "", "silent": round(silent), "id": first.fields.get("id") or ""}
    if before is not None:
        yield finding("stops.torn-down", [first], _places([first]), cause=None, role="symptom", weight=0.0, severity="info", facts=facts)
    elif _finished(run):
        yield finding(
            "stops.after-finish", [first], _places([first]), cause="none/healthy", role="done", weight=0.8, severity="info", facts=facts
        )
    elif by_root and not by_user:
        yield finding("stops.admin", by_root, _places(by_root), cause="infra/preempted", weight=0.4, facts=facts)
    else:
        weight = 0.85 if by_user or owner else 0.75
        if silent > HANG:
            weight = 0.45
        yield finding(
            "stops.cancelled",
            stops,
            _places(stops),
            cause="none/interrupted-by-user",
            role="stop",
            weight=weight,
            severity="info",
            facts=facts,
        )


def _interrupted(run: Run, decided: bool) -> Iterator[Finding]:
    keyboard = [e for e in run.kind("interrupt") if e.fields.get("signal") in (1, 2)]
    keyboard += [e for e in run.kind("traceback") if short_type(str(e.fields.get("type", ""))) == "KeyboardInterrupt"]
    keyboard += [e for e in run.kind("slurm") if e.fields.get("what") == "ctrl-c"]
    keyboard = sorted((e for e in keyboard if not went_on(run, e)), key=order)
    if keyboard:
        first = keyboard[0]
        before = _failed_before(run, first)
        silent = _silent(run, first)
        facts = {"after": before.text[:160] if before else "", "silent": round(silent), "id": ""}
        hangup = first.fields.get("signal") == 1
        if before is not None:
            yield finding(
                "stops.torn-down", [first], _places([first]), cause=None, role="symptom", weight=0.0, severity="info", facts=facts
            )
        else:
            weight = (0.85 if not decided else 0.4) if silent <= HANG else 0.45
            rule = "stops.hangup" if hangup else "stops.keyboard"
            yield finding(
                rule,
                keyboard,
                _places(keyboard),
                cause="none/interrupted-by-user",
                role="stop",
                weight=weight,
                severity="info",
                facts=facts,
            )
        return
    terms = sorted((e for e in run.kind("interrupt") if e.fields.get("signal") == 15 and not went_on(run, e)), key=order)
    if terms and not decided and not _what(run, "cancelled", "owner", "oom", "memory", "node-fail", "evicted"):
        first = terms[0]
        before = _failed_before(run, first)
        if before is None and not _finished(run):
            facts = {"after": "", "silent": round(_silent(run, first)), "id": ""}
            yield finding(
                "stops.terminated",
                terms,
                _places(terms),
                cause="infra/preempted",
                weight=0.36,
                facts=facts,
                needs="the scheduler's record of who sent the signal (sacct, kubectl describe, cloud events)",
            )


RULES = (Rule("stops", _judge),)
