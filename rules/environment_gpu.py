"""What snapshots of the GPUs say (S1, S11, L4.2): memory of processes against memory in use, repair flags, links, ACS.

A snapshot is one moment, often after the fact: alone it supports what the logs say, and names a cause only where nothing else can be
meant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding, Rule
from rules.environment import facts, undecided

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

GAP = 0.10  # of the card: a CUDA context (0.5 GiB) and driver reserves stay far below
LEAST_GAP = 4096.0  # MiB
FOREIGN = 1024.0  # MiB: less is a display server or a monitoring agent
CAUSES = {
    "remap_pending": ("infra/gpu-ecc-uncorrectable", 0.45),
    "remap_failure": ("infra/gpu-ecc-uncorrectable", 0.5),
    "ecc_uncorrected": ("infra/gpu-ecc-uncorrectable", 0.45),
    "sram_threshold": ("infra/gpu-ecc-uncorrectable", 0.5),
    "channel_repair": ("infra/gpu-ecc-uncorrectable", 0.4),
    "tpc_repair": ("infra/gpu-sm-exception", 0.3),
    "unrepairable": ("infra/gpu-ecc-uncorrectable", 0.5),
    "retired_pending": ("infra/gpu-ecc-uncorrectable", 0.4),
    "fabric": ("infra/fabric-manager", 0.5),
    "link_width": ("infra/pcie-error", 0.3),
    "link_generation": ("infra/pcie-error", 0.2),
}
SOUGHT = 8  # bridges
STALLS = ("comms/",)
IB_OFF, P2P_OFF = "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE"


def _place(event: Event) -> Evidence:
    return Evidence(event.source, event.line, event.text[:300], event.time)


def compute_apps(run: Run) -> Iterator[Finding]:
    """The processes of a card against its memory in use, and processes that are not the run's."""
    apps = [e for e in run.kind("compute_app") if float(e.fields.get("memory_mib") or 0) > 0]
    if not apps:
        yield undecided("env.compute-apps", "infra/gpu-memory-held-by-other", "nvidia-smi --query-compute-apps=pid,used_memory")
        return
    ours = {pid for info in run.ranks.values() for pid in info.pids}
    strangers = _strangers(apps, ours)
    oom = any(f.cause in ("training/gpu-oom", "infra/gpu-memory-held-by-other") and f.outcome == "found" for f in run.findings) or bool(
        run.kind("gpu_oom")
    )
    if strangers:
        event = max(strangers, key=lambda e: float(e.fields["memory_mib"]))
        told = {
            "gpu": event.gpu or "?",
            "pid": event.fields["pid"],
            "name": event.fields.get("name") or "?",
            "memory": event.fields["memory_mib"],
        }
        yield Finding(
            "env.foreign-process", "found", "infra/gpu-memory-held-by-other", "root" if oom else "context", 0.5 if oom else 0.1, "warning",
            time=event.time, evidence=[_place(e) for e in strangers[:3]], host=event.host, gpu=event.gpu, facts={**told, "lasting": True},
        )  # fmt: skip
    gaps = list(_gaps(run, apps))
    for host, gpu, used, held, where in gaps[:4]:
        told = {"gpu": gpu, "used": f"{used:g}", "held": f"{held:g}"}
        yield Finding(
            "env.unaccounted-memory", "found", "infra/gpu-memory-held-by-other", "precursor" if oom else "context", 0.35 if oom else 0.1, "warning",
            evidence=where, host=host, gpu=gpu, facts=told,
        )  # fmt: skip
    if not strangers and not gaps:
        told = {"count": len({e.fields["pid"] for e in apps})}
        yield Finding(
            "env.compute-apps",
            "excluded",
            "infra/gpu-memory-held-by-other",
            "context",
            0.0,
            "info",
            evidence=[_place(e) for e in apps[:2]],
            facts=told,
        )


def _strangers(apps: list[Event], ours: set[int]) -> list[Event]:
    """Processes with a good part of a card that are none of the run's, on cards where the run's own stand too."""
    cards: dict[tuple[str, str | None, str | None], list[Event]] = defaultdict(list)
    for event in apps:
        if event.gpu is not None:  # a list without cards does not tell who shares one: the other ranks stand in it as well
            cards[event.source, event.host, event.gpu].append(event)
    out = []
    for listed in cards.values():
        if any(e.fields["pid"] in ours for e in listed):
            out += [e for e in listed if e.fields["pid"] not in ours and float(e.fields["memory_mib"]) >= FOREIGN]
    return out


def _gaps(run: Run, apps: list[Event]) -> Iterator[tuple[str | None, str, float, float, list[Evidence]]]:
    """(host, gpu, memory in use, memory of its processes, places) of cards whose use is not explained by their processes.

    Only within one snapshot: the sample and the list of processes of the same file.
    """
    frame = run.samples
    if frame is None or not frame.height:
        return
    held: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in apps:
        if event.gpu is not None:
            held[event.source, event.gpu].append(event)
    for row in frame.unique(["source", "gpu"], keep="last", maintain_order=True).iter_rows(named=True):
        listed = held.get((row["source"], row["gpu"])) or held.get((row["source"], row["pci"]))
        used, total = row["memory_used"], row["memory_total"]
        if not listed or used is None:
            continue
        last: dict[int, Event] = {e.fields["pid"]: e for e in listed if e.line >= 0}
        amount = sum(float(e.fields["memory_mib"]) for e in last.values())
        if used - amount > max(LEAST_GAP, GAP * (total or 0.0)):
            where = [
                Evidence(row["source"], row["line"], f"GPU {row['gpu']}: {used:g} MiB in use", row["time"]),
                *[_place(e) for e in list(last.values())[:2]],
            ]
            yield row["host"], str(row["gpu"]), float(used), amount, where


def health(run: Run) -> Iterator[Finding]:
    """Flags of `nvidia-smi -q` and the query's columns: repairs that wait, memory that cannot be repaired, fabric, links."""
    flagged = [e for e in run.kind("gpu_health") if e.fields.get("what") in CAUSES]
    for what in dict.fromkeys(str(e.fields["what"]) for e in flagged):
        events = [e for e in flagged if e.fields["what"] == what]
        cause, weight = CAUSES[what]
        if what.startswith("link_") and len({e.gpu for e in events}) > 1 and _all_alike(run, events):
            continue  # every card alike: the board gives no more
        first = events[0]
        told = {
            "what": what,
            "value": first.fields.get("value"),
            "gpu": first.gpu,
            "maximum": first.fields.get("maximum") or "?",
            "count": len({e.gpu for e in events}),
        }
        yield Finding(
            f"env.gpu-{what.replace('_', '-')}", "found", cause, "precursor", weight, "warning", time=first.time, evidence=[_place(e) for e in events[:4]],
            host=first.host, gpu=first.fields.get("pci") or first.gpu, facts=told,
        )  # fmt: skip
    queried = [e for e in run.kind("gpu_health") if e.fields.get("view") == "query"]
    narrow = [e for e in run.kind("lspci_link") if e.fields.get("downgraded")]
    if narrow:
        first = narrow[0]
        told = {
            "pci": first.fields.get("pci") or "?",
            "width": f"{first.fields.get('width') or 0:g}",
            "cap": f"{first.fields.get('width_cap') or 0:g}",
        }
        yield Finding(
            "env.lspci-narrow", "found", "infra/pcie-error", "precursor", 0.25, "warning", evidence=[_place(e) for e in narrow[:3]], host=first.host,
            gpu=first.fields.get("pci"), facts=told,
        )  # fmt: skip
    if not flagged and not queried and not narrow:
        yield undecided("env.gpu-health", "infra/gpu-ecc-uncorrectable", "nvidia-smi -q")


def _all_alike(run: Run, events: list[Event]) -> bool:
    count = (
        run.samples.filter(run.samples["source"] == events[0].source)["gpu"].n_unique()
        if run.samples is not None and run.samples.height
        else 0
    )
    return len({e.gpu for e in events}) >= count and len({e.fields.get("value") for e in events}) == 1


def topology(run: Run) -> Iterator[Finding]:
    """NVLinks that are missing on some pairs or cards."""
    maps, links = run.kind("gpu_topology"), run.kind("nvlink_state")
    if not maps and not links:
        yield undecided("env.topology", "infra/gpu-nvlink-error", "nvidia-smi topo -m")
        return
    uneven = [e for e in maps if e.fields.get("uneven")]
    down = [e for e in links if e.fields.get("inactive") and e.fields.get("active")]
    most = max((int(e.fields.get("active", 0)) for e in links), default=0)
    down += [e for e in links if e not in down and 0 < int(e.fields.get("active", 0)) < most]
    odd = uneven + down
    if odd:
        first = odd[0]
        told: dict[str, Any] = {
            "pairs": ", ".join(list(first.fields.get("uneven") or {})[:6]) or f"GPU {first.gpu}",
            "kind": first.fields.get("kind") or "NVLink",
        }
        gpu = down[0].gpu if down else _common(uneven[0].fields["uneven"]) if uneven else None
        yield Finding(
            "env.topology.uneven", "found", "infra/gpu-nvlink-error", "precursor", 0.45, "warning", time=first.time, evidence=[_place(e) for e in odd[:4]],
            host=first.host, gpu=gpu, facts=told,
        )  # fmt: skip
    else:
        first = (maps or links)[0]
        told = {"kind": first.fields.get("kind") or "NVLink", "cards": first.fields.get("cards") or len(links)}
        yield Finding("env.topology", "excluded", "infra/gpu-nvlink-error", "context", 0.0, "info", evidence=[_place(first)], facts=told)


def _common(uneven: dict[str, int]) -> str | None:
    """The one card that stands in every uneven pair."""
    sets = [set(pair.split("-")) for pair in uneven]
    both = set.intersection(*sets) if sets else set()
    return both.pop() if len(both) == 1 else None


def transports(run: Run) -> Iterator[Finding]:
    """NCCL_IB_DISABLE and NCCL_P2P_DISABLE as they were set for the run."""
    shown = False
    for name in (IB_OFF, P2P_OFF):
        values = facts(run, f"env.{name}") + facts(run, f"nccl.env.{name}")
        if not values:
            continue
        shown = True
        off = [(v, e) for v, e in values if str(v).strip().rstrip(".") in ("1", "true", "TRUE")]
        told = {"name": name, "value": values[0][0], "hosts": len(run.hosts)}
        if off and (name == P2P_OFF or len(run.hosts) > 1):
            rule = "env.ib-off" if name == IB_OFF else "env.p2p-off"
            yield Finding(rule, "found", None, "context", 0.1, "info", evidence=[off[0][1]], facts=told)
        else:
            yield Finding(
                "env.transports", "excluded", "comms/collective-timeout", "context", 0.0, "info", evidence=[values[0][1]], facts=told
            )
    if not shown:
        yield undecided("env.transports", "comms/collective-timeout", "env | grep NCCL_; NCCL_DEBUG=INFO")


def access_control(run: Run) -> Iterator[Finding]:
    """PCIe bridges that send peer traffic up to the root (ACS), where GPUs talk over PCIe."""
    listed = run.kind("lspci_acs")
    if not listed:
        return
    redirect = [e for e in listed if e.fields.get("redirect")]
    nvlink = any(e.fields.get("kind") == "NVLink" for e in run.kind("gpu_topology")) or bool(run.kind("nvlink_state"))
    if not redirect:
        yield Finding(
            "env.acs", "excluded", "infra/pcie-acs-p2p", "context", 0.0, "info", evidence=[_place(listed[0])], facts={"count": len(listed)}
        )
        return
    peer_off = any(str(v).startswith("1") for name in ("env.", "nccl.env.") for v, _ in facts(run, name + P2P_OFF))
    told = {"count": len(redirect), "pci": redirect[0].fields.get("pci") or "?"}
    # A listing of a few bridges is somebody's look for this very cause; a bug report lists every bridge of the board.
    sought = len(listed) <= SOUGHT
    stalled = any(f.outcome == "found" and (f.cause or "").startswith(STALLS) for f in run.findings) or run.last_progress_at is None
    role: Any = "context" if nvlink or peer_off else "root" if sought and stalled else "precursor"
    weight = {"context": 0.1, "precursor": 0.3, "root": 0.6}[role]
    evidence = [_place(e) for e in redirect[:3]]
    yield Finding(
        "env.acs.redirects", "found", "infra/pcie-acs-p2p", role, weight, "warning", evidence=evidence, facts={**told, "lasting": True}
    )


RULES = (
    Rule("env.compute-apps", compute_apps, ("S11",)),
    Rule("env.gpu-health", health, ("S1",)),
    Rule("env.topology", topology, ("L4.2",)),
    Rule("env.transports", transports, ("L4.2",)),
    Rule("env.acs", access_control, ("L4.2", "Q9"), after=("collectives", "nccl-messages")),
)
