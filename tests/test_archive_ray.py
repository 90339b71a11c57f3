"""The distributed engine on a real cluster of several nodes, one of which is lost half-way."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import archive_maker as maker
import polars as pl
import pytest

from forensics.archive.bulk import Options, bulk

ray = pytest.importorskip("ray")
HERE = Path(__file__).resolve().parent


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent)]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setattr(Options, "key", lambda self: json.dumps([self.lang, self.tz]))
    small = {"object_store_memory": 80 << 20}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    try:
        nodes.doomed = nodes.add_node(num_cpus=1, **small)
        nodes.add_node(num_cpus=1, **small)
        nodes.wait_for_nodes()
        ray.init(address=nodes.address, log_to_driver=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def test_a_lost_node_loses_no_run_and_doubles_none(cluster: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    made = maker.make(root, 18, 2_000)
    killed = []

    def tick(done: int, known: int, path: str) -> None:
        if not killed and done >= 3:
            killed.append(done)
            cluster.remove_node(cluster.doomed, allow_graceful=False)

    summary = bulk([root], tmp_path / "ray", engine="ray", tick=tick)
    assert killed
    assert killed[0] < len(made), "the node was lost half-way"
    limit = time.monotonic() + 60
    while sum(node["Alive"] for node in ray.nodes()) > 2 and time.monotonic() < limit:
        time.sleep(0.5)
    assert sum(node["Alive"] for node in ray.nodes()) == 2, "the node is really gone"
    assert (summary.status, summary.runs) == (0, len(made))
    rows = pl.read_parquet(tmp_path / "ray" / "runs.parquet")
    assert sorted(rows["path"]) == sorted(one.path for one in made)
    bulk([root], tmp_path / "local")
    for name in ("runs.parquet", "findings.parquet", "skipped.jsonl"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes(), name
    parts = pl.read_parquet(tmp_path / "ray" / "runs" / "*" / "*.parquet", hive_partitioning=True)
    assert sorted(parts["run"]) == sorted(rows["run"]), "the partitioned tables hold the same runs"
    assert not (tmp_path / "ray" / ".forensics" / "scratch").exists()
