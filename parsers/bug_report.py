"""`nvidia-bug-report.log(.gz)`: one text file that holds the output of several dozen commands.

Every part is read by the reader of that output, for all of them begin at lines of their own; this module only recognises the file,
names the driver, and notes which parts it holds.
"""

from __future__ import annotations

import re
from collections import Counter

from parsers.base import FileParser, Head, Rows, Source, lazy

MAX_BYTES = 64 << 20

_PART = lazy(
    rb"^\*\*\* (/[^\n]{1,200})|^(?:/usr/bin/|/sbin/|/bin/)?((?:nvidia-smi|lspci|dmesg|lsmod|journalctl|ps|ibstat|nvidia-debugdump|uname|lscpu|numactl)\b[^\n]{0,80})$",
    re.M,
)
_DRIVER = lazy(rb"NVRM version: NVIDIA UNIX \S{0,40}[^\n]{0,60}?Kernel Module[^\n]{0,40}?\s(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\s")


def _recognises(head: Head) -> float:
    return 0.95 if "Start of NVIDIA bug report log file" in head.text else 0.0


def _parse(source: Source, rows: Rows) -> None:
    with source.open() as stream:
        data = stream.read(MAX_BYTES)
    if found := _DRIVER.search(data):
        rows.fact(data.count(b"\n", 0, found.start()) + 1, "version.driver", found[1].decode())
    parts = Counter((match[1] or match[2]).decode("utf-8", "replace").split()[0].rsplit("/", 1)[-1] for match in _PART.finditer(data))
    if parts:
        rows.note("a bug report of the driver, with " + ", ".join(name for name, _ in parts.most_common(12)))


PARSER = FileParser("nvidia-bug-report", "gpu", _recognises, _parse, scan=True)
