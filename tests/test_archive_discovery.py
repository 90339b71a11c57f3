"""Runs are found by what lies in a tree."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import archive_maker as maker
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.archive.discover import discover, fnmatch_translate
from forensics.archive.names import assign
from forensics.archive.trees import LocalTree, unpacked
from forensics.evidence import Unusable

AT = datetime(2026, 4, 6, 9, 30, tzinfo=UTC)


def train(hours: float = 0, extra: str = "") -> bytes:
    lines, _ = maker.training(random.Random(1), datetime.fromtimestamp(AT.timestamp() + hours * 3600, UTC), 600, "node001")
    return maker.text([extra, *lines] if extra else lines)


KERNEL = b"2026-04-06T09:30:01,103412+00:00 node001 kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15\n" * 4


def found(root: Path, files: dict[str, bytes], glob: str | None = None) -> list[str]:
    maker.put(root, files)
    return [run.path for run in discover(LocalTree(root), glob).runs]


@pytest.mark.parametrize(
    "files",
    [
        {"train.log": train()},
        {"rank_0/train.log": train(), "rank_1/train.log": train(), "hosts/node001.dmesg": KERNEL},
        {"rank0.log": train(), "rank1.log": train(), "dmesg.log": KERNEL, "config.yaml": b"lr: 1e-5\nbeta: 0.1\n"},
        {"node001/stdout.log": train(), "node002/stdout.log": train(), "node001/dmesg.txt": KERNEL},
        {"attempt_0/0/stdout.log": train(), "attempt_0/1/stdout.log": train(), "attempt_1/0/stdout.log": train(2)},
        {"logs/worker-1f0c9a2b77de-01000000-4711.out": train(), "logs/raylet.out": train(), "train.log": train()},
        {"train.log": train(), "train.log.1": train(-20), "train.log.2.gz": gzip.compress(train(-40))},
        {
            "train.log": train(),
            "wandb/run-20260406_093000-ab12/files/output.log": train(),
            "wandb/run-20260407_093000-cd34/files/output.log": train(24),
        },
        {
            "train.log": train(),
            "checkpoint-100/trainer_state.json": b'{"global_step": 100, "log_history": []}',
            "checkpoint-200/rng.txt": b"1",
        },
        {"actor.log": train(), "critic.log": train(), "reward_server.log": train()},
    ],
)
def test_parts_of_one_run_are_one_run(tmp_path: Path, files: dict[str, bytes]) -> None:
    assert found(tmp_path, files) == [""]


def test_a_folder_of_runs_is_many_runs(tmp_path: Path) -> None:
    files = {"2026-04-06/job-1/train.log": train(), "2026-04-06/job-2/rank0.log": train(), "2026-04-06/job-2/rank1.log": train()}
    files |= {"2026-04-07/48211/logs/train.log": train(30), "2026-04-07/qwen-dpo/dmesg.log": KERNEL}
    assert found(tmp_path, files) == ["2026-04-06/job-1", "2026-04-06/job-2", "2026-04-07/48211", "2026-04-07/qwen-dpo"]


def test_single_logs_in_one_folder_are_runs_when_their_jobs_differ(tmp_path: Path) -> None:
    files = {f"slurm-{job}.out": train(hours) for job, hours in ((48211, 0), (48212, 0.5), (48213, 1))} | {"slurm-48212.err": train(0.5)}
    maker.put(tmp_path, files)
    runs = discover(LocalTree(tmp_path)).runs
    assert [run.path for run in runs] == ["slurm-48211.out", "slurm-48212.err", "slurm-48213.out"]
    assert [len(run.files) for run in runs] == [1, 2, 1]


def test_single_logs_are_runs_when_they_start_apart_and_one_run_when_together(tmp_path: Path) -> None:
    assert len(found(tmp_path / "apart", {"qwen-sft.log.gz": gzip.compress(train()), "llama-dpo.log.gz": gzip.compress(train(20))})) == 2
    assert found(tmp_path / "together", {"alpha.log": train(), "beta.log": train()}) == [""]


def test_job_ids_in_the_content_tell_runs_apart_that_names_would_join(tmp_path: Path) -> None:
    files = {"node001/train.log": train(extra="SLURM_JOB_ID=48211"), "node002/train.log": train(extra="SLURM_JOB_ID=48212")}
    assert found(tmp_path / "two", files) == ["node001", "node002"]
    same = {path: data.replace(b"48212", b"48211") for path, data in files.items()}
    assert found(tmp_path / "one", same) == [""]


def test_archives_stand_for_runs_unless_they_are_a_part(tmp_path: Path) -> None:
    inside = maker.tar({"train.log": train()})
    assert found(tmp_path / "a", {"job-1.tar.gz": inside, "job-2.tgz": inside}) == ["job-1.tar.gz", "job-2.tgz"]
    assert found(tmp_path / "b", {"train.log": train(), "hosts.tar.gz": maker.tar({"node001.dmesg": KERNEL})}) == [""]


def test_code_and_papers_are_no_runs(tmp_path: Path) -> None:
    code = {"src/model.py": b"import torch\nloss = 1\n", "README.md": b"# loss\n"}
    files = {"job-1/train.log": train(), "job-1/code.tar.gz": maker.tar(code), "job-2/train.log": train(3)}
    files |= {f"tools/{name}": data for name, data in code.items()}
    maker.put(tmp_path, files)
    result = discover(LocalTree(tmp_path))
    assert [(run.path, run.kind) for run in result.runs] == [("job-1", "folder"), ("job-2", "folder")]
    assert [path for path, _ in result.left] == ["tools/README.md", "tools/src/model.py"]


def test_what_belongs_to_no_run_is_told(tmp_path: Path) -> None:
    maker.put(tmp_path, {"job-1/train.log": train(), "job-2/train.log": train(3), "README.md": b"# the archive\n"})
    result = discover(LocalTree(tmp_path))
    assert [run.path for run in result.runs] == ["job-1", "job-2"]
    assert [path for path, _ in result.left] == ["README.md"]


def test_weights_and_hidden_files_are_no_runs(tmp_path: Path) -> None:
    maker.put(tmp_path, {"job-1/model.safetensors": b"x" * 99, ".cache/x.log": train(), "job-2/train.log": train()})
    runs = discover(LocalTree(tmp_path)).runs
    assert [(run.path, [name for name, _ in run.files]) for run in runs if "cache" not in run.path] == [("job-2", ["job-2/train.log"])]


def test_the_pattern_overrides(tmp_path: Path) -> None:
    files = {"a/rank_0/t.log": train(), "a/rank_1/t.log": train(), "b/notes.txt": b"hello\n", "b/x.tar.gz": maker.tar({"t.log": train()})}
    assert found(tmp_path, files, "*/rank_*") == ["a/rank_0", "a/rank_1"]
    assert found(tmp_path, files, "**/*.tar.gz") == ["b/x.tar.gz"]
    assert found(tmp_path, files, "?") == ["a", "b"]


def test_an_unreadable_folder_is_told_and_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker.put(tmp_path, {"job-1/train.log": train(), "secret/train.log": train(), "job-2/train.log": train(5)})
    real = os.scandir

    def scandir(path: str | Path) -> object:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr("forensics.archive.trees.os.scandir", scandir)
    result = discover(LocalTree(tmp_path))
    assert [run.path for run in result.runs] == ["job-1", "job-2"]
    assert result.left == [("secret", "folder could not be read: Permission denied")]


def test_a_missing_root_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(Unusable):
        discover(LocalTree(tmp_path / "none"))


@pytest.mark.parametrize(
    ("glob", "path", "hit"),
    [("*/job-*", "a/job-1", True), ("*/job-*", "a/b/job-1", False), ("**/job-*", "job-1", True), ("**/job-*", "a/b/job-1", True), ("a/**", "a/b/c", True), ("x[0-9]", "x5", True)],
)  # fmt: skip
def test_patterns(glob: str, path: str, hit: bool) -> None:
    import re

    assert bool(re.fullmatch(fnmatch_translate(glob), path)) is hit


def test_names_are_stable_and_never_meet() -> None:
    assert assign(["2026/job-1", "2026/job-2.tar.gz", "slurm-12.out"]) == ["2026__job-1", "2026__job-2", "slurm-12"]
    paths = ["a/b", "a__b", "A/B", "job.tar.gz", "job.zip", "job/x", "x" * 300, "x" * 299 + "y", "é/ü", ".."]
    names = assign(paths)
    assert len({name.lower() for name in names}) == len(paths)
    assert all(len(name) < 160 and "/" not in name and not name.startswith(".") for name in names)
    assert dict(zip(paths, names, strict=True)) == dict(zip(paths[::-1], assign(paths[::-1]), strict=True))


@given(st.lists(st.text(alphabet="ab/_.Aé-", min_size=1, max_size=12), unique=True, max_size=20))
@settings(max_examples=150, deadline=None)
def test_names_of_any_paths_differ(paths: list[str]) -> None:
    paths = list({"/".join(part for part in path.split("/") if part) or "x" for path in paths})
    names = assign(paths)
    assert len({name.lower() for name in names}) == len(paths)
    assert all("/" not in name for name in names)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst", "plain"])
def test_the_beginning_of_a_stored_file_is_enough(kind: str) -> None:
    import bz2
    import lzma

    import zstandard

    data = os.urandom(300_000)
    packed = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress, "plain": bytes}[
        kind
    ](data)
    assert unpacked(packed[: 290_000 if kind == "bz2" else 200_000])[:1000] in (data[:1000], b"")
    assert unpacked(packed)[:1000] == data[:1000]


@given(st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_junk_files_are_found_or_told_but_never_raise(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        maker.put(Path(folder), {"a/x.log": data, "a/y.tar.gz": data, "b.log": data, "b.gz": b"\x1f\x8b" + data})
        discover(LocalTree(Path(folder)))


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    maker.put(tmp_path, {"job-1/train.log": train(), "job-2/train.log": train(4)})
    (tmp_path / "latest").symlink_to(tmp_path / "job-2")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [run.path for run in discover(LocalTree(tmp_path)).runs] == ["job-1", "job-2"]


def test_a_tar_of_nothing_is_no_fault_of_discovery(tmp_path: Path) -> None:
    out = io.BytesIO()
    tarfile.open(fileobj=out, mode="w").close()
    assert found(tmp_path, {"x.tar": out.getvalue()}) == ["x.tar"]
