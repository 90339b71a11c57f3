"""The watchdogs' reports as a table: per process group, which collective each rank was waiting in."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

#: operations whose sizes may differ between ranks
UNEQUAL = ("ALLTOALL", "SEND", "RECV", "COALESCED", "GATHER", "SCATTER")
EQUAL = ("_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
#: NumelIn of a coalesced operation: not known
UNKNOWN_SIZE = 2**63


@dataclass(slots=True)
class Wait:
    """One rank's timed-out collective and its progress pair."""

    event: Event
    seq: int | None = None
    op: str = ""
    size: tuple[int | None, int | None] = (None, None)
    shape: str = ""
    timeout_ms: int | None = None
    ran_ms: int | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    pg: str | None = None
    group_rank: int | None = None

    @property
    def program(self) -> str:
        """What has to be the same on all ranks: the operation, and its size where ranks cannot differ in it."""
        fixed = self.op in EQUAL or not any(word in self.op for word in UNEQUAL)
        known = [str(n) for n in self.size if n is not None and n < UNKNOWN_SIZE]
        size = "x".join(known) if self.op in EQUAL else (known[0] if known else self.shape)
        return f"{self.op} {size}".strip() if fixed and size else self.op

    @property
    def began(self) -> float | None:
        """When this rank entered the collective (Unix seconds): about when the missing rank stopped taking part."""
        if self.event.time is None or self.event.inherited:
            return None
        length = self.ran_ms if self.ran_ms is not None else self.timeout_ms
        return None if length is None else self.event.time - length / 1000


@dataclass
class Group:
    """One process group, or sibling groups of one purpose (data-parallel groups run the same program)."""

    key: str
    name: str = ""
    waits: dict[int, Wait] = field(default_factory=dict)
    enqueued: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    whole: bool = False  # spans the world
    sure: bool = True  # the group is told by the log

    @property
    def first(self) -> Wait:
        """The earliest report."""
        return min(self.waits.values(), key=lambda w: (w.event.time is None, w.event.time or 0.0, w.event.line))


def holes(group: Group) -> set[int]:
    """Global ranks that ought to be in one of the group's siblings, by the even spacing of those that report there."""
    by_pg: dict[str, dict[int, int]] = {}
    for rank, wait in group.waits.items():
        if rank >= 0 and wait.pg is not None and wait.group_rank is not None:
            by_pg.setdefault(wait.pg, {})[wait.group_rank] = rank
    out: set[int] = set()
    for places in by_pg.values():
        inside = sorted(places)
        if len(inside) < 2:
            continue
        steps = {(places[b] - places[a]) / (b - a) for a, b in pairwise(inside)}
        if len(steps) != 1 or (step := steps.pop()) <= 0 or step != int(step):
            continue
        first = places[inside[0]] - inside[0] * int(step)
        out |= {first + place * int(step) for place in range(inside[-1] + 2) if place not in places and first >= 0}
    return out


def is_final(run: Run, event: Event) -> bool:
    """Whether training did not go on after the event."""
    place = run.last_progress_at
    if place is not None and place.file == event.source and (event.time is None or event.inherited):
        return event.line > place.line
    if run.last_progress is None or event.time is None or event.inherited:
        return True
    return event.time >= run.last_progress - 5.0


def build(run: Run) -> list[Group]:
    """Groups with at least one report after the last progress, the earliest first."""
    status: dict[tuple[int | None, int | None], Event] = {}
    statuses = [e for e in run.kind("pg_status", "dump_signal") if is_final(run, e)]
    for event in statuses:
        if event.kind == "pg_status":
            status.setdefault((event.rank, event.fields.get("work")), event)
    groups: dict[str, Group] = {}

    def group_of(event: Event, told: Event | None) -> Group:
        fields = (told.fields if told is not None and told.fields.get("pg") is not None else event.fields) or {}
        pg, name = fields.get("pg"), fields.get("pg_name") or ""
        if pg is None:
            # only the rank inside the group is known; where it is the global rank the group is taken as the world
            whole = event.fields.get("group_rank") in (None, event.rank) and (event.fields.get("op"), event.fields.get("seq")) not in inside
            key, sure = ("0" if whole else "?"), False
        else:
            whole = name == "default_pg" or str(pg) in ("0", "default_pg")
            key, sure = ("0" if whole else f"name:{name}" if name and name != "undefined" else f"pg:{pg}"), True
        group = groups.setdefault(key, Group(key, name or ("default_pg" if whole else str(pg or "")), whole=whole, sure=sure))
        group.sure = group.sure or sure
        return group

    # Without a group's name the ranks inside it tell: where one differs from the global rank no report need be of the world.
    inside = {
        (e.fields.get("op"), e.fields.get("seq"))
        for e in run.kind("watchdog_timeout")
        if e.fields.get("group_rank") not in (None, e.rank) and e.fields.get("pg") is None and not status
    }
    for event in run.kind("watchdog_timeout"):
        if not is_final(run, event) or event.fields.get("repeat"):
            continue
        fields = event.fields
        told = status.get((event.rank, fields.get("seq"))) if event.rank is not None else None
        group = group_of(event, told)
        rank = event.rank if event.rank is not None else -1 - len(group.waits)
        wait = Wait(
            event,
            fields.get("seq"),
            str(fields.get("op") or ""),
            (fields.get("numel_in"), fields.get("numel_out")),
            str(fields.get("shape") or ""),
            fields.get("timeout_ms"),
            fields.get("ran_ms"),
        )
        wait.group_rank = fields.get("group_rank")
        wait.pg = str((told.fields if told is not None else fields).get("pg") or "") or ("?" if group.key == "?" else None)
        if told is not None:
            wait.last_enqueued, wait.last_completed = told.fields.get("last_enqueued"), told.fields.get("last_completed")
        held = group.waits.get(rank)
        if held is None or (held.seq is not None and wait.seq is not None and wait.seq < held.seq):
            group.waits[rank] = wait
    for event in statuses:
        if event.rank is None or event.fields.get("pg") is None:
            continue
        name, pg = event.fields.get("pg_name") or "", str(event.fields["pg"])
        key = "0" if name == "default_pg" or pg in ("0", "default_pg") else f"name:{name}" if name and name != "undefined" else f"pg:{pg}"
        if key in groups:
            groups[key].enqueued.setdefault(event.rank, event.fields["last_enqueued"])
            groups[key].completed.setdefault(event.rank, event.fields["last_completed"])
    found = [g for g in groups.values() if g.waits]
    return sorted(found, key=lambda g: (g.first.event.time is None, g.first.event.time or 0.0, g.first.event.line))
