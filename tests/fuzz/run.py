"""Fuzz every parser and the whole of `analyze` with coverage guidance, and print one table.

    python tests/fuzz/run.py --seconds 300 [--only TEXT] [--skip TEXT] [--markdown FILE]

The time is shared by the chosen targets (the whole of `analyze` takes a quarter).  Needs `atheris` (a wheel on PyPI for Linux); no part
of the tests needs it.  An input that makes a target raise, or take more than five seconds (`analyze`: 20), is kept in tests/fuzz/found,
one for each place that raised, and from then on is a test (tests/test_hostile_found.py); the fuzzer goes on after it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
FOUND = HERE / "found"
OURS = ["parsers", "forensics", "rules"]


@dataclass
class Outcome:
    """What one target's fuzzing gave.  seeds: inputs of the beginning that reached something new; slowest: CPU seconds of one input."""

    target: str
    executions: int = 0
    seconds: float = 0.0
    seeds: int = 0
    coverage: int = 0
    crashes: int = 0
    slowest: float = 0.0
    words: str = ""


class Watched:
    """A target that keeps the first input of each place that raises, and goes on."""

    def __init__(self, function: Callable[[bytes], None], folder: Path):
        self.function, self.folder = function, folder
        self.places: set[str] = set()
        self.executions, self.slowest, self.written = 0, 0.0, time.monotonic()

    def __call__(self, data: bytes) -> None:
        started = time.process_time()
        try:
            self.function(data)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} {Path(frame.filename).name}:{frame.lineno}"
            if isinstance(error, AssertionError):
                place += str(error)[:80]
            if place not in self.places:
                self.places.add(place)
                (self.folder / f"crash-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)
                print(f"FOUND {place}: {str(error)[:100]}", file=sys.stderr, flush=True)
        self.executions += 1
        spent = time.process_time() - started
        if spent > self.slowest and self.executions > 20:  # the first carry the imports
            self.slowest = spent
            (self.folder / "slowest").write_bytes(data)
        if time.monotonic() - self.written > 1:
            self.written = time.monotonic()
            (self.folder / "state").write_text(json.dumps([self.executions, self.slowest]))


def child(name: str, seconds: float, corpus: str, artifacts: str) -> None:
    """Fuzz one target in this process; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=OURS):
        import targets

        if name == "analyze":
            import forensics.analysis
            import forensics.reading
            import forensics.report.html
            import forensics.report.json  # noqa: F401

        function = targets.target(name)
    if name == "analyze":
        function(b"step 1 loss 2.0\n")  # the reader is built once
    words = Path(corpus).parent / "words"
    with words.open("w") as out:
        for word in targets.dictionary(name):
            out.write('"' + "".join(f"\\x{byte:02x}" for byte in word.encode()) + '"\n')
    arguments = [
        sys.argv[0],
        f"-max_total_time={max(1, round(seconds))}",
        f"-timeout={20 if name == 'analyze' else 5}",
        "-max_len=4096",
        "-len_control=0",
        f"-dict={words}",
        "-print_final_stats=1",
        f"-artifact_prefix={artifacts}/",
        corpus,
    ]
    atheris.Setup(arguments, Watched(function, Path(artifacts)))
    atheris.Fuzz()


def fuzz(name: str, seconds: float) -> Outcome:
    """Fuzz one target in a process of its own."""
    import targets

    outcome = Outcome(name)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=targets.MEMORY if targets.MEMORY.is_dir() else None) as folder:
        corpus, artifacts = Path(folder, "corpus"), Path(folder, "found")
        corpus.mkdir()
        artifacts.mkdir()
        for number, seed in enumerate(targets.seeds(name)):
            (corpus / str(number)).write_bytes(seed)
        command = [sys.executable, __file__, "--child", name, "--seconds", str(seconds), "--corpus", str(corpus)]
        command += ["--artifacts", str(artifacts)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds + 300)
        outcome.seconds = time.monotonic() - started
        state = artifacts / "state"
        if state.exists():
            outcome.executions, outcome.slowest = json.loads(state.read_text())
        if count := re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr):
            outcome.executions = int(count[1])
        if begun := re.search(r"INITED.*?corp: (\d+)/", done.stderr):
            outcome.seeds = int(begun[1])
        outcome.coverage = max((int(n) for n in re.findall(r"\bcov: (\d+)", done.stderr)), default=0)
        for path in sorted(artifacts.iterdir()):
            if path.name in ("state", "slowest"):
                continue
            data = path.read_bytes()
            FOUND.mkdir(exist_ok=True)
            kept = FOUND / f"{re.sub(r'[^a-z0-9]+', '-', name)}-{hashlib.sha256(data).hexdigest()[:12]}"
            kept.write_bytes(name.encode() + b"\n" + data)
            outcome.crashes += 1
        words = [line for line in done.stderr.splitlines() if line.startswith("FOUND") or re.match(r"ALARM|==\d+== ERROR", line)]
        outcome.words = "; ".join(word[:160] for word in words[:4]) or ("" if done.returncode == 0 else done.stderr[-160:])
    return outcome


def row(outcome: Outcome) -> str:
    """A line of the table."""
    return (
        f"{outcome.target:<32}{outcome.executions:>11,}{outcome.seconds:>9.0f}{outcome.seeds:>7}{outcome.coverage:>8}"
        f"{outcome.crashes:>9}{1000 * outcome.slowest:>10.0f}  {outcome.words}"
    )


def markdown(outcomes: list[Outcome]) -> str:
    """The table for docs/fuzzing.md."""
    lines = [
        "| target | executions | seconds | seeds kept | edges reached | inputs found | slowest, CPU ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        lines.append(
            f"| {o.target} | {o.executions:,} | {o.seconds:.0f} | {o.seeds} | {o.coverage:,} | {o.crashes} | {1000 * o.slowest:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--only", default="", help="targets whose name holds this")
    parser.add_argument("--skip", default="", help="not the targets whose name holds this")
    parser.add_argument("--json", type=Path, help="add the outcomes to this file, one a line, as they come")
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    parser.add_argument("--artifacts", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.seconds, options.corpus, options.artifacts)
        return 0
    import targets

    chosen = [name for name in targets.names() if options.only in name and not (options.skip and options.skip in name)]
    shares = {name: max(1.0, len(chosen) / 3) if name == "analyze" else 1.0 for name in chosen}
    print(f"{'target':<32}{'executions':>11}{'seconds':>9}{'seeds':>7}{'edges':>8}{'crashes':>9}{'slowest':>10}  (CPU ms of one input)")
    outcomes = []
    for name in chosen:
        outcomes.append(fuzz(name, max(1.0, options.seconds * shares[name] / sum(shares.values()))))
        print(row(outcomes[-1]), flush=True)
        if options.json:
            with options.json.open("a") as out:
                out.write(json.dumps(asdict(outcomes[-1])) + "\n")
    total = Outcome(
        f"{len(outcomes)} targets",
        sum(o.executions for o in outcomes),
        sum(o.seconds for o in outcomes),
        sum(o.seeds for o in outcomes),
        0,
        sum(o.crashes for o in outcomes),
        max((o.slowest for o in outcomes), default=0.0),
    )
    print(row(total))
    if options.markdown:
        options.markdown.write_text(markdown([*outcomes, total]), encoding="utf-8")
    return 1 if total.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
