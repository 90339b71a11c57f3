"""Numbers and key-value pairs as training logs print them, and the way from a printed pair to a metric row.

All patterns are linear and all inputs bounded, so that a hostile line costs no more than a long one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from parsers.base import Context, Line, Rows, Stamp, lazy
from parsers.canonical import reading

MAX_PAIRS = 600

NUMBER = (
    r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|(?:nan|NaN|NAN|inf|Inf|INF)(?![a-z])|[Ii]nfinity)"
)
# 'key': value of a Python or JSON dict: plain, quoted (transformers 5), numpy 2 repr, tensor repr or a list of one.
_QUOTED = lazy(
    r"""['"]([^'"\n]{1,160})['"]\s?:\s?(?:np\.\w{3,12}\(|numpy\.\w{3,12}\(|tensor\(\[?|array\(|\[)?\s?['"]?(NUM)['"]?\s?[\])]{0,2}\s?(?=[,}]|\Z)""".replace(
        "NUM", NUMBER
    )
)
_FRACTION = lazy(r"""['"]([^'"\n]{1,60})['"]\s?:\s?['"](\d{1,12})/(\d{1,12})['"]""")
_WRAPPED = lazy(r"(?:np|numpy)\.\w{1,12}\(([^()]{1,64})\)|tensor\(\[?([^(),\]]{1,64})")
_SUFFIXED = lazy(r"(NUM)\s?(K|M|B|T|ms|us|s|%|GiB|MiB|GB|MB|G)?(?:\([^()]{0,20}\))?\Z".replace("NUM", NUMBER))
_THOUSANDS = lazy(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?\Z")
_FACTOR = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

# A tqdm bar: `desc:  23%|## | 451/2000 [01:12<04:07,  6.28it/s`; the desc may be empty; vLLM and SGLang write `97% Completed | 158/163 [`.
BAR = lazy(
    r"(?P<desc>[^|\r\n%]{0,80}?)(?P<percent>\d{1,3})%(?:\|[^|\r\n]{0,400}| Completed )\|\s{0,4}(?P<step>\d[\d.,]{0,12})(?P<mult>[kMG]?)/(?P<total>\d[\d.,]{0,12})(?P<tmult>[kMG]?)\s{0,2}\[(?P<rest>[^\]\r\n]{0,2000})"
)
_OPEN_BAR = lazy(r"(?P<desc>[^|\r\n]{0,80}?)\|(?:[^|\r\n]{0,200}\|)?\s{0,2}(?P<step>\d{1,12})/\?\s{0,2}\[(?P<rest>[^\]\r\n]{0,2000})")
_BAR_MULTIPLES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
# Names that are counters, settings or bookkeeping rather than readings: used for the step, or left out.
NOT_METRICS = frozenset(
    {"step", "total_steps", "eta", "remaining_time", "elapsed_time", "time/remaining_estimate", "_timestamp", "_runtime", "_wandb"}
)


def number(text: str) -> float | None:
    """A printed number: `0.1`, `'0.1'`, `1,234`, `41.9M`, `np.float64(0.1)`, `tensor(0.1, ...)`, `94.1ms`, `61.2GiB(77%)`, nan, inf.

    A K/M/B suffix multiplies; a unit is dropped (the canonical table's scale turns it).  None where the text is no number.
    """
    text = text.strip()
    if len(text) > 80:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    if text.startswith("np.") and text.endswith(")"):
        try:
            return float(text[text.find("(") + 1 : -1])
        except ValueError:
            return None
    text = text.strip("'\"[]")
    wrapped = _WRAPPED.match(text)
    if wrapped is not None:
        text = (wrapped[1] or wrapped[2]).strip()
    if _THOUSANDS.match(text):
        text = text.replace(",", "")
    match = _SUFFIXED.match(text)
    if match is None:
        return None
    try:
        return float(match[1]) * _FACTOR.get(match[2] or "", 1.0)
    except ValueError:
        return None


def quoted_pairs(text: str) -> Iterator[tuple[str, float]]:
    """(key, number) of each numeric item of a printed dict; items with other values are passed over."""
    for match in islice(_QUOTED.finditer(text), MAX_PAIRS):
        if len(match[2]) > 80:  # no reading is printed so; `float` would make infinity of it
            continue
        try:
            yield match[1], float(match[2])
        except ValueError:
            continue


def fraction(text: str, key: str = "global_step/max_steps") -> tuple[float, float] | None:
    """(n, total) of an item such as `'global_step/max_steps': '12/94'`."""
    if key not in text:
        return None
    for match in islice(_FRACTION.finditer(text), 20):
        if match[1] == key:
            return float(match[2]), float(match[3])
    return None


def dict_body(text: str, at: int = 0) -> str | None:
    """What stands between the first `{` from `at` on and its `}` on the same line (or the line's end, where it is cut off)."""
    begin = text.find("{", at)
    if begin < 0:
        return None
    end = text.find("}", begin)
    inner = text.find("{", begin + 1, end if end >= 0 else len(text))
    if inner >= 0:
        return None  # nested: a configuration, not readings
    return text[begin + 1 : end] if end >= 0 else text[begin + 1 : max(begin + 1, text.rfind(",", begin))]


def step_of(pairs: Iterable[tuple[str, float]], framework: str | None = None) -> float | None:
    """The step that a set of pairs names itself."""
    for key, value in pairs:
        if reading(key, framework).name == "step" and 0 <= value < 1e15:
            return value
    return None


def emit(
    line: Line, rows: Rows, pairs: Iterable[tuple[str, float]], step: float | None, framework: str | None = None, rank: int | None = None
) -> int:
    """Write pairs as metric rows under their canonical names; returns how many were written."""
    count = 0
    for key, value in pairs:
        how = reading(key, framework)
        if how.name in NOT_METRICS:
            continue
        rows.metric(line, how.name, value * how.scale if how.scale != 1.0 else value, step, key, rank)
        count += 1
    return count


def bars(text: str) -> Iterator[tuple[str, float, float, str]]:
    """(description, step, total, text in brackets) of each progress bar of a text; total 0 where the bar knows none (`250/?`)."""
    if "%|" not in text and "% Completed |" not in text:
        if "/?" in text:
            for match in islice(_OPEN_BAR.finditer(text), 400):
                yield match["desc"].strip(" :\t"), float(match["step"]), 0.0, match["rest"]
        return
    for match in islice(BAR.finditer(text), 400):
        try:
            step = float(match["step"].replace(",", "")) * _BAR_MULTIPLES[match["mult"]]
            total = float(match["total"].replace(",", "")) * _BAR_MULTIPLES[match["tmult"]]
        except ValueError:
            continue
        yield match["desc"].strip(" :\t"), step, total, match["rest"]


def bar_after(context: Context, total: float | None) -> tuple[float, float] | None:
    """(step, total) of the progress bar redrawn right after a line.

    With `total` only a bar of that length counts, so that an evaluation's bar does not give the step.
    """
    for neighbour in context.following(3):
        for desc, step, whole, _ in bars(neighbour.text):
            if (total is None and is_training(desc)) or whole == total:
                return step, whole
        if neighbour.text.strip():
            break
    return None


def bar_near(context: Context, total: float | None) -> tuple[float, float] | None:
    """(step, total) of the progress bar around a line: the one redrawn after it, else the last one above it."""
    after = bar_after(context, total)
    if after is not None:
        return after
    for neighbour in context.preceding(2):
        found = [(step, whole) for desc, step, whole, _ in bars(neighbour.text) if (total is None and is_training(desc)) or whole == total]
        if found:
            return found[-1]
    return None


_OTHER_WORK = lazy(
    r"(?i)load|download|fetch|map|filter|token|generat|sav|writ|pack|capturing|captur|prompt|shard|compil|extract|convert|upload|eval|valid|test|predict|sampl|prepar|process|format|cache|read|infer|comput|rollout|add|apply|truncat|drop|merg|quantiz|preproc|build|creat|hash|verif|resolv|copy|collect"
)
_TRAINING = lazy(r"(?i)train|epoch|step|iter|learn|global|optim|update")


def is_training(desc: str) -> bool:
    """Whether a bar's description is that of the training loop (an empty one is)."""
    desc = desc[-80:].strip(" |:-│")
    return (
        not desc
        or (_TRAINING.search(desc) is not None and not re.match(r"(?i)\W*(?:eval|valid|test|load|sav|download)", desc))
        or (_OTHER_WORK.search(desc) is None and len(desc) < 12)
    )


def decimals(texts: Iterable[str]) -> int | None:
    """The number of decimals if every text is printed with the same one, else None."""
    found: set[int] = set()
    for text in texts:
        _, dot, tail = text.partition(".")
        if not dot or not tail.isdigit():
            return None
        found.add(len(tail))
        if len(found) > 1:
            return None
    return found.pop() if found else None


def placed(source: str, at: int, seconds: float | None = None, rank: int | None = None) -> Line:
    """A line of a structured file: its number and, where the record holds one, its time (Unix seconds)."""
    stamp = Stamp("epoch", seconds, 0.0, precision=0.001) if seconds is not None and 1e8 < seconds < 1e11 else None
    return Line(source, at, "", "", rank=rank, stamp=stamp)


def once(context: Context, rows: Rows, line: Line, key: str, value: str) -> None:
    """A fact once per file and parser."""
    seen = context.state.setdefault("facts", set())
    if (key, value) not in seen and len(seen) < 1000:
        seen.add((key, value))
        rows.fact(line, key, value)
