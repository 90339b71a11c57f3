"""Evidence in an object store that speaks S3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import archive_maker as maker
import polars as pl
import pytest

from forensics.archive.bulk import bulk
from forensics.archive.trees import open_tree
from forensics.evidence import Unusable

HERE = Path(__file__).resolve().parent


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server")
    import fsspec

    keys = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
    }
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    _, port = running.get_host_and_port()
    monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    fsspec.config.set_conf_env(fsspec.config.conf)
    try:
        fsspec.filesystem("s3").makedirs("logs", exist_ok=True)
        yield "s3://logs"
    finally:
        fsspec.config.conf.pop("s3", None)
        running.stop()


def test_runs_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    import fsspec

    made = maker.make(tmp_path / "root", 8, 1_500)
    store = fsspec.filesystem("s3")
    store.put(str(tmp_path / "root") + "/", "logs/2026/", recursive=True)
    store.pipe_file("logs/2026/2026-04-06/job-10001/model.safetensors", b"x" * 1000)
    summary = bulk([f"{bucket}/2026"], tmp_path / "out", jobs=1)
    rows = pl.read_parquet(tmp_path / "out" / "runs.parquet")
    assert (summary.status, summary.runs) == (0, len(made))
    assert {path: (layer, cause) for path, layer, cause in rows.select("path", "layer", "cause").iter_rows()} == {
        one.path: (one.layer, one.cause) for one in made
    }
    assert rows["root"].unique().to_list() == [f"{bucket}/2026"]
    one = bulk([f"{bucket}/2026/2026-04-06/job-10002.tar.gz"], tmp_path / "one", jobs=1)
    assert one.runs == 1


def test_what_is_not_there_is_unusable(bucket: str) -> None:
    with pytest.raises(Unusable, match="nothing there"):
        open_tree(f"{bucket}/none").scan()
    with pytest.raises(Unusable):
        open_tree("nosuchstore://x").scan()
