"""Runs signatures and rules over a run and collects the findings.

A signature's confirmed lines become one finding: the earliest line of the last episode, that is, after which training did
not go on.  Where training went on after all of them the finding is `excluded` as survived.  A rule that fails costs a note,
never the report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import rules
from forensics.join import fate, went_on
from forensics.knowledge import Knowledge
from forensics.run import Run
from parsers.base import Event
from rules.base import Evidence, Finding, Signature

# What ends a run from outside: after the run has reached its end it ended nothing.
ENDED_BY_OTHERS = frozenset({"infra/time-limit", "infra/preempted"})
EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit|Timeout|Warning)\b(?::|$)")
LIKELY_END = 0.6  # the same where nothing bad is said after it
SURE_END = 0.8  # weight from which a line proves that the run reached its end
RECURS = 2  # attempts that end in the same way
SHOWN = 5  # places quoted per finding
# Conditions rather than events: training goes on under them, so going on does not clear them.
LASTING_LAYERS = frozenset({"data", "model", "reward"})
LASTING = frozenset(
    "infra/gpu-thermal infra/gpu-slow infra/gpu-power infra/silent-data-corruption comms/straggler training/slow-step data/slow-dataloader "
    "infra/cuda-mismatch infra/driver-mismatch training/lr-schedule training/loss-divergence training/loss-nan training/gpu-memory-leak "
    "training/optimizer-state training/loss-scale-overflow".split()
)


def judge(run: Run, knowledge: Knowledge) -> list[Finding]:
    """All findings of signatures and rules, in order of time; also kept in `run.findings`."""
    findings = list(signature_findings(run, knowledge))
    run.findings = findings
    for rule in rules.load():
        try:
            for finding in rule.judge(run):
                finding.covers = finding.covers or rule.covers
                findings.append(finding)
        except Exception as error:
            findings.append(
                Finding(
                    rule.id,
                    "undecided",
                    None,
                    "context",
                    0.0,
                    "info",
                    needs=f"the rule failed: {type(error).__name__}: {error}",
                    covers=rule.covers,
                )
            )
    set_aside(run, findings)
    findings.sort(key=lambda f: (f.time is None, f.time or 0.0))
    run.findings = findings
    return findings


def set_aside(run: Run, findings: list[Finding]) -> None:
    """Mark what was survived, what ended a run that had already reached its end, and trackers' own troubles as excluded."""
    done = [f for f in findings if f.outcome == "found" and f.role == "done" and f.evidence]
    ended_well = [f.evidence[-1] for f in done if f.weight >= SURE_END]
    ended = [f.evidence[-1] for f in done if f.weight >= LIKELY_END]
    for finding in findings:
        if finding.outcome != "found" or not finding.evidence or finding.role not in ("root", "consequence", "stop"):
            continue
        first = finding.evidence[0]
        passing = finding.cause not in LASTING and not finding.rule.startswith("series.") and not finding.facts.get("lasting")
        if all("tracker" in run.files[e.file].kinds for e in finding.evidence if e.file in run.files):
            exclude(finding, "tracker")  # its retries and failures never stop a run
        elif (passing and finding.role != "stop" and all(went_on(run, e.file, e.line, e.time) for e in finding.evidence)) or (
            passing
            and finding.role != "stop"
            and finding.cause not in ENDED_BY_OTHERS
            and any(after(end, finding.evidence[-1]) for end in ended_well)
            and not failed_exit(run)
        ):
            exclude(finding, "survived")
        elif passing and finding.role != "stop" and ended and last_word(run, ended) and not failed_exit(run) and host_only(run, finding):
            exclude(finding, "survived")  # what the host met cannot have ended a run that reached its end, whatever the clocks say
        elif (finding.role == "stop" or finding.cause in ENDED_BY_OTHERS) and any(after(first, d.evidence[0]) for d in done):
            exclude(finding, "after_end")


def host_only(run: Run, finding: Finding) -> bool:
    """Whether a finding rests on host logs alone."""
    return all(e.file in run.files and "train" not in run.files[e.file].kinds for e in finding.evidence)


def last_word(run: Run, ends: list[Evidence]) -> bool:
    """Whether the end of training is the last that the run's own logs say: no exception or time-out stands after it."""
    bad = [e for e in run.kind("traceback", "exception", "watchdog_timeout", "gpu_oom") if not e.fields.get("caught")]
    return not any(after(Evidence(e.source, e.line, "", e.time), end) for e in bad for end in ends)


def exclude(finding: Finding, why: str) -> None:
    """Turn a finding into one that was looked at and set aside."""
    finding.outcome, finding.severity, finding.facts[why] = "excluded", "info", True
    if why == "survived":
        finding.role = "recovery"


def failed_exit(run: Run, besides: Sequence[Event] = ()) -> bool:
    """Whether some process of the run, other than those of the events `besides`, is known to have ended badly of itself."""
    return any(
        e not in besides
        and not e.fields.get("by_launcher")
        and (e.fields.get("signal") not in (None, "", "SIGTERM") or e.fields.get("exitcode") not in (None, 0, "0", -15, 143))
        for e in run.kind("exit")
    )


def after(one: Evidence, other: Evidence) -> bool:
    """Whether `one` stands after `other`: below it in the same file, or later by the clock."""
    if one.file == other.file:
        return one.line > other.line
    return one.time is not None and other.time is not None and one.time > other.time


def signature_findings(run: Run, knowledge: Knowledge) -> Iterable[Finding]:
    """One finding per signature that was confirmed."""
    by_signature: dict[str, list[Event]] = {}
    for event in run.events:
        if event.signature:
            by_signature.setdefault(event.signature, []).append(event)
    for name, events in by_signature.items():
        signature = knowledge.by_id.get(name)
        if signature is not None:
            yield _finding(run, signature, events)


def _finding(run: Run, signature: Signature, events: list[Event]) -> Finding:
    layer = (signature.cause or "").partition("/")[0]
    raised = any(EXCEPTION.match(e.text) and "Warning" not in e.text[:60] for e in events[:3])
    lasting = (
        (layer in LASTING_LAYERS and not raised)
        or signature.cause in LASTING
        or signature.role in ("context", "stop", "done", "recovery", "precursor")
    )
    final, recurs = events, False
    if not lasting:
        fates = [fate(run, e.source, e.line, e.time) for e in events]
        final = [e for e, after in zip(events, fates, strict=True) if after == "ended"]
        ended = [e for e, after in zip(events, fates, strict=True) if after == "restarted"]
        if not final and len({(e.source, e.line) for e in ended}) >= RECURS:
            final, recurs = ended, True  # every attempt dies of it: that there was another attempt clears nothing
    survived = not final
    shown = (final or events)[:SHOWN]
    first = shown[0]
    count = len(events) + sum(int(e.fields.get("left_out", 0)) for e in events)
    ranks = sorted({e.rank for e in final or events if e.rank is not None})
    finding = Finding(
        rule=signature.id,
        outcome="excluded" if survived else "found",
        cause=signature.cause,
        role="recovery" if survived else signature.role,
        weight=signature.weight,
        severity="info" if survived or signature.role in ("context", "symptom", "done", "stop") else "error",
        time=first.time,
        evidence=[Evidence(e.source, e.line, e.text[:400], e.time) for e in shown],
        rank=first.rank,
        host=first.host,
        gpu=first.gpu,
        pid=first.pid,
        ranks=ranks[:64] if len(ranks) <= 64 else [],
        covers=signature.covers,
        facts={**first.fields, "survived": survived, "recurs": recurs, "lasting": "lasting" in first.fields or recurs},
        count=count,
        title=signature.title,
    )
    return finding
