"""After a resume: loss that jumps or drops, optimizer state or learning rate that started anew, a change of what is logged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rules.base import Evidence, Finding, Rule
from rules.series_view import excluded, found, rl, series, short, undecided
from rules.statistics import finite, mad_sigma, median, noise, theil_sen

if TYPE_CHECKING:
    from forensics.run import Run, Series
    from parsers.base import Event

AROUND = 10  # readings compared on each side of a resume
NOT_RESUMABLE = ("dataloader is not resumable", "data loader state", "not restore the dataloader", "skipping the dataloader state")


def _main(run: Run) -> Series:
    return run.series("loss") if len(run.series("loss")) else run.series("reward")


def points(run: Run) -> list[tuple[int, Event | None]]:
    """Positions in the loss series after which a resume took place, with the line that says so."""
    loss = _main(run)
    events = [e for e in run.kind("resume", "run_start") if e.kind == "resume" or e.fields.get("step")]
    out: dict[int, Event | None] = {}
    for event in events:
        after = [i for i in range(1, len(loss)) if loss.source[i] == event.source and loss.line[i] > event.line]
        if after and loss.line[after[0] - 1] < event.line:
            out.setdefault(after[0], event)
    for i in range(1, len(loss)):
        a, b = loss.step[i - 1], loss.step[i]
        if a is not None and b is not None and 10 < b < a - 2 and i not in out and loss.source[i] == loss.source[i - 1]:
            out.setdefault(i, None)
    return sorted(out.items())[:50]


def _sides(values: Sequence[float], at: int) -> tuple[list[float], list[float]]:
    return finite(values[max(0, at - AROUND) : at]), finite(values[at : at + AROUND])


def judge(run: Run) -> Iterator[Finding]:
    """What the first readings after each resume show."""
    covers = ("H2", "L3.4")
    loss = _main(run)
    marks = points(run)
    if not marks or (rl(run) and not _lost_state(run, None)):
        yield undecided("series.resume", "training/optimizer-state", covers, "resume")
        return
    flagged = False
    for at, event in marks:
        finding = _one(run, loss, at, event, covers)
        if finding is not None:
            flagged = True
            yield finding
            break
    if not flagged:
        yield excluded("series.resume", "training/optimizer-state", covers, loss, marks[-1][0] if marks[-1][0] < len(loss) else -1)


def _one(run: Run, loss: Series, at: int, event: Event | None, covers: tuple[str, ...]) -> Finding | None:
    before, after = _sides(loss.value, at)
    if len(before) < 4 or len(after) < 3:
        return None
    spread = max(mad_sigma(before), noise(before), 1e-4 * abs(median(before)))
    lead = [run.evidence(event)] if event is not None else []
    shift = median(after) - median(before)
    first = median(after[:3]) - median(before)
    grad = run.series("grad_norm")
    if _rescaled(loss, grad, at):
        return Finding(
            rule="series.resume-logging",
            cause=None,
            role="context",
            weight=0.1,
            severity="info",
            time=loss.time[at],
            evidence=[loss.evidence(at)],
            covers=covers,
            facts={"factor": short(median(after) / median(before))},
        )
    admits = _admitted(run, event)
    # A loss that falls anyway is lower after a resume too: what its own slope on either side explains is no drop.
    fall = shift - min(0.0, theil_sen(before), theil_sen(after)) * (len(before) + len(after)) / 2
    apart = max(after) < min(before) and len(after) >= 8 and fall < -3 * noise(before)
    if fall < 0 and (fall < -5 * spread or apart) and abs(fall) > 0.02 * abs(median(before)) and len(before) >= 8:
        weight = 0.72 if admits is not None else 0.5
        finding = found(
            "series.resume-data",
            "data/data-order-after-resume",
            loss,
            at,
            weight,
            covers,
            before=short(median(before)),
            after=short(median(after)),
        )
        finding.evidence = ([run.evidence(admits)] if admits is not None else []) + lead + finding.evidence
        return finding
    if first > 6 * spread and first > 0.03 * abs(median(before)):
        peak = max(after)
        lasting = median(after[-3:]) - median(before) > 0.7 * first
        lost = _lost_state(run, event)
        jumped = peak > 1.2 * median(before)
        again = lost is None and not jumped and _repeats(run, loss)
        if lost is not None or jumped or lasting or again:
            weight = 0.75 if lost is not None else 0.55 if jumped else 0.42
            cause = "training/optimizer-state"
            if again:
                cause, weight = "data/data-order-after-resume", 0.55
            finding = found("series.resume-jump", cause, loss, at, weight, covers, before=short(median(before)), after=short(peak))
            if lost is not None:
                finding.evidence = [lost, *finding.evidence, *lead]
                finding.time = lost.time if lost.time is not None else finding.time
            else:
                finding.evidence += lead
            return finding
    if admits is not None:
        finding = found(
            "series.resume-data",
            "data/data-order-after-resume",
            loss,
            at,
            0.3,
            covers,
            role="precursor",
            before=short(median(before)),
            after=short(median(after)),
        )
        finding.evidence = [run.evidence(admits), *finding.evidence]
        return finding
    return None


def _rescaled(loss: Series, grad: Series, at: int) -> bool:
    """Loss and gradient norm changed by the same large factor: what is printed changed (summed instead of averaged), not the run."""
    before, after = _sides(loss.value, at)
    if not before or not after or not median(before):
        return False
    factor = median(after) / median(before)
    place = next((i for i in range(len(grad)) if grad.source[i] == loss.source[at] and grad.line[i] >= loss.line[at] - 1), None)
    if place is None or factor <= 0 or 0.4 < factor < 2.5:
        return False
    was, now = _sides(grad.value, place)
    if not was or not now or median(was) <= 0:
        return False
    other = median(now) / median(was)
    return abs(math.log(max(other, 1e-9) / factor)) < 0.5


def _admitted(run: Run, event: Event | None) -> Event | None:
    """A warning that the data loader's place was not restored."""
    return next(
        (e for e in run.events if any(words in e.text for words in NOT_RESUMABLE) and (event is None or e.source == event.source)), None
    )


def _lost_state(run: Run, event: Event | None) -> Evidence | None:
    """A setting or line that says the optimizer state was not loaded."""
    for name, source, value, line in run.facts:
        key = name.lower().replace("-", "_")
        if ("no_load_optim" in key or "reset_optimizer" in key or key.rpartition(".")[2] == "finetune") and str(value).lower() in (
            "true",
            "1",
            "yes",
        ):
            return Evidence(source, line, f"{name} = {value}")
    for found_event in run.events:
        lower = found_event.text.lower()
        lost = "optimizer" in lower and any(
            w in lower for w in ("not loaded", "not found", "reinitial", "from scratch", "without optimizer", "skip loading")
        )
        if lost and (event is None or found_event.source == event.source):
            return run.evidence(found_event)
    return None


def _repeats(run: Run, loss: Series) -> bool:
    """Several resumes show the same jump that then decays: it follows the data, not the optimizer."""
    jumps = 0
    for at, _ in points(run):
        before, after = _sides(loss.value, at)
        if len(before) >= 4 and len(after) >= 4:
            spread = max(mad_sigma(before), noise(before), 1e-6)
            jumps += after[0] - median(before) > 5 * spread and after[-1] < after[0]
    return jumps >= 2


def judge_series_after(run: Run) -> Iterator[Finding]:
    """The learning rate fell back to a warm-up after a resume."""
    covers = ("L3.4", "H2")
    lr = series(run, "learning_rate")
    marks = points(run)
    if not marks or len(lr) < 8:
        return
    loss = _main(run)
    for at, event in marks:
        place = next((i for i in range(1, len(lr)) if lr.source[i] == loss.source[at] and lr.line[i] >= loss.line[at] - 1), None)
        if place is None or place < 3:
            continue
        before, now = lr.value[place - 1], lr.value[place]
        later = max(finite(lr.value[place : place + 200]) or [0.0])
        if before > 0 and now < 0.2 * before and later > 2 * now and later >= 0.8 * before:
            finding = found(
                "series.resume-lr",
                "training/optimizer-state",
                lr,
                place,
                0.35,
                covers,
                role="precursor",
                before=short(before),
                after=short(now),
            )
            if event is not None:
                finding.evidence.append(run.evidence(event))
            yield finding
            return


RULES = (
    Rule("series.resume", judge, ("H2", "L3.4")),
    Rule("series.resume-lr", judge_series_after, ("L3.4", "H2")),
)
