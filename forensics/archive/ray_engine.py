"""The distributed engine: the same work, handed to a Ray cluster in small batches.

Evidence, output folder and (for archives of several runs) the folder `.forensics/scratch` in it must be the same on every node, or in an
object store.  Ray runs a batch again when its node or worker is lost; a report is replaced whole and a result comes back once, so no run
is lost and none counts twice.  Inside a batch every run still has a process, a time limit and a memory limit of its own.
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from forensics.archive.pool import Outcome, Pool
from forensics.evidence import Unusable

BATCH = 16  # runs handed over at once: starting a process costs about as much as ten small runs
AHEAD = 3  # batches in flight for each CPU
RETRIES = 10  # times a batch is run again because its node or worker was lost
Answer = tuple[dict[str, Any] | None, str, str]  # value, fault, reason


def run_batch(tasks: list[dict[str, Any]], timeout: float | None, memory: int | None, work: str) -> list[Answer]:
    """Do a batch on this node, one run after the other in a process of its own; answers in the order of the tasks."""
    answers: dict[str, Answer] = {}
    pool = _pool(timeout, memory, work)
    with tempfile.TemporaryDirectory(prefix="forensics-ray-") as folder:
        for number, task in enumerate(tasks):
            pool.submit({**task, "scratch": str(Path(folder) / str(number))})
        while not pool.idle:
            for outcome in pool.collect():
                answers[outcome.task["key"]] = (outcome.value, outcome.fault, outcome.reason)
    return [answers[task["key"]] for task in tasks]


@cache
def _pool(timeout: float | None, memory: int | None, work: str) -> Pool:
    """This Ray worker's one process, kept from batch to batch; it ends with the Ray worker."""
    return Pool(1, timeout, memory, work)


def ray_engine(timeout: float | None, memory: int | None, work: str) -> Any:
    """An engine (see forensics.archive.bulk) on the cluster at RAY_ADDRESS, or on one started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise Unusable("--engine ray needs Ray (pip install 'train-forensics[ray]')") from error

    def run(tasks: deque[dict[str, Any]]) -> Iterator[Outcome | None]:
        ours = not ray.is_initialized()
        if ours:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        remote = ray.remote(num_cpus=1, max_retries=RETRIES)(run_batch)
        flying: dict[Any, list[dict[str, Any]]] = {}
        try:
            while tasks or flying:
                cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
                while tasks and len(flying) < AHEAD * cpus:
                    size = max(1, min(BATCH, len(tasks) // (2 * cpus)))
                    batch = [tasks.popleft() for _ in range(min(size, len(tasks)))]
                    flying[remote.remote(batch, timeout, memory, work)] = batch
                done, _ = ray.wait(list(flying), num_returns=1, timeout=0.5)
                for ref in done:
                    yield from _outcomes(ray, ref, flying.pop(ref))
                if not done:
                    yield None
        finally:
            for ref in flying:
                ray.cancel(ref, force=True)
            if ours:
                ray.shutdown()

    return run


def _outcomes(ray: Any, ref: Any, batch: list[dict[str, Any]]) -> list[Outcome]:
    try:
        answers = ray.get(ref)
    except ray.exceptions.RayError as error:  # lost more often than it is run again
        reason = " ".join(str(error).split())[:500]
        return [Outcome(task, fault="died", reason=reason) for task in batch]
    return [Outcome(task, value, fault, reason) for task, (value, fault, reason) in zip(batch, answers, strict=True)]
