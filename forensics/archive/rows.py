"""One analysed run -> its row of `runs` and its rows of `findings` (columns: forensics.archive.tables)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

from forensics.analysis import Report
from forensics.report.model import localise
from forensics.run import Run
from rules.oom_kill import job_ids

TEXT = 400  # characters of a text kept in a table
MASKS = (
    (re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{4,}(?::[0-9a-fA-F]{2,4}){1,2}(?:\.\d)?\b"), "<hex>"),
    (re.compile(r"(?:/[\w.+-]+){2,}"), "<path>"),
    (re.compile(r"\b[0-9a-f]{8,}\b"), "<id>"),
    (re.compile(r"\d+(?:[.:,_-]\d+)*(?:e[+-]?\d+)?"), "<n>"),
)


def run_row(report: Report) -> dict[str, Any]:
    """The columns of `runs` that one run knows of itself; times are Unix seconds."""
    facts = localise(report.model.facts if report.model else {}, report.lang)
    run, verdict = report.run, facts["verdict"]
    about, culprit, first = facts["run"], verdict.get("culprit") or {}, verdict.get("first_failure") or {}
    hours = _hours(run)
    message = first.get("text") or _last_words(report)
    return {
        "name": about["name"],
        "job": min(job_ids(run), default=None, key=lambda job: (len(job), job)),
        "started": run.started,
        "ended": run.ended,
        "duration_s": about.get("duration_s"),
        "world_size": run.world_size,
        "hosts": list(about.get("hosts") or []),
        "frameworks": list(about.get("frameworks") or []),
        "last_step": run.last_step,
        "gpu_hours": hours,
        "gpu_hours_lost": 0.0 if verdict["layer"] == "none" else _lost(report, hours),
        "layer": verdict["layer"],
        "cause": verdict.get("cause"),
        "title": _short(verdict.get("title")),
        "summary": _short(verdict.get("summary")),
        "confidence": verdict.get("confidence"),
        "culprit_rank": culprit.get("rank"),
        "culprit_ranks": [rank for rank in culprit.get("ranks") or [] if isinstance(rank, int)][:1024],
        "culprit_host": culprit.get("host"),
        "culprit_gpu": None if culprit.get("gpu") is None else str(culprit["gpu"]),
        "first_file": first.get("file"),
        "first_line": first.get("line"),
        "first_time": report.verdict.first.time if report.verdict.first else None,
        "message": _short(message),
        "template": template(message),
        "chain": [str(link["cause"]) for link in verdict.get("chain") or [] if link.get("cause")],
        "restart": facts["advice"]["restart"],
        "exclude_hosts": list(facts["advice"].get("exclude_hosts") or []),
        "advice": _short(facts["advice"].get("why")),
        "remedy": _short(next((item.get("do") for item in facts.get("remedies") or []), None)),
        "exit_code": _integer(about["exit"].get("code")),
        "exit_signal": None if about["exit"].get("signal") is None else str(about["exit"]["signal"]),
        "fingerprint": fingerprint(facts["environment"]),
        "gpu": _item(facts["environment"], "gpu.name"),
        "driver": _item(facts["environment"], "version.driver", "driver.version", "gpu.driver"),
        "torch": _item(facts["environment"], "version.torch"),
        "cuda": _item(facts["environment"], "version.cuda", "version.cuda_runtime"),
        "nccl": _item(facts["environment"], "version.nccl"),
        "saved_to": _folder(run, "checkpoint_saved"),
        "resumed_from": _folder(run, "resume"),
        "files": len(run.files),
        "bytes": sum(info.size for info in run.files.values()),
        "findings": sum(f.outcome == "found" for f in run.findings),
    }


def finding_rows(report: Report) -> list[dict[str, Any]]:
    """One row per finding, in the order of the report."""
    facts = localise(report.model.facts if report.model else {}, report.lang)
    out = []
    for number, (entry, finding) in enumerate(zip(facts["findings"], report.run.findings, strict=True)):
        first = (entry.get("evidence") or [{}])[0]
        out.append(
            {
                "number": number,
                "rule": entry["rule"],
                "outcome": entry["outcome"],
                "layer": entry.get("layer"),
                "cause": entry.get("cause"),
                "role": entry.get("role"),
                "severity": entry.get("severity"),
                "title": _short(entry.get("title")),
                "time": finding.time,
                "count": entry.get("count"),
                "rank": finding.rank,
                "host": finding.host,
                "file": first.get("file"),
                "line": first.get("line"),
                "text": _short(first.get("text")),
                "covers": list(entry.get("covers") or []),
            }
        )
    return out


def template(message: str | None) -> str | None:
    """A message without what changes from run to run: numbers, addresses, paths, ids."""
    if not message:
        return None
    text = message[:TEXT]
    for pattern, name in MASKS:
        text = pattern.sub(name, text)
    return " ".join(text.split())


def fingerprint(environment: dict[str, Any]) -> str | None:
    """Eight hexadecimal digits that change when a version or the hardware does; None where the run tells neither."""
    kept = {key: value for key, value in environment.items() if key.startswith(("version.", "gpu.name", "gpu.count", "driver"))}
    if not kept:
        return None
    return hashlib.blake2b(json.dumps(kept, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()


def _hours(run: Run) -> float | None:
    if run.started is None or run.ended is None or not run.world_size:
        return None
    return round(max(0.0, run.ended - run.started) * run.world_size / 3600, 4)


def _lost(report: Report, hours: float | None) -> float | None:
    """GPU hours since the last checkpoint known to be saved before the failure, or since the start: what a restart repeats or waited for."""
    run, first = report.run, report.verdict.first
    if hours is None or run.started is None or run.ended is None or not run.world_size:
        return None
    failed = first.time if first and first.time is not None else run.ended
    saved = [
        event.time
        for event in run.kind("checkpoint_saved")
        if event.time is not None and run.started <= event.time <= min(failed, run.ended)
    ]
    return round((run.ended - max(saved, default=run.started)) * run.world_size / 3600, 4)


def _last_words(report: Report) -> str | None:
    """For a run nobody could classify: its last error, else its last line that says something."""
    if report.verdict.layer != "unknown" or report.model is None:
        return None
    last = report.model.page.last
    marks = [mark for mark in report.model.page.marks if mark.severity in ("error", "fatal")]
    return marks[-1].text if marks else last.text if last else None


def _folder(run: Run, kind: str) -> str | None:
    """A hash of the folder of checkpoints that such events name: enough to see that two runs share it, and tells no path."""
    for event in run.kind(kind):
        match = re.search(r"(/?(?:[\w.+=-]+/)+)(?:[\w.+=-]*\d+/?)?", event.text)
        if match:
            folder = re.sub(r"/(?:checkpoint|global_?step|step|iter|epoch)[-_=]?\d*/.*$|/+$", "", match[1])
            if folder.strip("/.").count("/") < 2:  # `output/`, `./checkpoints/`: every job's
                return None
            return hashlib.blake2b(folder.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return None


def _short(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)[:TEXT]


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**31 else None


def _item(values: dict[str, Any], *keys: str) -> str | None:
    for key in keys:
        value = values.get(key)
        if value not in (None, "", []):
            return str(value[0] if isinstance(value, list) else value)[:120]
    return None
