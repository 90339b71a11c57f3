"""Who held up a collective, from what the watchdogs of all ranks say.

A timed-out collective is a consequence: some rank did not come.  Its report names the victims.  The culprit is the rank without
a report, or with the fewest collectives enqueued, or the one that waits in another operation under the same number; when it left
is the instant of the time-out minus its length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding, Rule
from rules.nccl_messages import addresses, faulty_host
from rules.watchdog_table import Group, build, holes, is_final

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

NEAR = 120.0  # seconds around the moment the missing rank left in which other events are listed
HOST_KINDS = (
    "xid",
    "sxid",
    "oom_kill",
    "mce",
    "aer",
    "link",
    "kernel",
    "panic",
    "reboot",
    "nvlink",
    "thermal",
    "slurm",
    "exit",
    "gpu_lost",
    "hung_task",
)
COVERS = ("L4.4", "S6", "Q9")


def judge(run: Run) -> Iterable[Finding]:
    """Mismatches, missing ranks and plain time-outs."""
    groups = build(run)
    everyone = {r for group in groups for r in group.waits if r >= 0}
    front = front_ranks(run, groups, everyone)
    for group in groups:
        found = list(_mismatch(run, group))
        yield from found
        yield _timeout(run, group, bool(found), everyone, front)
    yield from _fingerprints(run)
    yield from _desync(run)
    if not groups:
        yield from _heartbeat(run)
    yield from _watchdog_ends(run)


def _mismatch(run: Run, group: Group) -> Iterable[Finding]:
    """The same number with another operation or size, or ranks that are past a collective the others are still in."""
    if len(group.waits) < 2 or group.key == "?":
        return
    by_seq: dict[int, dict[int, str]] = {}
    for rank, wait in group.waits.items():
        if wait.seq is not None and wait.op:
            by_seq.setdefault(wait.seq, {})[rank] = wait.program
    for seq, running in sorted(by_seq.items()):
        kinds = Counter(running.values())
        if len(kinds) < 2:
            continue
        common, count = kinds.most_common(1)[0]
        odd = sorted(r for r, text in running.items() if text != common and r >= 0)
        clear = len(odd) < count
        yield _mismatched(run, group, seq, kinds, odd if clear else [], 0.88 if clear else 0.8, "collective-mismatch")
        return
    if len(by_seq) > 1:
        # A rank cannot finish a collective that a member of the group is still in, except the sender of a broadcast or reduce.
        lowest = min(by_seq)
        ahead = sorted(r for seq, ranks in by_seq.items() if seq > lowest for r in ranks if r >= 0)
        behind = sorted(r for r in by_seq[lowest] if r >= 0)
        operations = {text.split(" ")[0] for ranks in by_seq.values() for text in ranks.values()}
        if len(operations) > 1 and group.sure:
            kinds = Counter(text for ranks in by_seq.values() for text in ranks.values())
            odd = ahead if len(ahead) < len(behind) else behind if len(behind) < len(ahead) else []
            yield _mismatched(run, group, lowest, kinds, odd, 0.75, "collective-order")


def _mismatched(run: Run, group: Group, seq: int, kinds: Counter[str], odd: list[int], weight: float, rule: str) -> Finding:
    first = group.first
    # one number, one odd rank: its line shows the fault; of ranks out of order the earliest report does
    leads = odd if rule == "collective-mismatch" else []
    events = sorted(
        (w.event for w in group.waits.values()), key=lambda e: (e.rank not in leads, e is not first.event, e.time or 0.0, e.line)
    )
    return Finding(
        rule,
        cause="comms/collective-mismatch",
        weight=weight,
        time=first.began or first.event.time,
        evidence=[run.evidence(e) for e in events[:6]],
        rank=odd[0] if odd else None,
        ranks=odd,
        covers=COVERS,
        facts={
            "seq": seq,
            "group": group.name or group.key,
            "running": "; ".join(f"{text} ({n})" for text, n in kinds.most_common(4)),
            "ranks": odd,
        },
    )


def front_ranks(run: Run, groups: list[Group], everyone: set[int]) -> list[int]:
    """Where several kinds of group wait: the silent ranks missing from the kind in which the fewest ranks wait.

    The group of the rank that stopped waits for it directly; the others wait for that group, and there are more of them.
    """
    if len(groups) < 2 or not run.world_size:
        return []
    for group in sorted(groups, key=lambda g: len(g.waits)):
        found = sorted(r for r in holes(group) - everyone if r < run.world_size)
        if found and len(found) * 8 <= max(8, run.world_size):
            return found
    return []


def suspects(run: Run, group: Group, everyone: set[int]) -> tuple[list[int], str]:
    """Ranks that did not come, and how that is known: `silent`, `least`, or empty where nothing tells them apart.

    `everyone`: the ranks that report a time-out in any group.  Of a part of the world only the reports tell who belongs to it,
    so there a rank counts as silent if it reports nowhere while most ranks do.
    """
    if group.key == "?" and len({w.group_rank for w in group.waits.values()}) == len(group.waits):
        found = sorted(r for r in holes(group) - everyone if not run.world_size or r < run.world_size)
        if found and len(found) * 4 <= max(4, len(group.waits) + len(found)):
            return found, "silent"
    reporting = {r for r in group.waits if r >= 0} if group.whole else everyone
    members = _members(run, group, everyone)
    silent = sorted(members - reporting)
    if group.enqueued:
        highest = max(group.enqueued.values())
        least = min(group.enqueued.values())
        low = sorted(r for r, n in group.enqueued.items() if n == least)
        if (
            least < highest
            and len(low) * 4 <= max(4, len(group.enqueued))
            and (not silent or set(low) <= set(silent) or len(silent) * 4 > len(members))
        ):
            return low, "least"
    if silent and len(silent) * 4 <= max(4, len(members)) and reporting:
        return silent, "silent"
    return [], ""


def _members(run: Run, group: Group, everyone: set[int]) -> set[int]:
    """Ranks of the group: all of the world for the default group; else those that any line puts into it."""
    seen = {r for r in group.waits if r >= 0} | set(group.enqueued)
    if not group.whole:
        return set(range(run.world_size)) if run.world_size and len(everyone) * 2 >= run.world_size else seen
    if run.world_size and len(seen) * 2 >= run.world_size:
        return set(range(run.world_size))
    if seen and not run.world_size:
        return set(range(max(seen) + 1)) if len(seen) * 2 > max(seen) else seen
    return seen


def _timeout(run: Run, group: Group, mismatched: bool, everyone: set[int], front: list[int]) -> Finding:
    first = group.first
    ranks, how = ([], "") if mismatched else suspects(run, group, everyone)
    if front and how != "least":  # a rank's own count of what it enqueued tells more than silence
        ranks, how = front, "front"
    began = [w.began for w in group.waits.values() if w.began is not None]
    left_at = min(began, default=None)
    nothing_yet = bool(group.completed) and all(n <= 0 for n in group.completed.values())
    evidence = [run.evidence(first.event)]
    if ranks and (last := run.ranks.get(ranks[0])) and last.first_error:
        evidence.append(last.first_error)
    nearby = _nearby(run, left_at)
    evidence += nearby[:3]
    return Finding(
        "collective-timeout-missing" if ranks else "collective-timeout",
        cause="comms/collective-timeout",
        role="consequence",
        weight=0.45 if ranks else 0.35,
        time=left_at if left_at is not None and run.last_progress is not None and left_at >= run.last_progress - NEAR else first.event.time,
        evidence=evidence,
        rank=ranks[0] if ranks else None,
        ranks=ranks,
        covers=COVERS,
        facts={
            "op": first.op,
            "seq": first.seq,
            "group": group.name or group.key,
            "timeout_s": (first.timeout_ms or 0) / 1000,
            "ranks": ranks,
            "how": how,
            "left_at": left_at,
            "reporting": sorted(r for r in group.waits if r >= 0)[:64],
            "setup": nothing_yet,
            "last_completed": min(group.completed.values(), default=None),
            "nearby": "; ".join(e.text[:120] for e in nearby[:3]),
        },
        count=len(group.waits),
    )


def _nearby(run: Run, instant: float | None) -> list[Evidence]:
    """Events of hosts and schedulers around the moment the missing rank left, on any node."""
    if instant is None:
        return []
    found = [
        e
        for e in run.events
        if e.time is not None
        and not e.inherited
        and abs(e.time - instant) <= NEAR
        and e.kind in HOST_KINDS
        and e.severity in ("warning", "error", "fatal")
    ]
    found.sort(key=lambda e: abs((e.time or 0.0) - instant))
    return [run.evidence(e) for e in found[:5]]


def _fingerprints(run: Run) -> Iterable[Finding]:
    """`TORCH_DISTRIBUTED_DEBUG=DETAIL` compares the collectives itself."""
    events = [e for e in run.kind("collective_mismatch") if is_final(run, e)]
    if not events:
        return
    running: dict[int, str] = {}
    for event in events:
        for side in ("a", "b"):
            values: dict[str, Any] = event.fields.get(side) or {}
            if "rank" in values:
                running.setdefault(values["rank"], " ".join(str(values[k]) for k in ("op", "shape", "dtype") if k in values))
    kinds = Counter(running.values())
    common, count = kinds.most_common(1)[0] if kinds else ("", 0)
    odd = sorted(r for r, text in running.items() if text != common)
    odd = odd if len(odd) < count else []
    first = events[0]
    yield Finding(
        "collective-fingerprints",
        cause="comms/collective-mismatch",
        weight=0.92,
        time=first.time,
        evidence=[run.evidence(e) for e in events[:4]],
        rank=odd[0] if odd else None,
        ranks=odd,
        covers=COVERS,
        facts={
            "running": "; ".join(f"{text} ({n})" for text, n in kinds.most_common(4)),
            "seq": (first.fields.get("a") or {}).get("seq"),
            "ranks": odd,
        },
        count=len(events),
    )


def _desync(run: Run) -> Iterable[Finding]:
    """The desync report and monitored barriers name the ranks that did not come."""
    events = [e for e in run.kind("desync", "barrier_missing") if is_final(run, e) and e.fields.get("missing")]
    if not events:
        return
    missing = sorted({r for e in events for r in e.fields["missing"]})
    if missing == [0] and all(e.kind == "barrier_missing" for e in events):
        missing = []  # rank 0 collects the others at a monitored barrier: it cannot be the one it waits for
    yield Finding(
        "collective-missing-named",
        cause="comms/collective-timeout",
        role="consequence",
        weight=0.5,
        time=events[0].time,
        evidence=[run.evidence(e) for e in events[:4]],
        rank=missing[0] if missing else None,
        ranks=missing,
        covers=COVERS,
        facts={"ranks": missing, "seq": events[0].fields.get("seq")},
        count=len(events),
    )


def _heartbeat(run: Run) -> Iterable[Finding]:
    """The watchdog thread itself got no further: a call into CUDA or NCCL hangs, or something holds the interpreter lock."""
    events = [e for e in run.kind("heartbeat") if is_final(run, e)]
    if not events:
        return
    queued = {e.rank: e.fields["queued"] for e in events if e.rank is not None and "queued" in e.fields}
    ranks: list[int] = []
    if len(set(queued.values())) > 1:
        least = min(queued.values())
        ranks = sorted(r for r, n in queued.items() if n == least)
        ranks = ranks if len(ranks) * 2 < len(queued) else []
    yield Finding(
        "watchdog-no-heartbeat",
        cause="comms/collective-timeout",
        role="consequence",
        weight=0.45,
        time=events[0].time,
        evidence=[run.evidence(e) for e in events[:4]],
        rank=ranks[0] if ranks else (events[0].rank if len({e.rank for e in events}) == 1 else None),
        ranks=ranks,
        covers=COVERS,
        facts={"ranks": ranks, "queued": ", ".join(f"rank {r}: {n}" for r, n in sorted(queued.items())[:16])},
        count=len(events),
    )


# What ended the watchdog thread -> (cause, role, weight)
_ENDS = {
    "ecc": ("infra/gpu-ecc-uncorrectable", "root", 0.85),
    "oom": ("training/gpu-oom", "root", 0.6),
    "lost": ("infra/gpu-access-lost", "root", 0.45),
    "illegal-access": ("infra/gpu-mmu-fault", "root", 0.35),
    "launch": ("infra/gpu-sm-exception", "root", 0.35),
    "remote": ("comms/peer-lost", "consequence", 0.35),
    "peer-closed": ("comms/peer-lost", "consequence", 0.3),
    "connect": ("comms/connect-failed", "root", 0.45),
    "ib-completion": ("comms/ib-error", "root", 0.65),
    "shm": ("infra/shm-too-small", "root", 0.8),
    "memlock": ("infra/memlock-limit", "root", 0.75),
    "duplicate-gpu": ("comms/duplicate-gpu", "root", 0.9),
    "version": ("comms/nccl-version", "root", 0.85),
    "nvls": ("infra/fabric-manager", "root", 0.6),
    "driver": ("infra/driver-mismatch", "root", 0.7),
    "no-interface": ("comms/connect-failed", "root", 0.6),
    "too-many-files": ("infra/fd-limit", "root", 0.7),
    "truncated": ("comms/collective-mismatch", "root", 0.7),
    "cuda-oom": ("training/gpu-oom", "root", 0.7),
}


def _watchdog_ends(run: Run) -> Iterable[Finding]:
    """`terminated with exception: X` and `NCCL error in …  Last error: X`: judged by X."""
    groups: dict[str, list[Event]] = {}
    for event in run.kind("watchdog_exception", "nccl_error"):
        name = str(event.fields.get("class"))
        if name in _ENDS and is_final(run, event):
            groups.setdefault(name, []).append(event)
    for name, events in groups.items():
        cause, role, weight = _ENDS[name]
        first = events[0]
        if (
            name == "connect"
            and run.last_progress_at is not None
            and all("refused" in str(e.fields.get("inner") or e.text) for e in events)
        ):
            # Training ran: whoever refuses now is a process that has gone.
            cause, role, weight = "comms/peer-lost", "consequence", 0.34
        ranks = sorted({e.rank for e in events if e.rank is not None})
        accused = faulty_host(events, addresses(run)) if name == "peer-closed" else None
        yield Finding(
            f"watchdog-end-{name}",
            cause=cause,
            role=role,  # type: ignore[arg-type]
            weight=weight,
            time=first.time,
            evidence=[run.evidence(e) for e in events[:4]],
            rank=first.rank if role == "root" and name in ("ecc", "oom", "lost", "illegal-access", "launch", "cuda-oom") else None,
            host=first.host if role == "root" and name in ("ecc", "lost", "shm") else accused if name == "peer-closed" else None,
            ranks=ranks if len(ranks) == 1 and role == "root" and name in ("ecc", "oom", "lost") else [],
            covers=COVERS,
            facts={"inner": first.fields.get("inner", "")},
            count=len(events),
        )


RULES = (Rule("collectives", judge, covers=COVERS),)
