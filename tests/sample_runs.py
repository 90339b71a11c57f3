"""Writes the runs of `sample_logs/`: `python tests/sample_runs.py` makes them anew, byte for byte the same.

Every run is ours, in the true formats of its sources.  `tests/test_samples.py` says what each must be judged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import sample_hosts as hosts
import sample_training as training

SAMPLES = Path(__file__).resolve().parent.parent / "sample_logs"
RUNS: dict[str, Callable[[Path], None]] = {
    "gpu-lost": hosts.gpu_lost,
    "host-oom-two-nodes": hosts.host_oom,
    "collective-order": hosts.collective_order,
    "token-id-out-of-range": training.token_id,
    "checkpoint-shapes": training.checkpoint_shapes,
    "gpu-oom-fragmentation": training.fragmentation,
    "loss-nan": training.loss_nan,
    "entropy-collapse-grpo": training.entropy_collapse,
    "guide-probes": training.guide_probes,
    "healthy": training.healthy,
    "interrupted": training.interrupted,
}


def main() -> None:
    for name, write in RUNS.items():
        write(SAMPLES / name / "logs")


if __name__ == "__main__":
    main()
