"""Counting statistics of an archive: time between failures with its interval, and who fails more often than chance explains.

All tests are exact; nothing here needs more than the standard library.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

LAYERS = ("infra", "data", "model", "training", "comms", "reward")
# What schedulers, quotas and far services decide is no fault of the machine it happens on; nor is a job's own memory limit.
NO_FAULT = frozenset({"time-limit", "preempted", "resources-unavailable", "quota-exceeded", "hub-unreachable", "cgroup-oom-kill"})
LEVEL = 0.05  # of the interval and of the tests
# Rack and place in one name: r07n12, rack3-node4, cab2c1s3.
RACK = re.compile(r"^(?:.*[-_.])?(?P<rack>(?:rack|cab|r|x)[-_]?\d{1,4})(?=[-_]?(?:n|node|c|u|s|i|h)[-_]?\d)", re.I)
PER_HOST = 8  # GPUs of a host, where no run tells


@dataclass(slots=True)
class Between:
    """Mean time between failures.  `hours`, `low` and `high` are None where no failure (or no time) bounds them."""

    failures: int
    exposure: float
    hours: float | None
    low: float | None
    high: float | None


@dataclass(slots=True)
class Offender:
    """A host, GPU or rack.  `expected` failures if all were alike, by hours of use; `p`: chance of as many or more, Holm-corrected."""

    kind: str
    name: str
    failures: int
    expected: float
    p: float
    causes: list[tuple[str, int]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    @property
    def beyond_chance(self) -> bool:
        """Whether chance does not explain it at the 5 % level, all tests of its kind considered."""
        return self.p < LEVEL


def failed(row: dict[str, Any]) -> bool:
    """Whether a run has a named failure."""
    return row["layer"] in LAYERS


def of_machine(row: dict[str, Any]) -> bool:
    """Whether a run failed by what a machine or a link may be to blame for."""
    return row["layer"] in ("infra", "comms") and row["cause"] not in NO_FAULT


def between(failures: int, exposure: float) -> Between:
    """Mean hours between failures over `exposure` hours, with the exact 95 % interval of a Poisson count (Garwood 1936)."""
    if exposure <= 0:
        return Between(failures, exposure, None, None, None)
    most = _poisson_mean(failures, LEVEL / 2, upper=True)
    least = _poisson_mean(failures, LEVEL / 2, upper=False) if failures else 0.0
    return Between(failures, exposure, exposure / failures if failures else None, exposure / most, exposure / least if least else None)


def offenders(rows: list[dict[str, Any]], least: int = 2) -> list[Offender]:
    """Hosts, GPUs and racks named as culprits by `least` jobs or more, the least explicable first.

    The attempts of one job count once for one culprit: a restart on the same machine is no independent trial.
    Under the null hypothesis each named failure falls on a unit with the probability of its share of the hours run (binomial).
    """
    exposure: dict[str, float] = defaultdict(float)
    widths: Counter[int] = Counter()
    for row in rows:
        hours = max(row.get("duration_s") or 0.0, 60.0) / 3600
        hosts = set(row.get("hosts") or []) | ({row["culprit_host"]} if row.get("culprit_host") else set())
        for host in hosts:
            exposure[host] += hours
        if hosts and row.get("world_size") and row["world_size"] % len(hosts) == 0:
            widths[row["world_size"] // len(hosts)] += 1
    width = max(widths.most_common(1)[0][0], 1) if widths else PER_HOST
    out: list[Offender] = []
    for kind in ("host", "gpu", "rack"):
        out += _offenders(kind, rows, exposure, width, least)
    return sorted(out, key=lambda one: (one.p, -one.failures, one.kind, one.name))


def _offenders(kind: str, rows: list[dict[str, Any]], exposure: dict[str, float], width: int, least: int) -> list[Offender]:
    hits: dict[str, list[dict[str, Any]]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for row in rows:
        unit = _unit(kind, row) if of_machine(row) else None
        if unit is not None and (row.get("series") or row["run"], unit) not in seen:
            seen.add((row.get("series") or row["run"], unit))
            hits[unit].append(row)
    total = sum(map(len, hits.values()))
    share = _shares(kind, hits, exposure, width)
    units = max(len(exposure) * (width if kind == "gpu" else 1), len(hits)) if kind != "rack" else max(len(share), len(hits))
    if units < 2:
        return []
    tested = sorted((binomial_tail(len(found), total, share[unit]), unit) for unit, found in hits.items())
    out, worst = [], 0.0
    for place, (p, unit) in enumerate(tested):
        worst = max(worst, min(1.0, p * (units - place)))  # Holm: units that never failed were tested, too
        found = hits[unit]
        if len(found) >= least:
            causes = Counter(f"{row['layer']}/{row['cause']}" for row in found).most_common(3)
            out.append(Offender(kind, unit, len(found), total * share[unit], worst, causes, [row["run"] for row in found][:20]))
    return out


def _shares(kind: str, hits: dict[str, list[dict[str, Any]]], exposure: dict[str, float], width: int) -> dict[str, float]:
    total = sum(exposure.values()) or 1.0
    if kind == "rack":
        racks: dict[str, float] = defaultdict(float)
        for host, hours in exposure.items():
            if (rack := rack_of(host)) is not None:
                racks[rack] += hours
        whole = sum(racks.values()) or 1.0
        return {rack: hours / whole for rack, hours in racks.items()}
    if kind == "gpu":
        return {unit: exposure[unit.partition(" ")[0]] / total / width for unit in hits}
    return {host: hours / total for host, hours in exposure.items()}


def _unit(kind: str, row: dict[str, Any]) -> str | None:
    host = row.get("culprit_host")
    if not host:
        return None
    if kind == "host":
        return str(host)
    if kind == "rack":
        return rack_of(str(host))
    return f"{host} GPU {row['culprit_gpu']}" if row.get("culprit_gpu") else None


def rack_of(host: str) -> str | None:
    """The rack that a host's name tells, or None."""
    match = RACK.match(host)
    return match["rack"].lower() if match else None


def binomial_tail(count: int, trials: int, share: float) -> float:
    """P(X >= count) for X ~ Binomial(trials, share)."""
    if count <= 0 or share >= 1:
        return 1.0
    if share <= 0:
        return 0.0
    terms = (
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * math.log(share) + (trials - k) * math.log1p(-share)
        for k in range(count, trials + 1)
    )
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def _poisson_mean(count: int, tail: float, upper: bool) -> float:
    """The mean at which a count as low (`upper`) or as high as `count` has probability `tail`."""
    low, high = 0.0, count + 10.0 * math.sqrt(count + 1) + 10.0
    for _ in range(200):
        middle = (low + high) / 2
        at_most = _poisson_cdf(count if upper else count - 1, middle)
        beyond = at_most > tail if upper else 1 - at_most < tail
        low, high = (middle, high) if beyond else (low, middle)
    return (low + high) / 2


def _poisson_cdf(count: int, mean: float) -> float:
    if count < 0:
        return 0.0
    if mean <= 0:
        return 1.0
    return min(1.0, math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)))
