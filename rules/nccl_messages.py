"""The first NCCL message that tells a cause, over all ranks; later ones decay to complaints about peers that are gone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rules.base import Finding, Role, Rule

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

# class of message -> (cause, role, weight if WARN, weight if INFO)
CAUSES: dict[str, tuple[str, Role, float, float]] = {
    "ib-port": ("comms/ib-error", "root", 0.85, 0.8),
    "ib-completion": ("comms/ib-error", "root", 0.72, 0.5),
    "ib-async": ("comms/ib-error", "root", 0.7, 0.6),
    "ib-call": ("comms/ib-error", "root", 0.5, 0.3),
    "memlock": ("infra/memlock-limit", "root", 0.8, 0.6),
    "shm": ("infra/shm-too-small", "root", 0.8, 0.5),
    "version": ("comms/nccl-version", "root", 0.94, 0.7),
    "driver": ("infra/driver-mismatch", "root", 0.75, 0.5),
    "duplicate-gpu": ("comms/duplicate-gpu", "root", 0.92, 0.7),
    "nvls": ("infra/fabric-manager", "root", 0.65, 0.3),
    "p2p-hardware": ("infra/gpu-nvlink-error", "root", 0.6, 0.4),
    "truncated": ("comms/collective-mismatch", "root", 0.72, 0.5),
    "cuda-oom": ("training/gpu-oom", "root", 0.72, 0.6),
    "no-interface": ("comms/connect-failed", "root", 0.75, 0.4),
    "plugin": ("comms/efa-error", "root", 0.55, 0.3),
    "too-many-files": ("infra/fd-limit", "root", 0.75, 0.6),
    "connect": ("comms/connect-failed", "root", 0.55, 0.3),
    "peer-closed": ("comms/peer-lost", "consequence", 0.32, 0.2),
    "ras": ("comms/peer-lost", "consequence", 0.32, 0.3),
    "guide-timeout": ("comms/collective-timeout", "consequence", 0.4, 0.3),
}
FABRIC = re.compile(r"OFI|libfabric|\bEFA\b|\befa\b")
#: completion status -> weight: 5 is flushed work after another error; 12 and 13 mean link or peer; 4, 9, 10, 11 memory or peer
STATUS_WEIGHT = {5: 0.25, 12: 0.75, 13: 0.75, 4: 0.6, 9: 0.55, 10: 0.6, 11: 0.6}
#: text -> cause for `Cuda failure '...'` inside NCCL
CUDA_TEXTS = (
    ("uncorrectable", "infra/gpu-ecc-uncorrectable", 0.85),
    ("insufficient for CUDA runtime", "infra/driver-mismatch", 0.85),
    ("system not yet initialized", "infra/fabric-manager", 0.85),
    ("unknown error", "infra/gpu-access-lost", 0.35),
    ("no CUDA-capable device", "infra/device-not-exposed", 0.7),
    ("invalid device ordinal", "infra/device-not-exposed", 0.6),
    ("peer access", "infra/pcie-acs-p2p", 0.45),
    ("system has unsupported display driver", "infra/driver-mismatch", 0.8),
    ("busy or unavailable", "infra/gpu-memory-held-by-other", 0.6),
)


def _relevant(run: Run) -> list[Event]:
    """Messages of the part of the run after which training did not go on."""
    events = run.kind("nccl_warn", "nccl_info")
    if run.last_progress is None:
        return events
    late = [e for e in events if e.time is None or e.time >= run.last_progress - 1.0 or e.inherited]
    place = run.last_progress_at
    return [e for e in late if not (place and e.source == place.file and e.line < place.line and (e.time is None or e.inherited))]


def addresses(run: Run) -> dict[str, str]:
    """Address -> host, from NCCL's own bootstrap lines."""
    return {str(e.fields["ip"]): e.host for e in run.kind("nccl_address") if e.host and "ip" in e.fields}


def faulty_host(events: list[Event], known: dict[str, str]) -> str | None:
    """The host that transport errors point at.

    Many hosts complaining of one peer accuse the peer; one host complaining of many peers accuses itself.
    """
    complaints: Counter[tuple[str, str]] = Counter()
    for event in events:
        peer = str(event.fields.get("peer") or "").split("<", 1)[0]
        peer = known.get(peer, peer)
        if not peer.replace(".", "").isdigit() and ":" not in peer:
            peer = peer.partition(".")[0]
        host = event.host or f"?{event.rank}"  # a complainer without a name still counts as one
        if peer and peer != host:
            complaints[host, peer] += 1
    if not complaints:
        return None
    by_complainer: dict[str, set[str]] = {}
    by_peer: dict[str, set[str]] = {}
    for host, peer in complaints:
        by_complainer.setdefault(host, set()).add(peer)
        by_peer.setdefault(peer, set()).add(host)
    peer, complainers = max(by_peer.items(), key=lambda item: (len(item[1]), item[0]))
    host, peers = max(by_complainer.items(), key=lambda item: (len(item[1]), item[0]))
    if len(complainers) > len(peers):
        return peer if peer in known.values() or not peer.replace(".", "").isdigit() else None
    if len(peers) > len(complainers):
        return None if host.startswith("?") else host
    # both sides complain of each other only: neither is told apart; one complaint accuses its peer
    return peer if len(complaints) == 1 and (peer in known.values() or not peer.replace(".", "").isdigit()) else None


def unreachable(run: Run, events: list[Event]) -> str | None:
    """The host at fault in a failed connection.

    Where nothing answers at the address, the host that has it; likewise where callers from several hosts fail on one, or the caller has the
    same address itself (a bridge's: it called itself).  A machine that answers but listens on no such port was called at a stale
    port by one host alone: that one's knowledge is at fault.
    """
    holders: dict[str, set[str]] = {}
    for event in run.kind("nccl_address"):
        if event.host and "ip" in event.fields:
            holders.setdefault(str(event.fields["ip"]), set()).add(event.host)
    callers: dict[str, set[str]] = {}
    for event in events:
        peer = re.split(r"[<\s]", str(event.fields.get("peer") or ""), maxsplit=1)[0]
        if event.host and peer:
            callers.setdefault(peer, set()).add(event.host)
    if len(callers) != 1:
        return None
    peer, hosts = callers.popitem()
    owners = holders.get(peer, set()) - hosts
    body = str(events[0].fields.get("body") or "")
    answers = any(word in body for word in ("refused", "connection abort", "reset by peer"))
    if len(owners) == 1 and (not answers or len(hosts) > 1 or hosts & holders.get(peer, set())):
        return owners.pop()
    return next(iter(hosts)) if answers and len(hosts) == 1 and owners else None


def _odd_version(events: list[Event]) -> list[int]:
    """The ranks with another NCCL version than most.

    Each line names rank 0 and the first rank that differs from it, so all ranks between them agree with rank 0: with two or
    more of those the one named second is odd.
    """
    odd = set()
    for event in events:
        ranks = event.fields.get("ranks")
        if isinstance(ranks, list) and len(ranks) == 2 and ranks[0] == 0 and ranks[1] >= 2:
            odd.add(ranks[1])
    return sorted(odd)


def judge(run: Run) -> Iterable[Finding]:
    """One finding per class of message, from its earliest line; the earliest over all classes is marked in its facts."""
    events = _relevant(run)
    if not events:
        return
    groups: dict[str, list[Event]] = {}
    for event in events:
        groups.setdefault(str(event.fields.get("class")), []).append(event)
    decisive = [e for e in events if str(e.fields.get("class")) in CAUSES]
    stamped = [e.time for e in decisive if e.time is not None]
    earliest = min(stamped, default=None)
    known = addresses(run)
    hurt = any(e.fields.get("class") in ("ib-completion", "ib-call", "peer-closed") for e in events) or bool(
        run.kind("watchdog_timeout", "watchdog_exception", "nccl_error", "heartbeat", "gloo_timeout")
    )
    silent_end = run.last_progress_at is not None and not any(f.outcome == "found" and f.role in ("done", "stop") for f in run.findings)
    for name, members in groups.items():
        if name == "cuda":
            yield from _cuda(run, members)
            continue
        if name not in CAUSES:
            continue
        cause, role, warn, info = CAUSES[name]
        first = members[0]
        is_warn = any(e.kind == "nccl_warn" for e in members)
        weight = warn if is_warn else info
        host, ranks, rank = first.host, [], first.rank
        if name == "ib-completion":
            statuses = [e.fields["status"] for e in members if "status" in e.fields]
            weight = min(weight, max((STATUS_WEIGHT.get(s, 0.5) for s in statuses), default=0.5))
            host, rank = faulty_host(members, known), None
        elif name == "version":
            ranks = _odd_version(members)
            rank = ranks[0] if ranks else None
            odd = run.ranks.get(rank) if rank is not None else None
            host = odd.host if odd else None
            weight += 0.02  # before the signature, whose line stands in the file of a rank that complains
        elif name == "duplicate-gpu":
            ranks = sorted({r for e in members for r in e.fields.get("ranks", ())})
            rank = None
        elif name in ("peer-closed", "connect", "ras"):
            host, rank = (faulty_host(members, known) if name != "connect" else unreachable(run, members)), None
        elif name == "plugin" and not any(FABRIC.search(str(e.fields.get("body"))) for e in members):
            cause = "comms/connect-failed"  # no network of any kind came up, and nothing speaks of EFA
        if name in ("ib-port", "ib-async") and not hurt:
            # A link that went down and came back; a fatal event of the card on which the log ends is another matter.
            fatal = silent_end and is_warn and any(word in str(e.fields.get("body")) for e in members for word in ("fatal", "catastrophic"))
            role, weight = ("root", 0.45) if fatal else ("precursor", 0.3)
        later = earliest is not None and first.time is not None and first.time > earliest + 1.0
        if later and role == "root":
            weight *= 0.85
        yield Finding(
            f"nccl.{name}",
            cause=cause,
            role=role,
            weight=weight,
            time=first.time,
            evidence=[run.evidence(e) for e in members[:5]],
            rank=rank,
            host=host,
            ranks=ranks,
            covers=("L4.1", "S6") if name != "version" else ("L4.1", "S6", "Q11"),
            facts={
                "body": first.fields.get("body", ""),
                "first": not later,
                "count": len(members),
                "status": first.fields.get("status"),
                "host": host,
            },
            count=len(members),
        )


def _cuda(run: Run, members: list[Event]) -> Iterable[Finding]:
    for text, cause, weight in CUDA_TEXTS:
        hits = [e for e in members if text in str(e.fields.get("body"))]
        if hits:
            yield Finding(
                "nccl.cuda",
                cause=cause,
                weight=weight,
                time=hits[0].time,
                evidence=[run.evidence(e) for e in hits[:5]],
                rank=hits[0].rank,
                host=hits[0].host,
                covers=("L4.1", "S6"),
                facts={"body": hits[0].fields.get("body", "")},
                count=len(hits),
            )


RULES = (Rule("nccl-messages", judge, covers=("L4.1", "S6")),)
