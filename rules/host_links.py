"""Faults of what the node hangs on: shared and local file systems, network cards and InfiniBand ports."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rules.base import Finding, Rule
from rules.kernel_view import NEAR, View, ordered, view_of

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

REMOTE = frozenset({"nfs", "lustre", "gpfs", "ceph", "weka", "beegfs", "fuse"})
MANAGEMENT = ("eno", "eth0", "mgmt", "idrac", "bmc", "usb", "em1")  # ports that carry logins, seldom training
FAST = ("mlx5", "ib", "roce", "hsn", "efa", "irdma", "bnxt_re", "rdma")
SHORT_STALL = 120.0  # seconds of a file system's silence that no collective's time-out notices
FLAP = 20.0  # seconds a link may be away and RDMA connections still come back by their retries
DRIVE = re.compile(r"nvme\d+|(?:sd|vd|xvd)[a-z]+")
PERSISTS = (
    "emounting filesystem read-only",
    "forced readonly",
    "Removing after probe failure",
    "Disabling device after reset failure",
    "Shutting down filesystem",
)


def judge_storage(run: Run) -> Iterable[Finding]:
    """Findings `storage.*`: servers that stop answering, tasks stuck behind them, disks that fail."""
    view = view_of(run)
    yield from _stalls(view)
    yield from _disks(view)


def _stalls(view: View) -> Iterator[Finding]:
    run = view.run
    hung = [e for e in ordered(run.kind("hung_task")) if view.phase(e) in ("during", "unknown")]
    by_server: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in ordered(run.kind("fs_stall")):
        by_server[(view.host(event), str(event.fields.get("fs")))].append(event)
    told: list[Event] = []
    for events in by_server.values():
        yield from _stall(view, events, hung, told)
    waiting = [e for e in hung if e not in told]
    if not waiting:
        return
    first = waiting[0]
    panic = [e for e in run.kind("panic") if e.source == first.source]
    if panic:
        return  # told by the panic
    where = next((str(e.fields["waits_on"]) for e in waiting if e.fields.get("waits_on")), None)
    facts = {"comm": first.fields.get("comm") or "?", "seconds": first.fields.get("seconds") or "?", "on": where or "?"}
    if view.went_on(waiting[-1]):
        yield view.excluded("storage.hung.aside", waiting, "infra/filesystem-stall", "went-on", facts=facts)
        return
    late = [e for e in waiting if not view.went_on(e)]
    mine = any(view.ours(e.pid, str(e.fields.get("comm") or "")) is not False for e in late)
    if where == "nvidia":
        yield view.finding("storage.hung-gpu", late, "infra/gpu-hang", "root", 0.5, facts=facts)
    elif where in REMOTE:
        yield view.finding("storage.hung", late, "infra/filesystem-stall", "root", 0.7 if mine else 0.5, facts=facts)
    else:
        yield view.finding(
            "storage.hung", late, "infra/filesystem-stall", "root" if mine else "precursor", 0.45 if mine else 0.2, facts=facts
        )


def _stall(view: View, events: list[Event], hung: list[Event], told: list[Event]) -> Iterator[Finding]:
    """One file system on one node: stalls that ended are set aside where training went on; the last one is judged."""
    inside = [e for e in events if view.phase(e) in ("during", "unknown")]
    aside = [e for e in events if e not in inside and e.fields.get("state") != "ok"]
    first = events[0]
    facts = {"fs": first.fields.get("fs") or "?", "server": first.fields.get("server") or "?"}
    if aside:
        yield view.excluded("storage.stall.aside", aside, "infra/filesystem-stall", "before", facts=facts)
    episodes: list[list[Event]] = []
    open_ = False
    for event in inside:
        state = event.fields.get("state")
        if state == "ok":
            if episodes:
                episodes[-1].append(event)
            open_ = False
        elif open_ and episodes:
            episodes[-1].append(event)
        else:
            episodes.append([event])
            open_ = True
    for episode in episodes:
        bad = [e for e in episode if e.fields.get("state") != "ok"]
        back = [e for e in episode if e.fields.get("state") == "ok"]
        facts = {
            "fs": bad[0].fields.get("fs") or "?",
            "server": next((str(e.fields["server"]) for e in bad if e.fields.get("server")), "?"),
        }
        if back and back[-1].time is not None and bad[0].time is not None:
            facts["seconds"] = round(back[-1].time - bad[0].time)
        behind = [e for e in hung if view.host(e) == view.host(bad[0]) and (e.time is None or bad[0].time is None or e.time >= bad[0].time)]
        if view.went_on(bad[-1]) and (back or not behind or all(view.went_on(e) for e in behind)):
            yield view.excluded("storage.stall.aside", [*bad, *back], "infra/filesystem-stall", "went-on", facts=facts)
            told.extend(behind)
            continue
        told.extend(behind)
        lost = [e for e in bad if e.fields.get("state") in ("lost", "evicted")]
        weight = 0.88 if behind and lost else 0.8 if lost and not back else 0.6 if lost else 0.35
        short = bool(back) and not behind and float(facts.get("seconds", SHORT_STALL)) < SHORT_STALL
        role: Any = "precursor" if short else "root"
        yield view.finding(
            "storage.stall",
            [*bad[:3], *behind[:2], *back[-1:]],
            "infra/filesystem-stall",
            role,
            0.2 if short else weight,
            facts=facts,
            rank=None,
        )


def _disks(view: View) -> Iterator[Finding]:
    groups: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in ordered(view.run.kind("io_error")):
        device = str(event.fields.get("dev") or "?")
        drive = DRIVE.match(device)  # a drive, its name space and its partitions are one
        groups[(view.host(event), drive[0] if drive else device)].append(event)
    for (_, device), events in groups.items():
        inside = [e for e in events if view.phase(e) in ("during", "unknown")]
        if not inside:
            yield view.excluded("storage.disk.aside", events, "infra/filesystem-io-error", "before", facts={"device": device})
            continue
        lasting = [e for e in inside if any(word in e.text for word in PERSISTS)]
        facts = {"device": inside[0].fields.get("dev") or device, "what": inside[0].fields.get("what") or "?"}
        if view.went_on(inside[-1]) and not lasting:
            yield view.excluded("storage.disk.aside", inside, "infra/filesystem-io-error", "went-on", facts=facts)
            continue
        cause = "infra/disk-full" if any(e.fields.get("full") for e in inside) else "infra/filesystem-io-error"
        hard = [e for e in inside if not e.fields.get("precursor")]
        weight = 0.4 if not hard else 0.85 if lasting else 0.75
        if view.went_on(inside[-1], 2 * NEAR):
            weight *= 0.7
        lead = hard[0] if hard else inside[0]
        rest = [e for e in inside if e is not lead]
        yield view.finding("storage.disk", [lead, *rest], cause, "root", weight, facts=facts)


def judge_network(run: Run) -> Iterable[Finding]:
    """Findings `network.*`: cards whose firmware died, links that went down, ports that stalled."""
    view = view_of(run)
    yield from _cards(view)
    yield from _links(view)
    stalled = [e for e in ordered(run.kind("nic_stall")) if view.phase(e) in ("during", "unknown")]
    if stalled:
        facts = {"device": stalled[0].fields.get("device") or "?"}
        if view.went_on(stalled[-1]):
            yield view.excluded("network.stall.aside", stalled, "infra/nic-failure", "went-on", facts=facts)
        else:
            yield view.finding("network.stall", stalled, "infra/nic-failure", "root", 0.65, facts=facts, rank=None)
    complaints = [e for e in ordered(run.kind("ib_symptom")) if view.phase(e) in ("during", "unknown")]
    if complaints:
        yield view.finding("network.symptom", complaints, None, "symptom", 0.1, facts={"what": complaints[0].fields.get("what") or "?"})


def _cards(view: View) -> Iterator[Finding]:
    events = [e for e in ordered(view.run.kind("ib_error")) if e.fields.get("state") != "ok"]
    inside = [e for e in events if view.phase(e) in ("during", "unknown")]
    aside = [e for e in events if e not in inside]
    if aside:
        yield view.excluded("network.card.aside", aside, "infra/nic-failure", "before", facts=_card(aside[0]))
    if not inside:
        return
    if view.went_on(inside[-1]):
        yield view.excluded("network.card.aside", inside, "infra/nic-failure", "went-on", facts=_card(inside[0]))
        return
    late = [e for e in inside if not view.went_on(e)]
    cable = all("Cable" in str(e.fields.get("what")) for e in late)
    yield view.finding(
        "network.card",
        late,
        "comms/ib-error" if cable else "infra/nic-failure",
        "root",
        0.75 if cable else 0.88,
        facts=_card(late[0]),
        gpu=None,
    )


def _card(event: Event) -> dict[str, Any]:
    return {"device": event.fields.get("pci_text") or "?", "what": event.fields.get("what") or "?"}


def _links(view: View) -> Iterator[Finding]:
    by_device: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in ordered(view.run.kind("nic_link")):
        if event.source in view.run.files and "kernel" not in view.run.files[event.source].kinds:
            continue
        by_device[(view.host(event), str(event.fields.get("device")))].append(event)
    for (host, device), events in by_device.items():
        downs = [e for e in events if e.fields.get("state") == "down" and view.phase(e) in ("during", "unknown")]
        if not downs:
            continue
        survived = [e for e in downs if view.went_on(e)]
        ended = [e for e in downs if e not in survived]
        if survived:
            yield view.excluded("network.link.aside", survived, "comms/ib-error", "went-on", facts={"device": device}, gpu=None)
        if not ended:
            continue
        first = ended[0]
        ups = [
            e
            for (where, _), others in by_device.items()
            if where == host
            for e in others
            if e.fields.get("state") == "up" and _after(first, e)
        ]
        back = next((e.time - first.time for e in ups if e.time is not None and first.time is not None), None)
        fast = device.startswith(FAST) or str(first.fields.get("driver") or "").startswith(FAST) or first.fields.get("port") is not None
        weight = 0.75 if fast else 0.2 if device.startswith(MANAGEMENT) else 0.5
        if back is not None and back <= FLAP:
            weight = min(weight, 0.25)  # connections over it live through their retries
        if not view.at_end(first, 2 * NEAR) and first.time is not None:
            weight *= 0.6
        cause = "comms/ib-error" if fast else "infra/nic-failure"
        facts = {"device": device, "seconds": round(back) if back is not None else "?"}
        role = "root" if weight >= 0.3 else "precursor"
        yield view.finding("network.link", [first, *ended[1:3], *ups[:1]], cause, role, weight, facts=facts, rank=None, gpu=None)


def _after(one: Event, other: Event) -> bool:
    if one.time is not None and other.time is not None:
        return other.time >= one.time
    return one.source == other.source and other.line >= one.line


RULES = (Rule("storage", judge_storage, covers=("S12",)), Rule("network", judge_network, covers=("S12", "L4.1")))
