"""GPU samples over time in the guide's fixed CSV form with a time column.

The time is ours, with its zone (nvidia-smi prints local time without one).  Each sample is a process of its own, so that a GPU
that falls off the bus costs one sample, not the sampler; what nvidia-smi says instead of values is written too.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from forensics.collecting.commands import Answer, ask
from forensics.collecting.items import FIXED, WIDE

SLOWEST = 30.0  # seconds one sample may take
SHORTEST = 0.2  # seconds between samples


class Sampler:
    """Samples every `interval` seconds into `write` (text lines with their line ends) until `stop()`; usable as a context."""

    def __init__(self, interval: float, write: Callable[[str], object], ask: Callable[[tuple[str, ...], float], Answer] = ask):
        self.interval = max(SHORTEST, interval)
        self.samples = 0
        self.note = ""
        self._write = write
        self._ask = ask
        self._fields = WIDE.removeprefix("timestamp,")
        self._headed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self.work, name="gpu-samples", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End sampling; waits for a sample under way no longer than two seconds."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def work(self) -> None:
        """Sample until stopped, or until it is clear that there is no nvidia-smi."""
        due = time.monotonic()
        while not self._ended.is_set():
            if not self.sample():
                return
            due = max(due + self.interval, time.monotonic())
            self._ended.wait(max(0.0, due - time.monotonic()))

    def sample(self) -> bool:
        """One sample; false when sampling is pointless."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        answer = self._query()
        if answer.note in ("not installed",) or answer.note.startswith("could not be started"):
            self.note = f"nvidia-smi is {answer.note}: no GPU samples"
            return False
        if not self._headed:
            self._headed = True
            self._write("timestamp," + self._fields + "\n")
        text = (answer.output + answer.errors).decode("utf-8", "replace")
        rows = [line.strip() for line in text.splitlines() if line.strip()][:512]
        if answer.status is None and answer.note:
            rows = [f"nvidia-smi {answer.note}"]
        for row in rows:
            self._write(f"{stamp}, {re.sub(r'[^ -~]', '?', row)[:2000]}\n")
        self.samples += bool(rows)
        return True

    def _query(self) -> Answer:
        answer = self._ask(("nvidia-smi", f"--query-gpu={self._fields}", "--format=csv,noheader,nounits"), SLOWEST)
        refused = answer.status == 2 or (answer.status and b"not a valid field" in answer.output + answer.errors)
        if refused and not self._headed and self._fields != FIXED:
            self._fields = FIXED
            return self._query()
        return answer


def watch(interval: float, write: Callable[[str], object], stop: threading.Event | None = None) -> Sampler:
    """Sample in this thread until interrupted (KeyboardInterrupt ends it cleanly) or `stop` is set; returns the sampler with its counts."""
    sampler = Sampler(interval, write)
    if stop is not None:
        sampler._ended = stop
    with contextlib.suppress(KeyboardInterrupt):
        sampler.work()
    return sampler
