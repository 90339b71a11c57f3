"""`collect`: every item into one folder or archive, with a list of what could not be had."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from forensics.collecting import system, versions
from forensics.collecting.commands import ask
from forensics.collecting.items import Item, items
from forensics.evidence import Unusable
from parsers.collection import HEADER

ARCHIVE = re.compile(r"\.(?:tar|tar\.gz|tgz|tar\.xz|txz|tar\.bz2|tbz2)\Z")
MANIFEST = "collected.json"


@dataclass
class Collection:
    """What was gathered: `path` the folder or archive, `files` relative to it, `notes` (file, reason) for what is missing."""

    path: Path
    files: list[str] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)


def collect(
    out: str | Path | None = None,
    *,
    python: str | None = None,
    pids: tuple[int, ...] = (),
    redact: bool = True,
    part: str = "",
    progress: Callable[[str], None] | None = None,
) -> Collection:
    """Gather the host evidence of this machine.

    out: a folder (each host gets a folder of its own inside) or an archive name (.tar .tar.gz .tgz .tar.xz .tar.bz2); default a new
    folder in the current directory.  python: the interpreter to ask for package versions.  pids: processes to look at besides those
    that look like training.  redact: take secrets out of command lines and outputs.  part: a folder below the host's; with it only
    what changes during a run is gathered.  Raises Unusable where the output cannot be used.
    """
    now = datetime.now().astimezone()
    host = _safe(os.uname().nodename) or "host"
    target = Path(out) if out is not None else Path(f"forensics-{host}-{now:%Y%m%d-%H%M%S}")
    below = f"{host}/{part}/" if part else f"{host}/"
    archive = ARCHIVE.search(target.name) is not None
    if target.exists() and archive:
        raise Unusable(f"{target}: exists already; choose another name")
    if not archive and target.exists() and not target.is_dir():
        raise Unusable(f"{target}: is a file; name a folder or an archive such as {target}.tar.gz")
    if not archive and (target / below / MANIFEST).exists():
        raise Unusable(f"{target / below}: holds a collection already; choose another folder")
    found = Collection(target)
    contents: dict[str, bytes] = {}
    known = system.training_processes()
    listed = tuple(dict.fromkeys([*pids, *known]))
    for name, data, note in _gather(listed, python, bool(part), now, progress):
        if data:
            contents[below + name] = _redacted(data) if redact else data
        if note:
            found.notes.append((name, note))
    contents[below + MANIFEST] = _manifest(host, now, contents, found.notes, below)
    found.files = sorted(contents)
    (_pack if archive else _lay)(target, contents)
    return found


def _gather(
    pids: tuple[int, ...], python: str | None, changing: bool, now: datetime, progress: Callable[[str], None] | None
) -> Iterator[tuple[str, bytes, str]]:
    """(file, content, note) of every item; tools are asked at the same time, since a dying GPU makes each of them slow."""
    wanted = [item for item in items(os.environ) if item.after or not changing]
    with ThreadPoolExecutor(8) as pool:
        answers = [(item, pool.submit(_one, item)) for item in wanted]
        asked = None if changing else pool.submit(ask, versions.command(python or versions.interpreter(pids)), 120.0)
        for item, answer in answers:
            if progress:
                progress(item.file)
            data, note = answer.result()
            yield item.file, data, note
        if asked is not None:
            told = asked.result()
            yield "versions.txt", _headed("versions", told.output), f"{told.note} (torch and package versions)" if told.note else ""
    yield "machine.txt", _headed("machine", system.machine(now).encode()), ""
    for name, value, why in (
        ("swappiness.txt", system.swappiness(), "vm.swappiness"),
        ("cgroup.txt", system.container(), "limits of the container"),
        ("environment.txt", system.environment() or None, "NCCL and CUDA settings of this shell"),
    ):
        yield name, _headed(name.removesuffix(".txt"), (value or "").encode()), "" if value else f"not to be read here ({why})"
    for pid in pids:
        for name, content in system.process_files(pid).items():
            data = content.encode("utf-8", "replace")
            yield f"proc/{pid}/{name}.txt", _headed("environ", data) if name == "environ" else data, ""
    if not pids:
        yield "proc", b"", "no process that looks like training was running"


def _headed(what: str, data: bytes) -> bytes:
    """Content of a form of our own, with the line by which parsers/collection.py knows it; empty content stays empty."""
    return f"{HEADER}{what}\n".encode() + data if data.strip() else b""


def _one(item: Item) -> tuple[bytes, str]:
    """An item's content and note: the first command that answers."""
    note, said = "", b""
    for command in item.commands:
        answer = ask(command, item.timeout)
        if not answer.note and answer.output.strip():
            return answer.output, ""
        if item.talks and answer.status and not said:
            said = answer.output + answer.errors  # "Failed to initialize NVML ..." is a finding of its own
        if not note or note == "not installed":
            note = answer.note or "printed nothing"
    return said, f"{note} ({item.why})"


def _redacted(data: bytes) -> bytes:
    from forensics.redact import Redactor

    take = Redactor().text
    return "\n".join(take(line) for line in data.decode("utf-8", "replace").split("\n")).encode()


def _manifest(host: str, now: datetime, contents: dict[str, bytes], notes: list[tuple[str, str]], below: str) -> bytes:
    import forensics

    covers = {item.file: list(item.covers) for item in items(os.environ)}
    document = {
        "schema": "forensics.collection/1",
        "version": forensics.__version__,
        "host": host,
        "collected": now.isoformat(timespec="seconds"),
        "files": [
            {"file": name[len(below) :], "bytes": len(data), "covers": covers.get(name[len(below) :], [])}
            for name, data in sorted(contents.items())
        ],
        "notes": [{"file": name, "note": note} for name, note in notes],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _lay(target: Path, contents: dict[str, bytes]) -> None:
    from forensics.files import write_whole

    for name, data in contents.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda place, data=data: place.write_bytes(data))  # type: ignore[misc]


def _pack(target: Path, contents: dict[str, bytes]) -> None:
    from forensics.files import write_whole

    kind = {"gz": "gz", "tgz": "gz", "xz": "xz", "txz": "xz", "bz2": "bz2", "tbz2": "bz2"}.get(target.suffix[1:], "")
    stem = ARCHIVE.sub("", target.name)
    stamp = datetime.now().timestamp()

    def write(place: Path) -> None:
        with tarfile.open(place, f"w:{kind}") as tar:  # type: ignore[call-overload]
            for name, data in contents.items():
                entry = tarfile.TarInfo(f"{stem}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), stamp, 0o644
                tar.addfile(entry, io.BytesIO(data))

    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, write)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name.split(".")[0])[:63]
