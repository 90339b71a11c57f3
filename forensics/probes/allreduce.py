"""Self-test of the communication: all-reduces of growing size over all ranks, with the result checked and the bandwidth printed.

    torchrun --nproc-per-node gpu allreduce.py                                                     # this machine
    torchrun --nnodes 2 --nproc-per-node gpu --rdzv-backend c10d --rdzv-endpoint HOST:29500 allreduce.py

Bus bandwidth counts the bytes a ring moves per rank, 2 (n - 1) / n times the size.  Compare it between nodes and with the same
test under NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1; add NCCL_DEBUG=INFO to see which path is taken.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def measure(tensor: Any, rounds: int, synchronize: Any) -> float:
    """Seconds of one all-reduce, after two for warm-up."""
    for _ in range(2):
        dist.all_reduce(tensor)
    synchronize()
    started = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(tensor)
    synchronize()
    return (time.perf_counter() - started) / rounds


def main(sizes: tuple[int, ...] = (1 << 20, 16 << 20, 256 << 20), rounds: int = 10) -> float:
    """Run the test with the process group that the launcher's environment describes; returns the last bus bandwidth in GB/s."""
    on_gpu = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    bandwidth = 0.0
    try:
        check = torch.full((1024,), float(rank + 1), device=device)
        dist.all_reduce(check)
        expected = world * (world + 1) / 2
        if not bool((check == expected).all().item()):
            raise SystemExit(f"rank {rank}: the all-reduce gave {check[0].item()}, expected {expected}")
        for size in sizes:
            tensor = torch.zeros(size // 4, dtype=torch.float32, device=device)
            seconds = measure(tensor, rounds, torch.cuda.synchronize if on_gpu else lambda: None)
            bandwidth = size * 2 * (world - 1) / world / seconds / 1e9
            if rank == 0:
                print(
                    f"all-reduce of {size >> 20} MiB over {world} ranks: {seconds * 1e3:.3f} ms, bus bandwidth {bandwidth:.2f} GB/s",
                    flush=True,
                )
        if rank == 0:
            print("all-reduce self-test passed", flush=True)
    finally:
        dist.destroy_process_group()
    return bandwidth


if __name__ == "__main__":
    main()
