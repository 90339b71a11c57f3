"""Who it was: rank, host, GPU and process of the verdict's root, completed from one another and from what the others say.

Findings name what their own lines tell.  The rest is inferred, the surest way first: joined lines (pid, PCI id, exit tables), then what the
rest of the run leaves over (the rank that did not come, the one still loading, the idle card, the only host).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from forensics.join import rank_of_gpu
from rules.base import Finding

if TYPE_CHECKING:
    from forensics.run import Run
    from forensics.verdict import Candidate, Verdict

WAITED_FOR = frozenset({"comms/collective-timeout", "comms/straggler"})  # whoever reports these was waiting for somebody else
NAMES_MISSING = frozenset({"collective-timeout-missing", "collective-missing-named"})  # rules whose rank did not come
BOTH_ENDS = frozenset({"nccl.connect", "nccl.peer-closed", "nccl.ras", "nccl.ib-completion"})
IDLE, BUSY = 5.0, 90.0  # percent of utilisation: a card without work, and one that spins in a collective
MOST_CARDS = 16  # GPUs of one host
NO_NAMES = frozenset({"host", "hostname", "localhost", "node", "server", "worker", "unknown", "none"})
FEW = 16  # pids of a node's processes lie this close together


def culprit(verdict: Verdict, top: Candidate, run: Run) -> None:
    """Fill rank, host, GPU and process of the verdict from the findings of its root, and complete them."""
    victims = waiting(run) if top.cause in WAITED_FOR else set()
    late = None
    if top.cause in WAITED_FOR and not any(f.rule in NAMES_MISSING and f.ranks for f in top.findings):
        late = still_working(run, victims)
    if late is not None:
        verdict.rank, verdict.host = late
        verdict.ranks = [late[0]] if late[0] is not None else []
        return
    for finding in sorted(top.findings, key=lambda f: (blames_reporter(f, victims), not names_other_end(f), -f.weight)):
        if verdict.rank is None and verdict.host is not None and finding.host not in (None, verdict.host):
            continue  # of another machine than the one that is to blame
        if verdict.rank is None and finding.rank is not None and verdict.host in (None, finding.host):
            verdict.rank, verdict.host = finding.rank, finding.host or verdict.host
        elif verdict.rank is None or finding.rank in (None, verdict.rank):
            verdict.host = verdict.host or finding.host  # another rank's finding says nothing of this one's host
        verdict.gpu = verdict.gpu or finding.gpu
        verdict.pid = verdict.pid if verdict.pid is not None else finding.pid
        verdict.ranks = verdict.ranks or finding.ranks
    named = any(f.rule in NAMES_MISSING and f.ranks for f in top.findings)
    blamed = set(verdict.ranks) if verdict.ranks else {verdict.rank}
    if not named and len(victims) > 1 and blamed <= victims:
        verdict.rank = verdict.gpu = verdict.pid = None  # everybody waited: who was waited for is not known
        verdict.ranks = []


def complete(verdict: Verdict, run: Run) -> None:
    """What the findings left open, from lines that join ranks, hosts, GPUs and processes."""
    if verdict.rank is None and len(verdict.ranks) == 1:
        verdict.rank = verdict.ranks[0]
    if verdict.rank is None and verdict.gpu:
        verdict.rank = rank_of_gpu(run, verdict.host, verdict.gpu)
    if verdict.rank is not None and verdict.rank in run.ranks:
        info = run.ranks[verdict.rank]
        verdict.host = info.host or verdict.host or neighbour_host(run, verdict.rank)
        verdict.gpu = verdict.gpu or info.gpu
    elif verdict.rank is not None and verdict.host is None:
        verdict.host = neighbour_host(run, verdict.rank)


def infer(verdict: Verdict, run: Run) -> None:
    """What is open after that, from what the rest of the run leaves over."""
    root = verdict.root.cause if verdict.root else ""
    if open_(verdict) and verdict.host is None:
        missing = {
            finding.rank
            for candidate in verdict.consequences
            for finding in candidate.findings
            if finding.rule in NAMES_MISSING and len(finding.ranks) == 1
        }
        if len(missing) == 1:
            verdict.rank = missing.pop()
    if open_(verdict) and verdict.pid is not None:
        verdict.rank, verdict.host = of_pid(run, verdict.pid, verdict.host)
        names = named_hosts(run)
        if open_(verdict) and verdict.layer == "infra" and (card := idle_card(run, verdict.host)) is not None:
            verdict.gpu = card
            if run.world_size is None and not run.ranks and len(names) <= 1:
                verdict.rank = int(card) if card.isdigit() else None  # one host: ranks and cards run alike
    if open_(verdict) and run.world_size == 1 and "gpu" in root:
        verdict.rank, verdict.gpu = 0, "0"  # one process drives one device, which it calls 0
    complete(verdict, run)
    if verdict.host is None and len(verdict.ranks) > 1:
        hosts = {run.ranks[r].host for r in verdict.ranks if r in run.ranks} - {None}
        if len(hosts) == 1 and max(verdict.ranks) - min(verdict.ranks) < MOST_CARDS:
            verdict.host = hosts.pop()
    if verdict.host is None and verdict.layer == "infra" and len(names := named_hosts(run)) == 1 and verdict.rank is None:
        verdict.host = names.pop()


def first_to_fail(verdict: Verdict, run: Run) -> None:
    """Who ended first, where no cause is found: the one process that failed by itself, and the line that says so."""
    exits = [
        e
        for e in run.kind("exit")
        if e.fields.get("exitcode") not in (0, None) and not e.fields.get("by_launcher") and e.pid is not None and e.rank is not None
    ]
    if len({e.pid for e in exits}) != 1:
        return
    first = min(exits, key=lambda e: (e.source != exits[0].source, e.line))
    verdict.first = run.evidence(first)
    verdict.rank, verdict.pid, verdict.ranks = first.rank, first.pid, [first.rank] if first.rank is not None else []
    verdict.host = next((e.host for e in exits if e.host), None)
    complete(verdict, run)


def open_(verdict: Verdict) -> bool:
    """Whether neither a rank nor a GPU is named yet."""
    return verdict.rank is None and verdict.gpu is None and not verdict.ranks


def waiting(run: Run) -> set[int]:
    """Ranks that reported a time-out of a collective."""
    return {e.rank for e in run.kind("watchdog_timeout", "barrier_missing", "gloo_timeout") if e.rank is not None}


def blames_reporter(finding: Finding, victims: set[int]) -> bool:
    """Whether the rank of a finding is only that of the line's writer, who was waiting."""
    return bool(victims) and finding.rule not in NAMES_MISSING and finding.rank in victims and set(finding.ranks) <= victims


def names_other_end(finding: Finding) -> bool:
    """Whether a finding weighs both ends of failed connections; that of a line's writer is only one of them."""
    return finding.rule in BOTH_ENDS and finding.host is not None


def still_working(run: Run, victims: set[int]) -> tuple[int | None, str | None] | None:
    """(rank, host) whose bar of some work stood lowest at the end while the same bar was full where the time-out was reported."""
    last: dict[tuple[str, int | None, str | None], float] = {}
    for event in run.kind("activity"):
        step, total = event.fields.get("step"), event.fields.get("total")
        if isinstance(step, (int, float)) and isinstance(total, (int, float)) and total > 0 and (event.rank is not None or event.host):
            last[str(event.fields.get("what")), event.rank, event.host] = step / total
    reporters = {e.host for e in run.kind("watchdog_timeout", "barrier_missing", "gloo_timeout") if e.host}
    waited = {key: share for key, share in last.items() if (key[1] in victims if key[1] is not None else key[2] in reporters)}
    unready = {what for (what, _, _), share in waited.items() if share < 1}
    late = [
        (share, rank, host)
        for (what, rank, host), share in last.items()
        if share < 1 and (what, rank, host) not in waited and what not in unready and (rank is not None or reporters)
    ]
    if not late:
        return None
    _, rank, host = min(late, key=lambda item: item[0])
    return rank, host


def of_pid(run: Run, pid: int, host: str | None) -> tuple[int | None, str | None]:
    """(rank, host) of a process, by lines that name it, else by its place among its siblings' pids.

    A launcher starts its workers one after another, so a pid between those of two local ranks that leave one rank out is that rank's.
    """
    owners = [info for info in run.ranks.values() if pid in info.pids and (host is None or info.host in (None, host))]
    if len(owners) == 1:
        return owners[0].rank, owners[0].host or host
    seats: dict[str | None, dict[int, int]] = {}
    for event in run.kind("process", "exit", "nccl_process"):
        local = event.fields.get("local_rank", event.fields.get("cudaDev"))
        if event.pid is not None and isinstance(local, int) and (host is None or event.host in (None, host)):
            seats.setdefault(event.host, {})[event.pid] = local
    for name, seat in seats.items():
        below = max((p for p in seat if p < pid), default=None)
        above = min((p for p in seat if p > pid), default=None)
        if below is None or above is None or pid in seat or above - below > FEW or seat[above] - seat[below] != 2:
            continue
        local = seat[below] + 1
        one_host = len({h for h in seats if h}) <= 1 and (run.world_size is None or run.world_size <= MOST_CARDS)
        return local if one_host and len(named_hosts(run)) <= 1 else None, host or name
    return None, host


def idle_card(run: Run, host: str | None) -> str | None:
    """The one GPU of a host that did nothing at the end while all others spun, as ranks do that wait for a stuck one."""
    frame = run.samples
    if frame is None or not frame.height or not {"gpu", "utilization", "time"} <= set(frame.columns):
        return None
    rows = frame.filter(pl.col("utilization").is_not_null() & pl.col("gpu").is_not_null() & pl.col("time").is_not_null())
    if host:
        rows = rows.filter(pl.col("host").is_null() | (pl.col("host") == host))
    if not rows.height or rows["host"].n_unique() > 1:
        return None
    last = (
        rows.sort("time")
        .group_by("gpu", maintain_order=True)
        .tail(3)
        .group_by("gpu", maintain_order=True)
        .agg(pl.col("utilization").median())
    )
    idle = last.filter(pl.col("utilization") <= IDLE)["gpu"].to_list()
    busy = last.filter(pl.col("utilization") >= BUSY).height
    return str(idle[0]) if len(idle) == 1 and busy >= 1 and busy == last.height - 1 else None


def named_hosts(run: Run) -> set[str]:
    """Every host that a line or a file of the run names, addresses aside."""
    names = {e.host for e in run.events if e.host} | {i.host for i in run.files.values() if i.host} | set(run.hosts)
    return {name for name in names if name and name.lower() not in NO_NAMES and not re.fullmatch(r"[\d.:]+", name)}


def neighbour_host(run: Run, rank: int) -> str | None:
    """The host of a silent rank, from the hosts of the ranks around it: ranks fill nodes in order."""
    by_host: dict[str, list[int]] = {}
    for info in run.ranks.values():
        if info.host:
            by_host.setdefault(info.host, []).append(info.rank)
    inside = [host for host, ranks in by_host.items() if min(ranks) <= rank <= max(ranks)]
    if len(inside) == 1:
        return inside[0]
    size = max((max(ranks) - min(ranks) + 1 for ranks in by_host.values()), default=0)
    if size < 2:
        return None
    size = next((n for n in (2, 4, 8, 16) if n >= size), size)
    near = [host for host, ranks in by_host.items() if any(r // size == rank // size for r in ranks)]
    if not near and by_host:
        # A node none of whose ranks speaks: the one host of which a log is here but no rank is known.
        near = sorted({info.host for info in run.files.values() if info.host and "train" in info.kinds} - by_host.keys())
    return near[0] if len(near) == 1 else None
