"""Archives opened safely: members are copied into a private temporary folder, bounded, and never anywhere else.

Refused, each with a note: absolute and climbing names, links, devices, encrypted members, more than the stated number, depth
or size.  Nothing is executed, and permissions in the archive are ignored.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from forensics.blocks import Refused, compression, open_plain

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".zip")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one archive may cost."""

    members: int = 200_000
    depth: int = 24
    total: int = 64 << 30  # bytes written
    ratio: int = 2_000  # unpacked to packed, judged past `free`
    free: int = 1 << 30


def limits_in_force() -> Limits:
    """The limits, with those of the environment in place: FORENSICS_MAX_UNPACKED_GIB and FORENSICS_MAX_MEMBERS.

    A value that is no positive number is passed over.
    """
    limits = Limits()
    with contextlib.suppress(KeyError, ValueError, OverflowError):
        limits = replace(limits, total=max(1, int(float(os.environ["FORENSICS_MAX_UNPACKED_GIB"]) * (1 << 30))))
    with contextlib.suppress(KeyError, ValueError):
        limits = replace(limits, members=max(1, int(os.environ["FORENSICS_MAX_MEMBERS"])))
    return limits


_EXTENDED = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class _Info(tarfile.TarInfo):
    """A header whose long names and extended records are bounded: the library reads them into memory whole."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _EXTENDED and self.size > 1 << 20:
            raise tarfile.ReadError("an extended header of more than 1 MiB")
        return super()._proc_member(tar)  # type: ignore[misc,no-any-return]


def is_archive(path: Path) -> bool:
    """Whether the content (not the name) is a tar, possibly compressed, or a zip."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
        if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            return True
        if head[257:262] == b"ustar":
            return True
        if compression(head):
            with open_plain(path) as stream:
                return stream.read(512)[257:262] == b"ustar"
    except (OSError, EOFError, ValueError, zlib.error):
        return False
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("zstandard", "_lzma", "lzma"):
            raise
    return False


def unpack(path: Path, folder: Path, note: Callable[[str], None], limits: Limits | None = None) -> int:
    """Copy the archive's regular files below `folder`; tell `note` what was refused or damaged.  Returns the bytes written."""
    writer = _Writer(folder, path.stat().st_size, note, limits or limits_in_force())
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    try:
        for name, size, opener in _zip(path, note) if is_zip else _tar(path, note):
            writer.add(name, size, opener)
    except Refused as refusal:
        note(str(refusal))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        note(
            "the temporary folder is full (set TMPDIR to one with room); the rest of the archive was left out"
            if full
            else f"the archive could not be read: {error.strerror or error}; what could be read stands"
        )
    except (EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        note(f"the archive is damaged: {error}; what could be read stands")
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("zstandard", "_lzma", "lzma"):
            raise
        note(f"the archive is damaged: {error}; what could be read stands")
    return writer.written


Member = tuple[str, int, Callable[[], "IO[bytes] | None"]]


def _tar(path: Path, note: Callable[[str], None]) -> Iterator[Member]:
    with open_plain(path) as stream, tarfile.open(fileobj=stream, mode="r|", tarinfo=_Info) as tar:
        for member in tar:
            if member.isdir():
                continue
            if not member.isreg():
                note(f"{_shown(member.name)}: a link or device; left out")
                continue
            yield member.name, member.size, partial(tar.extractfile, member)


def _zip(path: Path, note: Callable[[str], None]) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16
            if info.is_dir():
                continue
            if info.flag_bits & 0x1:
                note(f"{_shown(info.filename)}: encrypted; left out")
                continue
            if mode & 0o170000 not in (0, 0o100000):
                note(f"{_shown(info.filename)}: a link or device; left out")
                continue
            yield info.filename, info.file_size, partial(archive.open, info)


class _Writer:
    def __init__(self, folder: Path, packed: int, note: Callable[[str], None], limits: Limits):
        self.folder, self.packed, self.note, self.limits = folder, max(1, packed), note, limits
        self.count = self.written = 0

    def add(self, name: str, size: int, opener: Callable[[], IO[bytes] | None]) -> None:
        self.count += 1
        if self.count > self.limits.members:
            raise Refused(f"more than {self.limits.members} members; the rest were left out")
        target = self._target(name)
        if target is None:
            return
        try:
            source = opener()
            if source is None:
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, target.open("xb") as out:
                while chunk := source.read(1 << 20):
                    self._count(len(chunk))
                    out.write(chunk)
        except FileExistsError:
            self.note(f"{_shown(name)}: stands twice in the archive, or is also a folder; only the first was read")
        except NotADirectoryError:
            self.note(f"{_shown(name)}: its folder is also a file; left out")
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error) as error:
            self.note(f"{_shown(name)}: damaged or not supported ({error}); what could be read stands")

    def _count(self, amount: int) -> None:
        if self.written + amount > self.limits.total:
            raise Refused(f"more than {self.limits.total / (1 << 30):.3g} GiB unpacked; the rest was left out")
        self.written += amount
        if self.written > self.limits.free and self.written / self.packed > self.limits.ratio:
            raise Refused("unpacks to far more than logs do (a bomb?); the rest was left out")

    def _target(self, name: str) -> Path | None:
        pure = PurePosixPath(name.replace("\\", "/"))
        parts = [part for part in pure.parts if part not in (".", "")]
        if pure.is_absolute() or ".." in parts or not parts or "\0" in name or (len(parts[0]) == 2 and parts[0][1] == ":"):
            self.note(f"{_shown(name)}: points outside the archive; left out")
            return None
        if len(parts) > self.limits.depth or any(len(part.encode("utf-8", "replace")) > 240 for part in parts):
            self.note(f"{_shown(name)}: nested too deeply or named too long; left out")
            return None
        return self.folder.joinpath(*parts)


def _shown(name: str) -> str:
    return name.encode("unicode_escape").decode()[:120]


def remove(folder: Path) -> None:
    """Delete a folder made for `unpack`."""
    shutil.rmtree(folder, ignore_errors=True)
