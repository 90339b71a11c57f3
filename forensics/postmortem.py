"""Run, findings and verdict -> the model that every report shows (`forensics.report.model`).

The document's parts are those of schema `forensics.postmortem/1`; sentences stay pairs of languages until they are rendered.
"""

from __future__ import annotations

from typing import Any

import forensics
from forensics import page
from forensics.analysis import rfc3339
from forensics.clock_dates import named_zone
from forensics.evidence import Evidence as Gathered
from forensics.knowledge import Cause, Knowledge
from forensics.report.model import PostMortem
from forensics.report.text import ranges
from forensics.run import Run
from forensics.verdict import Candidate, Verdict
from rules.base import Evidence, Finding

SCHEMA = "forensics.postmortem/1"
LANGUAGES = ("en", "zh")
EXCLUDING = frozenset({"without-host"})


def build(
    run: Run,
    verdict: Verdict,
    knowledge: Knowledge,
    gathered: Gathered,
    redact: bool = True,
    hide_hosts: bool = False,
    tz: str | None = None,
) -> PostMortem:
    """The complete model, redacted unless told otherwise.

    tz: the zone in which people are shown times, as it was at the run's end; the document's own times are UTC whatever it is.
    """
    from rules import guide_steps

    steps = guide_steps.steps(run, run.findings)
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "version": forensics.__version__,
        "run": describe_run(run),
        "verdict": describe_verdict(run, verdict, knowledge),
        "findings": [describe_finding(f, knowledge) for f in run.findings],
        "checklist": [
            {
                "id": step.id,
                "verdict": step.verdict,
                "reading": pair(knowledge, step.key, "reading", step.facts),
                "evidence": [place(e) for e in step.evidence],
            }
            for step in steps
        ],
        "clocks": [describe_clock(clock, knowledge) for clock in run.clocks],
        "environment": environment(run),
        "gaps": [
            {key: pair(knowledge, gap.key, key, gap.facts) for key in ("missing", "why_it_matters", "how_to_capture")}
            for gap in guide_steps.gaps(run)
        ],
        "remedies": remedies(verdict, knowledge),
        "advice": advice(run, verdict, knowledge),
        "redactions": {},
    }
    model = PostMortem(facts, page.build(run, verdict, gathered))
    if tz is not None:
        model.page.zone = (named_zone(tz, run.ended or run.started or 0.0) or 0.0) / 3600
    if redact:
        from forensics.redact import Redactor

        names = {*run.hosts}
        if hide_hosts:
            shown = (text for lines in model.page.context.values() for _, text in lines)
            names |= Redactor.named((*shown, *(event.text for event in run.events)))
        model = model.redacted(Redactor(hosts=hide_hosts, names=names))
    return model


def describe_run(run: Run) -> dict[str, Any]:
    """The `run` part: identity, extent and how it ended."""
    exits = [e for e in run.kind("exit") if e.fields.get("exitcode") is not None or e.fields.get("signal")]
    first = exits[0] if exits else None
    duration = run.ended - run.started if run.started is not None and run.ended is not None else None
    return {
        "name": run.name,
        "started": rfc3339(run.started),
        "ended": rfc3339(run.ended),
        "duration_s": None if duration is None else round(duration, 3),
        "frameworks": sorted({str(value) for key, _, value, _ in run.facts if key == "framework"}),
        "world_size": run.world_size,
        "hosts": run.hosts,
        "last_step": run.last_step,
        "exit": {"code": first.fields.get("exitcode"), "signal": first.fields.get("signal"), "rank": first.rank} if first else {},
    }


def describe_verdict(run: Run, verdict: Verdict, knowledge: Knowledge) -> dict[str, Any]:
    """The `verdict` part."""
    cause = knowledge.causes.get(f"{verdict.layer}/{verdict.cause}")
    title: Any = cause_text(cause, "title") if cause else pair(knowledge, f"verdict.{verdict.reason or 'undecided'}", "title", {})
    lead = verdict.root.lead if verdict.root else None
    summary = finding_title(lead, knowledge) if lead else pair(knowledge, f"verdict.{verdict.reason or 'undecided'}", "why", {})
    order = order_note(verdict, knowledge)
    if order and isinstance(summary, dict):
        summary = {lang: f"{summary[lang]} — {order['note'][lang]}" if lang in summary else order["note"][lang] for lang in LANGUAGES}
    first = verdict.first
    return {
        "layer": verdict.layer,
        "cause": verdict.cause,
        "title": title,
        "summary": summary,
        "confidence": verdict.confidence,
        "first_failure": None if first is None else place(first),
        "culprit": {
            key: value
            for key, value in (
                ("rank", verdict.rank),
                ("host", verdict.host),
                ("gpu", verdict.gpu),
                ("pid", verdict.pid),
                ("ranks", verdict.ranks or ([verdict.rank] if verdict.rank is not None else [])),
            )
            if value not in (None, [])
        },
        "chain": chain(verdict, knowledge),
        "order": order,
        "alternatives": [alternative(c, verdict, knowledge) for c in verdict.alternatives],
    }


def order_note(verdict: Verdict, knowledge: Knowledge) -> dict[str, Any] | None:
    """Which files the account could not place surely against the root, and what that means; None where all is sure."""
    if not verdict.uncertain_order:
        return None
    files = ", ".join(verdict.uncertain_order[:4]) + (", …" if len(verdict.uncertain_order) > 4 else "")
    return {"uncertain_files": verdict.uncertain_order, "note": pair(knowledge, "verdict.order", "note", {"files": files})}


def chain(verdict: Verdict, knowledge: Knowledge) -> list[dict[str, Any]]:
    """Root, consequences and symptoms: root first, then by time."""
    links: list[tuple[str, str | None, Finding]] = []
    if verdict.root:
        links.append(("root", verdict.root.cause, verdict.root.lead))
    later: list[tuple[str, str | None, Finding]] = [("consequence", c.cause, c.lead) for c in verdict.consequences]
    later += [("symptom", f.cause, f) for f in verdict.symptoms[:12]]
    later.sort(key=lambda link: (link[2].time is None, link[2].time or 0.0))
    out = []
    for role, cause, finding in [*links, *later]:
        if not finding.evidence:
            continue
        at = verdict.first if role == "root" and verdict.first else finding.evidence[0]
        out.append(
            {
                "cause": cause,
                "role": role,
                "time": rfc3339(at.time if at.time is not None else finding.time),
                "file": at.file,
                "line": at.line,
                "rank": finding.rank,
                "host": finding.host,
                "title": cause_text(knowledge.causes[cause], "title") if cause in knowledge.causes else finding_title(finding, knowledge),
                "says": finding_title(finding, knowledge),
                "text": at.text,
            }
        )
    return out


def alternative(candidate: Candidate, verdict: Verdict, knowledge: Knowledge) -> dict[str, Any]:
    """Another cause that was weighed, and why it was not named."""
    cause = knowledge.causes.get(candidate.cause)
    if verdict.root and candidate.explained_by:
        why = pair(knowledge, "verdict.alternative", "explained", {"by": candidate.explained_by[0]})
    else:
        why = pair(knowledge, "verdict.alternative", "weaker", {"evidence": len(candidate.findings)})
    return {
        "layer": candidate.layer,
        "cause": candidate.cause.partition("/")[2],
        "title": cause_text(cause, "title") if cause else candidate.cause,
        "confidence": round(max(0.0, min(candidate.score, 1 - verdict.confidence)), 3),
        "why_not": why,
        "tell_apart": cause_text(cause, "confirmed_by") if cause else "",
        "capture": cause_text(cause, "capture") if cause else "",
    }


def describe_finding(finding: Finding, knowledge: Knowledge) -> dict[str, Any]:
    """One entry of `findings`."""
    return {
        "rule": finding.rule,
        "outcome": finding.outcome,
        "layer": finding.cause.partition("/")[0] if finding.cause else None,
        "cause": finding.cause.partition("/")[2] if finding.cause else None,
        "role": finding.role,
        "severity": finding.severity,
        "title": finding_title(finding, knowledge),
        "why": finding_why(finding, knowledge),
        "time": rfc3339(finding.time),
        "count": finding.count,
        "evidence": [place(e) for e in finding.evidence],
        "covers": list(finding.covers),
        "needs": finding.needs,
    }


def finding_title(finding: Finding, knowledge: Knowledge) -> Any:
    """The finding's sentence in both languages."""
    if finding.title:
        return dict(finding.title)
    words = pair(knowledge, finding.rule, "title", finding.facts)
    return words if words["en"] else finding.rule


def finding_why(finding: Finding, knowledge: Knowledge) -> Any:
    """Why the finding matters, in both languages, or an empty text."""
    signature = knowledge.by_id.get(finding.rule)
    if signature:
        return dict(signature.why) or ""
    words = pair(knowledge, finding.rule, "why", finding.facts)
    return words if words["en"] else ""


def pair(knowledge: Knowledge, rule: str, part: str, facts: dict[str, Any]) -> dict[str, str]:
    """A phrase of `rules/words` in both languages."""
    shown = {key: ranges(value) if is_ranks(value) else value for key, value in facts.items()}
    return {lang: knowledge.phrase(rule, part, shown, lang) for lang in LANGUAGES}


def is_ranks(value: Any) -> bool:
    """Whether a fact is a list of ranks, to be written as `0-3, 7`."""
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, int) for item in value)


def cause_text(cause: Cause, key: str) -> dict[str, str]:
    """A text of the causes' catalogue in both languages."""
    return {lang: str(cause.text(key, lang)) for lang in LANGUAGES}


def place(evidence: Evidence) -> dict[str, Any]:
    """A citation: file, line, time, text."""
    return {"file": evidence.file, "line": evidence.line, "time": rfc3339(evidence.time), "text": evidence.text}


def describe_clock(clock: Any, knowledge: Knowledge) -> dict[str, Any]:
    """One entry of `clocks`."""
    basis = pair(knowledge, f"clock.{clock.basis}", "basis", getattr(clock, "facts", {}))
    return {
        "file": clock.file,
        "basis": basis if basis["en"] else clock.basis,
        "offset_s": clock.offset_s,
        "uncertainty_s": clock.uncertainty_s,
        "zero": clock.zero,
    }


def environment(run: Run) -> dict[str, Any]:
    """The fingerprint: dotted keys to their values, in order of key; several values of one key as a list."""
    out: dict[str, Any] = {}
    for key, _, value, _ in run.facts:
        if isinstance(value, (list, dict, tuple, set)):
            continue
        if key not in out:
            out[key] = value
        elif isinstance(out[key], list):
            if value not in out[key] and len(out[key]) < 16:
                out[key].append(value)
        elif out[key] != value:
            out[key] = [out[key], value]
    return dict(sorted(out.items())[:600])


def remedies(verdict: Verdict, knowledge: Knowledge) -> list[dict[str, Any]]:
    """What to do about the root, from the signature that found it and the cause's entry."""
    if verdict.root is None:
        return []
    out: list[dict[str, Any]] = []
    signature = knowledge.by_id.get(verdict.root.lead.rule)
    if signature and signature.fix:
        out.append({"do": dict(signature.fix), "verify": signature.verify, "why": dict(signature.why) or ""})
    cause = knowledge.causes.get(verdict.root.cause)
    if cause:
        english, chinese = cause.text("remedies", "en") or [], cause.text("remedies", "zh") or []
        for number, remedy in enumerate(english):
            other = chinese[number] if number < len(chinese) else remedy
            out.append({key: {"en": str(remedy.get(key, "")), "zh": str(other.get(key, ""))} for key in ("do", "verify", "why")})
    return out[:6]


def advice(run: Run, verdict: Verdict, knowledge: Knowledge) -> dict[str, Any]:
    """Restart as is, after a change or without a host, and why."""
    cause = knowledge.causes.get(f"{verdict.layer}/{verdict.cause}")
    restart = cause.restart if cause else "unknown"
    if verdict.layer == "none":
        restart = "as-is"
    hosts = [verdict.host] if verdict.host and restart in EXCLUDING else []
    key = "advice.without-host-unnamed" if restart == "without-host" and not hosts else f"advice.{restart}"
    why = pair(knowledge, key, "why", {"host": ", ".join(hosts)})
    if verdict.root and verdict.root.lead.facts.get("recurs"):
        again = pair(knowledge, "advice.recurs", "why", {"count": verdict.root.lead.count})
        why = {lang: f"{why[lang]} {again[lang]}" for lang in LANGUAGES}
    return {"restart": restart, "exclude_hosts": hosts, "why": why}
