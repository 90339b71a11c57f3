"""Wraps a training command: output with time stamps, GPU samples and host evidence beside it, signals and exit status passed on.

The command sees pipes instead of a terminal, so that what it prints can be kept; `PYTHONUNBUFFERED=1` is set where it is not, since
Python would otherwise hold its lines back and every stamp would be late.  Nothing else of its environment changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from forensics.collecting.snapshot import Collection, collect
from forensics.collecting.watch import Sampler
from forensics.evidence import Unusable

PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGXCPU")
    if hasattr(signal, name)
)
FROM_KERNEL = 0x80  # si_code of signals a terminal sends: the whole foreground group has got them already
REDRAW = 1.0  # seconds after which a progress bar's redraw gets a line of its own
LONGEST = 1 << 20  # bytes of one line held back
LINGER = 5.0  # seconds to wait for output of processes that outlive the command
SNAPSHOT = 130.0  # seconds the first snapshot may still take when the command has ended


@dataclass(slots=True)
class Ended:
    """How the command ended: `status` for our own exit (128 + n for signal n), `signal` where it died of one, `folder` of the evidence.

    interrupted: its user stopped it from the terminal.  notes: what could not be kept.
    """

    status: int
    signal: int | None
    folder: Path
    log: Path
    collection: Collection | None = None
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)


class Log:
    """Stamped lines of several streams in one file, whole lines only, flushed as they come: the machine may die at any time."""

    def __init__(self, path: Path):
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()
        self.broken = ""

    def line(self, data: bytes, at: float | None = None) -> None:
        """Write one line with its time in UTC (Unix seconds; default now)."""
        moment = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
        stamp = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ ").encode()
        with self._lock:
            try:
                self._file.write(stamp + data.rstrip(b"\r\n") + b"\n")
            except OSError as error:  # a full disk must not end the training
                self.broken = error.strerror or str(error)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class Tee(threading.Thread):
    """Passes one stream of the command through, unchanged and at once, and logs its lines."""

    def __init__(self, source: IO[bytes], through: Any, log: Log):
        super().__init__(daemon=True)
        self.source, self.through, self.log = source, through, log

    def run(self) -> None:
        held = b""
        began = last = time.time()  # when the held text began, and when its last piece came
        while True:
            try:
                data = os.read(self.source.fileno(), 1 << 16)
            except OSError:
                break
            if not data:
                break
            if self.through is not None:
                try:
                    self.through.write(data)
                    self.through.flush()
                except (OSError, ValueError):
                    self.through = None  # our reader is gone; go on keeping the log
            now = time.time()
            # A progress bar has no line end for hours: cut at a redraw, at most once a second, so that its times are kept.
            if b"\r" in held and now - began >= REDRAW:
                done, _, held = held.rpartition(b"\r")
                if done.strip():
                    self.log.line(done, last)
                began = now
            if not held:
                began = now
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                self.log.line(line, now)
                began = now
            if len(held) > LONGEST:
                self.log.line(held, now)
                held = b""
            last = now
        if held.strip():
            self.log.line(held)


def run(
    command: Sequence[str],
    out: str | Path | None = None,
    *,
    interval: float = 5.0,
    redact: bool = True,
    quiet: bool = False,
) -> Ended:
    """Run `command`, keep its evidence in the folder `out` (default: a new one in the current directory), and say how it ended.

    interval: seconds between GPU samples, 0 for none.  A failed command's folder also gets the host's state after the failure.
    Raises Unusable where the folder holds a run already or the command cannot be started.
    """
    now = datetime.now().astimezone()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(command[0]).name)[:40] if command else ""
    folder = Path(out) if out is not None else Path(f"forensics-{name}-{now:%Y%m%d-%H%M%S}")
    log_path = folder / "train.log"
    if not command:
        raise Unusable("--run needs a command, such as: forensics collect --run torchrun --nproc-per-node 8 train.py")
    if folder.exists() and not folder.is_dir():
        raise Unusable(f"{folder}: is a file; --run writes a folder")
    if log_path.exists():
        raise Unusable(f"{log_path}: exists already; choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(log_path)
    shown = shlex.join(command)
    if redact:
        from forensics.redact import Redactor

        shown = Redactor().text(shown)
    log.line(b"forensics: running " + shown.encode("utf-8", "replace"))
    pending: deque[int] = deque()
    with _noting(pending):
        environment = {"PYTHONUNBUFFERED": "1", **os.environ}
        try:
            process = subprocess.Popen(list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        except OSError as error:
            log.close()
            log_path.unlink()
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise Unusable(f"{command[0]}: {error.strerror or error}") from error
        # From here on signals are taken in by a thread that can see who sent them.
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    guard = _Guard(process, log)
    try:
        while pending:
            guard.send(pending.popleft())
        ended = _beside(guard, folder, interval, redact, quiet)
    finally:
        log.close()
    return ended


@contextlib.contextmanager
def _noting(pending: deque[int]) -> Iterator[None]:
    """Signals that come while the command is being started are noted, not lost and not fatal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda got, _: pending.append(got)) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _beside(guard: _Guard, folder: Path, interval: float, redact: bool, quiet: bool) -> Ended:
    """Everything that goes on while the command runs, and after it has failed."""
    process, log = guard.process, guard.log
    streams = ((process.stdout, None if quiet else sys.stdout.buffer), (process.stderr, None if quiet else sys.stderr.buffer))
    tees = [Tee(source, through, log) for source, through in streams if source is not None]
    notes: list[str] = []
    taken: list[Collection] = []

    def snapshot(part: str = "", pids: tuple[int, ...] = ()) -> None:
        try:
            taken.append(collect(folder, pids=pids, redact=redact, part=part))
        except (OSError, ValueError) as error:
            notes.append(f"the machine's state could not be kept: {error}")

    first = threading.Thread(target=snapshot, kwargs={"pids": (process.pid,)}, daemon=True)
    for thread in (*tees, guard, first):
        thread.start()
    with contextlib.ExitStack() as stack:
        if interval > 0:
            stack.enter_context(Sampler(interval, _Late(stack, folder / "gpu.csv")))
        process.wait()
    limit = time.monotonic() + LINGER
    for tee in tees:
        tee.join(max(0.0, limit - time.monotonic()))
    guard.stop()  # from here on a signal is meant for us
    code = process.returncode
    log.line(f"forensics: the command ended with exit code: {code if code >= 0 else 128 - code}".encode())
    ended = Ended(128 - code if code < 0 else code, -code if code < 0 else None, folder, log.path, None, guard.interrupted, notes)
    try:
        first.join(SNAPSHOT)
        if code != 0 and not guard.interrupted:
            snapshot("after")
    except KeyboardInterrupt:
        notes.append("interrupted: the machine's state was not kept")
    if log.broken:
        notes.append(f"{log.path} is incomplete: {log.broken}")
    ended.collection = taken[0] if taken else None
    return ended


class _Late:
    """Opens the samples' file at the first line: a machine without GPUs gets none."""

    def __init__(self, stack: contextlib.ExitStack, path: Path):
        self._stack, self._path = stack, path
        self._file: IO[str] | None = None

    def __call__(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._file is None:
                self._file = self._path.open("a", encoding="utf-8", buffering=1)
                self._stack.callback(self._file.close)
            self._file.write(text)


class _Guard(threading.Thread):
    """Takes in the signals that are blocked in every other thread and passes them on to the command."""

    def __init__(self, process: subprocess.Popen[bytes], log: Log):
        super().__init__(daemon=True)
        self.process, self.log = process, log
        self.interrupted = False
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            got = signal.sigtimedwait(PASSED_ON, 0.2)
            if got is None:
                continue
            if got.si_code == FROM_KERNEL:
                self.interrupted = self.interrupted or got.si_signo in (signal.SIGINT, signal.SIGQUIT)
                self.log.line(f"forensics: received signal {signal.Signals(got.si_signo).name} from the terminal".encode())
            else:
                self.send(got.si_signo)

    def send(self, number: int) -> None:
        """Pass one signal on, unless the command has gone."""
        self.log.line(f"forensics: received signal {signal.Signals(number).name}, passing it on".encode())
        with contextlib.suppress(OSError):
            self.process.send_signal(number)

    def stop(self) -> None:
        """End, and let signals through again."""
        self._ended.set()
        self.join(2.0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
