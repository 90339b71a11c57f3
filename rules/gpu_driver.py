"""The GPU driver's lines that are no Xid: start-up failures, version mismatch, firmware heartbeat, resets, AMD faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rules.base import Finding, Rule
from rules.kernel_view import View, ordered, view_of

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

AMD_CAUSES = {"uncorrectable": "infra/gpu-ecc-uncorrectable", "page fault": "infra/gpu-mmu-fault"}


def judge(run: Run) -> Iterable[Finding]:
    """Findings `driver.*`."""
    view = view_of(run)
    broken = [e for e in run.kind("xid") if e.fields.get("code") in (48, 62, 64, 74, 79, 95, 119, 120, 140)] + run.kind("gpu_lost")
    for kind, rule, cause, weight in (
        ("rm_init_failed", "driver.init", "infra/gpu-init-failure", 0.8),
        ("driver_mismatch", "driver.mismatch", "infra/driver-mismatch", 0.85),
        ("gsp_timeout", "driver.gsp", "infra/gpu-gsp-timeout", 0.6),
        ("reset_required", "driver.reset", "infra/gpu-hang", 0.55),
        ("uvm_fatal", "driver.uvm", "infra/gpu-hang", 0.5),
        ("nvlink_setup", "driver.nvlink", "infra/gpu-nvlink-error", 0.3),
    ):
        yield from _group(view, ordered(run.kind(kind)), rule, cause, weight, broken)
    yield from _amd(view, ordered(run.kind("amdgpu_fault")))


def _group(view: View, events: list[Event], rule: str, cause: str, weight: float, broken: list[Event]) -> Iterator[Finding]:
    aside = [e for e in events if view.phase(e) in ("before", "after")]
    inside = [e for e in events if e not in aside]
    survived = [e for e in inside if view.went_on(e)]
    ended = [e for e in inside if e not in survived]
    if aside:
        yield view.excluded(f"{rule}.aside", aside, cause, "before", facts=_facts(aside[0]))
    if survived:
        yield view.excluded(f"{rule}.aside", survived, cause, "went-on", facts=_facts(survived[0]))
    if not ended:
        return
    first = ended[0]
    error = str(first.fields.get("error") or "")
    if rule == "driver.uvm" and "ECC" in error:
        cause, weight = "infra/gpu-ecc-uncorrectable", 0.8
    elif rule == "driver.uvm" and "LOST" in error.upper():
        cause, weight = "infra/gpu-fell-off-bus", 0.8
    earlier = [e for e in broken if view.host(e) == view.host(first) and (e.time is None or first.time is None or e.time <= first.time)]
    if earlier and rule != "driver.mismatch":
        yield view.finding(rule, ended, None, "symptom", 0.1, facts=_facts(first) | {"after": earlier[0].fields.get("code", 79)})
        return
    role = "precursor" if rule in ("driver.nvlink",) else "root"
    yield view.finding(rule, ended, cause, role, weight, facts=_facts(first))


def _amd(view: View, events: list[Event]) -> Iterator[Finding]:
    inside = [e for e in events if view.phase(e) in ("during", "unknown") and "succeeded" not in str(e.fields.get("what"))]
    if not inside:
        return
    if view.went_on(inside[-1]):
        yield view.excluded("driver.amd.aside", inside, "infra/gpu-hang", "went-on", facts=_facts(inside[0]))
        return
    ended = [e for e in inside if not view.went_on(e)]
    what = str(ended[0].fields.get("what"))
    cause = next((cause for word, cause in AMD_CAUSES.items() if word in what), "infra/gpu-hang")
    yield view.finding("driver.amd", ended, cause, "root", 0.75, facts=_facts(ended[0]))


def _facts(event: Event) -> dict[str, Any]:
    fields = event.fields
    return {
        "gpu": event.gpu or "?",
        "what": fields.get("what") or fields.get("error") or fields.get("step") or "?",
        "client": fields.get("client") or "?",
        "module": fields.get("module") or "?",
        "comm": fields.get("comm") or "?",
    }


RULES = (Rule("gpu-driver", judge, covers=("L0.1", "L0.2", "S1"), after=("xid",)),)
