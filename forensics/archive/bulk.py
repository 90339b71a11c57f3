"""`bulk`: every run below some roots -> reports, tables and the fleet page in one folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forensics
from forensics.archive.collect import collect
from forensics.archive.discover import Found, discover
from forensics.archive.journal import Journal
from forensics.archive.names import assign
from forensics.archive.pool import WORK, Outcome, Pool
from forensics.archive.tables import partition
from forensics.archive.trees import LocalTree, StoreTree, open_tree
from forensics.evidence import Unusable

# Kinds of what was left out that mean a run may be missing from the tables.
LOST = frozenset({"died", "timeout", "memory", "error", "unusable", "unreadable", "pending"})
Ticker = Callable[[int, int, str], None]  # (things done, things known, path of the last)
Engine = Callable[["deque[dict[str, Any]]"], Iterator[Outcome | None]]


@dataclass
class Options:
    """How runs are analysed; the same as of `forensics.analyze`, and the pattern that names runs."""

    lang: str = "en"
    tz: str | None = None
    rules: tuple[str, ...] = ()
    redact: bool = True
    hide_hosts: bool = False
    run_glob: str | None = None

    def key(self) -> str:
        """Changes when results would: with an option, a pack of rules or the program itself."""
        whole = hashlib.blake2b(digest_size=8)
        whole.update(json.dumps([forensics.__version__, *vars(self).values()], sort_keys=True).encode())
        home = Path(forensics.__file__).resolve().parent.parent
        folders = [home / name for name in ("forensics", "parsers", "rules")]
        files = [file for folder in folders for suffix in ("*.py", "*.toml", "*.j2", "*.js", "*.css") for file in folder.rglob(suffix)]
        for pack in map(Path, self.rules):
            files += sorted(pack.rglob("*.toml")) if pack.is_dir() else [pack]
        for file in sorted(files):
            whole.update(file.read_bytes() if file.exists() else b"")
        return whole.hexdigest()


@dataclass
class Item:
    """A thing found, with its name and what decides whether earlier results of it hold."""

    root: str
    label: str
    found: Found
    run: str
    stamp: str

    @property
    def key(self) -> str:
        """The item's key in the journal."""
        return f"{self.root}|{self.found.kind}|{self.found.path}"


@dataclass
class Summary:
    """What came of it.  `left` counts the lines of skipped.jsonl by kind; `fatal` tells why the output could not be written."""

    runs: int = 0
    reused: int = 0
    left: Counter[str] = field(default_factory=Counter)
    interrupted: bool = False
    fatal: str | None = None

    @property
    def status(self) -> int:
        """0: everything found was analysed; 1: a run may be missing; 130: interrupted."""
        if self.interrupted:
            return 130
        return 1 if self.fatal or any(self.left[kind] for kind in LOST) else 0


def bulk(
    roots: Sequence[str | Path],
    out: str | Path,
    *,
    jobs: int | None = None,
    engine: str = "local",
    resume: bool = False,
    timeout: float | None = 600.0,
    memory: int | None = None,
    options: Options | None = None,
    tick: Ticker | None = None,
    work: str = WORK,
) -> Summary:
    """Analyse every run below `roots` (folders, files, archives, URLs of object stores) into the folder `out`.

    jobs: processes at once, default the number of CPUs.  timeout: seconds for one run.  memory: bytes for one worker, default four fifths
    of the machine's shared among the jobs.  resume: keep results whose evidence has not changed.  engine: `local` or `ray`.
    Raises Unusable where a root does not exist or nothing is found.  An interrupt ends the work and still writes the tables.
    """
    options = options or Options()
    target = Path(out)
    items, left = find(roots, target, options)
    jobs = jobs or os.cpu_count() or 1
    (target / "reports").mkdir(parents=True, exist_ok=True)
    key = options.key()
    with Journal(target / ".forensics" / "journal.jsonl", resume) as journal, _scratch(target, engine) as scratch:
        boss = _Boss(journal, key, options, target, scratch, left, tick)
        if engine == "ray":
            from forensics.archive.ray_engine import ray_engine

            run: Engine = ray_engine(timeout, memory or memory_share(os.cpu_count() or 1), work)
        elif engine == "local":
            run = local_engine(jobs, timeout, memory or memory_share(jobs), work)
        else:
            raise Unusable(f"{engine}: the engines are local and ray")
        boss.work(items, run)
        try:
            boss.summary.runs = collect(target, journal, boss.kept, boss.skipped(), options.lang)
            if engine == "ray":
                partition(target)
        except OSError as error:
            boss.summary.fatal = boss.summary.fatal or f"{error.filename or target}: {error.strerror or error}"
        return boss.summary


def find(roots: Sequence[str | Path], out: Path | None, options: Options) -> tuple[list[Item], list[tuple[str, str, str]]]:
    """The items below all roots with their names, and what was left out: (path, kind, reason)."""
    without = (out,) if out else ()
    pairs: list[tuple[LocalTree | StoreTree, Found]] = []
    left: list[tuple[str, str, str]] = []
    for root in dict.fromkeys(str(root) for root in roots):
        tree = LocalTree(Path(root).resolve(), without) if "://" not in root else open_tree(root)
        if isinstance(tree, LocalTree) and not tree.path.exists():
            raise Unusable(f"{root}: no such file or directory")
        found = discover(tree, options.run_glob)
        pairs += [(tree, one) for one in found.runs]
        for path, reason in found.left:
            left.append((path, "left" if reason.startswith("belongs") or "no file" in reason else "unreadable", reason))
    if not pairs:
        why = f" ({left[0][0]}: {left[0][2]})" if left else ""
        raise Unusable(
            f"{', '.join(map(str, roots))}: no run found{why}; give directories that hold runs' logs, or name the runs with --run-glob"
        )
    several = len({tree.uri for tree, _ in pairs}) > 1
    bases = [tree.uri.rstrip("/").rpartition("/")[2] for tree, _ in pairs]
    paths = [f"{base}/{one.path}" if one.path and several else one.path or base for base, (_, one) in zip(bases, pairs, strict=True)]
    return [Item(tree.uri, base, one, name, _stamp(one)) for (tree, one), base, name in zip(pairs, bases, assign(paths), strict=True)], left


def local_engine(jobs: int, timeout: float | None, memory: int | None, work: str) -> Engine:
    """Runs tasks in processes of this machine."""

    def run(tasks: deque[dict[str, Any]]) -> Iterator[Outcome | None]:
        with Pool(jobs, timeout, memory, work) as pool:
            while tasks or not pool.idle:
                while tasks and pool.room > 0:
                    pool.submit(tasks.popleft())
                ended = pool.collect()
                yield from ended
                if not ended:
                    yield None

    return run


def memory_share(jobs: int) -> int | None:
    """Four fifths of the memory this process may have (machine or control group), for each of `jobs`; at least 1 GiB."""
    total = None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            value = Path(path).read_text().strip()
        except OSError:
            continue
        if value.isdigit():
            total = int(value)
            break
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1 << 30, min(total or physical, physical) * 4 // 5 // jobs)


@contextmanager
def _scratch(out: Path, engine: str) -> Iterator[Path]:
    # Nodes of a cluster share the output folder, not their temporary folders.
    folder = out / ".forensics" / "scratch" if engine == "ray" else Path(tempfile.mkdtemp(prefix="forensics-bulk-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stamp(found: Found) -> str:
    return hashlib.blake2b(json.dumps(found.files).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


class _Boss:
    """Hands out tasks, writes down what became of them, and knows which results stand."""

    def __init__(
        self, journal: Journal, key: str, options: Options, out: Path, scratch: Path, left: list[tuple[str, str, str]], tick: Ticker | None
    ):
        self.journal, self.key, self.options, self.out, self.scratch, self.left, self.tick = journal, key, options, out, scratch, left, tick
        self.summary = Summary()
        self.kept: list[str] = []  # keys of the journal whose lines make up the result
        self.pending: dict[str, Item] = {}
        self.open: dict[str, dict[str, Any]] = {}  # archives whose runs are being done
        self.tasks: deque[dict[str, Any]] = deque()
        self.number = self.done = self.known = 0

    def work(self, items: list[Item], engine: Engine) -> None:
        """Do all items; on an interrupt or a full disk what is done stays done."""
        self.known = len(items)
        for item in items:
            if not self._reuse(item):
                self.pending[item.key] = item
                self.tasks.append(self._task(item))
        try:
            for outcome in engine(self.tasks) if self.tasks else ():
                if outcome is not None:
                    self._settle(outcome)
                    if self.summary.fatal:
                        break
                self._say(outcome.task["path"] if outcome else "")
        except KeyboardInterrupt:
            self.summary.interrupted = True
        except OSError as error:  # the journal cannot be written
            self.summary.fatal = f"{error.filename or self.out}: {error.strerror or error}"

    def skipped(self) -> list[dict[str, str]]:
        """The lines of skipped.jsonl, in order."""
        lines = [{"path": path, "kind": kind, "reason": reason} for path, kind, reason in self.left]
        for line in self.journal.lines(self.kept):
            lines += [{"path": path, "kind": kind, "reason": reason} for path, kind, reason in line["left"]]
        waits = "the output could not be written" if self.summary.fatal else "interrupted before its turn; --resume goes on with it"
        lines += [{"path": item.found.path or item.label, "kind": "pending", "reason": waits} for item in self.pending.values()]
        lines.sort(key=lambda line: (line["path"], line["kind"], line["reason"]))
        self.summary.left = Counter(line["kind"] for line in lines)
        return lines

    def _say(self, path: str) -> None:
        if self.tick:
            self.tick(self.done, self.known, path)

    def _reuse(self, item: Item) -> bool:
        entry = self.journal.entries.get(item.key)
        if entry is None or entry.options != self.key or entry.failed or entry.stamp != item.stamp:
            return False
        keys = [item.key, *entry.parts]
        runs = [run for key in keys if key in self.journal.entries for run in self.journal.entries[key].runs]
        whole = all(key in self.journal.entries and not self.journal.entries[key].failed for key in keys)
        if not whole or not self._written(runs) or any(not run.startswith(item.run) for run in runs):
            return False
        self.kept += keys
        self.summary.reused += max(1, len(runs))
        self.done += 1
        return True

    def _written(self, runs: list[str]) -> bool:
        return all((self.out / "reports" / f"{run}{suffix}").is_file() for run in runs for suffix in (".html", ".json"))

    def _task(self, item: Item) -> dict[str, Any]:
        entry = self.journal.entries.get(item.key)
        known = (
            entry.hash
            if entry and entry.options == self.key and not entry.failed and not entry.parts and self._written(list(entry.runs))
            else None
        )
        known = known if entry and entry.runs == (item.run,) else None
        inside = "://" not in item.root and (Path(item.root) / item.found.path) in [self.out.resolve(), *self.out.resolve().parents]
        return self._fill(
            {
                "key": item.key,
                "root": item.root,
                "kind": item.found.kind,
                "path": item.found.path or item.label,
                "folder": item.found.path,
                "files": [path for path, _ in item.found.files],
                "run": item.run,
                "known": known,
                "link": inside,
                "stamp": item.stamp,
                "size": item.found.size,
                "of": None,
            }
        )

    def _fill(self, task: dict[str, Any]) -> dict[str, Any]:
        self.number += 1
        options = self.options
        return {
            **task,
            "out": str(self.out.resolve()),
            "scratch": str(self.scratch / f"task-{self.number}"),
            "staged": str(self.scratch / f"staged-{self.number}"),
            "glob": options.run_glob if task["kind"] != "archive" else None,
            "lang": options.lang,
            "tz": options.tz,
            "rules": list(options.rules),
            "redact": options.redact,
            "hide_hosts": options.hide_hosts,
        }

    def _settle(self, outcome: Outcome) -> None:
        task = outcome.task
        shutil.rmtree(task["scratch"], ignore_errors=True)
        value = outcome.value or {"runs": [], "left": [[task["path"], outcome.fault, outcome.reason]]}
        if value.get("fatal"):
            self.summary.fatal = value["fatal"]
            return
        if value.get("unchanged"):
            line = {**self.journal.read(task["key"]), "stamp": task["stamp"]}
            self.journal.add(line)
            self._finish(task)
            self.summary.reused += 1
            return
        if value.get("parts"):
            self._open(task, value)
            return
        for record in value["runs"]:
            record["root"] = task["root"] if task["of"] is None else self.open[task["of"]]["task"]["root"]
        self.journal.add({**self._line(task), "hash": value.get("hash"), "runs": value["runs"], "left": value["left"]})
        self._finish(task)

    def _line(self, task: dict[str, Any]) -> dict[str, Any]:
        return {"key": task["key"], "stamp": task["stamp"], "options": self.key}

    def _open(self, task: dict[str, Any], value: dict[str, Any]) -> None:
        """Hand out the runs of an unpacked archive, those of an earlier, interrupted time excepted."""
        keys = []
        todo = []
        for part in value["parts"]:
            key = f"{task['key']}!{part['path']}"
            keys.append(key)
            entry = self.journal.entries.get(key)
            if (
                entry
                and (entry.stamp, entry.options, entry.failed, entry.runs) == (task["stamp"], self.key, False, (part["run"],))
                and self._written([part["run"]])
            ):
                self.kept.append(key)
                self.summary.reused += 1
                continue
            inner = self._fill({**part, "key": key, "known": None, "link": False, "stamp": task["stamp"], "of": task["key"], "size": 0})
            todo.append({**inner, "folder": part["path"], "path": f"{task['path']}!{part['path']}"})
        self.open[task["key"]] = {"task": task, "value": value, "keys": keys, "missing": {one["key"] for one in todo}}
        self.known += len(keys) - 1
        self.done += len(keys) - len(todo)
        self.tasks.extendleft(reversed(todo))
        if not todo:
            self._close(task["key"])

    def _finish(self, task: dict[str, Any]) -> None:
        self.kept.append(task["key"])
        self.done += 1
        if task["of"] is None:
            self.pending.pop(task["key"], None)
            return
        above = self.open[task["of"]]
        above["missing"].discard(task["key"])
        if not above["missing"]:
            self._close(task["of"])

    def _close(self, key: str) -> None:
        above = self.open.pop(key)
        shutil.rmtree(above["task"]["staged"], ignore_errors=True)
        value = above["value"]
        self.journal.add(
            {**self._line(above["task"]), "hash": value.get("hash"), "runs": [], "left": value["left"], "parts": above["keys"]}
        )
        self.kept.append(key)
        self.pending.pop(key, None)
