"""A pool of worker processes that outlives its workers: one task each, a time limit, a memory limit, nothing shared.

Every worker is a fresh interpreter on a socket of its own, so a worker that is killed, hangs or eats memory costs its task and nothing
else: there is no common queue or lock that it could take with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

WORK = "forensics.archive.work:handle"
POLL = 0.1  # seconds between looks at the workers' memory and clocks
START_LIMIT = 120.0  # seconds a worker may take to start
GROWN = 3 << 29  # bytes of a worker at rest (1.5 GiB) at which it is replaced by a fresh one
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Outcome:
    """What became of a task: its value, or why there is none.  fault: `died`, `timeout`, `memory` or `error`."""

    task: dict[str, Any]
    value: dict[str, Any] | None = None
    fault: str = ""
    reason: str = ""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    line: Connection
    born: float
    ready: bool = False
    task: dict[str, Any] | None = None
    since: float = 0.0


class BrokenPool(RuntimeError):
    """Workers cannot be started at all."""


@dataclass
class Pool:
    """jobs: workers at once.  timeout: seconds one task may take, None = no limit.  memory: bytes one worker may use.

    work: `module:function`, called with the task (JSON-ready dict), returning a JSON-ready dict.  Use as a context manager.
    """

    jobs: int
    timeout: float | None = None
    memory: int | None = None
    work: str = WORK
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting: deque[dict[str, Any]] = deque()
        self.workers: list[_Worker] = []
        self.stillborn = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, task: dict[str, Any]) -> None:
        """Queue a task."""
        self.waiting.append(task)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or running."""
        return not self.waiting and not any(worker.task is not None for worker in self.workers)

    @property
    def room(self) -> int:
        """How many more tasks may be queued to keep every worker busy."""
        return 2 * self.jobs - len(self.waiting)

    def collect(self) -> list[Outcome]:
        """Hand out tasks, wait a moment, and return what has ended since; an empty list where nothing has."""
        self._staff()
        ended: list[Outcome] = []
        ready = wait([worker.line for worker in self.workers], POLL) if self.workers else []
        for worker in list(self.workers):
            if worker.line in ready:
                ended += self._hear(worker)
        for worker in list(self.workers):
            ended += self._check(worker)
        return ended

    def close(self) -> None:
        """End every worker at once."""
        for worker in self.workers:
            self._end(worker)
        self.workers = []

    def _staff(self) -> None:
        busy = sum(worker.task is not None for worker in self.workers)
        while len(self.workers) < min(self.jobs, busy + len(self.waiting)):
            self.workers.append(self._start())
        for worker in self.workers:
            if worker.ready and worker.task is None and self.waiting:
                task = self.waiting.popleft()
                try:
                    worker.line.send_bytes(json.dumps(task).encode())
                except OSError:  # it died at rest: its end is noticed below, the task is still ours
                    self.waiting.appendleft(task)
                    continue
                worker.task, worker.since = task, time.monotonic()

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        limit = self.memory + (self.memory >> 1) if self.memory else 0
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "forensics.archive.worker", str(theirs.fileno()), self.work, str(limit)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C on the terminal is for the parent alone
                env={**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **self.environment},
            )
        return _Worker(process, Connection(ours.detach()), time.monotonic())

    def _hear(self, worker: _Worker) -> list[Outcome]:
        try:
            message = json.loads(worker.line.recv_bytes())
        except (OSError, EOFError, ValueError):
            return self._lost(worker)
        if not worker.ready:
            worker.ready, self.stillborn = True, 0
            return []
        task, worker.task = worker.task, None
        if task is None:
            return []
        if _memory(worker.process.pid) > GROWN:
            self._retire(worker)
        if "error" in message:
            return [Outcome(task, fault=message.get("fault", "error"), reason=message["error"])]
        return [Outcome(task, message["value"])]

    def _lost(self, worker: _Worker) -> list[Outcome]:
        try:
            code = worker.process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        self._retire(worker)
        if not worker.ready:
            self.stillborn += 1
            if self.stillborn > 3 + self.jobs:
                raise BrokenPool(f"workers end as they start (exit status {code})")
        if worker.task is None:
            return []
        names = {number.value: number.name for number in signal.Signals}
        how = f"signal {names.get(-code, -code)}" if code is not None and code < 0 else f"exit status {code}"
        return [Outcome(worker.task, fault="died", reason=f"the worker process died ({how})")]

    def _check(self, worker: _Worker) -> list[Outcome]:
        now = time.monotonic()
        if worker not in self.workers:
            return []
        if not worker.ready:
            if now - worker.born > START_LIMIT:
                self._retire(worker)
                self.stillborn += 1
                if self.stillborn > 3:
                    raise BrokenPool(f"workers do not start within {START_LIMIT:.0f} s")
            return []
        if worker.task is None:
            return []
        if self.timeout is not None and now - worker.since > self.timeout:
            self._retire(worker)
            return [Outcome(worker.task, fault="timeout", reason=f"not done after {self.timeout:g} s")]
        if self.memory and _memory(worker.process.pid) > self.memory:
            self._retire(worker)
            return [Outcome(worker.task, fault="memory", reason=f"needed more than {self.memory / (1 << 30):.2f} GiB of memory")]
        return []

    def _retire(self, worker: _Worker) -> None:
        self._end(worker)
        self.workers.remove(worker)

    def _end(self, worker: _Worker) -> None:
        worker.line.close()
        try:
            os.killpg(worker.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            worker.process.kill()
        worker.process.wait()


def _memory(pid: int) -> int:
    """Resident bytes of a process; 0 where it is gone or the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0
