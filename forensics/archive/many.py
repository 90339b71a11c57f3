"""`analyze_many`: the runs below some roots as an iterator of results, for programs that want no files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.archive.bulk import Options, find, memory_share
from forensics.archive.pool import Outcome, Pool

WORK = "forensics.archive.work:document"
HELD = 64  # results that may wait for an earlier one


@dataclass(slots=True)
class Result:
    """One run.  path: below `root`, `archive!inner` inside an archive of several runs.

    document: the post-mortem (schema `forensics.postmortem/1`), or None with `kind` and `reason`: died, timeout, memory, error, unusable,
    unreadable, left.
    """

    path: str
    root: str
    document: dict[str, Any] | None = None
    kind: str = ""
    reason: str = ""


def analyze_many(
    roots: str | Path | Sequence[str | Path],
    *,
    jobs: int | None = None,
    timeout: float | None = 600.0,
    memory: int | None = None,
    run_glob: str | None = None,
    lang: str = "en",
    tz: str | None = None,
    rules: tuple[str, ...] | list[str] = (),
    redact: bool = True,
    hide_hosts: bool = False,
) -> Iterator[Result]:
    """Analyse every run below the roots in processes of their own; results come in order of path, those that failed among them.

    The options are those of `forensics.analyze` and of `forensics bulk`.  Leaving the loop early ends the processes.
    Raises `forensics.Unusable` where a root does not exist or holds no run.
    """
    options = Options(lang, tz, tuple(map(str, rules)), redact, hide_hosts, run_glob)
    items, left = find([roots] if isinstance(roots, str | Path) else roots, None, options)
    jobs = jobs or os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="forensics-many-") as scratch, Pool(jobs, timeout, memory or memory_share(jobs), WORK) as pool:
        yield from (Result(path, "", None, kind, reason) for path, kind, reason in left)
        yield from _Queue(pool, Path(scratch), options).results(
            [
                {
                    "key": item.key, "root": item.root, "kind": item.found.kind, "path": item.found.path or item.label, "folder": item.found.path,
                    "files": [path for path, _ in item.found.files], "run": item.run, "of": item.root,
                }
                for item in items
            ]
        )  # fmt: skip


class _Queue:
    """Hands out tasks and gives results back in the tasks' order; an archive of several runs becomes a task for each."""

    def __init__(self, pool: Pool, scratch: Path, options: Options):
        self.pool, self.scratch, self.options = pool, scratch, options
        self.number = 0
        self.order: list[str] = []
        self.ready: dict[str, list[Result]] = {}
        self.waiting: deque[dict[str, Any]] = deque()
        self.staged: dict[str, set[str]] = {}

    def results(self, tasks: list[dict[str, Any]]) -> Iterator[Result]:
        self.waiting.extend(tasks)
        self.order = [task["key"] for task in tasks]
        while self.order:
            while self.waiting and self.pool.room > 0 and (len(self.ready) < HELD or self.pool.idle):
                self.pool.submit(self._fill(self.waiting.popleft()))
            for outcome in self.pool.collect():
                self._settle(outcome)
            while self.order and self.order[0] in self.ready:
                yield from self.ready.pop(self.order.pop(0))

    def _fill(self, task: dict[str, Any]) -> dict[str, Any]:
        self.number += 1
        options = self.options
        return {
            **task, "out": "", "scratch": str(self.scratch / f"task-{self.number}"), "staged": str(self.scratch / f"staged-{self.number}"), "known": None,
            "link": False, "glob": None, "lang": options.lang, "tz": options.tz, "rules": list(options.rules), "redact": options.redact,
            "hide_hosts": options.hide_hosts,
        }  # fmt: skip

    def _settle(self, outcome: Outcome) -> None:
        task, value = outcome.task, outcome.value
        shutil.rmtree(task["scratch"], ignore_errors=True)
        if value is not None and "fatal" in value:
            outcome.fault, outcome.reason, value = "error", value["fatal"], None
        if value is not None and value.get("parts"):
            keys = [f"{task['key']}!{part['path']}" for part in value["parts"]]
            place = self.order.index(task["key"])
            self.order[place : place + 1] = keys
            parts = [
                {**part, "folder": part["path"], "path": f"{task['path']}!{part['path']}", "key": key, "of": task["of"]}
                for part, key in zip(value["parts"], keys, strict=True)
            ]
            self.waiting.extendleft(reversed(parts))
            self.staged[task["staged"]] = set(keys)
            return
        if value is None:
            self.ready[task["key"]] = [Result(task["path"], task["of"], None, outcome.fault, outcome.reason)]
        else:
            lost = [] if value["runs"] else value["left"]
            self.ready[task["key"]] = [Result(record["path"], task["of"], record["document"]) for record in value["runs"]]
            self.ready[task["key"]] += [Result(path, task["of"], None, kind, reason) for path, kind, reason in lost]
        for folder, missing in list(self.staged.items()):
            missing.discard(task["key"])
            if not missing:
                shutil.rmtree(folder, ignore_errors=True)
                del self.staged[folder]
