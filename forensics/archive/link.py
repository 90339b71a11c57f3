"""Attempts of one job: which runs are restarts of which, and whether they failed in the same way again."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from typing import Any

from forensics.archive.names import stem

ATTEMPT = re.compile(r"(?i)[-_./]*(?:attempt|restart|retry|try|requeue|resume|resumed|rerun|part)[-_.]?\d{0,4}$")
SLACK = 120.0  # seconds by which clocks may make an attempt begin before the one before it ended


def link(rows: list[dict[str, Any]]) -> None:
    """Fill `series`, `attempt`, `attempts`, `previous` and `repeats` of the rows.

    Runs are attempts of one job where they share a batch job's id, differ only by an attempt's number in their path, or where one resumed
    from the folder another saved its checkpoints to; and where they did not run at the same time.  Rows come in order of run name.
    """
    parent: dict[str, str] = {}

    def top(run: str) -> str:
        while parent.setdefault(run, run) != run:
            run = parent[run]
        return run

    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row.get("job"):
            groups["job", row["root"], row["job"]].append(row)
        # `job-7` may stand beside `job-7-restart1`: the first attempt has no number.
        groups["path", row["root"], ATTEMPT.sub("", _bare(row["path"]))].append(row)
        for key in ("saved_to", "resumed_from"):
            if row.get(key):
                groups["folder", row["root"], row[key]].append(row)
    for group, members in groups.items():
        unique = list({row["run"]: row for row in members}.values())
        if group[0] == "folder" and not any(row.get("resumed_from") == group[2] for row in unique):
            continue
        if len(unique) > 1 and _one_after_another(unique):
            for row in unique[1:]:
                parent[top(row["run"])] = top(unique[0]["run"])
    series: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        series[top(row["run"])].append(row)
    for members in series.values():
        members.sort(key=lambda row: (row["started"] is None, row["started"] or 0.0, row["path"]))
        name = min(row["run"] for row in members)
        for number, row in enumerate(members):
            before = members[number - 1] if number else None
            row.update(
                series=name,
                attempt=number + 1,
                attempts=len(members),
                previous=before["run"] if before else None,
                repeats=before is not None and _same_failure(before, row),
            )


def _bare(path: str) -> str:
    """The path without the suffixes of archives and logs."""
    folder, _, last = path.rpartition("/")
    return f"{folder}/{stem(last)}" if folder else stem(last)


def _one_after_another(members: list[dict[str, Any]]) -> bool:
    timed = sorted((row for row in members if row["started"] is not None and row["ended"] is not None), key=lambda row: row["started"])
    return all(later["started"] >= earlier["ended"] - SLACK for earlier, later in pairwise(timed))


def _same_failure(before: dict[str, Any], row: dict[str, Any]) -> bool:
    """The same cause, at the same place where both know one, or the same message."""
    if row["layer"] == "none" or (row["layer"], row["cause"]) != (before["layer"], before["cause"]):
        return False
    if row["layer"] == "unknown":
        return row["template"] is not None and row["template"] == before["template"]
    places = [(before[key], row[key]) for key in ("culprit_host", "culprit_gpu") if before.get(key) and row.get(key)]
    return all(a == b for a, b in places)
