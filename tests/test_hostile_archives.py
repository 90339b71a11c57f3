"""Hostile and damaged archives through `analyze`: refused members are remarks in the report, the rest is read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard

from forensics import analyze
from forensics.evidence import Unusable, gather
from forensics.unpack import Limits, limits_in_force, unpack

LOG = b"2026-03-01 10:00:00 INFO step 1 loss 2.0\n" * 30 + (
    b"Traceback (most recent call last):\n"
    b'  File "/app/train.py", line 7, in main\n    loss.backward()\n'
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 1.62 MiB is free.\n"
)


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def tar(members: list[tuple[str, bytes]], links: tuple[tuple[str, bytes, str], ...] = ()) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name, kind, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return out.getvalue()


def zipped(members: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


PACKS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": zst}


@pytest.mark.parametrize("kind", [*PACKS, "plain", "zip", "zip-inside", "wrong-name", "nested", "single"])
def test_the_cause_is_found_in_any_wrapping(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run.bin"
    inner = tar([("job/train.log", LOG)])
    if kind in PACKS:
        run.write_bytes(PACKS[kind](inner))
    elif kind == "plain":
        run.write_bytes(inner)
    elif kind == "zip":
        run.write_bytes(zipped([("job/train.log", LOG)]))
    elif kind == "wrong-name":
        run = tmp_path / "run.zip"  # a tarball by content
        run.write_bytes(gzip.compress(inner))
    elif kind == "zip-inside":
        run = tmp_path / "job"
        run.mkdir()
        (run / "logs.zip").write_bytes(zipped([("train.log", LOG)]))
    elif kind == "nested":
        run.write_bytes(tar([("logs.tar.zst", zst(inner))]))
    else:
        run = tmp_path / "train.log.xz"
        run.write_bytes(lzma.compress(LOG))
    document = analyze(run).to_dict()
    assert document["verdict"]["cause"] == "gpu-oom"
    assert document["verdict"]["first_failure"]["file"].endswith("train.log" if kind != "single" else "train.log.xz")


def test_refused_members_stand_in_the_report_and_nothing_is_written_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    run = folder / "run.tar"
    run.write_bytes(
        tar(
            [("../../escape.log", b"x"), ("/tmp/absolute.log", b"x"), ("ok/train.log", LOG)],
            (("ok/passwd", tarfile.SYMTYPE, "/etc/passwd"), ("ok/hard", tarfile.LNKTYPE, "/etc/passwd"), ("ok/null", tarfile.CHRTYPE, "")),
        )
    )
    before = sorted(p.name for p in tmp_path.rglob("*"))
    report = analyze(run)
    assert report.to_dict()["verdict"]["cause"] == "gpu-oom"
    page = report.to_html()
    assert "points outside the archive" in page and "a link or device" in page
    assert "root:x:0" not in page
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_nested_archives_share_one_allowance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENSICS_MAX_UNPACKED_GIB", str(300_000 / (1 << 30)))
    run = tmp_path / "run"
    run.mkdir()
    for number in range(5):
        (run / f"part{number}.tar.gz").write_bytes(gzip.compress(tar([("train.log", b"x" * 100_000)])))
    with gather(run) as evidence:
        assert len(evidence.members) <= 4
        assert any("unpacked" in note for note in evidence.notes)
        assert evidence.unpacked < 500_000


def test_archives_inside_archives_end(tmp_path: Path) -> None:
    data = LOG
    for depth in range(6):
        data = tar([(f"level{depth}.tar" if depth else "train.log", data)])
    (tmp_path / "deep.tar").write_bytes(data)
    with gather(tmp_path / "deep.tar") as evidence:
        assert all(member.path.count("!") <= 2 for member in evidence.members)


def test_limits_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENSICS_MAX_UNPACKED_GIB", "2")
    monkeypatch.setenv("FORENSICS_MAX_MEMBERS", "7")
    assert (limits_in_force().total, limits_in_force().members) == (2 << 30, 7)
    monkeypatch.setenv("FORENSICS_MAX_UNPACKED_GIB", "a lot")
    monkeypatch.setenv("FORENSICS_MAX_MEMBERS", "")
    assert limits_in_force() == Limits()


def test_an_extended_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 33
    path = tmp_path / "evil.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"0" * 4096)
    notes: list[str] = []
    (tmp_path / "out").mkdir()
    assert unpack(path, tmp_path / "out", notes.append) == 0
    assert notes


@pytest.mark.parametrize("kind", list(PACKS))
@pytest.mark.parametrize("cut", [0.1, 0.5, 0.98])
def test_cut_and_spoilt_streams_are_read_as_far_as_they_go(tmp_path: Path, kind: str, cut: float) -> None:
    text = b"".join(b"2026-03-01 10:00:%02d step %d loss %d.5\n" % (n % 60, n, n % 9) for n in range(20_000))
    packed = bytearray(PACKS[kind](text))
    path = tmp_path / f"train.log.{kind}"
    path.write_bytes(packed[: int(len(packed) * cut)])
    spoilt = tmp_path / f"spoilt.log.{kind}"
    packed[len(packed) // 2] ^= 0xFF
    spoilt.write_bytes(packed)
    for file in (path, spoilt):
        try:
            json.dumps(analyze(file).to_dict())
        except Unusable as error:
            assert "nothing to read" in str(error)  # noqa: PT017


def test_concatenated_members_are_one_log(tmp_path: Path) -> None:
    for name, pack in PACKS.items():
        path = tmp_path / f"train.log.{name}"
        path.write_bytes(pack(LOG[:600]) + pack(LOG[600:]))
        assert analyze(path).to_dict()["verdict"]["cause"] == "gpu-oom", name
