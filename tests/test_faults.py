"""Faults of the machine while evidence is read (EIO, ESTALE, short reads, files that vanish) and while results are written (ENOSPC)."""

from __future__ import annotations

import errno
import io
import os
import socket
from pathlib import Path

import pytest

from forensics import analyze, blocks, files
from forensics.cli.app import run as command
from forensics.evidence import Unusable

LOG = "".join(f"2026-03-01 10:00:{n:02d} INFO step {n} loss 2.0\n" for n in range(60)) + (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 1.62 MiB is free.\n"
)


class Faulty(io.RawIOBase):
    """A file that gives `data` in pieces of `piece` bytes and then fails with `number`."""

    def __init__(self, data: bytes, piece: int, number: int = 0):
        self.below, self.piece, self.number = io.BytesIO(data), piece, number

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        data = self.below.read(min(self.piece, len(buffer)))
        if not data and self.number:
            raise OSError(self.number, os.strerror(self.number))
        buffer[: len(data)] = data
        return len(data)


def run_with(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "train.log").write_text(LOG)
    (folder / "other.log").write_text("2026-03-01 10:00:00 INFO hello\n")
    return folder


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_read_error_in_one_file_leaves_what_was_read_and_the_other_files(tmp_path, monkeypatch, number):
    folder = run_with(tmp_path)
    real = blocks.open_plain

    def opener(path, *more):
        if path.name == "train.log":
            return io.BufferedReader(Faulty(LOG.encode(), 4096, number), 1024)
        return real(path, *more)

    opened = []
    monkeypatch.setattr(blocks, "open_plain", lambda path, *more: opened.append(path) or opener(path, *more))
    document = analyze(folder).to_dict()
    assert document["verdict"]["cause"] == "gpu-oom"
    assert opened


def test_short_reads_are_no_end_of_file(tmp_path, monkeypatch):
    folder = run_with(tmp_path)
    monkeypatch.setattr(blocks, "open_plain", lambda path, *more: io.BufferedReader(Faulty(path.read_bytes(), 7), 16))
    assert analyze(folder).to_dict()["verdict"]["cause"] == "gpu-oom"


def test_a_file_that_vanishes_after_it_was_listed_is_a_remark(tmp_path, monkeypatch):
    from forensics import reading

    folder = run_with(tmp_path)
    real = reading.Reader._file

    def vanish(self, member, *more):
        if member.path == "other.log":
            member.real.unlink(missing_ok=True)
        return real(self, member, *more)

    monkeypatch.setattr(reading.Reader, "_file", vanish)
    report = analyze(folder)
    assert report.to_dict()["verdict"]["cause"] == "gpu-oom"
    assert any("could not be read any more" in note for note in report.run.files["other.log"].notes)


def test_a_file_that_vanishes_before_its_lines_are_quoted_costs_the_quotes_only(tmp_path, monkeypatch):
    from forensics import page

    folder = run_with(tmp_path)
    real = page.context

    def vanish(gathered, places):
        (folder / "train.log").unlink()
        return real(gathered, places)

    monkeypatch.setattr(page, "context", vanish)
    assert analyze(folder).to_dict()["verdict"]["cause"] == "gpu-oom"


def test_a_file_that_grows_while_it_is_read_is_read_once(tmp_path, monkeypatch):
    folder = run_with(tmp_path)
    real = blocks.open_plain
    grown = []

    def grow(path, *more):
        stream = real(path, *more)
        if path.name == "train.log" and len(grown) < 3:
            grown.append(1)
            with path.open("a") as out:
                out.write("2026-03-01 10:05:00 INFO appended\n" * 1000)
        return stream

    monkeypatch.setattr(blocks, "open_plain", grow)
    assert analyze(folder).to_dict()["verdict"]["cause"] == "gpu-oom"


def test_pipes_sockets_devices_and_link_loops_are_passed_over(tmp_path):
    folder = run_with(tmp_path)
    os.mkfifo(folder / "pipe.log")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(folder)
        try:
            server.bind("socket.log")
        finally:
            os.chdir(here)
        (folder / "loop").symlink_to(folder, target_is_directory=True)
        (folder / "self").symlink_to("self")
        (folder / "null.log").symlink_to("/dev/zero")
        (folder / "gone.log").symlink_to("nowhere")
        report = analyze(folder)
    assert report.to_dict()["verdict"]["cause"] == "gpu-oom"
    assert set(report.run.files) == {"train.log", "other.log"}
    for odd in ("/dev/zero", folder / "pipe.log"):
        with pytest.raises(Unusable):
            analyze(odd)


def test_evidence_is_read_only_and_nothing_is_written_beside_it(tmp_path, monkeypatch):
    folder = run_with(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    before = {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in [folder, *folder.rglob("*")]}
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        monkeypatch.setattr("sys.argv", ["forensics", "analyze", str(folder), "--quiet"])
        assert command() == 0
    finally:
        folder.chmod(0o755)
    assert {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in [folder, *folder.rglob("*")]} == before
    assert [p.name for p in work.iterdir()] == ["run.postmortem.html"]


def full(path: Path, *_: object, **__: object) -> int:
    """Writes half of something, then finds the disk full."""
    with open(path, "wb") as out:
        out.write(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_leaves_no_half_file_and_the_old_result(tmp_path):
    old = tmp_path / "page.html"
    old.write_text("yesterday's")
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(old, full)
    assert old.read_text() == "yesterday's"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_full_disk_is_one_clear_line(tmp_path, monkeypatch, capsys):
    folder = run_with(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr("sys.argv", ["forensics", "analyze", str(folder), "--quiet", "--html", str(out / "page.html")])
    assert command() == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error and "Traceback" not in error and error.count("\n") == 1
    assert list(out.iterdir()) == []


def test_a_full_temporary_folder_is_said_and_the_rest_of_the_archive_read(tmp_path, monkeypatch):
    import tarfile

    from forensics import unpack

    run_with(tmp_path)
    with tarfile.open(tmp_path / "run.tar", "w") as archive:
        archive.add(tmp_path / "run" / "train.log", "train.log")
        archive.add(tmp_path / "run" / "other.log", "zz.log")
    real = unpack._Writer.add

    def add(self, name, size, opener):
        if name == "zz.log":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, name, size, opener)

    monkeypatch.setattr(unpack._Writer, "add", add)
    report = analyze(tmp_path / "run.tar")
    assert report.to_dict()["verdict"]["cause"] == "gpu-oom"
    assert "TMPDIR" in report.to_html()
