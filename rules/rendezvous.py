"""Ranks that never met: the store, rendezvous, ports, Gloo and HCCL connections."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rules.base import Finding, Role, Rule
from rules.watchdog_table import is_final

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

COVERS = ("L4.1", "L4.4")
NAMES = {"rendezvous_timeout": "rendezvous.timeout", "connect_timeout": "rendezvous.connect", "eaddrinuse": "rendezvous.port"}


def judge(run: Run) -> Iterable[Finding]:
    """Findings on set-up and on Gloo."""
    yield from _store(run)
    yield from _simple(run, "rendezvous_timeout", "comms/rendezvous-timeout", "root", 0.7)
    yield from _simple(run, "connect_timeout", "comms/connect-failed", "root", 0.55)
    yield from _simple(run, "eaddrinuse", "comms/address-in-use", "root", 0.88)
    yield from _gloo(run)
    yield from _hccl(run)
    yield from _unresolved(run)
    yield from _attempts(run)


def _final(run: Run, kind: str) -> list[Event]:
    return [e for e in run.kind(kind) if is_final(run, e)]


def _simple(run: Run, kind: str, cause: str, role: Role, weight: float) -> Iterable[Finding]:
    events = _final(run, kind)
    if not events:
        return
    hosts = {e.host for e in events if e.host}
    host = events[0].host if kind == "eaddrinuse" and len(hosts) == 1 else None
    if kind == "rendezvous_timeout":
        # the node that came late or never is the one that does not complain
        known = {*run.hosts, *(e.host for e in run.events if e.host and e.kind in ("exit", "slurm", "launch"))}
        quiet = sorted(h for h in known if h not in hosts)
        host = quiet[0] if len(quiet) == 1 and len(hosts) >= 1 else None
    yield Finding(
        NAMES[kind],
        cause=cause,
        role=role,
        weight=weight,
        time=events[0].time,
        evidence=[run.evidence(e) for e in events[:4]],
        host=host,
        covers=COVERS,
        facts={**events[0].fields},
        count=len(events),
    )


def _store(run: Run) -> Iterable[Finding]:
    """Clients that did not join, and keys nobody set; who is missing is who is not among those that wait."""
    events = _final(run, "store_timeout")
    counted = [e for e in [*events, *_final(run, "store_wait")] if e.fields.get("expected")]
    if not events and not counted:
        return
    missing: list[int] = []
    expected = max((int(e.fields["expected"]) for e in counted), default=0)
    joined = max((int(e.fields["joined"]) for e in counted), default=0)
    waiting = {int(e.fields["waiting"]) for e in counted if e.fields.get("waiting") is not None}
    if 1 < expected <= 65_536 and waiting and len(waiting) * 2 >= expected and len(waiting) < expected:
        missing = sorted(set(range(expected)) - waiting)
    owners = sorted({int(e.fields["owner"]) for e in _final(run, "unique_id")})
    if joined >= expected and not events:
        return
    first = events[0] if events else counted[0]
    short = joined < expected
    yield Finding(
        "store.clients-missing" if short else "store.timeout",
        cause="comms/rendezvous-timeout",
        role="root" if short else "consequence",
        weight=0.62 if short else 0.4,
        time=first.time,
        evidence=[run.evidence(e) for e in [first, *counted[-3:]]],
        rank=missing[0] if missing else (owners[0] if len(owners) == 1 else None),
        ranks=missing or owners,
        covers=COVERS,
        facts={
            "joined": joined,
            "expected": expected,
            "missing": missing,
            "owner": owners[0] if owners else None,
            "key": first.fields.get("key", ""),
        },
        count=len(events),
    )


def _gloo(run: Run) -> Iterable[Finding]:
    """With Gloo the victims print `Timed out waiting`; the rank that came late finds its peers gone: `Connection closed by peer`."""
    late = _final(run, "gloo_timeout")
    closed = _final(run, "gloo_closed")
    if not late and not closed:
        return
    timed = {e.rank for e in late if e.rank is not None}
    gone = {e.rank for e in closed if e.rank is not None}
    ranks = sorted(gone - timed) if timed else []
    if not ranks and run.world_size and len(timed) * 2 > run.world_size:
        ranks = sorted(set(range(run.world_size)) - timed - gone)  # all others complain
    if len(ranks) > max(1, len(timed) // 2):
        ranks = []
    if not late:
        yield Finding(
            "gloo.peer-closed",
            cause="comms/peer-lost",
            role="consequence",
            weight=0.3,
            time=closed[0].time,
            evidence=[run.evidence(e) for e in closed[:4]],
            covers=COVERS,
            facts={"peer": closed[0].fields.get("peer", "")},
            count=len(closed),
        )
        return
    first = late[0]
    seconds = first.fields.get("ms", 0) / 1000
    left = first.time - seconds if first.time is not None and not first.inherited and seconds else None
    yield Finding(
        "gloo.timeout-missing" if ranks else "gloo.timeout",
        cause="comms/collective-timeout",
        role="consequence",
        weight=0.42 if ranks else 0.35,
        time=first.time,
        evidence=[run.evidence(e) for e in [*late[:3], *[c for c in closed if c.rank in ranks][:2]]],
        rank=ranks[0] if ranks else None,
        ranks=ranks,
        covers=COVERS,
        facts={"seconds": seconds, "ranks": ranks, "left_at": left, "reporting": sorted(timed)[:64]},
        count=len(late),
    )


def _hccl(run: Run) -> Iterable[Finding]:
    events = _final(run, "hccl_wait")
    if not events:
        return
    remote = sorted({int(e.fields["remote"]) for e in events if e.fields.get("remote") is not None})
    waiting = {e.rank for e in events if e.rank is not None}
    ranks = [r for r in remote if r not in waiting]
    yield Finding(
        "hccl.notify",
        cause="comms/collective-timeout",
        role="consequence",
        weight=0.42,
        time=events[0].time,
        evidence=[run.evidence(e) for e in events[:4]],
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks if len(ranks) <= 2 else [],
        covers=COVERS,
        facts={"ranks": ranks, "code": events[0].fields.get("code")},
        count=len(events),
    )


ANSWERS = frozenset({"110", "111", "113"})  # timed out, refused, no route: the address was asked; the others mean an address family
PATIENCE = 60.0  # seconds of trying from which a server that is only slow to start is unlikely
TRIES = 6  # attempts that end a log


def _attempts(run: Run) -> Iterable[Finding]:
    """A log that ends in attempts to reach the store: nobody listens there.  Single failed attempts belong to every start."""
    events = [e for e in run.events if e.signature == "store-client-attempt" and e.fields.get("errno") in ANSWERS and is_final(run, e)]
    by_file: dict[str, list[Event]] = {}
    for event in events:
        by_file.setdefault(event.source, []).append(event)
    for source, tries in by_file.items():
        last = tries[-1]
        length = run.files[source].lines if source in run.files else 0
        stamped = [e.time for e in tries if e.time is not None and not e.inherited]
        long = len(stamped) > 2 and max(stamped) - min(stamped) >= PATIENCE
        if len(tries) + int(last.fields.get("left_out", 0)) < TRIES or (length and length - last.line > 3) or (stamped and not long):
            continue
        yield Finding(
            "store.unreachable",
            cause="comms/connect-failed",
            weight=0.5,
            time=tries[0].time,
            evidence=[run.evidence(tries[0]), run.evidence(last)],
            covers=COVERS,
            facts={"tries": len(tries)},
            count=len(tries),
        )
        return


UNRESOLVED = frozenset({"master-host-unresolved", "master-name-unresolvable", "c10d-client-no-host"})
ENDPOINT = re.compile(r"[\[(](?P<host>[A-Za-z][\w.-]{0,120})\]?(?:, ?|:)\d{2,5}\b")


def _unresolved(run: Run) -> Iterable[Finding]:
    """The master's name that does not resolve, from the message or from what the launcher printed."""
    events = [e for e in run.events if e.signature in UNRESOLVED and is_final(run, e)]
    if not events:
        return
    named = next((found["host"] for e in events if (found := ENDPOINT.search(e.text)) is not None), None)
    told = run.fact("launch.master_addr")
    host = named or (str(told) if told and not str(told).replace(".", "").isdigit() else None)
    if host is None:
        return
    yield Finding(
        "rendezvous.unresolved",
        cause="comms/connect-failed",
        weight=0.81,
        time=events[0].time,
        evidence=[run.evidence(e) for e in events[:3]],
        host=host,
        covers=COVERS,
        facts={"host": host},
        count=len(events),
    )


RULES = (Rule("rendezvous", judge, covers=COVERS),)
