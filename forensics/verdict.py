"""Findings -> one causal account: root, consequences, symptoms; layer, cause, confidence, culprit, alternatives.

Each finding names a cause with a weight: how surely it would be the root if nothing explained it.  Causes have usual
consequences (`rules/causes`).  A cause explained by another that is upstream of it, and not later on the clock beyond the
clocks' uncertainty, is discounted by the strength of its explanation; the explanation gains a little.  What is left is
compared, and the margin over the best cause of another layer decides how sure one may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from forensics.culprit import complete, culprit, first_to_fail, infer, neighbour_host
from forensics.engine import failed_exit
from forensics.join import went_on
from forensics.knowledge import LAYERS, Knowledge
from forensics.run import Run
from rules.base import Evidence, Finding

__all__ = ["Candidate", "Verdict", "confidence", "decide", "neighbour_host"]

FLOOR = 0.22  # below this score nothing is named
SLACK = 3.0  # seconds by which stamps of one clock may disagree with the order of events
CLEAR = 1.0  # seconds (beyond the clocks' uncertainty) that make an order certain
# What the other ranks see when one process is gone, whatever took it.
SEEN_BY_PEERS = frozenset(
    {"comms/ib-error", "comms/peer-lost", "comms/collective-timeout", "comms/connect-failed", "comms/hccl-error", "comms/efa-error"}
)
NO_FAULT = 0.52
HEARSAY = 0.75  # highest confidence where all that is known is that a peer has gone
LAST_LINES = 3  # an exit status that a script prints is the run's own only at the end of its log; tools called on the way print theirs too
DEPTH = 2  # how many steps of "leads to" explain


@dataclass
class Candidate:
    """One cause with the findings that speak for it."""

    cause: str
    findings: list[Finding]
    weight: float
    score: float = 0.0
    explained_by: list[str] = field(default_factory=list)
    explains: list[str] = field(default_factory=list)

    @property
    def layer(self) -> str:
        return self.cause.partition("/")[0]

    @property
    def lead(self) -> Finding:
        """The finding that stands for the cause: the weightiest, the earliest among equals."""
        top = max(f.weight for f in self.findings)
        return min((f for f in self.findings if f.weight >= top - 0.1), key=lambda f: (f.time is None, f.time or 0.0, -f.weight))

    @property
    def time(self) -> float | None:
        return min((f.time for f in self.findings if f.time is not None), default=None)


@dataclass
class Verdict:
    """The account.  `cause` is the id within the layer, or None for unknown."""

    layer: str
    cause: str | None
    confidence: float
    root: Candidate | None = None
    first: Evidence | None = None
    rank: int | None = None
    host: str | None = None
    gpu: str | None = None
    pid: int | None = None
    ranks: list[int] = field(default_factory=list)
    consequences: list[Candidate] = field(default_factory=list)
    symptoms: list[Finding] = field(default_factory=list)
    alternatives: list[Candidate] = field(default_factory=list)
    uncertain_order: list[str] = field(default_factory=list)  # files whose clocks are too unsure to place them against the root
    reason: str = ""  # key of the sentence that explains none and unknown
    features: dict[str, float] = field(default_factory=dict)


def decide(run: Run, findings: list[Finding], knowledge: Knowledge) -> Verdict:
    """The verdict on a run from its findings."""
    candidates = gather(findings)
    explain(candidates, run, knowledge)
    ranked = sorted(candidates, key=lambda c: (-c.score, c.time is None, c.time or 0.0))
    stops = [f for f in findings if f.outcome == "found" and f.role == "stop"]
    done = [f for f in findings if f.outcome == "found" and f.role == "done"]
    top = ranked[0] if ranked else None
    if top is None or top.score < FLOOR:
        return no_failure(run, ranked, stops, done, findings)
    rival = next((c for c in ranked[1:] if c.layer != top.layer), None)
    margin = top.score - (rival.score if rival else 0.0)
    verdict = Verdict(top.layer, top.cause.partition("/")[2], 0.0, top)
    verdict.features = {
        "score": top.score,
        "margin": margin,
        "findings": float(len(top.findings)),
        "done": float(bool(done)),
        "explains": float(len(top.explains)),
    }
    verdict.confidence = confidence(verdict.features)
    if top.cause == "comms/peer-lost":  # what took the peer away may lie in any layer: its host's logs are not here, or silent
        verdict.confidence = min(verdict.confidence, HEARSAY)
    lead = top.lead
    verdict.first = lead.evidence[0] if lead.evidence else None
    culprit(verdict, top, run)
    complete(verdict, run)
    verdict.consequences = [c for c in candidates if c is not top and top.cause in c.explained_by]
    if verdict.rank is None and verdict.gpu is None and not verdict.ranks:  # a bridge or link has no rank; what it took down has
        for near in verdict.consequences:
            if near.layer == top.layer:
                culprit(verdict, near, run)
                complete(verdict, run)
    infer(verdict, run)
    verdict.uncertain_order = unsure(top, verdict.consequences, run)
    verdict.symptoms = [f for f in findings if f.outcome == "found" and f.role == "symptom"]
    verdict.alternatives = [c for c in ranked if c is not top and c not in verdict.consequences][:4]
    return verdict


def gather(findings: list[Finding]) -> list[Candidate]:
    """Findings that may name a cause, grouped by it."""
    by_cause: dict[str, list[Finding]] = {}
    for finding in findings:
        if (
            finding.outcome == "found"
            and finding.cause
            and finding.role in ("root", "consequence")
            and finding.cause.partition("/")[0] in LAYERS
        ):
            by_cause.setdefault(finding.cause, []).append(finding)
    candidates = []
    for cause, group in by_cause.items():
        weight = max(f.weight for f in group)
        # Independent sources that agree make a cause likelier; more lines of one kind do not.
        sources = {(f.evidence[0].file if f.evidence else "", f.rule) for f in group}
        weight = 1 - (1 - min(weight, 0.98)) * 0.85 ** (min(len(sources), 4) - 1)
        candidates.append(Candidate(cause, group, weight))
    for finding in findings:
        if finding.outcome == "found" and finding.role == "precursor" and finding.cause in by_cause:
            next(c for c in candidates if c.cause == finding.cause).weight *= 1.02
    for candidate in candidates:
        candidate.weight = min(candidate.weight, 0.99)
        candidate.score = candidate.weight
    return candidates


def explain(candidates: list[Candidate], run: Run, knowledge: Knowledge) -> None:
    """Discount what something upstream explains."""
    reach = {c.cause: reachable(c.cause, knowledge) for c in candidates}
    gains: dict[str, float] = {}
    for effect in candidates:
        for source in candidates:
            if source is effect:
                continue
            steps = reach[source.cause].get(effect.cause)
            clearly = clearly_before(source, effect, run)
            if steps is None and clearly and source.layer != "comms" and effect.cause in SEEN_BY_PEERS:
                steps = 1
            if steps is None:
                continue
            if source.cause in reach[effect.cause] and not earlier(source, effect, 0.0):
                continue  # each may lead to the other: only the earlier one explains
            if not earlier(source, effect, SLACK):
                continue
            strength = source.weight * (1.0 if steps == 1 else 0.8)
            if clearly and effect.cause in SEEN_BY_PEERS:
                strength = max(strength, 0.75)
            if strength < 0.25:
                continue
            effect.score *= 1 - 0.85 * strength
            effect.explained_by.append(source.cause)
            source.explains.append(effect.cause)
            # A cause that comes first and whose usual consequences follow is likelier than its line alone says.
            gains[source.cause] = max(gains.get(source.cause, 0.0), (0.3 if clearly else 0.08) * min(1.0, effect.weight + 0.3))
    for source in candidates:
        if source.cause in gains and not source.explained_by:
            source.score += (0.97 - source.score) * gains[source.cause]


def unsure(root: Candidate, consequences: list[Candidate], run: Run) -> list[str]:
    """Files of the account whose clocks are too unsure to say whether they stand before or after the root."""
    home = {e.file for f in root.findings for e in f.evidence}
    out = set()
    for candidate in consequences:
        for evidence in candidate.lead.evidence[:1]:
            if evidence.file in home or evidence.time is None or root.time is None:
                continue
            doubt = max([run.clock_uncertainty.get(evidence.file, 0.0), *(run.clock_uncertainty.get(path, 0.0) for path in home)])
            if abs(evidence.time - root.time) <= doubt:
                out.add(evidence.file)
    return sorted(out)


def clearly_before(source: Candidate, effect: Candidate, run: Run) -> bool:
    """Whether the source is earlier beyond doubt: by the clocks, or above it in one file that is in order of time."""
    if source.time is None or effect.time is None:
        return False
    doubt = max((run.clock_uncertainty.get(e.file, 0.0) for c in (source, effect) for e in c.lead.evidence[:1]), default=0.0)
    return source.time + CLEAR + min(doubt, 120.0) < effect.time


def reachable(cause: str, knowledge: Knowledge) -> dict[str, int]:
    """Causes that this one leads to within DEPTH steps, with the number of steps."""
    steps: dict[str, int] = {}
    frontier = [cause]
    for depth in range(1, DEPTH + 1):
        found = []
        for name in frontier:
            entry = knowledge.causes.get(name)
            for consequence in entry.leads_to if entry else ():
                if consequence not in steps and consequence != cause:
                    steps[consequence] = depth
                    found.append(consequence)
        frontier = found
    return steps


def earlier(source: Candidate, effect: Candidate, slack: float) -> bool:
    """Whether the source is not later than the effect.

    Where one file holds lines of both its order decides; else the clocks within `slack`; unknown times do not object.
    """
    first, other = first_lines(source), first_lines(effect)
    shared = first.keys() & other.keys()
    if shared:
        votes = [first[file] <= other[file] for file in shared]
        return sum(votes) * 2 >= len(votes)
    if source.time is not None and effect.time is not None:
        return source.time <= effect.time + slack
    return True


def first_lines(candidate: Candidate) -> dict[str, int]:
    """file -> the candidate's first line there."""
    lines: dict[str, int] = {}
    for finding in candidate.findings:
        for evidence in finding.evidence:
            lines[evidence.file] = min(evidence.line, lines.get(evidence.file, evidence.line))
    return lines


def nothing_known(run: Run) -> bool:
    """No file holds a line, reading or sample that any reader knows: a verdict on them would be one on their absence."""
    if run.events or any(run.progress_lines.values()):
        return False
    if any(frame is not None and frame.height for frame in (run.metrics, run.samples)):
        return False
    return not any(info.used and {"kernel", "nccl", "scheduler", "gpu"} & set(info.kinds) for info in run.files.values())


def no_failure(run: Run, ranked: list[Candidate], stops: list[Finding], done: list[Finding], findings: list[Finding]) -> Verdict:
    """`none` or `unknown`: nothing strong enough to name."""
    weak = ranked[0].score if ranked else 0.0
    if stops and max(f.weight for f in stops) >= 0.5:
        lead = max(stops, key=lambda f: f.weight)
        verdict = Verdict("none", "interrupted-by-user", 0.9 - weak, reason="stopped")
        verdict.first = lead.evidence[0] if lead.evidence else None
        return verdict
    if done:
        lead = max(done, key=lambda f: f.weight)
        verdict = Verdict("none", "healthy", min(0.97, 0.95 - weak), reason="finished")
        verdict.first = None
        return verdict
    bad = [f for f in findings if f.outcome == "found" and f.role in ("symptom", "consequence", "root")]
    if not bad and not ranked and nothing_known(run):
        return Verdict("unknown", None, 0.5, reason="nothing-known")
    if not bad and not ended_badly(run):
        # A log that merely stops without a fault was healthy in half of the labelled runs: the other half failed silently.
        return Verdict("none", "healthy", NO_FAULT, reason="no-fault")
    verdict = Verdict("unknown", None, 0.5, reason="undecided", alternatives=ranked[:4])
    first_to_fail(verdict, run)
    return verdict


def ended_badly(run: Run) -> bool:
    """Whether the run is known to have failed although nothing says of what: a process's exit code, a log that ends in a traceback."""
    told = [e for e in run.kind("exit") if e.fields.get("echo") and run.files[e.source].lines - e.line > LAST_LINES]
    if any(e.fields.get("state") == "FAILED" for e in run.kind("slurm")):
        return True
    cut = [e for e in run.kind("traceback") if not e.fields.get("caught") and not e.fields.get("ignored") and not e.fields.get("type")]
    return failed_exit(run, besides=told) or any(not went_on(run, e.source, e.line, e.time) for e in cut)


def confidence(features: dict[str, float]) -> float:
    """Probability that the layer is right, from the score of the root and its margin over the best of another layer.

    A logistic of the two, drawn towards the base rate: a named failure has been right in 19 of 20 labelled runs that nobody
    tuned on, so even a weak lead without a rival is likelier right than wrong, and none is beyond doubt.
    """
    z = -2.2 + 2.6 * features["score"] + 2.6 * features["margin"]
    return round(0.5 + 0.48 / (1 + math.exp(-z)), 3)
