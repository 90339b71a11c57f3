"""Thousands of small logs, as a run of many ranks leaves them, read by several processes.

A small log costs Python time that threads cannot share.  The first `LEAD` files are read one after another; what they tell of floods
(`forensics.floods`) is where every further chunk of `CHUNK` files starts from, so that the result does not hang on who reads what.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress

from forensics.evidence import Member
from forensics.floods import Shared
from forensics.run import FileInfo
from parsers.base import Rows

LEAD = 64
CHUNK = 32
CROWD = 512  # small files from which a run is read so

processes = min(8, len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1)  # a worker of an archive sets 1: the others are busy too

Read = Callable[[Member, Shared], Rows | None]  # None: a file that is not to be read in a forked process
Answer = list[tuple[Rows | None, FileInfo, list[tuple[int, int]]]]

_read: Read | None = None  # of the process that forks, for its children


def _chunk(members: Sequence[Member], shared: Shared, read: Read | None = None) -> Answer:
    read = read or _read
    assert read is not None
    shared = copy.deepcopy(shared)
    answer: Answer = []
    for member in members:
        rows = read(member, shared)
        member.forget()
        answer.append((rows, member.info, member.index))
    return answer


def _quiet() -> None:
    """A child is ended by its parent, not by the terminal's Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ready() -> None:
    """The first task, which makes the children be."""


@contextmanager
def readers(read: Read, wanted: bool) -> Iterator[ProcessPoolExecutor | None]:
    """Processes that read with `read`; None where there is nothing to gain or forking is not safe.  To be entered before threads are begun."""
    global _read
    if not wanted or processes < 2 or sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        yield None
        return
    _read = read
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork"), initializer=_quiet)
    try:
        try:
            pool.submit(_ready).result()
        except (OSError, BrokenProcessPool):  # no more processes are allowed here
            yield None
            return
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        _read = None


def read_all(
    members: Sequence[Member],
    shared: Shared,
    read: Read,
    whole: Callable[..., Rows],
    pool: ProcessPoolExecutor | None,
) -> Iterator[tuple[Member, Rows]]:
    """Each member with its rows, in order; `info` and `index` of a member are those that its reader filled in.

    `read` is what the processes do; what it leaves, `whole(member, shared=...)` reads here.
    """
    chunks = [members[at : at + CHUNK] for at in range(0, len(members), CHUNK)]
    sent: list[Future[Answer] | None] = [None] * len(chunks)
    if pool is not None:
        for member in members:
            member.forget()  # its beginning is read again by the child rather than sent there
        with suppress(OSError, RuntimeError):
            sent = [pool.submit(_chunk, chunk, shared) for chunk in chunks]
    for chunk, future in zip(chunks, sent, strict=True):
        try:
            answer = _chunk(chunk, shared, read) if future is None else future.result()
        except BrokenProcessPool:  # a child was killed, by want of memory as a rule: what it had is read here
            answer = _chunk(chunk, shared, read)
        for member, (rows, info, index) in zip(chunk, answer, strict=True):
            if rows is None:
                rows = whole(member, shared=copy.deepcopy(shared))
            else:
                member.info, member.index = info, index
            yield member, rows
