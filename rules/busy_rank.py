"""The rank that the others wait for is at work elsewhere: saving, evaluating, preprocessing, or already past its data.

A collective that times out while one rank is busy belongs to the work it was busy with: when the others entered the collective,
that rank's last line was about the work, and nothing says it ended before the time-out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rules.base import Evidence, Finding, Rule
from rules.watchdog_table import Group, build, is_final

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

CAUSES = {"save": "training/checkpoint-save", "evaluate": "training/evaluation-stall", "preprocess": "data/preprocessing-timeout"}
#: function or file names in a stack that betray the work
STACK_WORDS = {
    "save": (
        "save_checkpoint",
        "_save_checkpoint",
        "save_model",
        "save_pretrained",
        "torch/serialization.py",
        "save_state",
        "save_checkpoints",
        "checkpoint_save",
    ),
    "evaluate": ("evaluate", "evaluation_loop", "validation_step", "_validate", "validate", "run_evaluation", "eval_loop"),
    "preprocess": (
        "main_process_first",
        "main_local_process_first",
        "preprocess",
        "tokenize",
        "_map_single",
        "map_fn",
        "load_dataset",
        "get_dataset",
        "build_dataset",
    ),
}
SLACK = 30.0  # seconds between the last line about the work and the others' entering of the collective
#: operations and sizes of small control collectives: barriers, flags, objects, metric reductions
SMALL = 1024
COVERS = ("L4.4", "S6")
WAITS = ("hccl-stream-timeout",)  # waiting ranks that only a signature recognises


def judge(run: Run) -> Iterable[Finding]:
    """At most one finding on busy ranks and one on data that ran out."""
    groups = build(run)
    gloo = [e for e in [*run.kind("gloo_timeout", "store_timeout", "hccl_wait"), *run.signature(*WAITS)] if is_final(run, e)]
    if groups:
        yield from _busy(run, groups, groups[0].first.event, _left(groups))
    elif gloo:
        first = gloo[0]
        length = first.fields.get("ms", 0) / 1000 or first.fields.get("seconds", 0)
        left = first.time - length if first.time is not None and not first.inherited and length else None
        yield from _busy(run, [], first, left, {e.rank for e in gloo if e.rank is not None})
    for group in groups:
        yield from _uneven(run, group)


def _left(groups: list[Group]) -> float | None:
    return min((w.began for g in groups for w in g.waits.values() if w.began is not None), default=None)


def _busy(
    run: Run, groups: list[Group], timeout: Event, left: float | None, waiting: frozenset[int] | set[int] = frozenset()
) -> Iterable[Finding]:
    reporting = {r for g in groups for r in g.waits if r >= 0} | waiting
    work = _last_work(run, timeout, left, reporting)
    if work is not None:
        what, weight = str(work.fields["what"]), 0.72
        # a rank that reports a time-out itself was waiting too; when all report, nobody was busy
        rank = work.rank
        if rank is None and 0 not in reporting and reporting:
            rank = 0
        if rank is not None and rank in reporting:
            return
        if rank is None:
            weight = 0.55 if not reporting else 0.4
        yield Finding(
            "busy-rank",
            cause=CAUSES[what],
            weight=weight,
            time=work.time,
            evidence=[run.evidence(work), run.evidence(timeout)],
            rank=rank,
            host=work.host,
            ranks=[rank] if rank is not None else [],
            covers=COVERS,
            facts={"what": what, "line": work.text[:160], "rank": rank, "left_at": left},
        )
        return
    yield from _stacks(run, timeout, reporting)


def _last_work(run: Run, timeout: Event, left: float | None, reporting: set[int]) -> Event | None:
    """The latest work begun and not ended when the others entered the collective."""
    by_time = left is not None
    place = run.last_progress_at
    open_: dict[tuple[int | None, str], Event] = {}
    for event in run.kind("activity"):
        if event.rank is not None and event.rank in reporting:
            continue
        if "phase" not in event.fields:
            continue  # a progress bar of no work that is known here
        what = str(event.fields["what"])
        if by_time and event.time is not None and not event.inherited:
            if event.time > left + SLACK and what not in {w for _, w in open_}:  # type: ignore[operator]
                continue  # begun after the others were already waiting
        elif event.source != timeout.source:
            # another rank's own file ends with the work, however it is stamped
            if event.rank is None or timeout.rank is None or run.files[event.source].rank != event.rank:
                continue
        elif event.line > timeout.line:
            continue
        if event.fields["phase"] == "end":
            # an end after the time-out shows how long it took; one before it clears the rank
            if event.time is None or timeout.time is None or event.time < timeout.time:
                open_.pop((event.rank, what), None)
        else:
            open_.setdefault((event.rank, what), event)
            if event.source != timeout.source and event.inherited:
                open_[event.rank, what] = event  # nothing says when it began; its last line is where it stands
            if event.time is not None:
                open_[event.rank, what] = _earlier_start(open_[event.rank, what], event, left)
    candidates = []
    for event in open_.values():
        if by_time and event.time is not None and not event.inherited:
            # training that went on after it, or a long pause before the others began to wait, clears it
            if (
                run.last_progress is not None
                and run.last_progress > event.time + 2.0
                and run.last_progress <= (left or 0.0) + SLACK
                and _training(run, event)
            ):
                continue
        elif place is not None and place.file == event.source and place.line > event.line and place.line < timeout.line:
            continue
        candidates.append(event)
    return max(candidates, key=lambda e: (e.time or 0.0, e.line), default=None)


def _earlier_start(held: Event, new: Event, left: float | None) -> Event:
    """A stretch of work is told by its first line, unless that one belongs to an earlier stretch."""
    if left is None or held.time is None or new.time is None:
        return held
    return new if held.time < left - 1800 and new.time <= left + SLACK else held


def _training(run: Run, event: Event) -> bool:
    """Whether the last progress is a training step rather than the bar of the work itself."""
    place = run.last_progress_at
    return not (place and any(word in place.text.lower() for word in ("eval", "valid", "map", "token", "sav")))


def _stacks(run: Run, timeout: Event, reporting: set[int]) -> Iterable[Finding]:
    """Stacks of ranks that did not report: a dump, or the traceback of what the waiting ranks were kept from."""
    for event in run.kind("stack_dump", "stack", "py_spy", "faulthandler", "thread_dump"):
        if event.rank is None or event.rank in reporting:
            continue
        text = str(event.fields.get("frames") or event.text)[:4000]
        for what, words in STACK_WORDS.items():
            if any(word in text for word in words):
                yield Finding(
                    "busy-rank-stack",
                    cause=CAUSES[what],
                    weight=0.65,
                    time=event.time,
                    evidence=[run.evidence(event), run.evidence(timeout)],
                    rank=event.rank,
                    ranks=[event.rank],
                    covers=COVERS,
                    facts={"what": what, "rank": event.rank},
                )
                return


def _uneven(run: Run, group: Group) -> Iterable[Finding]:
    """One or a few ranks wait in a small control collective while most wait in a step's large one: their data ran out first."""
    if len(group.waits) < 3:
        return
    small, large = [], []
    for rank, wait in group.waits.items():
        size = max((n for n in wait.size if n is not None), default=None)
        if wait.op == "BARRIER" or (size is not None and size <= SMALL):
            small.append(rank)
        elif size is not None:
            large.append(rank)
    if not small or not large or len(small) * 3 > len(large) or -1 in small:
        return
    seqs = [w.seq for w in group.waits.values() if w.seq is not None]
    if not seqs or max(seqs) - min(seqs) > 2 or min(seqs) < 20:
        return  # so early it is set-up code that differs, not data
    where = _epoch_end(run)
    operation = {group.waits[r].op for r in small}
    barrier = operation <= {"BARRIER"}
    events = [group.waits[r].event for r in [*sorted(small), *sorted(large)][:4]]
    began = [w.began for w in group.waits.values() if w.began is not None]
    yield Finding(
        "uneven-batches",
        cause="data/uneven-batches",
        weight=0.9 if where and barrier else 0.82 if where or barrier else 0.3,  # without an epoch's end any branch of the code may be it
        time=min(began, default=events[0].time),
        evidence=[run.evidence(e) for e in events] + ([where] if where else []),
        rank=min(small),
        ranks=sorted(small),
        covers=("L4.4", "L1.3"),
        facts={
            "ranks": sorted(small),
            "small": ", ".join(sorted(operation)),
            "large": group.waits[large[0]].program,
            "epoch_end": bool(where),
        },
    )


def _epoch_end(run: Run) -> Evidence | None:
    """A line that says a rank's data ran out: its own kind of event, or an epoch's last step as the last progress."""
    for event in run.kind("epoch_end", "data_exhausted"):
        if is_final(run, event):
            return run.evidence(event)
    return None


RULES = (Rule("busy-rank", judge, covers=COVERS, after=("collectives",)),)
