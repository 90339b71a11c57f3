"""Stack frames in text, and whose code they are in."""

from __future__ import annotations

from typing import Any

from parsers.base import lazy_regex

Frame = dict[str, Any]

FRAME = lazy_regex(r'^\s*>?\s*File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<func>.{1,200}))?\s*$')
RICH = lazy_regex(r"^[\s│]*(?P<file>[^\s:│]{1,400}\.py):(?P<line>\d{1,7}) in (?P<func>[\w<>.]{1,120})\s*│?\s*$")
MARGIN = lazy_regex(r"^[ ]{0,40}(?:[|+](?: |$)|\+-\+-{2,}.*$)")

# Where installed code lives: everything else is the user's or a checkout of a framework.
LIBRARY = (
    "/site-packages/",
    "/dist-packages/",
    "<frozen ",
    "<string>",
    "<eval_with_key>",
    "<__array_function__",
    "/usr/lib/python",
    "importlib/_bootstrap",
)
STDLIB = lazy_regex(r"/lib(?:64)?/python\d(?:\.\d+)?/(?!site-packages)|/pyenv/versions/|/torchinductor_|/lib/python\d+\.zip")
# Directory names that betray a framework's own source checkout (editable installs).
FRAMEWORKS = lazy_regex(
    r"(?:^|/)(?:torch|transformers|trl|accelerate|peft|deepspeed|vllm|sglang|verl|openrlhf|megatron|megatron_core|ray|datasets|lightning|"
    r"pytorch_lightning|flash_attn|xformers|triton|unsloth|unsloth_zoo|swift|llamafactory|axolotl|nemo|nemo_rl|nemo_automodel|fairscale|apex|"
    r"transformer_engine|torchtitan|torchtune|bitsandbytes|numpy|pandas|pyarrow|torchvision|torchaudio|composer|slime|areal|roll)/(?:[\w.-]+/)*[\w.-]+\.py$"
)

# Names that end an exception's class name; others need more context to be believed.
SUFFIX = lazy_regex(
    r"(?:Error|Exception|Interrupt|Exit|Warning|StopIteration|Timeout|TimeoutExpired|Failure|Fault|Unsupported|ExceptionGroup|Empty|Full|Again|OOM|NotFound)$"
)
NAME = lazy_regex(r"^(?:[a-z_]\w{0,60}\.){0,12}[A-Z_]\w{0,100}(?:\([\w.]{1,120}\))?$")
LOWER = lazy_regex(r"^(?:[A-Za-z_]\w{0,60}\.){1,6}(?:error|timeout|exception|abort|gaierror|herror)$")  # zlib.error, socket.timeout
LEVELS = frozenset(
    ("INFO", "WARNING", "WARN", "ERROR", "DEBUG", "CRITICAL", "FATAL", "NOTE", "TRACE", "Traceback", "None", "True", "False", "OK")
)
NOISE = lazy_regex(r"^(?:\d{1,3}%\|| ?\d+it \[|\{'|step[ :=]|INFO\b|WARNING\b|ERROR:|\[\d{4}-|\d{4}-\d\d-\d\d|={5,}|-{5,}|Epoch )")


def strip_margin(text: str) -> str:
    """The text without the `  | ` or `  + ` margin of an exception group."""
    found = MARGIN.match(text)
    return text[found.end() :] if found else text


def is_library(file: str) -> bool:
    """Whether a frame's file belongs to installed code (standard library, site-packages, generated code)."""
    return any(part in file for part in LIBRARY) or STDLIB.search(file) is not None


def is_user(file: str) -> bool:
    """Whether a frame's file is the user's own code: neither installed nor a framework's source checkout."""
    return not is_library(file) and not file.startswith("<") and FRAMEWORKS.search(file) is None


def _frame(file: str, line: str, func: str | None) -> Frame:
    return {"file": file, "line": int(line), "func": (func or "").strip(), "code": "", "user": is_user(file)}


def frame_of(text: str) -> Frame | None:
    """The frame that a line `  File "x.py", line 3, in f` names, or None."""
    if 'File "' not in text:
        return None
    found = FRAME.match(text)
    return _frame(found["file"], found["line"], found["func"]) if found else None


def rich_frame(text: str) -> Frame | None:
    """The frame that a line of a boxed traceback `│ /a/x.py:3 in f │` names, or None."""
    if ".py:" not in text or ("│" not in text and not text.startswith("/")):
        return None
    found = RICH.match(text)
    return _frame(found["file"], found["line"], found["func"]) if found else None


def user_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame in the user's code; failing that the innermost in a framework checkout; None if all is installed code."""
    for frame in reversed(frames):
        if frame["user"]:
            return frame
    return next((frame for frame in reversed(frames) if not is_library(frame["file"]) and not frame["file"].startswith("<")), None)


def is_error_name(name: str, after_frames: bool) -> bool:
    """Whether a word before a colon (or alone on a line) is an exception's class name.

    after_frames: frames stand right above, so any class-like name is believed.
    """
    base = name.split("(", 1)[0]
    last = base.rsplit(".", 1)[-1]
    if last in LEVELS or base in LEVELS:
        return False
    if SUFFIX.search(last) and (last[0].isupper() or "." in base or last[0] == "_"):
        return not last.isupper() or len(last) > 8 or "." in base or last == "OOM"
    return after_frames and (LOWER.match(name) is not None or (NAME.match(name) is not None and not last.isupper()))


def is_noise(text: str) -> bool:
    """Whether a line is some other program's: a progress bar, a metrics dict, a logger's record."""
    return NOISE.match(text) is not None
