"""Evidence: what is used, what is left out and why, and what names tell."""

from __future__ import annotations

import gzip
import os
import zipfile

import pytest

from forensics.evidence import Unusable, gather, is_text, names


@pytest.mark.parametrize(
    ("path", "rank", "host", "attempt"),
    [
        ("rank_3.log", 3, None, None),
        ("logs/rank07.out", 7, None, None),
        ("global_rank-12/stderr.txt", 12, None, None),
        ("node_rank_4.log", None, None, None),
        ("local_rank_2.log", None, None, None),
        ("worker-3/torchelastic/none_ab12/attempt_1/5/stderr.log", None, "worker-3", 1),
        ("gpu-017/dmesg.txt", None, "gpu-017", None),
        ("gpu-3.csv", None, None, None),
        ("node07-gpu.csv", None, "node07", None),
        ("dmesg-node07.txt", None, "node07", None),
        ("slurm-771203.out", None, None, None),
        ("train.log", None, None, None),
        ("ip-10-0-0-12/train.log", None, "ip-10-0-0-12", None),
    ],
)
def test_names_tell_rank_host_and_attempt(path, rank, host, attempt):
    assert names(path) == (rank, host, attempt)


def test_text_is_told_from_binary():
    assert is_text(b"step 1 loss 2\n" * 10)
    assert is_text("步骤 1 损失 2\n".encode() * 10)
    assert is_text(b"\0" * 100 + b"line after a sparse hole\n" * 40)
    assert not is_text(os.urandom(4096))
    assert not is_text(b"\0" * 4096)


def test_a_directory_is_listed_in_order_with_reasons_for_what_is_left_out(tmp_path):
    (tmp_path / "b.log").write_text("loss 1\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rank_1.log").write_text("loss 1\n")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 10)
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(b"loss 2\n"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with gather(tmp_path) as found:
        assert [m.path for m in found.members] == ["a/rank_1.log", "b.log", "old.log.gz"]
        assert found.members[2].head.text == "loss 2\n"
        assert {path for path, _ in found.skipped} == {"model.safetensors", "empty.log", "pipe", "loop", "gone"}


def test_an_archive_of_one_folder_is_that_folder_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "run42.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("run42/train.log", "loss 1\n")
        archive.writestr("run42/rank/rank_0.log", "loss 1\n")
    with gather(path) as found:
        assert found.name == "run42"
        assert [m.path for m in found.members] == ["rank/rank_0.log", "train.log"]
        real = found.members[0].real
        assert real.exists()
    assert not real.exists()


def test_unusable_input_is_one_clear_line(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(Unusable) as caught, gather(path):
            pass
        assert "\n" not in str(caught.value)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unusable), gather(tmp_path / "pipe"):
        pass


@pytest.mark.parametrize("hole", [True, False])
def test_a_log_behind_a_megabyte_of_nuls_is_read(tmp_path, hole):
    """A log cut to nothing while its writer keeps its place begins with a hole as long as what it held."""
    path = tmp_path / "train.log"
    with path.open("wb") as out:
        out.truncate(3 << 20) if hole else out.write(b"\0" * (3 << 20))
        out.seek(3 << 20)
        out.write(b"2026-03-01 10:00:00 step 1 loss 2.0\nRuntimeError: x\n")
    with gather(tmp_path) as found:
        assert found.members[0].head.text.startswith("2026-03-01 10:00:00 step 1")
        assert is_text(found.members[0].head.data)
        found.members[0].forget()
        assert found.members[0].head.text.startswith("2026-03-01 10:00:00 step 1")


def test_what_may_not_be_looked_at_is_refused_in_one_line(tmp_path, monkeypatch):
    import pathlib

    def deny(self, **more):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(pathlib.Path, "stat", deny)
    with pytest.raises(Unusable, match=r"may not be read \(Permission denied\)"), gather(tmp_path / "x.log"):
        pass
