"""The journal's lines -> the tables, the list of what was skipped, and the fleet page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forensics.archive.journal import Journal
from forensics.archive.link import link
from forensics.archive.tables import FINDINGS, RUNS, write_table
from forensics.archive.work import PLOTLY
from forensics.files import write_text, write_whole


def collect(out: Path, journal: Journal, keys: list[str], skipped: list[dict[str, str]], lang: str) -> int:
    """Write everything but the runs' own reports; returns the number of runs.  The order of `keys` does not matter."""
    where = sorted((run, key) for key in dict.fromkeys(keys) for run in journal.entries[key].runs)
    rows = []
    for run, key in where:
        record = _record(journal, run, key)
        rows.append({**record["row"], "run": run, "path": record["path"], "root": record["root"], "report": f"reports/{run}.html"})
    link(rows)

    def findings() -> Iterator[list[dict[str, Any]]]:
        for run, key in where:
            yield [{**finding, "run": run} for finding in _record(journal, run, key)["findings"]]

    write_text(out / "skipped.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in skipped))
    write_table(out / "runs.parquet", RUNS, ([row] for row in rows))
    write_table(out / "findings.parquet", FINDINGS, findings())
    _library(out / "assets")
    from forensics.archive.fleet import render_fleet

    write_text(out / "index.html", render_fleet(rows, skipped, lang))
    _sweep(out / "reports", {run for run, _ in where}, journal)
    return len(rows)


def _record(journal: Journal, run: str, key: str) -> dict[str, Any]:
    return next(record for record in journal.read(key)["runs"] if record["run"] == run)


def _library(folder: Path) -> None:
    """The plot library that all pages share."""
    import plotly

    folder.mkdir(exist_ok=True)
    source = Path(plotly.__file__).parent / "package_data" / PLOTLY
    target = folder / PLOTLY
    if not target.is_file() or target.stat().st_size != source.stat().st_size:
        write_whole(target, lambda path: shutil.copyfile(source, path))


def _sweep(reports: Path, runs: set[str], journal: Journal) -> None:
    """Remove reports of earlier times whose runs are no more."""
    for run in journal.named - runs:
        for suffix in (".html", ".json"):
            (reports / f"{run}{suffix}").unlink(missing_ok=True)
