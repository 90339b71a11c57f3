"""`bulk`: the same tables whatever happens, nothing lost, nothing twice, and the truth about what was left out."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import archive_maker as maker
import polars as pl
import psutil
import pytest

from forensics.archive import bulk as module
from forensics.archive.bulk import Options, Summary, bulk
from forensics.archive.pool import BrokenPool, Pool
from forensics.archive.tables import FINDINGS, RUNS

HERE = Path(__file__).resolve().parent
FAULTS = "archive_faults:handle"


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent)]))
    monkeypatch.setattr(Options, "key", lambda self: json.dumps([self.lang, self.tz]))  # a source file may be edited while tests run


def skipped(out: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]


def table(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "runs.parquet")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[maker.Made]]:
    root = tmp_path_factory.mktemp("archive")
    return root, maker.make(root, 16, 2_500)


@pytest.fixture(scope="module")
def done(archive: tuple[Path, list[maker.Made]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    out = tmp_path_factory.mktemp("out") / "fleet"
    return out, bulk([archive[0]], out, jobs=2)


def test_every_run_in_every_container_is_found_and_judged(archive: tuple[Path, list[maker.Made]], done: tuple[Path, Summary]) -> None:
    out, summary = done
    rows = table(out)
    assert summary.status == 0
    assert summary.runs == len(archive[1]) == rows.height
    got = {path: (layer, cause) for path, layer, cause in rows.select("path", "layer", "cause").iter_rows()}
    assert got == {one.path: (one.layer, one.cause) for one in archive[1]}
    assert skipped(out) == []
    for run in rows["run"]:
        assert json.loads((out / "reports" / f"{run}.json").read_text())["schema"] == "forensics.postmortem/1"
        assert len((out / "reports" / f"{run}.html").read_bytes()) < 400_000, "the plot library is shared, not copied"
    assert len(list((out / "reports").iterdir())) == 2 * rows.height


def test_attempts_of_one_job_are_linked(archive: tuple[Path, list[maker.Made]], done: tuple[Path, Summary]) -> None:
    rows = {row["path"]: row for row in table(done[0]).iter_rows(named=True)}
    for one in archive[1]:
        assert rows[one.path]["attempt"] == one.attempt
        if one.attempt == 2:
            first = rows[one.path.replace("attempt2", "attempt1")]
            assert rows[one.path]["previous"] == first["run"]
            assert rows[one.path]["series"] == first["series"]
            assert rows[one.path]["repeats"] is (one.layer != "none")


def test_tables_have_the_documented_columns(done: tuple[Path, Summary]) -> None:
    import pyarrow.parquet as pq

    assert pq.read_schema(done[0] / "runs.parquet").equals(RUNS)
    assert pq.read_schema(done[0] / "findings.parquet").equals(FINDINGS)
    findings = pl.read_parquet(done[0] / "findings.parquet")
    assert set(findings["run"]) == set(table(done[0])["run"])
    assert findings.filter(pl.col("cause") == "gpu-oom")["text"].str.contains("CUDA out of memory").any()


def test_two_runs_give_the_same_bytes(archive: tuple[Path, list[maker.Made]], done: tuple[Path, Summary], tmp_path: Path) -> None:
    bulk([archive[0]], tmp_path / "again", jobs=1)
    for name in ("runs.parquet", "findings.parquet", "skipped.jsonl", "index.html"):
        assert (tmp_path / "again" / name).read_bytes() == (done[0] / name).read_bytes(), name


LINES = b"step 1 loss 0.5\n" * 50


def folders(root: Path, count: int) -> None:
    for number in range(count):
        maker.put(root / f"job-{number}", {"train.log": LINES + b"%d\n" % number})


def test_resume_reads_only_what_has_changed(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    folders(root, 6)
    maker.put(root, {"bundle.tar": maker.tar({f"job-{n}/train.log": LINES for n in (7, 8)}, "w")})
    first = bulk([root], out, jobs=1, work="archive_faults:slow")
    assert (first.reused, first.runs) == (0, 8)
    rows = table(out)
    calls = tmp_path / "calls"
    calls.unlink()
    again = bulk([root], out, jobs=1, resume=True, work="archive_faults:slow")
    assert (again.reused, again.runs) == (8, 8)
    assert not calls.exists()
    assert table(out).equals(rows)
    log = root / "job-3" / "train.log"
    os.utime(log, (1, 1))  # touched, not changed: read, but not analysed
    assert bulk([root], out, jobs=1, resume=True).reused == 8
    log.write_bytes(LINES + b"one more line\n")
    summary = bulk([root], out, jobs=1, resume=True, work="archive_faults:slow")
    assert (summary.reused, summary.runs) == (7, 8)
    assert calls.read_text().splitlines() == ["job-3"]
    log.unlink()
    assert bulk([root], out, jobs=1, resume=True).runs == 7
    assert len(list((out / "reports").iterdir())) == 14, "reports of runs that are gone are gone"


def test_a_bad_worker_costs_its_own_run_only(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    good = maker.healthy(random.Random(1), maker.START, 2_000, "node001")
    for name in ("a-killed", "b-loops", "c-eats", "d-raises", *(f"job-{n}" for n in range(6))):
        maker.put(root / name, good)
    maker.put(root, {"e-cut.tar.gz": maker.tar(good)[:500], "f-broken.tar.gz": b"\x1f\x8b" + b"junk" * 50})
    summary = bulk([root], out, jobs=2, timeout=8, memory=1 << 30, work=FAULTS)
    lines = {line["path"]: line for line in skipped(out)}
    assert {path: line["kind"] for path, line in lines.items() if path[0] in "abcdf"} == {
        "a-killed": "died",
        "b-loops": "timeout",
        "c-eats": "memory",
        "d-raises": "error",
        "f-broken.tar.gz": "unusable",
    }
    assert "SIGKILL" in lines["a-killed"]["reason"]
    assert "8 s" in lines["b-loops"]["reason"]
    assert "boom" in lines["d-raises"]["reason"]
    assert lines["e-cut.tar.gz"]["kind"] in ("partly", "unusable")
    rows = table(out)
    assert {f"job-{n}" for n in range(6)} <= set(rows["run"])
    assert rows["run"].n_unique() == rows.height
    assert summary.status == 1
    again = bulk([root], out, jobs=2, resume=True)
    assert {"a-killed", "b-loops", "c-eats", "d-raises"} <= set(table(out)["run"]), "faults are tried again"
    assert again.reused >= 6


def test_a_worker_killed_from_outside_costs_its_own_run_only(tmp_path: Path) -> None:
    with Pool(2, work="archive_faults:tiny") as pool:
        (tmp_path / "reports").mkdir()
        for number in range(8):
            pool.submit({"path": f"slow-{number}", "run": f"r{number}", "out": str(tmp_path)})
        ended, struck = [], None
        while not pool.idle:
            ended += pool.collect()
            victim = next((worker for worker in pool.workers if worker.task is not None), None)
            if struck is None and victim is not None:
                struck = victim.task["path"] if victim.task else None
                os.kill(victim.process.pid, signal.SIGKILL)
    assert [outcome.task["path"] for outcome in ended if outcome.fault] == [struck]
    assert sorted(outcome.task["path"] for outcome in ended) == [f"slow-{number}" for number in range(8)]
    assert not [child for child in psutil.Process().children(recursive=True) if "forensics.archive.worker" in " ".join(child.cmdline())]


def test_a_pool_that_cannot_start_says_so() -> None:
    with Pool(1, work="archive_missing:handle") as pool:
        pool.submit({"path": "x"})
        with pytest.raises(BrokenPool):
            list(iter(pool.collect, None))


def command(*arguments: object, **more: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "forensics", "bulk", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more
    )  # type: ignore[call-overload,no-any-return]


def test_interrupt_keeps_what_is_done_and_resume_does_the_rest(
    archive: tuple[Path, list[maker.Made]], done: tuple[Path, Summary], tmp_path: Path
) -> None:
    root, out = archive[0], tmp_path / "out"
    process = command(root, "--out", out, "--jobs", 1)
    journal = out / ".forensics" / "journal.jsonl"
    limit = time.monotonic() + 60
    while time.monotonic() < limit and (not journal.exists() or journal.read_bytes().count(b"\n") < 4):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in errors
    assert b"Traceback" not in errors
    rows = table(out)
    assert 3 <= rows.height < 16
    pending = [line["path"] for line in skipped(out) if line["kind"] == "pending"]
    assert pending
    assert not any(path.startswith(waiting) for path in rows["path"] for waiting in pending if ".tar" not in waiting)
    process = command(root, "--out", out, "--resume")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert b"16 runs" in said
    assert table(out).equals(table(done[0]))
    assert skipped(out) == []


def test_a_full_disk_ends_the_work_with_the_truth(
    archive: tuple[Path, list[maker.Made]], done: tuple[Path, Summary], tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    process = command(archive[0], "--out", out, preexec_fn=small)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"too large" in errors
    assert b"Traceback" not in errors
    summary = bulk([archive[0]], out, resume=True)
    assert summary.status == 0
    assert table(out).equals(table(done[0]))


def test_the_output_may_lie_below_the_root(tmp_path: Path) -> None:
    maker.put(tmp_path, {"job-1/train.log": b"step 1 loss 0.5\n" * 50, "job-2/train.log": b"step 1 loss 0.5\n" * 50})
    for _ in range(2):
        assert bulk([tmp_path], tmp_path / "fleet", work="archive_faults:tiny").runs == 2
    one = tmp_path / "job-1"
    bulk([one], one / "fleet", jobs=1)
    assert bulk([one], one / "fleet", jobs=1).runs == 1
    assert table(one / "fleet")["files"].to_list() == [1]


def test_several_roots_and_the_command(tmp_path: Path) -> None:
    for root in ("x", "y"):
        maker.put(tmp_path / root, {"job-1/train.log": b"step 1 loss 0.5\n" * 50, "job-2/train.log": b"step 1 loss 0.5\n" * 50})
    process = command(tmp_path / "x", tmp_path / "y", "--out", tmp_path / "out", "--jobs", 1)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert table(tmp_path / "out")["run"].to_list() == ["x__job-1", "x__job-2", "y__job-1", "y__job-2"]
    empty = tmp_path / "empty"
    empty.mkdir()
    process = command(empty, "--out", tmp_path / "none")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"no run found" in errors


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    from forensics.archive.journal import Journal
    from forensics.evidence import Unusable

    maker.put(tmp_path / "root", {"job-1/train.log": b"step 1 loss 0.5\n" * 50})
    with Journal(tmp_path / "out" / ".forensics" / "journal.jsonl", False), pytest.raises(Unusable, match="another"):
        bulk([tmp_path / "root"], tmp_path / "out")


def test_a_torn_journal_line_is_dropped(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    folders(root, 6)
    bulk([root], out, work="archive_faults:tiny")
    before = table(out)
    journal = out / ".forensics" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-200])
    assert bulk([root], out, resume=True, work="archive_faults:tiny").reused < 6
    assert table(out).equals(before)


def test_analyze_many_yields_every_run_in_order(archive: tuple[Path, list[maker.Made]]) -> None:
    import forensics

    results = list(forensics.analyze_many([archive[0]], jobs=2))
    assert [result.path for result in results] == sorted(result.path for result in results)
    assert {result.path: result.document["verdict"]["cause"] for result in results if result.document} == {
        one.path: one.cause for one in archive[1]
    }


def test_analyze_many_may_be_left_early_and_tells_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import forensics

    for number in range(4):
        maker.put(tmp_path / f"job-{number}", {"train.log": b"step 1 loss 0.5\n" * 50})
    maker.put(tmp_path, {"broken.tar.gz": b"\x1f\x8bjunk" * 9})
    many = forensics.analyze_many([tmp_path], jobs=1)
    first = next(many)
    assert (first.path, first.document) == ("broken.tar.gz", None)
    assert "nothing to read" in first.reason
    many.close()
    assert not [child for child in psutil.Process().children(recursive=True) if "forensics.archive.worker" in " ".join(child.cmdline())]


def test_object_stores_are_read_through_fsspec(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    maker.make(tmp_path / "root", 9, 2_000)
    assert bulk([f"file://{tmp_path / 'root'}"], tmp_path / "far", jobs=1).runs == 9
    bulk([tmp_path / "root"], tmp_path / "near", jobs=1)
    plain = [name for name in table(tmp_path / "far").columns if name not in ("root",)]
    assert table(tmp_path / "far").select(plain).equals(table(tmp_path / "near").select(plain))


def test_the_memory_share_is_sane() -> None:
    assert module.memory_share(1) >= 1 << 30
    assert module.memory_share(10_000) == 1 << 30
