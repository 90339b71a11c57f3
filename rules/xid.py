"""Xids in context.

Codes are judged in bursts: all lines of one node until three minutes of quiet (NVIDIA's fleet tools use the same window).  The
burst's root is its earliest code that can be a cause.  43, 45, 108, 137, 154 and 174 never are; a 45 that names the code which
caused it speaks for that code; 13, 31, 32, 43, 69 and the copy-engine codes are the program's doing unless a hardware code
stands near or the same GPU repeats them over several processes; the process that a 119 names is only the caller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rules.base import Finding, Rule
from rules.gpu_codes import Code, nvlink5, xid
from rules.kernel_view import SETTLE, TOOLS, View, bursts, missing, ordered, view_of

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

QUIET = 180.0  # seconds of silence that end a burst
TAKES_OVER = 60.0  # seconds within which a fallen GPU (79) outranks the time-outs that noticed it first
REPEATS = 3  # processes that fail with one program-type code on one GPU, and on no other, before the GPU is blamed
ECC = frozenset({48, 64, 94, 95, 140, 171, 172, 175})
NEEDS_RESET = frozenset({46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 158, 173})  # leave a GPU that must be reset before reuse
CALLER = frozenset({119, 120})
RESET_ACTIONS = ("Reset", "Reboot", "Drain")
Place = tuple[str | None, str, int]  # host, GPU, code


def judge(run: Run) -> Iterable[Finding]:
    """Findings `xid.*`: one for each burst's root, one for each other cause in it, and one for what was set aside."""
    events = ordered([*run.kind("xid"), *run.kind("gpu_lost")])
    if not events:
        yield from missing(run, "xid.missing", "infra/gpu-fell-off-bus")
        return
    view = view_of(run)
    usable, aside = _sort_out(view, events)
    repeated = _repeated(view, events)
    for reason, group in aside.items():
        yield from _set_aside(view, reason, group, repeated)
    yield from _dirty(view, aside.get("before", []) + aside.get("boot", []))
    told: set[Place] = set()
    by_host: dict[str | None, list[Event]] = defaultdict(list)
    for event in usable:
        by_host[view.host(event)].append(event)
    for group in by_host.values():
        for burst in bursts(group, QUIET):
            yield from _burst(view, burst, repeated, told)


def code_of(event: Event) -> int:
    """The event's code; a lost GPU without an Xid line counts as 79."""
    return 79 if event.kind == "gpu_lost" else int(event.fields.get("code", 0))


def can_be_cause(event: Event) -> bool:
    """Whether the line may be a cause by itself: not a symptom, and for NVLink5 not one the driver calls harmless."""
    entry = xid(code_of(event))
    if entry.kind not in ("hardware", "driver"):
        return False
    if 144 <= entry.number <= 150 and event.fields.get("fatal") is False:
        told = nvlink5(entry.number, event.fields.get("unit"), event.fields.get("status"))
        return bool(told.get("crash")) or told.get("severity") == "Fatal"
    return True


def _sort_out(view: View, events: list[Event]) -> tuple[list[Event], dict[str, list[Event]]]:
    usable: list[Event] = []
    aside: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        entry = xid(code_of(event))
        phase = view.phase(event)
        if entry.kind == "noise":
            aside["noise"].append(event)
        elif view.earlier_boot(event):
            aside["boot"].append(event)
        elif phase in ("before", "after"):
            aside[phase].append(event)
        elif _foreign(view, event, entry):
            aside["other-process"].append(event)
        else:
            usable.append(event)
    return usable, aside


def _foreign(view: View, event: Event, entry: Code) -> bool:
    """A program-type code of a process that is not the run's, away from the instant the run died."""
    name = event.fields.get("name")
    if entry.kind not in ("application", "symptom") or event.pid is None:
        return False
    if not view.pids:  # nothing tells the run's processes: only a program that trains nothing is surely another's
        return isinstance(name, str) and name[:1].isalpha() and view.ours(event.pid, name) is False
    mine = view.ours(event.pid, name if isinstance(name, str) else "python")
    return mine is False or (mine is None and not view.at_end(event))


def _repeated(view: View, events: list[Event]) -> dict[Place, list[Event]]:
    """(host, GPU, code) of program-type codes -> the first line of each process that failed with it there."""
    seen: dict[Place, dict[Any, Event]] = defaultdict(dict)
    for event in events:
        pci = event.fields.get("pci")
        if xid(code_of(event)).kind == "application" and pci:
            key = (view.host(event), pci, code_of(event))
            who = event.pid if event.pid is not None else (event.time or event.line) // QUIET
            seen[key].setdefault(who, event)
    return {key: ordered(first.values()) for key, first in seen.items()}


def _set_aside(view: View, reason: str, group: list[Event], repeated: dict[Place, list[Event]]) -> Iterator[Finding]:
    by_code: dict[int, list[Event]] = defaultdict(list)
    for event in group:
        by_code[code_of(event)].append(event)
    for code, events in by_code.items():
        entry = xid(code)
        yield view.excluded("xid.aside", events, entry.cause, reason, facts=_facts(view, events[0], entry))


def _dirty(view: View, group: list[Event]) -> Iterator[Finding]:
    """A GPU that needed a reset before the run began, and a run that then could not use it."""
    run = view.run
    broken = [e for e in group if code_of(e) in NEEDS_RESET and not view.earlier_boot(e)]
    if not broken:
        return
    complaints = [e for e in run.kind("reset_required", "rm_init_failed", "gsp_timeout") if view.phase(e) in ("during", "unknown")]
    asked = [e for e in group if code_of(e) == 154 and any(word in str(e.fields.get("action", "")) for word in RESET_ACTIONS)]
    if not complaints and not (asked and run.last_progress is None):
        return
    if run.last_progress is not None and any(e.time is not None and run.last_progress > e.time + SETTLE for e in complaints):
        return
    first = broken[0]
    entry = xid(code_of(first))
    same = [e for e in asked if e.fields.get("pci") == first.fields.get("pci")]
    yield view.finding(
        "xid.dirty", [first, *same, *complaints], entry.cause, "root", 0.85 if complaints else 0.6, facts=_facts(view, first, entry)
    )


def _burst(view: View, burst: list[Event], repeated: dict[Place, list[Event]], told: set[Place]) -> Iterator[Finding]:
    deadly = {(e.fields.get("pci"), e.fields.get("caused_by")) for e in burst}
    causes = [e for e in burst if can_be_cause(e) or (e.fields.get("pci"), code_of(e)) in deadly]
    named = _named_by_45(burst, {code_of(e) for e in causes})
    survived = view.went_on(burst[-1]) and all(view.went_on(e) for e in burst)
    if survived:
        lead = (causes or burst)[0]
        entry = xid(code_of(lead))
        others = [e for e in burst if e is not lead]
        yield view.excluded("xid.survived", [lead, *others], entry.cause, "went-on", facts=_facts(view, lead, entry))
        return
    hardware = [e for e in causes if xid(code_of(e)).kind == "hardware"]
    root = _root(causes, hardware, burst)
    if root is not None:
        yield from _hardware(view, burst, causes, root)
    elif named is not None:
        event, code = named
        entry = xid(code)
        yield view.finding("xid.named", [event], entry.cause, "root", max(0.5, entry.weight - 0.1), facts=_facts(view, event, entry))
    else:
        yield from _program(view, burst, repeated, told)


def _root(causes: list[Event], hardware: list[Event], burst: list[Event]) -> Event | None:
    """The earliest hardware code; a fallen GPU soon after outranks it; a driver's code counts if no program's code precedes it."""
    if hardware:
        first = hardware[0]
        if code_of(first) in CALLER:
            for event in hardware:
                if code_of(event) == 79 and _seconds(first, event) <= TAKES_OVER:
                    return event
        return first
    for event in causes:
        program = [e for e in burst if xid(code_of(e)).kind == "application" and burst.index(e) < burst.index(event)]
        if not program:
            return event
    return None


def _seconds(one: Event, other: Event) -> float:
    return abs(other.time - one.time) if one.time is not None and other.time is not None else 0.0


def _named_by_45(burst: list[Event], present: set[int]) -> tuple[Event, int] | None:
    for event in burst:
        code = event.fields.get("caused_by")
        if isinstance(code, int) and code not in present and xid(code).kind in ("hardware", "driver"):
            return event, code
    return None


def _hardware(view: View, burst: list[Event], causes: list[Event], root: Event) -> Iterator[Finding]:
    entry = xid(code_of(root))
    cause = entry.cause or "infra/gpu-hang"
    same = [e for e in causes if e is not root and xid(code_of(e)).cause == cause]
    support = [
        e
        for e in burst
        if e is not root and xid(code_of(e)).kind in ("precursor", "verdict") and e.fields.get("pci") == root.fields.get("pci")
    ]
    weight = entry.weight
    if 144 <= entry.number <= 150:
        weight = 0.85 if root.fields.get("fatal") or any(e.fields.get("caused_by") == entry.number for e in burst) else 0.6
    if entry.kind == "driver" and any(e.fields.get("caused_by") == entry.number for e in burst):
        weight = max(weight, 0.7)
    action = next((str(e.fields["action"]) for e in burst if e.fields.get("action")), None)
    facts = _facts(view, root, entry)
    if action:
        facts["recovery"] = action
    pid_rank = None if entry.number in CALLER and str(root.fields.get("name") or "").startswith(TOOLS) else root.pid
    finding = view.finding(
        "xid.hardware" if entry.kind == "hardware" else "xid.driver",
        [root, *same[:2], *support[:2]],
        cause,
        "root",
        weight,
        facts=facts,
        rank=_rank(view, root, pid_rank),
    )
    if entry.number in CALLER:
        finding.pid = None
    finding.ranks = sorted({rank for e in (root, *same) if (rank := view.rank(e)) is not None})
    finding.severity = "fatal"
    yield finding
    others: dict[str, list[Event]] = defaultdict(list)
    for event in causes:
        other = xid(code_of(event)).cause
        if other and other != cause:
            others[other].append(event)
    for other, events in others.items():
        follower = xid(code_of(events[0]))
        yield view.finding(
            "xid.follows",
            events,
            other,
            "consequence",
            min(0.4, follower.weight),
            facts=_facts(view, events[0], follower) | {"after": entry.number},
        )
    echoes = [e for e in burst if xid(code_of(e)).kind in ("symptom", "application")]
    if echoes:
        echo = xid(code_of(echoes[0]))
        yield view.finding("xid.echo", echoes, None, "symptom", 0.05, facts=_facts(view, echoes[0], echo) | {"after": entry.number})


def _rank(view: View, event: Event, pid: int | None) -> int | None:
    """By GPU first: the process named may be any that noticed."""
    pci = view.rank(event, -1)
    return pci if pci is not None else view.rank(event, pid) if pid is not None else None


def _program(view: View, burst: list[Event], repeated: dict[Place, list[Event]], told: set[Place]) -> Iterator[Finding]:
    program = [e for e in burst if xid(code_of(e)).kind == "application"]
    handled = [e for e in burst if xid(code_of(e)).kind == "precursor" or (144 <= code_of(e) <= 150)]
    if handled:
        entry = xid(code_of(handled[0]))
        yield view.finding("xid.precursor", handled, entry.cause, "precursor", entry.weight * 0.5, facts=_facts(view, handled[0], entry))
    if not program:
        echoes = [e for e in burst if xid(code_of(e)).kind in ("symptom", "verdict")]
        if echoes:
            entry = xid(code_of(echoes[0]))
            yield view.finding("xid.echo", echoes, None, "symptom", 0.05, facts=_facts(view, echoes[0], entry) | {"after": "?"})
        return
    first = program[0]
    entry = xid(code_of(first))
    key = (view.host(first), str(first.fields.get("pci")), entry.number)
    history = repeated.get(key, [first])
    elsewhere = [k for k in repeated if k[2] == entry.number and k[1:2] != key[1:2]]
    facts = _facts(view, first, entry)
    if len(history) >= REPEATS and not elsewhere:
        if key in told:
            return
        told.add(key)
        places = {str(e.fields.get("client") or e.fields.get("unit")) for e in history if e.fields.get("client") or e.fields.get("unit")}
        same_place = len(places) == 1
        weight = min(0.85, 0.6 + 0.05 * (len(history) - REPEATS) + (0.1 if same_place else 0.0))
        rest = [e for e in history if e is not first]
        yield view.finding(
            "xid.repeated",
            [first, *rest],
            entry.cause,
            "root",
            weight,
            facts=facts | {"times": len(history)},
            rank=_rank(view, first, first.pid),
        )
        return
    # One program error can trip the same code on many GPUs at once; the program's own log says what it was.
    # A program that says nothing itself, or a second process on the same GPU, leaves the card more suspect.
    silent = not view.run.kind("traceback")
    weight = 0.45 if silent or (len(history) == REPEATS - 1 and not elsewhere) else 0.3
    yield view.finding("xid.program", program, entry.cause, "consequence", weight, facts=facts, rank=_rank(view, first, first.pid))


def _facts(view: View, event: Event, entry: Code) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "code": entry.number,
        "mnemonic": entry.mnemonic,
        "name": entry.name["en"],
        "name_zh": entry.name.get("zh", entry.name["en"]),
        "meaning": entry.meaning["en"],
        "meaning_zh": entry.meaning.get("zh", entry.meaning["en"]),
        "action": entry.action["en"],
        "action_zh": entry.action.get("zh", entry.action["en"]),
        "gpu": event.gpu or event.fields.get("pci") or "?",
    }
    index = view.index(event)
    if index is not None:
        facts["gpu_index"] = index
    for name in ("client", "unit", "link", "mig"):
        if event.fields.get(name) is not None:
            facts[name] = event.fields[name]
    if event.fields.get("unit") and 144 <= entry.number <= 150:
        facts |= {f"nvlink_{k}": v for k, v in nvlink5(entry.number, event.fields.get("unit"), event.fields.get("status")).items()}
    if entry.number in CALLER and event.fields.get("name"):
        facts["caller"] = event.fields["name"]
    return facts


RULES = (Rule("xid", judge, covers=("S1", "S12")),)
