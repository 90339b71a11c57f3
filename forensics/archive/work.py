"""What a worker does with one task: fetch or unpack the evidence, analyse it, write its two reports, return its rows."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from forensics import crowd
from forensics.analysis import analyze
from forensics.archive.discover import Found, discover
from forensics.archive.names import assign, stem
from forensics.archive.rows import finding_rows, run_row
from forensics.archive.trees import LocalTree, StoreTree, open_tree
from forensics.evidence import Unusable
from forensics.files import write_text
from forensics.unpack import is_archive, unpack

PLOTLY = "plotly.min.js"
# Errors of the place that is written to, not of the run.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


class OutputFault(Exception):
    """The output (or the temporary folder) cannot be written: no run can be done."""


def handle(task: dict[str, Any]) -> dict[str, Any]:
    """Do one task.

    task: root (path or URL), kind, path, files, run (id of the run), scratch (folder for temporary copies, emptied by the parent),
    out (folder with `reports/`), staged (folder for archives of several runs), known (content hash that makes the task void), link (copy
    by links what the run is made of), and the options of `forensics.analyze`.
    Returns `hash` and one of: `unchanged`; `runs` with rows; `parts`, the runs of an unpacked archive to be handled as tasks of their own;
    plus `left`, (path, kind, reason) of what could not be read, or `fatal` where the output cannot be written.
    """
    scratch = Path(task["scratch"])
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(scratch)
        crowd.processes = 1  # the other processors have runs of their own
        return _handle(task, scratch)
    except OutputFault as fault:
        return {"fatal": str(fault)}
    except OSError as error:
        if error.errno in FULL:
            return {"fatal": f"{error.filename or scratch}: {error.strerror}"}
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def document(task: dict[str, Any]) -> dict[str, Any]:
    """The same without reports and rows: `runs` hold the post-mortem documents."""
    return handle({**task, "document": True})


def _handle(task: dict[str, Any], scratch: Path) -> dict[str, Any]:
    tree = open_tree(task["root"])
    digest = content_hash(tree, task["files"]) if isinstance(tree, LocalTree) else None
    if digest and digest == task.get("known"):
        return {"hash": digest, "unchanged": True}
    answer: dict[str, Any] = {"hash": digest, "runs": [], "left": []}
    try:
        place = _place(tree, task, scratch)
        if task["kind"] == "archive" and is_archive(place):
            _archive(place, task, answer, scratch)
        else:
            answer["runs"].append(_analyse(place, task, task["run"], task["path"], []))
    except Unusable as error:
        answer["left"].append([task["path"], "unusable", str(error).replace(str(scratch), "").removeprefix(str(tree.uri)).lstrip("/: ")])
    return answer


def content_hash(tree: LocalTree, files: list[str]) -> str | None:
    """A hash over the content and the names of files; None where one cannot be read."""
    whole = hashlib.blake2b(digest_size=16)
    try:
        for path in files:
            whole.update(f"{path}\0{tree.digest(path)}\n".encode("utf-8", "surrogateescape"))
    except OSError:
        return None
    return whole.hexdigest()


def _place(tree: LocalTree | StoreTree, task: dict[str, Any], scratch: Path) -> Path:
    """The evidence as a local path: where it lies, or a folder with the run's files alone."""
    kind: str = task["kind"]
    path: str = task["folder"]
    files: list[str] = task["files"]
    if isinstance(tree, LocalTree):
        if kind == "archive" or (kind == "files" and len(files) == 1):
            return tree.real(files[0])
        if kind == "folder" and not task.get("link"):
            return tree.path / path
    name = Path(path).name or Path(task["root"].rstrip("/")).name or "run"
    folder = scratch / "evidence" / name
    top = path if kind == "folder" else os.path.commonpath([os.path.dirname(file) for file in files])
    try:
        tree.fetch(files, folder)
    except OSError as error:
        if error.errno in FULL:
            raise OutputFault(f"{scratch}: {error.strerror}") from error
        raise Unusable(f"{path}: could not be fetched ({error.strerror or error})") from error
    except Exception as error:  # every store has errors of its own
        raise Unusable(f"{path}: could not be fetched ({type(error).__name__}: {error})") from error
    if len(files) == 1 and kind != "folder":
        return folder / files[0]
    if kind == "folder":
        return folder / top
    named = scratch / "run" / stem(name)  # a run made of files is called after its log, not after the folder they lie in
    named.parent.mkdir()
    return Path(shutil.move(folder / top, named))


def _archive(place: Path, task: dict[str, Any], answer: dict[str, Any], scratch: Path) -> None:
    """Unpack an archive; analyse the one run in it, or leave several where the parent can hand them out."""
    notes: list[str] = []
    folder = scratch / "unpacked" / stem(place.name)
    folder.mkdir(parents=True)
    unpack(place, folder, notes.append)
    full = [note for note in notes if os.strerror(errno.ENOSPC) in note or os.strerror(errno.EDQUOT) in note]
    if full:
        raise OutputFault(f"{scratch}: {os.strerror(errno.ENOSPC)}")
    found = discover(LocalTree(folder), task.get("glob"))
    path = task["path"]
    if not found.runs and not notes and found.left:
        answer["left"].append([path, "left", "holds no log of a run"])
        return
    if not found.runs:
        why = "; ".join(notes[:3]) or "; ".join(f"{name}: {reason}" for name, reason in found.left[:3]) or "no log in it"
        raise Unusable(f"{path}: nothing to read ({why})")
    answer["left"] += [[f"{path}!{name}", "left", reason] for name, reason in found.left]
    answer["left"] += [[path, "partly", note] for note in notes]
    if len(found.runs) == 1:
        answer["runs"].append(_inner(folder, found.runs[0], task, task["run"], path, notes, scratch))
        return
    staged = Path(task["staged"])
    staged.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(staged, ignore_errors=True)
    shutil.move(str(folder), str(staged))
    names = assign([run.path for run in found.runs], task["run"])
    answer["parts"] = [
        {"root": str(staged), "kind": run.kind, "path": run.path, "files": [name for name, _ in run.files], "run": name}
        for run, name in zip(found.runs, names, strict=True)
    ]


def _inner(folder: Path, found: Found, task: dict[str, Any], run: str, path: str, notes: list[str], scratch: Path) -> dict[str, Any]:
    inner = {
        **task,
        "root": str(folder),
        "kind": found.kind,
        "folder": found.path,
        "files": [name for name, _ in found.files],
        "link": False,
    }
    return _analyse(_place(LocalTree(folder), inner, scratch), task, run, path, notes)


def _analyse(place: Path, task: dict[str, Any], run: str, path: str, notes: list[str]) -> dict[str, Any]:
    from forensics.report.html import render_html

    report = analyze(place, lang=task["lang"], tz=task["tz"], rules=task["rules"], redact=task["redact"], hide_hosts=task["hide_hosts"])
    assert report.model is not None
    if task.get("document"):
        return {"run": run, "path": path, "document": report.to_dict()}
    reports = Path(task["out"]) / "reports"
    try:
        write_text(reports / f"{run}.html", render_html(report.model, task["lang"], plotly_at=f"../assets/{PLOTLY}"))
        write_text(reports / f"{run}.json", report.to_json())
    except OSError as error:
        raise OutputFault(f"{reports}: {error.strerror or error}") from error
    return {"run": run, "path": path, "row": {**run_row(report), "notes": notes[:8]}, "findings": finding_rows(report)}
