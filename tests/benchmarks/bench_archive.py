"""How many runs a second `bulk` does, with one process and with more, and whether memory stays flat.

python tests/benchmarks/bench_archive.py [--runs 2000] [--size 100000] [--jobs 1 2]

The archive is that of tests/archive_maker.py: mixed containers of runs of about `size` bytes.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import archive_maker

from forensics.archive.bulk import bulk


class Watch(threading.Thread):
    """Resident memory of this process and of its largest child, every half second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.own: list[int] = []
        self.child: list[int] = []
        self.ended = threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while not self.ended.wait(0.5):
            self.own.append(me.memory_info().rss)
            sizes = []
            for child in me.children():
                try:
                    sizes.append(child.memory_info().rss)
                except psutil.Error:
                    continue
            if sizes:
                self.child.append(max(sizes))

    @staticmethod
    def said(sizes: list[int]) -> str:
        """Memory in MiB in the second and in the last quarter of the time."""
        if len(sizes) < 8:
            return "too short to tell"
        quarter = len(sizes) // 4
        early, late = (sorted(part)[len(part) // 2] / 2**20 for part in (sizes[quarter : 2 * quarter], sizes[-quarter:]))
        return f"{early:.0f} -> {late:.0f} MiB"


def main() -> None:
    """Make the archive once, run `bulk` for each number of jobs, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "archive"
        made = archive_maker.make(root, given.runs, given.size)
        first = 0.0
        print(f"{len(made)} runs of about {given.size // 1000} kB on {os.cpu_count()} CPUs (load {os.getloadavg()[0]:.1f})")
        for jobs in given.jobs:
            watch, start, before = Watch(), time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            watch.start()
            summary = bulk([root], Path(folder) / f"out-{jobs}", jobs=jobs)
            seconds = time.monotonic() - start
            watch.ended.set()
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
            rate = summary.runs / seconds
            first = first or rate
            print(
                f"jobs {jobs}: {rate:.1f} runs/s ({rate / first:.2f} x), {1000 * cpu / summary.runs:.0f} CPU-ms a run; "
                f"parent {watch.said(watch.own)}, worker {watch.said(watch.child)}; left out {dict(summary.left)}"
            )


if __name__ == "__main__":
    main()
