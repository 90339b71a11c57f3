"""`cpu.stat` of a control group (v1 and v2): how often a container was held back because it used up its CPU quota.

Event `cpu_throttling`: fields `periods` and `throttled` (counts of scheduler periods).  The lines stand bare (`cat cpu.stat`) or
behind the file's path (`grep . cpu.stat`, `forensics collect`).
"""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy

_COUNT = lazy(r"(?:\A|[:\s])nr_(?P<what>periods|throttled)[ :]{1,4}(?P<count>\d{1,18})\s{0,4}\Z")
MAX_EVENTS = 2000  # of one file: a monitor may print the counters all day


def _parse(line: Line, rows: Rows, context: Context) -> None:
    found = _COUNT.search(line.text[:400])
    if found is None or found["what"] != "throttled":
        return
    near = (_COUNT.search(other.text[:400]) for other in context.preceding(2))
    periods = next((int(match["count"]) for match in near if match and match["what"] == "periods"), None)
    count = context.state["seen"] = context.state.get("seen", 0) + 1
    if periods is not None and count <= MAX_EVENTS:
        rows.event(line, "cpu_throttling", fields={"periods": periods, "throttled": int(found["count"])})


PARSER = LineParser("cpu.stat", ("nr_throttled",), _parse)
