"""What the page shows beyond the JSON document: curves, GPU tracks, marks, ranks, files and the lines around citations."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from forensics import blocks
from forensics.evidence import Evidence as Gathered
from forensics.evidence import Member
from forensics.report.model import Cited, Curve, FileRow, Mark, Page, RankRow, Track
from forensics.run import Run
from parsers.prefixes import clean
from rules.base import Evidence, Finding

if TYPE_CHECKING:
    from forensics.verdict import Verdict

AROUND = 4  # lines shown on each side of a cited line
MAX_CITED = 120
MAX_CURVES = 16
MAX_MARKS = 120
MAX_RANKS = 8192
MAX_FILES = 1000
CURVES = (
    "loss grad_norm reward kl entropy response_length learning_rate step_time policy_loss value_loss reward_std clip_fraction "
    "reward_margin reward_accuracy eval_loss response_clip_ratio logprob_diff tokens_per_s loss_scale memory_allocated"
).split()


def build(run: Run, verdict: Verdict, gathered: Gathered) -> Page:
    """Fill the page's part of the model."""
    root = verdict.root.lead if verdict.root else None
    page = Page(
        curves=curves(run),
        tracks=tracks(run, verdict),
        marks=marks(run, verdict),
        first_failure=(verdict.first.time if verdict.first and verdict.first.time is not None else root.time if root else None),
        ended=run.ended,
        healthy_step=run.last_step,
    )
    matrix, listed = ranks(run, verdict), files(run, gathered)
    odd = [row for row in matrix if row.odd][:MAX_RANKS]
    page.ranks = sorted(odd + [row for row in matrix if not row.odd][: MAX_RANKS - len(odd)], key=lambda row: row.rank)
    page.ranks_more = len(matrix) - len(page.ranks)
    # Files with a remark are what a reader looks for; then the large ones.
    listed.sort(key=lambda row: (not row.notes, -row.size, row.path))
    page.files, page.files_more = listed[:MAX_FILES], max(0, len(listed) - MAX_FILES)
    page.strongest = [_cited(e) for e in strongest(verdict)]
    if run.last_progress_at:
        page.healthy = _cited(run.last_progress_at)
    last = max((e for e in run.events if e.time is not None), key=lambda e: (e.time or 0.0, e.line), default=None)
    if last is not None:
        page.last = Cited(last.source, last.line, last.text[:400], last.time)
    colours = run.kind("colour")
    if colours:
        page.last_colour = Cited(colours[-1].source, colours[-1].line, colours[-1].text[:400], colours[-1].time)
    cited = [c for c in [*page.strongest, page.healthy, page.last, page.last_colour] if c]
    page.context = context(gathered, _places(run.findings, verdict, cited))
    for one in (page.healthy, page.last):
        if one and not one.text:
            one.text = dict(page.context.get(one.key, [])).get(one.line, "")[:400]
    return page


def _cited(evidence: Evidence) -> Cited:
    return Cited(evidence.file, evidence.line, evidence.text, evidence.time)


def strongest(verdict: Verdict) -> list[Evidence]:
    """Up to three lines that carry the verdict: the first failure, then other findings of the cause, then its consequences."""
    found: list[Evidence] = [verdict.first] if verdict.first else []
    pool: list[Finding] = []
    if verdict.root:
        pool += sorted(verdict.root.findings, key=lambda f: -f.weight)
    pool += [c.lead for c in verdict.consequences]
    seen = {(e.file, e.line) for e in found}
    texts = {e.text for e in found}
    for finding in pool:
        for evidence in finding.evidence:
            if (evidence.file, evidence.line) not in seen and evidence.text not in texts and len(found) < 3:
                seen.add((evidence.file, evidence.line))
                texts.add(evidence.text)
                found.append(evidence)
    return found


def curves(run: Run) -> list[Curve]:
    """The metrics worth a lane, most telling first."""
    names = run.names()
    chosen = [name for name in CURVES if name in names]
    chosen += sorted(name for name in names if name.startswith(("reward/", "val_score/")))
    out = []
    for name in chosen[:MAX_CURVES]:
        series = run.series(name)
        if len(series) >= 2:
            out.append(Curve(name, list(series.value), list(series.time), list(series.step), file=series.source[0]))
    return out


def tracks(run: Run, verdict: Verdict) -> list[Track]:
    """Samples per GPU; the culprit's first, then those that differ most from the rest."""
    frame = run.samples
    if frame is None or not frame.height:
        return []
    out = []
    groups = frame.filter(pl.col("time").is_not_null()).partition_by(["host", "gpu"], maintain_order=True, as_dict=True)
    for (host, gpu), rows in list(groups.items())[:2048]:
        culprit = str(gpu) == str(verdict.gpu) and (verdict.host is None or host is None or host == verdict.host)
        total = rows["memory_total"].drop_nulls()
        out.append(
            Track(
                host if isinstance(host, str) else None,
                str(gpu),
                rows["time"].to_list(),
                rows["memory_used"].to_list(),
                rows["utilization"].to_list(),
                rows["temperature"].to_list(),
                rows["power"].to_list(),
                float(total[0]) if total.len() else None,
                culprit,
            )
        )
    out.sort(key=lambda t: (not t.culprit, t.host != verdict.host))
    return out


def marks(run: Run, verdict: Verdict) -> list[Mark]:
    """Events for the plot: findings first, then other errors, thinned to a readable number."""
    out: list[Mark] = []
    seen: set[tuple[str, int]] = set()
    for finding in [f for f in run.findings if f.outcome == "found" and f.severity != "info"]:
        for evidence in finding.evidence[:2]:
            if evidence.time is not None and (evidence.file, evidence.line) not in seen:
                seen.add((evidence.file, evidence.line))
                out.append(
                    Mark(evidence.time, kind_of(run, evidence.file), evidence.text[:160], evidence.file, evidence.line, finding.severity)
                )
    per_kind: Counter[str] = Counter()
    for event in run.events:
        if event.time is None or event.severity not in ("error", "fatal") or (event.source, event.line) in seen or event.inherited:
            continue
        per_kind[event.kind] += 1
        if per_kind[event.kind] <= 6 and len(out) < MAX_MARKS:
            out.append(Mark(event.time, kind_of(run, event.source), event.text[:160], event.source, event.line, event.severity))
    return sorted(out[:MAX_MARKS], key=lambda mark: mark.time)


def kind_of(run: Run, path: str) -> str:
    """The kind of source that colours a mark."""
    kinds = run.files[path].kinds if path in run.files else ()
    return next((kind for kind in ("kernel", "gpu", "scheduler", "train", "nccl") if kind in kinds), kinds[0] if kinds else "other")


def ranks(run: Run, verdict: Verdict) -> list[RankRow]:
    """The matrix of ranks, in order."""
    guilty = set(verdict.ranks) | ({verdict.rank} if verdict.rank is not None else set())
    steps: dict[int, float] = {}
    if run.metrics is not None and run.metrics.height:
        found = run.metrics.filter(pl.col("rank").is_not_null() & pl.col("step").is_not_null()).group_by("rank").agg(pl.col("step").max())
        steps = {int(rank): float(step) for rank, step in found.iter_rows()}
    return [
        RankRow(
            info.rank,
            info.host,
            info.gpu,
            info.last_step if info.last_step is not None else steps.get(info.rank),
            info.last_time,
            info.last_collective,
            _cited(info.first_error) if info.first_error else None,
            info.exit,
            info.rank in guilty,
        )
        for info in sorted(run.ranks.values(), key=lambda r: r.rank)
    ]


def files(run: Run, gathered: Gathered) -> list[FileRow]:
    """What was read and what was left out."""
    out = [FileRow(i.path, i.size, i.lines, i.kinds, i.host, i.rank, list(i.notes), i.used) for i in run.files.values()]
    return out + [FileRow(path, 0, notes=[reason], used=False) for path, reason in gathered.skipped]


STRETCH = 1 << 20  # bytes read at once of a file whose line offsets are known


def _places(findings: list[Finding], verdict: Verdict, cited: list[Cited]) -> list[tuple[str, int]]:
    wanted = [(c.file, c.line) for c in cited]
    if verdict.root:
        wanted += [(e.file, e.line) for c in [verdict.root, *verdict.consequences] for f in c.findings for e in f.evidence[:2]]
    wanted += [(e.file, e.line) for f in verdict.symptoms for e in f.evidence[:1]]
    wanted += [(e.file, e.line) for f in findings if f.outcome == "found" for e in f.evidence[:1]]
    return list(dict.fromkeys(wanted))[:MAX_CITED]


def context(gathered: Gathered, places: list[tuple[str, int]]) -> dict[str, list[tuple[int, str]]]:
    """`file:line` -> lines around it.  Each file is read once more, only where the lines stand."""
    members = {member.path: member for member in gathered.members}
    by_file: dict[str, list[int]] = {}
    for path, line in places:
        if path in members and line > 0:
            by_file.setdefault(path, []).append(line)
    out: dict[str, list[tuple[int, str]]] = {}
    for path, lines in by_file.items():
        texts = _lines(members[path], set(lines), {n for line in lines for n in range(max(1, line - AROUND), line + AROUND + 1)})
        for line in lines:
            out[f"{path}:{line}"] = [(n, texts[n]) for n in range(max(1, line - AROUND), line + AROUND + 1) if n in texts]
    return out


def _lines(member: Member, cited: set[int], wanted: set[int]) -> dict[int, str]:
    """These lines of a file (1-based), cleaned and cut; of cited ones more is kept."""
    found: dict[int, str] = {}
    with blocks.open_again(member.real) as stream:
        for (line, offset), group in _stretches(member.index, wanted):
            if offset:
                stream.seek(offset)
            for block in blocks.blocks(stream, STRETCH if member.index else blocks.BLOCK):
                number = block.first_line + line - 1
                after, at = number + block.lines, 0
                for n in [n for n in group if number <= n <= after and n not in found]:
                    while number < n:
                        at = block.data.find(b"\n", at) + 1
                        number += 1
                    if at >= len(block.data):
                        break
                    end = block.data.find(b"\n", at)
                    piece = block.data[at : end if end >= 0 else len(block.data)].rstrip(b"\r")
                    segment = piece[-4000:].rsplit(b"\r", 1)[-1]
                    found[n] = clean(segment)[: 4000 if n in cited else 600]
                if after > group[-1]:
                    break
    return found


def _stretches(index: list[tuple[int, int]], wanted: set[int]) -> list[tuple[tuple[int, int], list[int]]]:
    """Lines grouped by the (line, byte offset) from which the file is best read for them; without an index from its start."""
    groups: dict[tuple[int, int], list[int]] = {}
    for n in sorted(wanted):
        at = bisect_right(index, (n, 1 << 62)) - 1
        groups.setdefault(index[at] if at >= 0 else (1, 0), []).append(n)
    return list(groups.items())
