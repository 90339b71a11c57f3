"""The worker process of `forensics.archive.pool`: python -m forensics.archive.worker SOCKET MODULE:FUNCTION MEMORY."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import resource
import signal
import sys
from multiprocessing.connection import Connection

from forensics import CALM

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(fd: int, target: str, memory: int) -> None:
    """Answer tasks until the line is closed.  `memory`: bytes of data the process may have, 0 = no limit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if memory:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    gc.set_threshold(*CALM)
    module, _, name = target.partition(":")
    work = getattr(importlib.import_module(module), name)
    line = Connection(fd)
    line.send_bytes(b"{}")
    while True:
        try:
            task = json.loads(line.recv_bytes())
        except EOFError:
            return
        try:
            answer = json.dumps({"value": work(task)}, allow_nan=False)
        except MemoryError:
            answer = json.dumps({"error": "out of memory", "fault": "memory"})
        except Exception as error:
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:2000], "fault": "error"})
        line.send_bytes(answer.encode("utf-8", "replace"))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
