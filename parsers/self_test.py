"""Bandwidth self-tests: the project's own all-reduce (`forensics probes allreduce`) and the summary of nccl-tests.

`all-reduce of 256 MiB over 8 ranks: 2.6 ms, bus bandwidth 180.20 GB/s`; `# Avg bus bandwidth    : 178.4` (nccl-tests 2.x).
Facts `self_test.bandwidth.<size>` and `self_test.bandwidth.average` in GB/s, to be compared between nodes and runs.
"""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy

_OURS = lazy(r"\ball-reduce of (\d{1,9}) MiB over (\d{1,7}) ranks: [\d.]{1,16} ms, bus bandwidth (\d{1,9}(?:\.\d{1,6})?) GB/s")
_NCCL_TESTS = lazy(r"^\s{0,4}# Avg bus bandwidth\s{1,12}: (\d{1,9}(?:\.\d{1,6})?)\s{0,8}\Z")


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:400]
    seen = context.state["seen"] = context.state.get("seen", 0) + 1
    if seen > 1000:
        return
    if (match := _OURS.search(text)) is not None:
        rows.fact(line, f"self_test.bandwidth.{match[1]}MiB", float(match[3]))
        rows.fact(line, "self_test.ranks", int(match[2]))
    elif (match := _NCCL_TESTS.match(text)) is not None:
        rows.fact(line, "self_test.bandwidth.average", float(match[1]))


PARSER = LineParser("bandwidth self-test", ("bus bandwidth",), _parse)
