"""What the GPU samples tell: a card that got slow, hot, short of power, lost, or was occupied before the run.

A caching allocator fills the memory and a power cap holds every card of a host: both are normal.  What counts is change, and
one card that differs from its peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from forensics.run import Run
from rules.base import Evidence, Finding, Rule

LOADED = 50.0  # utilization percent from which a card is working
DROP = 0.85  # of its own earlier clock: below this a loaded card is slowed (boost steps of 15 MHz are far smaller)
LASTS = 3  # samples in a row
HOT = 84.0  # degrees C: throttling of current data-centre and consumer cards starts at 83 to 90 (reference: nvidia-smi fields)
THERMAL, BRAKE, POWER_CAP = 0x20 | 0x40, 0x80, 0x4
NUMBERS = ("sm_clock", "temperature", "power", "throttle", "utilization")


@dataclass(slots=True)
class Card:
    """One GPU's samples in order of time."""

    host: str | None
    gpu: str | None
    pci: str | None
    rows: pl.DataFrame

    def evidence(self, row: dict[str, Any]) -> Evidence:
        """The sample as a place to cite."""
        parts = [f"GPU {self.gpu}"] + [
            f"{name} {row[name]:g}"
            for name in ("temperature", "sm_clock", "power", "utilization", "memory_used")
            if row.get(name) is not None
        ]
        if row.get("throttle"):
            parts.append(f"reasons 0x{row['throttle']:x}")
        return Evidence(row["source"], row["line"], ", ".join(parts), row["time"])

    def finding(self, rule: str, cause: str, weight: float, row: dict[str, Any], **facts: Any) -> Finding:
        """A finding on this card that begins with `row`."""
        return Finding(
            rule,
            cause=cause,
            weight=weight,
            time=row["time"],
            evidence=[self.evidence(row)],
            host=self.host,
            gpu=self.pci or self.gpu,
            facts={"gpu": self.gpu, "host": self.host or "?", "lasting": True, **facts},
        )


def cards(run: Run) -> list[Card]:
    """Every card that was sampled (split once per run: a day of samples is 700,000 rows)."""
    found = run.memo.get("cards")
    if found is None:
        found = run.memo["cards"] = _cards(run)
    return list(found)


def _cards(run: Run) -> list[Card]:
    frame = run.samples
    if frame is None or not frame.height:
        return []
    key = pl.coalesce(pl.col("gpu"), pl.col("pci"), pl.lit("0"))
    out = []
    for (host, _, _), rows in (
        frame.with_columns(key.alias("card")).partition_by(["host", "source", "card"], maintain_order=True, as_dict=True).items()
    ):
        pci = rows["pci"].drop_nulls()
        out.append(Card(host if isinstance(host, str) else None, rows["gpu"][0], pci[0] if pci.len() else None, rows))
    return out


def slowed(run: Run) -> Iterable[Finding]:
    """A card under load whose clock fell and stayed low, and why: heat, power, or neither."""
    all_cards = cards(run)
    if not all_cards:
        yield Finding("gpu.slowed", "undecided", "infra/gpu-thermal", "context", 0.0, needs="gpu_samples")
        return
    found = False
    by_host: dict[tuple[str | None, str], list[tuple[Card, dict[str, Any] | None, float]]] = {}
    for card in all_cards:
        onset, share = departure(card)
        by_host.setdefault((card.host, card.rows["source"][0]), []).append((card, onset, share))
    for group in by_host.values():
        slow = [(card, onset) for card, onset, _ in group if onset is not None]
        for card, onset in slow:
            assert onset is not None
            cause, weight, why = reason(card, onset, [c for c, o, _ in group if o is None])
            if len(slow) > max(1, len(group) // 2) and cause == "infra/gpu-slow":
                continue  # all of them at once: less work, not a bad card
            found = True
            yield card.finding(
                "gpu.slowed", cause, weight, onset, why=why, clock=onset.get("sm_clock"), temperature=onset.get("temperature")
            )
    if not found and all(card.rows.height < 2 * LASTS for card in all_cards):
        yield Finding("gpu.slowed", "undecided", "infra/gpu-thermal", "context", 0.0, needs="gpu_samples")
    elif not found:
        first = all_cards[0].rows.row(0, named=True)
        yield Finding("gpu.slowed", "excluded", "infra/gpu-thermal", "context", 0.0, "info", evidence=[all_cards[0].evidence(first)])


def departure(card: Card) -> tuple[dict[str, Any] | None, float]:
    """The first sample of a lasting slowdown under load (by clock, or by thermal and brake bits where no clock was logged)."""
    rows = card.rows
    loaded = rows.filter(pl.col("utilization").is_null() | (pl.col("utilization") >= LOADED))
    if loaded.height < 2 * LASTS:
        return None, 0.0
    clock = loaded["sm_clock"]
    bits = loaded["throttle"].fill_null(0)
    hard = (bits & (THERMAL | BRAKE)) != 0
    if clock.null_count() < 0.5 * clock.len():
        base = clock.head(max(LASTS, loaded.height // 3)).median()
        top = float(base) if isinstance(base, (int, float)) else 0.0
        slow = (clock < DROP * top).fill_null(False) | (hard & (clock < 0.97 * top).fill_null(False))
    else:
        slow = hard
    at = lasting(slow)
    if at is None:
        return None, 0.0
    return loaded.row(at, named=True), float(slow.sum()) / loaded.height


def lasting(flags: pl.Series) -> int | None:
    """Index from which the flags hold LASTS times in a row and mostly to the end."""
    if int(flags.sum()) < LASTS:
        return None
    run_of = flags.cast(pl.Int8).rolling_sum(LASTS)
    hits = (run_of == LASTS).arg_true()
    for hit in hits.to_list()[:50]:
        start = hit - LASTS + 1
        rest = flags[start:]
        if float(rest.sum()) >= 0.7 * rest.len():
            return int(start)
    return None


def reason(card: Card, onset: dict[str, Any], peers: list[Card]) -> tuple[str, float, str]:
    """(cause, weight, key of the reason) of a slowdown."""
    later = (
        card.rows.filter(pl.col("time") >= onset["time"])
        if onset["time"] is not None
        else card.rows.filter(pl.col("line") >= onset["line"])
    )
    bits = 0
    for value in later["throttle"].drop_nulls().head(200).to_list():
        bits |= value
    heat = later["temperature"].drop_nulls()
    peak = float(heat.max()) if heat.len() else 0.0  # type: ignore[arg-type]
    if bits & THERMAL or peak >= HOT:
        return "infra/gpu-thermal", 0.78, "heat"
    if bits & BRAKE:
        return "infra/gpu-power", 0.75, "brake"
    draw, limit = later["power"].drop_nulls(), later["power_limit"].drop_nulls()
    mine = float(draw.median()) if draw.len() else None  # type: ignore[arg-type]
    if bits & POWER_CAP and mine is not None and limit.len() and mine < 0.8 * float(limit[0]):
        return "infra/gpu-power", 0.75, "capped"
    if bits & POWER_CAP and peers:
        return "infra/gpu-power", 0.65, "capped"
    return "infra/gpu-slow", 0.62 if peers else 0.4, "unexplained"


def odd_one(run: Run) -> Iterable[Finding]:
    """A card that is slower than all its peers of the host from the first sample on."""
    groups: dict[tuple[str | None, str], list[Card]] = {}
    for card in cards(run):
        groups.setdefault((card.host, card.rows["source"][0]), []).append(card)
    for group in groups.values():
        clocks: list[tuple[float, Card, dict[str, Any]]] = []
        for card in group:
            loaded = card.rows.filter((pl.col("utilization") >= LOADED) & pl.col("sm_clock").is_not_null())
            if loaded.height >= 2 * LASTS:
                middle = loaded["sm_clock"].median()
                clocks.append((float(middle), card, loaded.row(0, named=True)))  # type: ignore[arg-type]
        if len(clocks) < 3:
            continue
        clocks.sort(key=lambda item: item[0])
        slowest, second = clocks[0], clocks[1]
        if slowest[0] < DROP * second[0]:
            onset, _ = departure(slowest[1])
            if onset is None:
                cause, weight, why = reason(slowest[1], slowest[2], [c for _, c, _ in clocks[1:]])
                yield slowest[1].finding("gpu.odd-one", cause, weight - 0.05, slowest[2], why=why, clock=slowest[0], peers=second[0])


def lost(run: Run) -> Iterable[Finding]:
    """Error words instead of values, lines that say why the query failed, and rows that stop for one card alone."""
    for event in run.kind("gpu_status"):
        status = str(event.fields.get("status"))
        gone = "lost" in status.lower() or "Unknown Error" in status or status == "ERR!"
        cause, weight = ("infra/gpu-fell-off-bus", 0.7) if gone else ("infra/gpu-hang", 0.5)
        yield Finding(
            "gpu.status",
            cause=cause,
            weight=weight,
            time=event.time,
            evidence=[run.evidence(event)],
            host=event.host,
            gpu=event.fields.get("pci") or event.gpu,
            facts={"status": status, "gpu": event.gpu},
        )
    for event in run.kind("nvml_error"):
        cause, weight = nvml_cause(event.text)
        yield Finding(
            "gpu.query-failed",
            cause=cause,
            weight=weight,
            time=event.time,
            evidence=[run.evidence(event)],
            host=event.host,
            facts={"text": event.text[:160]},
        )
    yield from vanished(run)


def nvml_cause(text: str) -> tuple[str, float]:
    """What a failed nvidia-smi says of itself (wordings: NVIDIA driver 470 to 610)."""
    if "version mismatch" in text:
        return "infra/driver-mismatch", 0.82
    if "device handle" in text or "GPU is lost" in text:
        return "infra/gpu-fell-off-bus", 0.75
    if "Failed to initialize NVML" in text:
        return "infra/gpu-access-lost", 0.72
    if "No devices were found" in text:
        return "infra/gpu-init-failure", 0.6
    return "infra/driver-mismatch", 0.6


def vanished(run: Run) -> Iterator[Finding]:
    """A card whose rows stop while its peers' go on."""
    groups: dict[str, list[Card]] = {}
    for card in cards(run):
        groups.setdefault(card.rows["source"][0], []).append(card)
    for group in groups.values():
        if len(group) < 2:
            continue
        ends = sorted((float(card.rows["line"][-1]), card) for card in group if card.rows.height >= LASTS) if len(group) < 64 else []
        if len(ends) < 2:
            continue
        last = ends[-1][0]
        for end, card in ends[:-1]:
            if last - end > (LASTS + 1) * len(group) and (ends[1][0] - end) > LASTS * len(group):
                row = card.rows.row(-1, named=True)
                yield card.finding("gpu.vanished", "infra/gpu-fell-off-bus", 0.55, row, after=last - end)


def memory_errors(run: Run) -> Iterable[Finding]:
    """Uncorrectable memory errors counted up during the run, and cards that ask for a reset."""
    for card in cards(run):
        counts = card.rows.filter(pl.col("ecc_uncorrected").is_not_null())
        if not counts.height:
            continue
        first = float(counts["ecc_uncorrected"][0])
        risen = counts.filter(pl.col("ecc_uncorrected") > first)
        if risen.height:
            row = risen.row(0, named=True)
            yield card.finding("gpu.ecc-counter", "infra/gpu-ecc-uncorrectable", 0.72, row, count=row["ecc_uncorrected"])
    for event in run.kind("gpu_health"):
        if event.fields.get("what") == "recovery":
            yield Finding(
                "gpu.needs-reset",
                cause="infra/gpu-ecc-uncorrectable",
                role="precursor",
                weight=0.4,
                severity="warning",
                time=event.time,
                evidence=[run.evidence(event)],
                host=event.host,
                gpu=event.gpu,
                facts={"value": event.fields.get("value")},
            )


def link_width(run: Run) -> Iterable[Finding]:
    """A card whose PCIe link is narrower than its peers' under load."""
    widths: dict[str, list[tuple[float, Card, dict[str, Any]]]] = {}
    for card in cards(run):
        loaded = card.rows.filter((pl.col("utilization") >= LOADED) & pl.col("pcie_width").is_not_null())
        if loaded.height >= LASTS:
            widths.setdefault(card.rows["source"][0], []).append((float(loaded["pcie_width"].median()), card, loaded.row(0, named=True)))  # type: ignore[arg-type]
    for group in widths.values():
        full = max(width for width, _, _ in group)
        narrow = [item for item in group if item[0] <= full / 2]
        if len(group) >= 2 and 0 < len(narrow) <= len(group) // 2:
            for width, card, row in narrow:
                yield card.finding("gpu.narrow-link", "infra/pcie-error", 0.5, row, width=width, full=full)


def occupied(run: Run) -> Iterable[Finding]:
    """Memory in use on a card before the run began there."""
    if run.started is None:
        return
    for card in cards(run):
        before = card.rows.filter(pl.col("time").is_not_null() & (pl.col("time") < run.started - 5) & (pl.col("memory_used") > 1500))
        if before.height >= LASTS and before["memory_used"].min() == before["memory_used"].max():
            row = before.row(0, named=True)
            finding = card.finding("gpu.occupied", "infra/gpu-memory-held-by-other", 0.3, row, used=row["memory_used"])
            finding.role = "precursor"
            yield finding


RULES = (
    Rule("gpu.slowed", slowed, ("L0.1", "S1")),
    Rule("gpu.odd-one", odd_one, ("S1",)),
    Rule("gpu.lost", lost, ("L0.1", "S1")),
    Rule("gpu.memory-errors", memory_errors, ("S1",)),
    Rule("gpu.narrow-link", link_width, ("L4.2", "Q9")),
    Rule("gpu.occupied", occupied, ("S1", "S11")),
)
