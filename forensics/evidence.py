"""What is in the run directory: files, their kinds by content, and the rank and host that their names tell.

The evidence is opened read-only and never written to or beside.  What cannot be used is listed with the reason.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from forensics.blocks import encoding, is_compressed, open_plain
from forensics.run import FileInfo
from forensics.unpack import is_archive, limits_in_force, remove, unpack
from parsers.base import Head

CONTROL = bytes(byte for byte in range(32) if byte < 9 or 13 < byte < 27 or byte > 27)  # what text logs do not hold
HEAD = 64 << 10
HELD = 16 << 20  # bytes of files' beginnings that are kept from the listing to the reading
NULS = 8 << 30
MAX_FILES = 100_000
MAX_DEPTH = 24
# Weights, code and pictures: never logs, and large.
SKIPPED = frozenset(
    ".safetensors .pt .pth .bin .ckpt .npy .npz .onnx .h5 .arrow .parquet .so .o .pyc .whl .png .jpg .jpeg .gif .mp4 .webp .pdf "
    ".woff .woff2 .ttf .exe .dll .gguf .distcp .idx .mmap".split()
)
SKIPPED_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv", "site-packages", ".ipynb_checkpoints"})

RANK_NAMES = (
    re.compile(r"(?:^|[^a-z])(?:global[_-]?)?rank[_-]?(\d{1,6})(?![\d.]*\d)", re.I),
    re.compile(r"(?:^|[_-])r(\d{1,6})$", re.I),
)
NODE_RANK = re.compile(r"(?:node|machine)[_-]?rank", re.I)
LOCAL_RANK = re.compile(r"local[_-]?rank", re.I)
TORCHRUN = re.compile(r"attempt_(\d+)/(\d+)/(?:stdout|stderr|std(?:out|err)\.log|error\.json)")
# node-07, gpu003, worker-3, r7i4n2, ip-10-0-0-1: a short word with a number that is no bare kind of file.
HOST_NAME = re.compile(r"(?:ip(?:-\d{1,3}){4}|[a-z][a-z0-9]{0,14}?(?:-[a-z]{1,12}){0,3}-?\d{1,4}(?:-\d{1,3})?)", re.I)
NOT_HOST = re.compile(
    r"(?:dmesg|train|rank|r|log|nccl|syslog|kern|messages|journal|slurm|attempt|step|run|job|console|version|part|seed|epoch|iter|v|"
    r"stage|phase|exp|try|retry|pid|cuda|torch|local-?rank|node-?rank|out|err|stdout|stderr|worker-[0-9a-f]{8,}.*)-?\d*",
    re.I,
)
GPU_NUMBER = re.compile(r"gpus?-?\d{1,2}", re.I)  # gpu-3 is a device, gpu-003 or gpu112 a machine
TAIL = re.compile(r"[-_](?:dmesg|gpu\w*|syslog|console|kern\w*|messages|journal\w*|nvidia[-_]smi|smi|train|nccl|stdout|stderr|log)$", re.I)
LEAD = re.compile(r"^(?:dmesg|gpus?|syslog|console|kern|messages|journal|nvidia[-_]smi|smi|train|nccl|log|host)[-_.]", re.I)


class Unusable(ValueError):
    """The input cannot be analysed; the message is one line for the user."""


@dataclass(slots=True)
class Member:
    """One file of the evidence.  Its beginning, `head`, may be dropped by `forget` and is then read again when asked for."""

    path: str  # relative, with /
    real: Path
    info: FileInfo
    _head: Head | None = None
    index: list[tuple[int, int]] = field(default_factory=list)  # of a plain file some (line number, byte offset), filled as it is read

    @property
    def head(self) -> Head:
        if self._head is None:
            try:
                self._head = _head_of(self.path, _beginning(self.real))
            except (OSError, EOFError, ValueError):  # it has vanished or been spoilt since it was listed
                self._head = Head(self.path, b"", "")
        return self._head

    def forget(self) -> None:
        """Drop the beginning: those of ten thousand files are a gigabyte."""
        self._head = None


def _beginning(path: Path) -> bytes:
    with open_plain(path) as stream:
        data = stream.read(HEAD)
        return _after_nuls(stream, path) if len(data) == HEAD and not data.strip(b"\0") else data


def _head_of(path: str, data: bytes) -> Head:
    coded = encoding(data)
    return Head(path, data, data.decode(coded or "utf-8", "replace"))


@dataclass
class Evidence:
    """The files of one run, and remarks on those left out."""

    name: str
    members: list[Member] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # (path, reason)
    notes: list[str] = field(default_factory=list)
    held: int = 0  # bytes of files' beginnings in memory
    unpacked: int = 0  # bytes written by archives so far, nested ones included

    def note(self, path: str, text: str) -> None:
        """Add a remark on an archive, listed among what was left out; of a hostile one's thousands the first hundred are kept."""
        if len(self.notes) < 100:
            self.notes.append(f"{path}: {text}")
            self.skipped.append((path, text))


@contextmanager
def gather(run: Path) -> Iterator[Evidence]:
    """List the evidence at `run`: a directory, a file or an archive.  Unpacked copies live as long as the context.

    Raises Unusable when there is nothing to read.
    """
    try:
        run.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise Unusable(f"{run}: no such file or directory; give a run's directory, one log file or an archive") from None
    except (OSError, ValueError) as error:
        raise Unusable(f"{run}: may not be read ({getattr(error, 'strerror', None) or error})") from None
    evidence = Evidence(run.resolve().name or "run")
    folders: list[Path] = []
    try:
        if run.is_dir():
            if not os.access(run, os.R_OK | os.X_OK):
                raise Unusable(f"{run}: may not be read; ask its owner, or run as a user who may")
            _walk(run, "", evidence, folders)
        elif not stat.S_ISREG(run.stat().st_mode):
            raise Unusable(f"{run}: neither a directory nor a regular file")
        elif not os.access(run, os.R_OK):
            raise Unusable(f"{run}: may not be read")
        elif is_archive(run):
            evidence.name = _stem(run.name)
            _expand(run, "", evidence, folders)
        else:
            _add(run, run.name, evidence)
        evidence.members.sort(key=lambda member: member.path)
        if not evidence.members:
            reason = "; ".join(f"{path}: {why}" for path, why in evidence.skipped[:3]) or "it is empty"
            raise Unusable(f"{run}: nothing to read ({reason}); give the directory that holds the run's logs")
        yield evidence
    finally:
        for folder in folders:
            remove(folder)


@contextmanager
def tails(evidence: Evidence, size: int) -> Iterator[Evidence]:
    """The same evidence with only the last `size` bytes of large plain files (and their first line, which may be a header).

    For a first look at a big run: line numbers in it are not those of the files.
    """
    folder = Path(tempfile.mkdtemp(prefix="forensics-"))
    try:
        short = Evidence(evidence.name, notes=list(evidence.notes))
        for number, member in enumerate(evidence.members):
            info = replace(member.info, notes=[])
            if info.size <= 2 * size or is_compressed(member.real):
                short.members.append(replace(member, info=info))
                continue
            target = folder / str(number)
            with member.real.open("rb") as source, target.open("wb") as out:
                out.write(source.readline(64 << 10))
                source.seek(-size, os.SEEK_END)
                source.readline(1 << 20)
                shutil.copyfileobj(source, out)
            info.size = target.stat().st_size
            short.members.append(Member(member.path, target, info, member.head))
        yield short
    finally:
        remove(folder)


def _stem(name: str) -> str:
    return re.sub(r"\.(?:tar|tgz|zip|tar\.\w+|tzst|txz|tbz2|gz|zst|xz|bz2)+$", "", name) or name


def _expand(path: Path, prefix: str, evidence: Evidence, folders: list[Path]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="forensics-"))
    folders.append(folder)
    limits = limits_in_force()
    limits = replace(limits, total=max(1, limits.total - evidence.unpacked))
    evidence.unpacked += unpack(path, folder, lambda text: evidence.note(prefix or path.name, text), limits)
    inner = folder
    if not prefix:
        # A tarball of one folder is that folder.
        while len(entries := list(inner.iterdir())) == 1 and entries[0].is_dir():
            inner = entries[0]
    _walk(inner, prefix, evidence, folders)


def _walk(top: Path, prefix: str, evidence: Evidence, folders: list[Path]) -> None:
    pending = [(top, prefix, 0)]
    seen: set[tuple[int, int]] = set()
    while pending:
        folder, path, depth = pending.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            evidence.skipped.append((path or ".", f"folder could not be read: {error.strerror}"))
            continue
        for entry in entries:
            name = f"{path}/{entry.name}" if path else entry.name
            if len(evidence.members) >= MAX_FILES:
                evidence.notes.append(f"more than {MAX_FILES} files; the rest were left out")
                return
            try:
                info = entry.stat()
            except OSError as error:
                evidence.skipped.append((name, f"could not be read: {error.strerror}"))
                continue
            if stat.S_ISDIR(info.st_mode):
                if entry.name in SKIPPED_FOLDERS or depth >= MAX_DEPTH or (info.st_dev, info.st_ino) in seen:
                    continue
                if entry.is_symlink():
                    evidence.skipped.append((name, "a link to a folder; not followed"))
                    continue
                seen.add((info.st_dev, info.st_ino))
                pending.append((Path(entry.path), name, depth + 1))
            elif not stat.S_ISREG(info.st_mode):
                evidence.skipped.append((name, "not a regular file"))
            else:
                _file(Path(entry.path), name, evidence, folders)


def _file(path: Path, name: str, evidence: Evidence, folders: list[Path]) -> None:
    suffix = path.suffix.lower()
    if suffix in SKIPPED:
        evidence.skipped.append((name, "weights, code or media, not a log"))
    elif (suffix in (".tar", ".zip", ".tgz", ".tzst", ".txz") or ".tar." in path.name.lower()) and is_archive(path) and name.count("!") < 2:
        _expand(path, f"{name}!", evidence, folders)
    else:
        _add(path, name, evidence)


def _add(path: Path, name: str, evidence: Evidence) -> None:
    try:
        details = path.stat()
        data = _beginning(path)
    except (OSError, EOFError, ValueError) as error:
        evidence.skipped.append((name, f"could not be read: {getattr(error, 'strerror', None) or error}"))
        return
    except Exception as error:  # a damaged stream of one of the compressors
        evidence.skipped.append((name, f"damaged compressed data: {error}"))
        return
    if not data:
        evidence.skipped.append((name, "empty"))
        return
    rank, host, attempt = names(name)
    info = FileInfo(name, details.st_size, rank=rank, host=host, attempt=attempt, modified=details.st_mtime)
    evidence.held += len(data)
    evidence.members.append(Member(name, path, info, _head_of(name, data) if evidence.held < HELD else None))


def _after_nuls(stream: io.BufferedIOBase, path: Path) -> bytes:
    """The head of what follows a file's leading NULs (a log cut at zero while its writer kept its place); the NULs where nothing does.

    Holes are jumped over where the file system tells them; of written NULs and compressed ones 8 GiB are looked through.
    """
    if not is_compressed(path):
        with contextlib.suppress(OSError, ValueError, AttributeError), path.open("rb") as plain:
            stream.seek(os.lseek(plain.fileno(), HEAD, os.SEEK_DATA))
    read = 0
    while read < NULS and (piece := stream.read(1 << 20)):
        read += len(piece)
        if text := piece.lstrip(b"\0"):
            return (text + stream.read(HEAD))[:HEAD] if len(text) < HEAD else text[:HEAD]
    return bytes(HEAD)


def is_text(data: bytes) -> bool:
    """Whether bytes look like a log: few control characters, or NULs only as padding of a text."""
    if encoding(data):
        return True
    sample = data[:8192].replace(b"\0", b"")
    if len(sample) < len(data[:8192]) * 0.3:
        return b"\n" in sample and len(sample) > 64
    odd = len(sample) - len(sample.translate(None, CONTROL))
    return odd <= len(sample) * 0.05


def names(path: str) -> tuple[int | None, str | None, int | None]:
    """(rank, host, attempt) as far as a path tells them."""
    rank = attempt = None
    if match := TORCHRUN.search(path):
        attempt = int(match[1])
    if not NODE_RANK.search(path) and not LOCAL_RANK.search(path):
        for part in reversed(path.split("/")):
            stem = re.sub(r"(?:\.(?:log|txt|out|err|gz|zst|xz|bz2|json|csv|jsonl))+$", "", part)
            found = next((m for pattern in RANK_NAMES if (m := pattern.search(stem))), None)
            if found:
                rank = int(found[1])
                break
    return rank, _host(path), attempt


def _host(path: str) -> str | None:
    """The host that a path names: folders from the top, then the words of the file name."""
    *folders, file = path.split("/")
    stem = re.sub(r"(?:\.(?:log|txt|out|err|gz|zst|xz|bz2|json|csv|jsonl|dmesg|iso))+$", "", file)
    words = [
        *folders,
        *(word for part in [stem, *stem.split(".")] for word in (LEAD.sub("", TAIL.sub("", part)), TAIL.sub("", part), part)),
    ]
    for word in words:
        if (
            HOST_NAME.fullmatch(word)
            and not NOT_HOST.fullmatch(word)
            and not (GPU_NUMBER.fullmatch(word) and not re.search(r"\D0\d", word))
        ):
            return word
    return None
