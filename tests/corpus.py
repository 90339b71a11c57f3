"""Score the analysis on folders of labelled runs, in process (no pages): the tuning part, the held-out third, or both.

    python tests/corpus.py CASES... [--part tune|held|all] [--only TEXT] [--jobs N] [--json FILE]

The held-out third is fixed by a hash of the case's name, so that nobody tunes on it by accident.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import tomllib
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any


def held_out(name: str) -> bool:
    """Whether a case belongs to the held-out third."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def analyse(folder: Path) -> dict[str, Any]:
    """Verdict and scores of one case."""
    from forensics import engine, evidence, knowledge, postmortem, verdict
    from forensics.analysis import reader_for

    label = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
    started = time.perf_counter()
    known = knowledge.load(())
    with evidence.gather(folder / "logs") as found:
        run = reader_for(()).read(found)
        findings = engine.judge(run, known)
        result = verdict.decide(run, findings, known)
        said = postmortem.describe_verdict(run, result, known)
        clocks = [postmortem.describe_clock(clock, known) for clock in run.clocks]
    row: dict[str, Any] = {
        "case": folder.name,
        "group": folder.parent.name,
        "label": label,
        "said": said,
        "seconds": time.perf_counter() - started,
    }
    row["features"] = result.features
    row["reason"] = result.reason
    row["notes"] = [f"{path}: {note}" for path, info in run.files.items() for note in info.notes if "failed" in str(note)]
    row["notes"] += [f"{f.rule}: {f.needs}" for f in findings if f.needs.startswith("the rule failed")]
    row["candidates"] = [
        (round(c.score, 2), round(c.weight, 2), c.cause, [f.rule for f in c.findings][:3], c.explained_by[:3])
        for c in ([result.root] if result.root else []) + result.consequences + result.alternatives
    ]
    return row | judge(label, said, clocks)


def judge(label: dict[str, Any], said: dict[str, Any], clocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The truth values that the public scorer computes."""
    allowed = [f"{label['layer']}/{label['cause']}", *label.get("also_ok", [])]
    out: dict[str, Any] = {
        "layer": said["layer"] in {pair.split("/")[0] for pair in allowed},
        "strict": said["layer"] == label["layer"],
        "cause": f"{said['layer']}/{said['cause']}" in allowed or (said["layer"] == "none" and label["layer"] == "none"),
    }
    if "first_failure_line" in label:
        first = said["first_failure"] or {}
        places = [f"{label['first_failure_file']}:{label['first_failure_line']}", *label.get("also_first", [])]
        name, line = str(first.get("file", "")).split("/")[-1], int(first.get("line") or -99)
        out["first"] = any(name == p.rpartition(":")[0].split("/")[-1] and abs(line - int(p.rpartition(":")[2])) <= 3 for p in places)
    asked = {key: label[f"culprit_{key}"] for key in ("rank", "host", "gpu") if f"culprit_{key}" in label}
    if asked:
        out["culprit"] = any(str(said["culprit"].get(key)).lower() == str(value).lower() for key, value in asked.items())
    placed = {str(clock["file"]).split("/")[-1]: clock for clock in clocks}
    hits = []
    for name, offset in label.get("clock_offset_s", {}).items():
        value = placed.get(name.split("/")[-1], {}).get("offset_s")
        hits.append((name, value is not None and abs(float(value) - float(offset)) <= 2, value, offset))
    for name, zero in label.get("monotonic_zero", {}).items():
        value = placed.get(name.split("/")[-1], {}).get("zero")
        try:
            seen = datetime.fromisoformat(str(value)).replace(tzinfo=None)
            right = abs((seen - datetime.fromisoformat(str(zero)).replace(tzinfo=None)).total_seconds()) <= 2
        except ValueError:
            right = False
        hits.append((name, right, value, zero))
    out["clocks"] = hits
    return out


def share(rows: list[dict[str, Any]], key: str) -> str:
    asked = [row for row in rows if key in row]
    hit = sum(bool(row[key]) for row in asked)
    return f"{key} {hit}/{len(asked)} = {hit / max(1, len(asked)):.3f}"


def totals(rows: list[dict[str, Any]]) -> str:
    """The scorer's line of totals."""
    by_layer: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        by_layer[row["label"]["layer"]].append(row["layer"])
    macro = sum(sum(v) / len(v) for v in by_layer.values()) / max(1, len(by_layer))
    clocks = [hit for row in rows for _, hit, _, _ in row["clocks"]]
    accused = sum(r["label"]["layer"] == "none" and r["said"]["layer"] not in ("none", "unknown") for r in rows)
    unknown = sum(r["said"]["layer"] == "unknown" for r in rows)
    over = sum((not r["layer"]) and float(r["said"]["confidence"]) >= 0.8 for r in rows)
    brier = sum((float(r["said"]["confidence"]) - r["layer"]) ** 2 for r in rows) / max(1, len(rows))
    return (
        ", ".join(share(rows, key) for key in ("layer", "strict", "cause", "first", "culprit"))
        + f", clock {sum(clocks)}/{len(clocks)} = {sum(clocks) / max(1, len(clocks)):.3f}, macro {macro:.3f}\n"
        + f"  accused {accused}, unknown {unknown}, over-sure {over}, brier {brier:.3f}, slowest {max((r['seconds'] for r in rows), default=0):.2f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, nargs="+")
    parser.add_argument("--part", choices=("tune", "held", "all"), default="tune")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folders = sorted({path.parent for root in options.cases for path in root.rglob("case.toml")})
    folders = [f for f in folders if options.part == "all" or held_out(f.name) == (options.part == "held")]
    folders = [f for f in folders if options.only in f"{f} " + (f / "case.toml").read_text(encoding="utf-8")]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(analyse, folders, chunksize=2))
    for row in rows:
        label, said = row["label"], row["said"]
        wrong = [key for key in ("layer", "cause", "first", "culprit") if row.get(key) is False]
        if (wrong or row["notes"]) and not options.quiet:
            first = said["first_failure"] or {}
            print(
                f"{row['group']}/{row['case']}: wrong {','.join(wrong)} | true {label['layer']}/{label['cause']} ({label.get('difficulty')}) | said"
                f" {said['layer']}/{said['cause']} {said['confidence']} at {first.get('file')}:{first.get('line')}"
                f" (true {label.get('first_failure_file')}:{label.get('first_failure_line')}) culprit {said['culprit']}"
                f" (true {[label.get(f'culprit_{k}') for k in ('rank', 'host', 'gpu')]})"
            )
            for candidate in row["candidates"][:4]:
                print("     ", *candidate)
            for note in row["notes"][:4]:
                print("      !", note)
    confusion: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        confusion[row["label"]["layer"]][row["said"]["layer"]] += 1
    for layer in sorted(confusion):
        print(f"  {layer:<9} {dict(confusion[layer].most_common())}")
    if options.part == "all":
        for name in ("tune", "held"):
            print(name, len(part := [r for r in rows if held_out(r["case"]) == (name == "held")]), totals(part))
    print(options.part, len(rows), totals(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, default=str), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
