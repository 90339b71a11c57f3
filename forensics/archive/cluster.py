"""Grouping the messages of runs that nobody could classify, so that one look serves many runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Cluster:
    """Runs whose decisive message is alike.  `example` is the message of `run`, the first of them by name."""

    template: str
    count: int
    run: str
    example: str
    runs: list[str]


def clusters(rows: list[dict[str, Any]]) -> list[Cluster]:
    """The unclassified runs by message, largest group first; by drain3 where it is installed (extra `cluster`), else by masked text."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    unknown = sorted((row for row in rows if row["layer"] == "unknown"), key=lambda row: row["run"])
    miner = _miner()
    if miner is None:
        for row in unknown:
            groups[row["template"] or ""].append(row)
    else:
        numbers = {}
        for text in sorted({row["template"] or "" for row in unknown}):  # the order must not depend on the runs' names
            numbers[text] = miner.add_log_message(text)["cluster_id"] if text else 0
        names = {cluster.cluster_id: cluster.get_template() for cluster in miner.drain.clusters}
        for row in unknown:
            groups[names.get(numbers[row["template"] or ""], "")].append(row)
    out = [
        Cluster(name, len(found), found[0]["run"], found[0]["message"] or "", [row["run"] for row in found])
        for name, found in groups.items()
    ]
    return sorted(out, key=lambda one: (-one.count, one.template))


def _miner() -> Any:
    try:
        from drain3 import TemplateMiner
        from drain3.template_miner_config import TemplateMinerConfig
    except ImportError:
        return None
    config = TemplateMinerConfig()
    config.drain_sim_th = 0.5
    config.profiling_enabled = False
    return TemplateMiner(None, config)
