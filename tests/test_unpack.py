"""Archives: contents read, and nothing outside the folder touched."""

import io
import os
import tarfile
import zipfile

import pytest

from forensics.unpack import Limits, is_archive, unpack


def tar_with(path, members, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            else:
                info.linkname = data.decode()
                tar.addfile(info)


def read_all(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_a_tar_in_any_compression(tmp_path, mode):
    path = tmp_path / "whatever"
    tar_with(path, [("run/train.log", b"loss 1\n", tarfile.REGTYPE), ("run/dmesg.txt", b"boot\n", tarfile.REGTYPE)], mode)
    out, notes = tmp_path / "out", []
    out.mkdir()
    assert is_archive(path)
    unpack(path, out, notes.append)
    assert read_all(out) == {"run/train.log": b"loss 1\n", "run/dmesg.txt": b"boot\n"}
    assert notes == []


def test_climbing_absolute_links_and_devices_are_refused(tmp_path):
    path = tmp_path / "evil.tar"
    tar_with(
        path,
        [
            ("../escape.log", b"x", tarfile.REGTYPE),
            ("/etc/absolute.log", b"x", tarfile.REGTYPE),
            ("a/../../b.log", b"x", tarfile.REGTYPE),
            ("C:\\win.log", b"x", tarfile.REGTYPE),
            ("link.log", b"/etc/passwd", tarfile.SYMTYPE),
            ("hard.log", b"good.log", tarfile.LNKTYPE),
            ("null", b"", tarfile.CHRTYPE),
            ("pipe", b"", tarfile.FIFOTYPE),
            ("good.log", b"fine\n", tarfile.REGTYPE),
        ],
    )
    out, notes = tmp_path / "deep" / "out", []
    out.mkdir(parents=True)
    unpack(path, out, notes.append)
    assert read_all(tmp_path / "deep") == {"out/good.log": b"fine\n"}
    assert not (tmp_path / "escape.log").exists()
    assert len(notes) == 8


def test_a_bomb_stops_early(tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.log", b"0" * (8 << 20))
    out, notes = tmp_path / "out", []
    out.mkdir()
    unpack(path, out, notes.append, Limits(ratio=100, free=1 << 20))
    assert "bomb" in notes[0]
    assert sum(os.path.getsize(p) for p in out.rglob("*") if p.is_file()) < 3 << 20


def test_too_many_members(tmp_path):
    path = tmp_path / "many.tar"
    tar_with(path, [(f"f{n}.log", b"x\n", tarfile.REGTYPE) for n in range(30)])
    out, notes = tmp_path / "out", []
    out.mkdir()
    unpack(path, out, notes.append, Limits(members=10))
    assert len(read_all(out)) == 10
    assert "more than 10 members" in notes[0]


def test_encrypted_zip_members_are_named(tmp_path):
    path = tmp_path / "locked.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("plain.log", "ok\n")
    data = bytearray(path.read_bytes())
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):
        at = data.find(mark)
        data[at + (6 if mark == b"PK\x03\x04" else 8)] |= 1
    path.write_bytes(bytes(data))
    out, notes = tmp_path / "out", []
    out.mkdir()
    unpack(path, out, notes.append)
    assert "encrypted" in notes[0]


def test_a_truncated_tarball_keeps_what_could_be_read(tmp_path):
    whole, path = tmp_path / "whole.tar.gz", tmp_path / "cut.tar.gz"
    tar_with(whole, [("a.log", os.urandom(50_000), tarfile.REGTYPE), ("b.log", os.urandom(50_000), tarfile.REGTYPE)], "w:gz")
    path.write_bytes(whole.read_bytes()[:70_000])
    out, notes = tmp_path / "out", []
    out.mkdir()
    unpack(path, out, notes.append)
    assert len(read_all(out)["a.log"]) == 50_000
    assert "damaged" in notes[0]


def test_a_plain_log_is_no_archive(tmp_path):
    path = tmp_path / "fake.tar.gz"
    path.write_bytes(b"step 1 loss 2\n" * 100)
    assert not is_archive(path)
