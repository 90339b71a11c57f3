"""Gathers host evidence on a live machine: a snapshot, GPU samples, or a training command with both beside it.

`collect(out)` writes one folder (or archive) that `analyze` and `compare` read; `watch(...)` samples the GPUs; `run(...)` wraps a
command.  Tools that are missing or do not answer become notes; nothing on the machine is changed.
"""

from __future__ import annotations

from forensics.collecting.snapshot import Collection, collect
from forensics.collecting.watch import Sampler, watch
from forensics.collecting.wrap import run

__all__ = ["Collection", "Sampler", "collect", "run", "watch"]
