"""Environment variables that steer training, NCCL and CUDA: `env` dumps, `export` lines, launch commands, printed dicts.

Facts `env.NAME`.  An assignment counts where it begins a line or follows another one; a sentence that advises it does not.
"""

from __future__ import annotations

from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source, lazy, mostly
from parsers.prefixes import clean
from parsers.snapshots import once

PREFIXES = ("NCCL_", "TORCH_", "CUDA_", "PYTORCH_", "GLOO_", "OMP_", "UCX_", "FI_", "RCCL_", "HIP_", "ROCR_", "HSA_", "ACCELERATE_", "VLLM_", "SGLANG_",
            "DEEPSPEED_", "TOKENIZERS_", "RAY_", "MKL_", "NVTE_", "XLA_", "TRITON_", "TORCHINDUCTOR_", "HCCL_", "ASCEND_")  # fmt: skip
NAMES = frozenset(
    [
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "NNODES",
        "HF_HOME",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "WANDB_MODE",
        "SLURM_JOB_ID",
        "SLURM_NNODES",
        "SLURM_NTASKS",
        "SLURM_JOB_NODELIST",
        "CONDA_DEFAULT_ENV",
        "VIRTUAL_ENV",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "MALLOC_ARENA_MAX",
        "OMPI_COMM_WORLD_SIZE",
    ]
)
_SECRET = lazy(r"(?i)token|key|secret|passw|credential")
_ASSIGNED = lazy(
    r"\A\s{0,12}(?:\++\s{1,4})?(?:export\s{1,4}|declare -x\s{1,4}|env\s{1,4}|set -x\s{1,4}|set\s{1,4}|ENV\s{1,4}|-\s{1,4})?[\"']?(?=[A-Z])"
)
_ONE = lazy(
    r"(?P<name>[A-Z][A-Z0-9_]{2,60})=(?P<value>\"[^\"\n]{0,300}\"|'[^'\n]{0,300}'|[^\s\"';]{0,300})[\"',;]{0,2}\s{0,8}\\?\s{0,4}(?:export\s{1,4})?"
)
_ITEM = lazy(r"['\"](?P<name>(?:NCCL|TORCH_NCCL|CUDA|PYTORCH)_[A-Z0-9_]{2,60})['\"]\s?[:,=]\s?['\"](?P<value>[^'\"\n]{0,200})['\"]")
_DUMP = lazy(r"\A(?:export |declare -x )?[A-Za-z_][\w%()]{0,100}=")


def kept(name: str) -> bool:
    """Whether a variable is worth a fact: it steers the run and is no secret."""
    return (name in NAMES or name.startswith(PREFIXES)) and _SECRET.search(name) is None and len(name) <= 64


def _line(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:4000]
    begin = _ASSIGNED.match(text)
    if begin:
        at = begin.end()
        for _ in range(40):
            found = _ONE.match(text, at)
            if found is None:
                break
            _tell(line, rows, context, found["name"], found["value"])
            at = found.end()
    for count, found in enumerate(_ITEM.finditer(text)):
        if count >= 60:
            break
        _tell(line, rows, context, found["name"], found["value"])


def _tell(line: Line, rows: Rows, context: Context, name: str, value: str) -> None:
    value = value.strip("\"'").rstrip(",")
    if kept(name) and not value.startswith("$"):
        once(rows, context, line, f"env.{name}", value[:300])


def _recognises(head: Head) -> float:
    """An `env` dump: nearly all lines are assignments, and the variables every shell has are among them."""
    lines = head.written
    if len(lines) < 5 or sum(_DUMP.match(line[:300]) is not None for line in lines[:8]) < 4:
        return 0.0
    usual = sum(
        any(line.removeprefix("export ").removeprefix("declare -x ").startswith(name) for line in lines)
        for name in ("PATH=", "HOME=", "PWD=", "SHLVL=", "_=", "HOSTNAME=")
    )
    return 0.85 if usual >= 2 and mostly(lines, lambda line: _DUMP.match(line[:300]), 0.8) else 0.0


def _parse(source: Source, rows: Rows) -> None:
    context = Context(lambda _: iter(()), lambda _: iter(()))
    for at, raw in enumerate(source.text().splitlines()[:5000], 1):
        text = clean(raw.encode("utf-8", "replace"))[:4000].strip().removeprefix("export ").removeprefix("declare -x ")
        name, mark, value = text.partition("=")
        if mark:
            _tell(Line(source.path, at, text, text), rows, context, name, value)


PARSER = (
    LineParser(
        "environment variables",
        ("NCCL_DEBUG=", "NCCL_IB_", "NCCL_P2P_", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_NET", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE",
         "NCCL_CUMEM_ENABLE", "NCCL_TIMEOUT", "NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES=", "CUDA_LAUNCH_BLOCKING=",
         "CUDA_DEVICE_MAX_CONNECTIONS=", "PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF=", "TORCH_NCCL_", "OMP_NUM_THREADS=", "export MASTER_ADDR="),
        _line,
    ),
    FileParser("env dump", "environment", _recognises, _parse),
)  # fmt: skip
