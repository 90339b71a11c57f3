"""The versions of torch and of the training packages, asked of the interpreter that trains (which need not be ours)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "trl",
    "peft",
    "datasets",
    "tokenizers",
    "deepspeed",
    "vllm",
    "sglang",
    "flash-attn",
    "xformers",
    "bitsandbytes",
    "triton",
    "numpy",
    "ray",
    "verl",
    "openrlhf",
    "nemo-rl",
    "megatron-core",
    "transformer-engine",
    "apex",
    "lightning",
    "pytorch-lightning",
    "liger-kernel",
    "unsloth",
    "huggingface-hub",
    "safetensors",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cublas-cu12",
    "wandb",
)

# Printed in the forms of `python -m torch.utils.collect_env` and `pip list`.
SCRIPT = """
import platform, sys
from importlib import metadata
print(f"Python version: {platform.python_version()} (64-bit runtime)")
print(f"Python platform: {platform.platform()}")
print(f"Python executable: {sys.executable}")
try:
    import torch
    print(f"PyTorch version: {torch.__version__}")
    print(f"CUDA used to build PyTorch: {torch.version.cuda or 'Could not collect'}")
    print(f"ROCM used to build PyTorch: {getattr(torch.version, 'hip', None) or 'N/A'}")
    print(f"cuDNN version: {torch.backends.cudnn.version() or 'Could not collect'}")
    print(f"Is CUDA available: {torch.cuda.is_available()}")
    try:
        print("NCCL version: " + ".".join(map(str, torch.cuda.nccl.version())))
    except Exception:
        pass
except ImportError:
    print("PyTorch version: N/A")
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
wide = max([7] + [len(name) for name in found])
print()
print("Package".ljust(wide) + " Version")
print("-" * wide + " " + "-" * max([7] + [len(value) for value in found.values()]))
for name, value in found.items():
    print(name.ljust(wide) + " " + value)
"""


def command(python: str) -> tuple[str, ...]:
    """The command that prints the versions as `python` sees them; `-B` keeps it from writing byte code."""
    return (python, "-B", "-c", SCRIPT, *PACKAGES)


def interpreter(pids: Iterable[int] = (), proc: Path = Path("/proc")) -> str:
    """The Python of a running training process, else the one on the path, else ours."""
    for pid in pids:
        try:
            target = os.readlink(proc / str(pid) / "exe")
            # A virtual environment's python is a link: its own path stands in the environment or the command line.
            first = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
        except OSError:
            continue
        if "python" in os.path.basename(target):
            return first if os.path.isabs(first) and os.access(first, os.X_OK) else target
    return shutil.which("python") or shutil.which("python3") or sys.executable
