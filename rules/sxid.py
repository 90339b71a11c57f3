"""NVSwitch errors (SXid), from the kernel log and the fabric manager's.

Fatal ones are the fabric's own fault unless a GPU fell off the bus just before: then the switch only noticed.  11004 and 12028
are printed Non-fatal and yet stop the port's traffic.  Other non-fatal ones are repaired by the link and accuse nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rules.base import Finding, Rule
from rules.gpu_codes import sxids
from rules.kernel_view import ordered, view_of

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

NOTICED = 120.0  # seconds after a lost GPU in which switch errors are its echo


def judge(run: Run) -> Iterable[Finding]:
    """Findings `sxid.*`."""
    events = ordered(run.kind("sxid"))
    if not events:
        return
    view = view_of(run)
    lost = [e for e in [*run.kind("gpu_lost"), *run.kind("xid")] if e.kind == "gpu_lost" or e.fields.get("code") == 79]
    during: list[Event] = []
    for event in events:
        if view.earlier_boot(event) or view.phase(event) in ("before", "after"):
            yield view.excluded("sxid.aside", [event], None, "before", facts=_facts(event))
        else:
            during.append(event)
    fatal = [e for e in during if is_fatal(e)]
    rest = [e for e in during if not is_fatal(e)]
    echo = [
        e
        for e in fatal
        if any(x.time is not None and e.time is not None and 0 <= e.time - x.time <= NOTICED and view.host(x) == view.host(e) for x in lost)
    ]
    own = [e for e in fatal if e not in echo]
    survived = [e for e in own if view.went_on(e)]
    ended = [e for e in own if e not in survived]
    if ended:
        first = ended[0]
        entry = sxids().get(int(first.fields["code"]))
        cause = "infra/gpu-thermal" if entry is not None and entry.fault_id == "thermal" else "infra/gpu-nvlink-error"
        weight = 0.85 if first.fields.get("fatal") else 0.6
        yield view.finding("sxid.fatal", ended, cause, "root", weight, facts=_facts(first))
    if echo:
        yield view.finding("sxid.echo", echo, None, "symptom", 0.05, facts=_facts(echo[0]))
    if survived:
        yield view.excluded("sxid.survived", survived, "infra/gpu-nvlink-error", "went-on", facts=_facts(survived[0]))
    if rest:
        if view.went_on(rest[-1]):
            yield view.excluded("sxid.survived", rest, "infra/gpu-nvlink-error", "went-on", facts=_facts(rest[0]))
        else:
            yield view.finding("sxid.nonfatal", rest, "infra/gpu-nvlink-error", "precursor", 0.15, facts=_facts(rest[0]))


def is_fatal(event: Event) -> bool:
    """Whether traffic stops: as the line says, else as the catalogue knows; the stalling codes count whatever is printed."""
    entry = sxids().get(int(event.fields.get("code", 0)))
    if entry is not None and entry.harmless:
        return False
    if entry is not None and entry.stalls:
        return True
    printed = event.fields.get("fatal")
    if printed is not None:
        return bool(printed)
    return entry is not None and entry.fatality in ("always", "fatal")


def _facts(event: Event) -> dict[str, Any]:
    entry = sxids().get(int(event.fields.get("code", 0)))
    facts: dict[str, Any] = {
        "code": event.fields.get("code"),
        "switch": event.fields.get("switch") or event.fields.get("pci") or "?",
        "link": event.fields.get("link", "?"),
    }
    if entry is not None:
        facts |= {
            "mnemonic": entry.mnemonic,
            "unit": entry.unit["en"],
            "unit_zh": entry.unit["zh"],
            "fault": entry.fault["en"],
            "fault_zh": entry.fault["zh"],
        }
    else:
        facts |= {"mnemonic": "?", "unit": "?", "unit_zh": "?", "fault": "code not in the catalogue", "fault_zh": "目录中没有的代码"}
    return facts


RULES = (Rule("sxid", judge, covers=("S12",)),)
