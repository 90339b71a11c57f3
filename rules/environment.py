"""The software environment (L0.1 to L0.5): GPUs and drivers, CUDA against the driver, known-bad version pairs, limits.

A version that does not fit is a circumstance until an error speaks of it; many odd pairs run for months.  A finding becomes a root
only with the error's own line beside the versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from forensics.packs import read_toml
from parsers.base import lazy
from rules.base import Evidence, Finding, Rule
from rules.gpu_codes import FOLDER
from rules.process_view import at_error, order
from rules.versions import gathered, holds, key

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

LOW_FILES = 4096  # bash's default is 1024; a dataloader with 16 workers on 8 ranks and sharded files passes some thousands
DRIVER_ERROR = lazy(
    r"driver version is insufficient|NVIDIA driver on your system is too old|unsupported toolchain|forward compatibility was attempted|"
    r"system has unsupported display driver|CUDA driver initialization failed|named symbol not found|compiled with an unsupported toolchain",
    re.I,
)
TOOLKIT_ERROR = lazy(
    r"detected CUDA version .{0,40}mismatches|no kernel image is available|lib(?:cudart|cublas|cublasLt|nvrtc|cusparse|nvJitLink)\S{0,40}"
    r"(?:: cannot open|.{0,80}undefined symbol)|Installed CUDA version .{0,40}does not match",
    re.I,
)


@cache
def _toml(name: str) -> dict[str, Any]:
    return read_toml(FOLDER / name)


def facts(run: Run, name: str) -> list[tuple[Any, Evidence]]:
    """The different values of a fact with the place where each first stands."""
    out: list[tuple[Any, Evidence]] = []
    for key_, file, value, line in run.facts:
        if key_ == name and all(value != other for other, _ in out) and len(out) < 64:
            out.append((value, Evidence(file, line, f"{name} = {value}"[:200])))
    return out


def speaks(run: Run, pattern: re.Pattern[str]) -> tuple[Event, Evidence] | None:
    """The first exception whose text or chain matches, with its line."""
    for event in sorted(run.kind("traceback", "exception"), key=order):
        chain = " ".join(str(c.get("message", "")) for c in event.fields.get("chain") or [] if isinstance(c, dict))
        if pattern.search(f"{event.text[:2000]} {str(event.fields.get('message', ''))[:2000]} {chain[:4000]}"):
            return event, at_error(event)
    return None


def _raised(rule: str, event: Event, evidence: list[Evidence], cause: str, weight: float, told: dict[str, Any]) -> Finding:
    return Finding(
        rule, cause=cause, weight=weight, time=event.time, evidence=evidence, rank=event.rank, host=event.host, pid=event.pid, facts=told
    )


def undecided(rule: str, cause: str | None, needs: str) -> Finding:
    """What could not be judged, and the key of what would be needed."""
    return Finding(rule, "undecided", cause, "context", 0.0, "info", needs=needs)


# -------------------------------------------------------------------------------------------------------------- L0.1


def gpu_driver(run: Run) -> Iterator[Finding]:
    """GPU model and driver, and whether all hosts agree."""
    names, drivers = facts(run, "gpu.name"), facts(run, "version.driver")
    if not names and not drivers:
        yield undecided("env.gpu-driver", None, "nvidia-smi")
        return
    told = {"gpus": ", ".join(str(v) for v, _ in names[:4]) or "?", "drivers": ", ".join(str(v) for v, _ in drivers[:4]) or "?"}
    mixed = len(models([str(v) for v, _ in names])) > 1 or len(drivers) > 1
    where = [e for _, e in (*names[:3], *drivers[:3])]
    if mixed:
        yield Finding("env.gpu-mixed", "found", None, "context", 0.0, "info", evidence=where, facts=told)
    else:
        yield Finding("env.gpu-driver", "excluded", "infra/driver-mismatch", "context", 0.0, "info", evidence=where, facts=told)


def models(names: list[str]) -> list[str]:
    """Different models among names; old tables cut long ones (`Tesla V100-SXM2...`), and some print them without the maker."""
    out: list[str] = []
    for name in sorted({n.removeprefix("NVIDIA ").strip() for n in names}, key=lambda n: n.endswith("...")):
        stem = name.removesuffix("...").strip()
        if not any(other == name or (name.endswith("...") and other.startswith(stem)) for other in out):
            out.append(name)
    return out


# -------------------------------------------------------------------------------------------------------------- L0.2


def needed_driver(cuda: str) -> tuple[str | None, str | None]:
    """(oldest driver that runs this CUDA's family at all, driver that came with this release); None where the table has none."""
    table = _toml("cuda_drivers.toml")
    major, _, minor = cuda.partition(".")
    release = table["release"].get(f"{major}.{minor.partition('.')[0]}")
    return table["family"].get(major) or (release if major.isdigit() and int(major) < 11 else None), release


def driver_cuda(run: Run) -> Iterator[Finding]:
    """torch's CUDA against what the driver can run."""
    built, drivers, offered = facts(run, "version.cuda"), facts(run, "version.driver"), facts(run, "version.cuda_driver")
    error = speaks(run, DRIVER_ERROR)
    pairs = [(cuda, driver) for cuda in built for driver in drivers]
    short, behind = [], []
    for (cuda, at), (driver, there) in pairs:
        least, release = needed_driver(str(cuda))
        mine = key(str(driver))
        if least is None or mine is None or (own := key(least)) is None:
            continue
        if mine < own:
            short.append((cuda, driver, least, [at, there]))
        elif release and mine < (key(release) or mine):
            behind.append((cuda, driver, release, [at, there]))
    if not pairs:
        for cuda, at in built:
            for most, there in offered:
                one, two = str(cuda).partition(".")[0], str(most).partition(".")[0]
                if one.isdigit() and two.isdigit() and int(one) > int(two):
                    short.append((cuda, f"CUDA {most}", f"CUDA {one}.0", [at, there]))
    for found, rule, weight in ((short, "env.driver-too-old", 0.8), (behind, "env.driver-behind", 0.7)):
        if not found:
            continue
        cuda, driver, least, where = found[0]
        told = {"cuda": cuda, "driver": driver, "least": least}
        if error is not None:
            yield _raised(f"{rule}.error", error[0], [error[1], *where], "infra/driver-mismatch", weight, told)
        else:
            everywhere = len(found) == len(pairs) or not pairs
            severity: Any = "warning" if rule == "env.driver-too-old" and everywhere else "info"
            yield Finding(rule, "found", "infra/driver-mismatch", "context", 0.1, severity, evidence=where, facts=told)
        return
    if pairs:
        (cuda, at), (driver, there) = pairs[0]
        yield Finding(
            "env.driver-cuda",
            "excluded",
            "infra/driver-mismatch",
            "context",
            0.0,
            "info",
            evidence=[at, there],
            facts={"cuda": cuda, "driver": driver},
        )
    else:
        yield undecided("env.driver-cuda", "infra/driver-mismatch", "nvidia-smi; torch.version.cuda")


def toolkit(run: Run) -> Iterator[Finding]:
    """The installed toolkit against torch's CUDA: matters only where extensions are compiled or loaded."""
    built, installed = facts(run, "version.cuda"), facts(run, "version.nvcc")
    if not built or not installed:
        yield undecided("env.toolkit", "infra/cuda-mismatch", "nvcc --version, torch.version.cuda")
        return
    majors = {str(v).partition(".")[0] for v, _ in built} | {str(v).partition(".")[0] for v, _ in installed}
    where = [built[0][1], installed[0][1]]
    told = {"cuda": built[0][0], "nvcc": installed[0][0]}
    if len(majors) > 1:
        error = speaks(run, TOOLKIT_ERROR)
        if error is not None:
            yield _raised("env.toolkit.error", error[0], [error[1], *where], "infra/cuda-mismatch", 0.75, told)
        else:
            yield Finding("env.toolkit.differs", "found", "infra/cuda-mismatch", "context", 0.1, "info", evidence=where, facts=told)
    else:
        yield Finding("env.toolkit", "excluded", "infra/cuda-mismatch", "context", 0.0, "info", evidence=where, facts=told)


# -------------------------------------------------------------------------------------------------------------- L0.3


@cache
def _pairs() -> list[tuple[dict[str, Any], re.Pattern[str]]]:
    return [(entry, re.compile(entry["error"])) for entry in _toml("known_pairs.toml")["pair"]]


def known_pairs(run: Run) -> Iterator[Finding]:
    """Pairs of `rules/catalogue/known_pairs.toml` among the versions that the logs name."""
    known = gathered(run.facts)
    watched = {entry[side]["name"] for entry, _ in _pairs() for side in ("a", "b")}
    here = [name for name in known if name in watched]
    if len(here) < 2:
        yield undecided("env.known-pairs", "infra/library-incompatibility", "pip list")
        return
    hit = False
    for entry, pattern in _pairs():
        one, two = (_all_match(known.get(entry[side]["name"], []), entry[side]["is"]) for side in ("a", "b"))
        if one is None or two is None:
            continue
        hit = True
        told = {
            "a": one.text,
            "b": two.text,
            "advice": entry["advice"]["en"],
            "advice_zh": entry["advice"]["zh"],
            "source": entry["source"],
            "pair": entry["id"],
        }
        error = speaks(run, pattern)
        if error is not None:
            weight = 0.6 if entry["basis"] == "guide" else 0.8
            yield _raised("env.known-pair.error", error[0], [error[1], one, two], "infra/library-incompatibility", weight, told)
        else:
            yield Finding(
                "env.known-pair", "found", "infra/library-incompatibility", "context", 0.1, "info", evidence=[one, two], facts=told
            )
    if not hit:
        where = [known[name][0][1] for name in here[:6]]
        told = {"names": ", ".join(e.text for e in where), "count": len(here)}
        yield Finding("env.known-pairs", "excluded", "infra/library-incompatibility", "context", 0.0, "info", evidence=where, facts=told)


def _all_match(values: list[tuple[str, Evidence]], condition: str) -> Evidence | None:
    """The place of the first value, where every value that the logs name fulfils the condition."""
    return values[0][1] if values and all(holds(text, condition) for text, _ in values) else None


# -------------------------------------------------------------------------------------------------------------- L0.4, L0.5


def open_files(run: Run) -> Iterator[Finding]:
    """The limit of open files, and whether something ran into it."""
    values = [(v, e) for v, e in facts(run, "limit.open_files") if isinstance(v, int) or v == "unlimited"]
    if not values:
        yield undecided("env.open-files", "infra/fd-limit", "ulimit -a")
        return
    low = [(v, e) for v, e in values if isinstance(v, int) and v <= LOW_FILES]
    error = speaks(run, re.compile(r"Too many open files|Errno 24"))
    if low:
        role: Any = "precursor" if error else "context"
        yield Finding(
            "env.open-files.low",
            "found",
            "infra/fd-limit",
            role,
            0.3,
            "warning" if error else "info",
            evidence=[low[0][1]],
            facts={"limit": low[0][0]},
        )
    else:
        yield Finding(
            "env.open-files", "excluded", "infra/fd-limit", "context", 0.0, "info", evidence=[values[0][1]], facts={"limit": values[0][0]}
        )


def swappiness(run: Run) -> Iterable[Finding]:
    """Shown, and weighed nothing: it steers swapping, not whom the OOM killer takes."""
    values = facts(run, "swappiness")
    if not values:
        yield undecided("env.swappiness", None, "/proc/sys/vm/swappiness")
        return
    yield Finding("env.swappiness.shown", "found", None, "context", 0.0, "info", evidence=[values[0][1]], facts={"value": values[0][0]})


RULES = (
    Rule("env.gpu-driver", gpu_driver, ("L0.1", "S1")),
    Rule("env.driver-cuda", driver_cuda, ("L0.2", "Q11")),
    Rule("env.toolkit", toolkit, ("L0.2", "Q11")),
    Rule("env.known-pairs", known_pairs, ("L0.3",)),
    Rule("env.open-files", open_files, ("L0.4",)),
    Rule("env.swappiness", swappiness, ("L0.5",)),
)
