"""What the words, the type and the frames of an exception say about its cause, where no signature knows it (H3).

A training stack holds tens of thousands of `raise` statements; nobody can list them.  Their words are few, though: an error about
columns or roles is about data, one about heads and parallel degrees about the configuration.  The clues and their points stand in
`rules/catalogue/error_words.toml`; a cause is named when it is clearly ahead of the causes of other layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import regex

from forensics.packs import read_toml

FILE = Path(__file__).resolve().parent / "catalogue" / "error_words.toml"
ENOUGH = 2.0  # points without which nothing is named
AHEAD = 0.5  # points by which the best cause must lead the best one of another layer
GENERIC = "model/invalid-config"  # "must be", "not supported": any error may say so, what it speaks of decides
GENERIC_AHEAD = 1.5  # points by which the generic cause must lead a particular one
LAST_FRAMES = 6  # only the innermost frames say what was being done
TEXT = 600  # characters of a message that are looked at: hints and dumps follow
OPENING = 160  # characters of the first sentence; what stands only behind them counts half


@dataclass(slots=True, frozen=True)
class Clue:
    """One clue: where it looks (`message`, `type`, `path`, `function`), and what it counts for (a cause, or a layer with a default)."""

    where: str
    pattern: regex.Pattern[str]
    points: float
    cause: str
    layer: str


@cache
def clues() -> tuple[Clue, ...]:
    """Every clue of the catalogue."""
    found = []
    for item in read_toml(FILE)["clue"]:
        for where in ("message", "type", "path", "function"):
            if where in item:
                pattern = regex.compile(item[where], regex.IGNORECASE)
                found.append(Clue(where, pattern, float(item["points"]), item.get("cause") or item["default"], item.get("layer", "")))
    return tuple(found)


def points(name: str, message: str, frames: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Points of each cause for an exception of class `name`; `frames` from outermost to innermost, with `file` and `func`."""
    last = list(frames)[-LAST_FRAMES:]
    files = "\n".join(str(frame.get("file", "")) for frame in last)
    functions = [str(frame.get("func", "")) for frame in last]
    text = message[:TEXT]
    score: dict[str, float] = {}
    layers: dict[str, tuple[float, str]] = {}
    for clue in clues():
        worth = clue.points
        if clue.where == "function":
            hit = any(clue.pattern.search(function) for function in functions)
        else:
            found = clue.pattern.search(text if clue.where == "message" else name if clue.where == "type" else files)
            hit = found is not None
            if found is not None and clue.where == "message" and found.start() > OPENING:
                worth /= 2
        if not hit:
            continue
        if clue.layer:
            layers[clue.layer] = (layers.get(clue.layer, (0.0, ""))[0] + worth, clue.cause)
        else:
            score[clue.cause] = score.get(clue.cause, 0.0) + worth
    for layer, (extra, default) in layers.items():
        own = [cause for cause in score if cause.startswith(f"{layer}/")]
        for cause in own or [default]:
            score[cause] = score.get(cause, 0.0) + extra
    return score


def cause_of(name: str, message: str, frames: Iterable[dict[str, Any]]) -> tuple[str, float] | None:
    """(cause, weight) that the words speak for, None where they leave it open."""
    score = points(name, message, frames)
    if not score:
        return None
    generic = score.pop(GENERIC, 0.0)
    cause = max(score, key=lambda key: (score[key], key), default=GENERIC)
    best = score.get(cause, 0.0)
    if generic >= ENOUGH and (best < ENOUGH or generic - best >= GENERIC_AHEAD):
        cause, best = GENERIC, generic
    layer = cause.partition("/")[0]
    rival = max((value for key, value in score.items() if not key.startswith(f"{layer}/")), default=0.0)
    if best < ENOUGH or best - rival < AHEAD:
        return None
    return cause, min(0.58, 0.44 + 0.02 * (best - ENOUGH) + 0.02 * (best - rival))
