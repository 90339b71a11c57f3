"""Versions of the software stack as tools and training logs print them.

`python -m torch.utils.collect_env`, `ds_report`, `nvcc --version`, and the sentences in which frameworks name versions at start.
Facts: `version.torch`, `version.cuda` (what torch was built with), `version.nvcc` (the installed toolkit), `version.cudnn`,
`version.driver`, `version.python`, `version.<package>`, `os`, `gpu.name`, `gpu.count`.
"""

from __future__ import annotations

import re

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.packages import canonical, tell
from parsers.snapshots import once

# -------------------------------------------------------------------------------- python -m torch.utils.collect_env

_COLLECT = {
    "PyTorch version": "version.torch",
    "CUDA used to build PyTorch": "version.cuda",
    "ROCM used to build PyTorch": "version.rocm",
    "OS": "os",
    "GCC version": "version.gcc",
    "Libc version": "version.libc",
    "Python version": "version.python",
    "Python platform": "platform",
    "Is CUDA available": "cuda.available",
    "CUDA runtime version": "version.cuda_runtime",
    "Nvidia driver version": "version.driver",
    "cuDNN version": "version.cudnn",
    "Is XNNPACK available": "",
    "vLLM Version": "version.vllm",
    "Neuron SDK Version": "",
}
_NOTHING = frozenset({"n/a", "could not collect", "none", "", "no cuda"})
_GPU = lazy(r"\A\s{0,4}GPU (?P<gpu>\d{1,3}): (?P<name>\S.{0,80}?)\s{0,4}\Z")


def _collected(line: Line, rows: Rows, context: Context) -> None:
    if not line.text.startswith("Collecting environment information") and not re.match(r"PyTorch version: \d", line.text):
        return
    if line.text.startswith("PyTorch"):
        if any(near.text.startswith("Collecting environment information") for near in context.preceding(8)):
            return
        _pair(line, rows, context)
    cards = 0
    for near in context.following(260):
        text = near.text[:400]
        gpu = _GPU.match(text.removeprefix("GPU models and configuration: "))
        if gpu:
            cards += 1
            once(rows, context, near, "gpu.name", gpu["name"].split(" (UUID")[0])
            continue
        if text.startswith(("Traceback", "Versions of relevant libraries")):
            break
        _pair(near, rows, context)
    if cards:
        once(rows, context, line, "gpu.count", cards)


def _pair(line: Line, rows: Rows, context: Context) -> None:
    key, _, value = line.text[:400].partition(": ")
    name = _COLLECT.get(key.strip())
    value = value.strip()
    if not name or value.lower() in _NOTHING:
        return
    if name in ("version.python", "version.gcc"):
        found = re.search(r"\d{1,2}\.\d{1,2}(?:\.\d{1,2})?", value)
        value = found[0] if found else value
    if name == "version.cudnn":
        found = re.search(r"\d{1,2}\.\d{1,2}\.\d{1,2}", value)
        if found is None:
            return
        value = found[0]
    once(rows, context, line, name, value)
    if name == "version.torch":
        tell(rows, context, line, "torch", value)


# ---------------------------------------------------------------------------------------------------------- ds_report

_DS = lazy(r"\A\s{0,4}(?P<key>[a-z][a-z0-9 ./]{2,40}?) \.{3,60} (?P<value>\S[^\n]{0,200})\Z")
_DS_KEYS = {
    "torch version": "version.torch",
    "torch cuda version": "version.cuda",
    "torch hip version": "version.rocm",
    "nvcc version": "version.nvcc",
    "deepspeed info": "version.deepspeed",
    "shared memory (/dev/shm) size": "shm.size",
    "hip version": "version.rocm",
}
_PLAIN_VERSION = lazy(r"\d{1,4}\.\d{1,4}[\w.+-]{0,40}")


def _ds_report(line: Line, rows: Rows, context: Context) -> None:
    for near in context.following(24):
        found = _DS.match(near.text[:300])
        if found is None:
            continue
        name = _DS_KEYS.get(found["key"])
        if not name:
            if found["key"].startswith("shared memory"):
                once(rows, context, near, "shm.size", found["value"].strip())
            continue
        version = _PLAIN_VERSION.search(found["value"])
        if version and found["value"].strip() not in ("None", "unknown"):
            once(rows, context, near, name, version[0].rstrip(",."))


# --------------------------------------------------------------------------------------------------------- nvcc, logs

_NVCC = lazy(r"Cuda compilation tools, release (\d{1,2}\.\d{1,2})")
# A version number with at least one dot; build tags (`+cu121`, `.dev20240101`, `rc1`) belong to it.
_V = r"v?(?P<v>\d{1,4}\.\d{1,4}(?:\.\d{1,8})?(?:\.?(?:post|dev|rc|a|b)\d{1,10})?(?:\+[\w.]{1,40})?)(?![\w.]*[\w])"
# What a program says about itself.  Each names the package, or `(?P<name>…)` does.
_SAYINGS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("", lazy(r"(?i)\b(?P<name>py ?torch|torch|transformers|accelerate|trl|peft|datasets|tokenizers|vllm|sglang|deepspeed|flash[-_ ]?attn|flash[-_ ]?attention|triton|numpy|ray|bitsandbytes|xformers|unsloth|megatron-core|transformer[-_ ]engine|lightning|cudnn|nccl|python)(?:[ _]version|\.__version__|[ _]ver)\s{0,20}(?:[:=]\s{0,20}|is |-> )?['\"(]{0,2}" + _V)),
    ("vllm", lazy(r"(?:Initializing an? (?:V\d )?LLM engine \(|vLLM API server version |vLLM server version )" + _V)),
    ("deepspeed", lazy(r"DeepSpeed info: version=" + _V)),
    ("unsloth", lazy(r"Unsloth " + _V + r": Fast ")),
    ("torch", lazy(r"\bTorch: " + _V + r"\. CUDA")),
    ("transformers", lazy(r"Transformers: " + _V)),
    ("cuda", lazy(r"(?i)\btorch\.version\.cuda\s{0,8}(?:[:=]|is)\s{0,8}['\"]?(?P<v>\d{1,2}\.\d{1,2})\b")),
    ("cuda", lazy(r"\bCUDA Toolkit: (?P<v>\d{1,2}\.\d{1,2})\b")),
    ("cudnn", lazy(r"(?i)\bcudnn(?:\.version\(\)|[ _]version)\s{0,8}[:=]\s{0,8}(?P<v>\d{4,6})\b")),
    ("driver", lazy(r"(?i)\bdriver[ _]version\s{0,8}[:=]\s{0,8}(?P<v>\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b")),
)  # fmt: skip
_ALIASES = {"pytorch": "torch", "flash-attention": "flash-attn", "flashattn": "flash-attn", "flashattention": "flash-attn"}
# Sentences on what is wanted, not on what is there.
_WISH = lazy(
    r"(?i)requires?\b|should\b|at least|or (?:newer|later|higher|above)|minimum|upgrade|please|support|deprecat|expected|but (?:got|found)|install|mismatch|compiled (?:with|for|against)|>=|<="
)


def cudnn_text(number: int) -> str:
    """cuDNN's number as a version: 8902 -> 8.9.2, 90100 -> 9.1.0."""
    if number < 10_000:
        return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"
    return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"


def _said(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:600]
    if found := _NVCC.search(text):
        once(rows, context, line, "version.nvcc", found[1])
        return
    if _WISH.search(text) or line.source.endswith((".json", ".py", ".md")):
        return
    for name, pattern in _SAYINGS:
        for match in list(pattern.finditer(text))[:8]:
            package = name or canonical(match["name"].replace(" ", "-"))
            package = _ALIASES.get(package.replace("py-torch", "pytorch"), package)
            version = match["v"]
            if package == "cudnn" and version.isdigit():
                version = cudnn_text(int(version))
            if package == "torch":
                tell(rows, context, line, "torch", version)
            else:
                once(rows, context, line, f"version.{package}", version)


PARSER = (
    LineParser("collect_env", ("Collecting environment information", "PyTorch version: "), _collected),
    LineParser("ds_report", ("DeepSpeed general environment info",), _ds_report),
    LineParser(
        "versions",
        (
            "Cuda compilation tools, release ",
            "ersion: ",
            "ersion = ",
            "_version=",
            "__version__",
            "orch version ",
            "server version ",
            "ersion is ",
            "torch.version.cuda",
            "LLM engine (v",
            "DeepSpeed info: version=",
            ": Fast ",
            " Torch: ",
            "Transformers: ",
            "cudnn.version()",
        ),
        _said,
    ),
)
