"""Who held the others up, from the flight-recorder dumps of the ranks.

A rank waits for another when the oldest collective it has not finished was never enqueued by that other.  The ranks that others
wait for and that wait for nobody are where the run stopped (the ends of the wait-for graph); the group in which they are awaited
first is the front group.  Where nobody is behind in enqueuing, a rank whose peers have finished a collective that it has not is
one whose device stopped.  Where the operations themselves differ at one sequence number, the ranks run different programs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding, Rule

if TYPE_CHECKING:
    from forensics.run import Run

#: operations that no rank can finish before all ranks have entered them
SYMMETRIC = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "alltoall", "barrier")
#: operations whose sizes and types must be the same on all ranks
EQUAL_SIZE = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "_all_gather_base",
    "_allgather_base",
    "_reduce_scatter_base",
    "reduce_scatter_tensor",
    "all_gather_into_tensor",
)


@dataclass(slots=True)
class Member:
    """One rank's state in one group.  `open`: its unfinished collectives (seq -> op row), `peers`: unfinished sends and receives."""

    enqueued: int | None = None
    completed: int | None = None
    open: dict[int, list[Any]] = field(default_factory=dict)
    peers: list[list[Any]] = field(default_factory=list)
    partners: set[int] = field(default_factory=set)
    highest: int | None = None  # highest collective sequence number among its entries

    @property
    def front(self) -> int | None:
        """The oldest collective not finished."""
        return min(self.open) if self.open else None


@dataclass(slots=True)
class Edge:
    """`waiter` waits for `awaited` in `group` at sequence number `seq`."""

    waiter: int
    awaited: int
    group: str
    seq: int
    op: str
    created: int | None = None
    oldest: bool = False  # the oldest of all that the waiter has not finished: what comes later may wait only in its queue


@dataclass
class Dumps:
    """The dumps of all ranks, by group."""

    ranks: set[int] = field(default_factory=set)
    groups: dict[str, dict[int, Member]] = field(default_factory=dict)
    members: dict[str, list[int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    p2p: set[str] = field(default_factory=set)

    @property
    def world(self) -> set[int]:
        """All ranks that any group names."""
        return self.ranks.union(*self.members.values()) if self.members else set(self.ranks)


def collect(states: Iterable[dict[str, Any]]) -> Dumps:
    """Build the table from the `fields` of `fr_dump` events; of two dumps of one rank that with more entries counts."""
    best: dict[int, dict[str, Any]] = {}
    for state in states:
        rank = state.get("rank")
        if isinstance(rank, int) and (rank not in best or state.get("entries", 0) > best[rank].get("entries", 0)):
            best[rank] = state
    out = Dumps(ranks=set(best))
    for rank, state in best.items():
        for name, group in (state.get("groups") or {}).items():
            ranks = group.get("ranks") or []
            if ranks and rank not in ranks:
                continue  # a name that this rank uses for another group
            out.members.setdefault(name, ranks or [])
            if group.get("desc"):
                out.names.setdefault(name, group["desc"])
            member = Member(group.get("enqueued"), group.get("completed"))
            out.groups.setdefault(name, {})[rank] = member
            if group.get("p2p"):
                out.p2p.add(name)
            for op in group.get("ops") or ():
                seq, _, _, _, _, _, status, _, _, peer = op
                if seq is not None:
                    member.highest = max(member.highest if member.highest is not None else -1, seq)
                if peer is not None:
                    member.partners.add(peer)
                if status == "completed":
                    continue
                if peer is not None:
                    member.peers.append(op)
                elif seq is not None:
                    member.open[seq] = op
    for name, ranks in out.members.items():
        if not ranks:
            out.members[name] = sorted(out.groups.get(name, {}))
    return out


def _entered(dumps: Dumps, name: str, member: Member) -> int | None:
    """The last collective a member enqueued; in groups that also send and receive the status counts those too and is of no use."""
    return member.highest if name in dumps.p2p else member.enqueued


def edges(dumps: Dumps) -> list[Edge]:
    """Who waits for whom.  Ranks without a dump are awaited only where no dumped member of the group is behind."""
    out: list[Edge] = []
    oldest: dict[int, int] = {}
    for states in dumps.groups.values():
        for rank, member in states.items():
            for op in [*member.open.values(), *member.peers]:
                if op[7] is not None:
                    oldest[rank] = min(oldest.get(rank, op[7]), op[7])
    for name, states in dumps.groups.items():
        members = dumps.members[name]
        absent = [r for r in members if r not in dumps.ranks]
        for rank, member in states.items():
            seq = member.front
            if seq is None:
                continue
            op = member.open[seq]
            behind = [
                r for r, other in states.items() if r != rank and (entered := _entered(dumps, name, other)) is not None and entered < seq
            ]
            if (
                not behind
                and absent
                and not any(r != rank and (other.completed or -1) >= seq for r, other in states.items() if name not in dumps.p2p)
            ):
                behind = absent
            out += [Edge(rank, r, name, seq, op[2], op[7], op[7] is not None and op[7] == oldest.get(rank)) for r in behind]
        if name in dumps.p2p:
            out += _pairs(dumps, name, states)
    return out


def _pairs(dumps: Dumps, name: str, states: dict[int, Member]) -> list[Edge]:
    """Sends and receives whose partner never posted the other half.

    Their numbers compare only between two ranks that have no other partner in the group (a pipeline of two stages); with more
    partners a rank is awaited only if it has nothing at all under way in the group.
    """
    out = []
    for rank, member in states.items():
        for op in member.peers[:4]:
            number, peer = op[1], op[9]
            other = states.get(peer)
            if other is None or any(o[9] == rank and o[2] != op[2] for o in other.peers):
                continue
            alone = member.partners <= {peer} and other.partners <= {rank}
            if alone and number is not None and other.enqueued is not None:
                late = other.enqueued < number
            else:
                late = not other.peers and not other.open and (other.enqueued or 0) == (other.completed or 0)
            if late:
                out.append(Edge(rank, peer, name, number or 0, op[2], op[7]))
    return out


def ends(edge_list: list[Edge]) -> tuple[set[int], bool]:
    """Ranks at the ends of the wait-for graph, and whether they wait for each other in a circle."""
    following: dict[int, set[int]] = defaultdict(set)
    for edge in edge_list:
        following[edge.waiter].add(edge.awaited)
        following.setdefault(edge.awaited, set())
    sinks = {rank for rank, targets in following.items() if not targets}
    if sinks or not following:
        return sinks, False
    # no end: the smallest set that leads nowhere else
    best: set[int] = set(following)
    for start in following:
        seen, stack = {start}, [start]
        while stack:
            for target in following[stack.pop()]:
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        if len(seen) < len(best):
            best = seen
    return best, True


def stalled(dumps: Dumps) -> set[int]:
    """Ranks that have not finished a collective which a peer has: no peer can finish those before all ranks entered them."""
    out: set[int] = set()
    for name, states in dumps.groups.items():
        if name in dumps.p2p:
            continue
        behind = set()
        for rank, member in states.items():
            seq = member.front
            if seq is None or not any(word in str(member.open[seq][2]) for word in SYMMETRIC):
                continue
            if any((other.completed if other.completed is not None else -1) >= seq for r, other in states.items() if r != rank):
                behind.add(rank)
        if behind and len(behind) * 2 <= len(states):
            out |= behind
    return out


def mismatches(dumps: Dumps) -> list[tuple[str, int, dict[int, str], list[int]]]:
    """(group, seq, rank -> what it runs, the odd ranks) where members run different collectives under one number.

    The odd ranks are the minority; empty where there is none.
    """
    out = []
    for name, states in dumps.groups.items():
        fronts = [m.front for m in states.values() if m.front is not None]
        for seq in sorted(set(fronts))[:4]:
            running: dict[int, str] = {}
            for rank, member in states.items():
                if op := member.open.get(seq):
                    text = str(op[2])
                    if any(text.endswith(word) for word in EQUAL_SIZE):
                        text += f" {op[3]} {op[5]}"
                    running[rank] = text
            kinds = Counter(running.values())
            if len(kinds) > 1:
                common, count = kinds.most_common(1)[0]
                odd = sorted(r for r, text in running.items() if text != common)
                out.append((name, seq, running, odd if len(odd) < count else []))
                break
    return out


def _evidence(run: Run, ranks: Iterable[int], text: str) -> list[Evidence]:
    by_rank = {e.rank: e for e in run.kind("fr_dump")}
    return [Evidence(by_rank[r].source, 1, text, by_rank[r].time) for r in ranks if r in by_rank]


def judge(run: Run) -> Iterable[Finding]:
    """Findings from all dumps of the run together."""
    events = run.kind("fr_dump")
    if not events:
        return
    dumps = collect(e.fields for e in events)
    edge_list = edges(dumps)
    differing = mismatches(dumps)
    world = dumps.world
    for name, seq, running, odd in differing[:4]:
        kinds = Counter(running.values())
        yield Finding(
            "flight-recorder-mismatch",
            cause="comms/collective-mismatch",
            role="root",
            weight=0.85 if odd else 0.75,
            evidence=_evidence(run, (odd or sorted(running))[:6], "; ".join(f"{text} on {n}" for text, n in kinds.most_common(3))),
            rank=odd[0] if odd else None,
            ranks=odd,
            covers=("L4.4", "S6"),
            facts={"group": name, "group_name": dumps.names.get(name, ""), "seq": seq, "running": "; ".join(kinds), "ranks": odd},
        )
    culprits, circle = ends(edge_list)
    if culprits & dumps.ranks:
        # a rank that left no dump is accused beside one that did only where somebody waits for it first of all
        culprits = (culprits & dumps.ranks) | {e.awaited for e in edge_list if e.oldest and e.awaited in culprits}
    absent = sorted(world - dumps.ranks)
    if culprits:
        first = sorted((e for e in edge_list if e.awaited in culprits), key=lambda e: (e.created is None, e.created or 0))
        front = first[0]
        waiting = sorted({e.waiter for e in edge_list})
        never_dumped = culprits <= set(absent)
        # with most dumps missing the absent ranks are not suspects: nobody collected them
        vague = never_dumped and len(absent) * 2 > len(world)
        listed = [] if vague else sorted(culprits)
        yield Finding(
            "flight-recorder-circle" if circle else "flight-recorder-missing",
            cause="comms/collective-mismatch" if circle else "comms/collective-timeout",
            role="root" if circle else "consequence",
            weight=0.6 if circle else (0.35 if vague else 0.5),
            time=front.created / 1e9 if front.created else None,
            evidence=_evidence(run, listed[:6], f"has not entered {front.op} {front.seq} of group {front.group}")
            + _evidence(run, [front.waiter], f"waits in {front.op} {front.seq} of group {front.group}"),
            rank=listed[0] if listed else None,
            ranks=listed,
            covers=("L4.4", "S6"),
            facts={
                "ranks": listed,
                "group": front.group,
                "group_name": dumps.names.get(front.group, ""),
                "seq": front.seq,
                "op": front.op,
                "waiting": waiting[:64],
                "absent": absent[:64],
                "left_at": front.created / 1e9 if front.created else None,
            },
        )
        return
    behind = stalled(dumps)
    stuck = sorted({r for states in dumps.groups.values() for r, m in states.items() if m.open or m.peers})
    if behind:
        yield Finding(
            "flight-recorder-stalled",
            cause="comms/collective-timeout",
            role="consequence",
            weight=0.45,
            evidence=_evidence(run, sorted(behind)[:6], "has not finished what its peers have"),
            rank=min(behind),
            ranks=sorted(behind),
            covers=("L4.4", "S6"),
            facts={"ranks": sorted(behind), "waiting": stuck[:64]},
        )
    elif stuck and not differing:
        yield Finding(
            "flight-recorder-all-waiting",
            outcome="undecided",
            cause="comms/collective-timeout",
            role="consequence",
            weight=0.3,
            evidence=_evidence(run, stuck[:4], "waits, and every rank has entered the same collective"),
            covers=("L4.4", "S6"),
            facts={"waiting": stuck[:64]},
            needs="NCCL_DEBUG=INFO logs and the kernel log of every node: all ranks entered the collective, so the transport or a device stopped",
        )
    elif not stuck:
        yield Finding(
            "flight-recorder-nothing-waiting",
            outcome="excluded",
            cause="comms/collective-timeout",
            role="context",
            weight=0.1,
            severity="info",
            evidence=_evidence(run, sorted(dumps.ranks)[:2], "no collective was unfinished"),
            covers=("L4.4", "S6"),
        )


RULES = (Rule("flight-recorder", judge, covers=("L4.4", "S6")),)
