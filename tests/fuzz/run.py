"""Fuzz every parser and the whole of `analyze` with coverage guidance, and print a table.

    python tests/fuzz/run.py --seconds 300 [--only TEXT]

The time is shared by all targets (the whole of `analyze` takes a fifth).  Needs `atheris` (a wheel on PyPI for Linux); no part of the
tests needs it.  An input that makes a target raise, or take more than five seconds, is kept in tests/fuzz/found and from then on
is a test (tests/test_hostile_found.py).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
FOUND = HERE / "found"


def child(name: str, seconds: float, corpus: str, artifacts: str) -> None:
    """Fuzz one target in this process; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["parsers", "forensics"]):
        import targets

        function = targets.target(name)
    arguments = [
        sys.argv[0],
        f"-max_total_time={max(1, round(seconds))}",
        f"-timeout={60 if name == 'analyze' else 5}",
        "-max_len=4096",
        "-print_final_stats=1",
    ]
    atheris.Setup([*arguments, f"-artifact_prefix={artifacts}/", corpus], function)
    atheris.Fuzz()


def fuzz(name: str, seconds: float) -> tuple[int, list[Path], str]:
    """(executions, inputs found, last words) of one target."""
    import targets

    with tempfile.TemporaryDirectory() as folder:
        corpus, artifacts = Path(folder, "corpus"), Path(folder, "found")
        corpus.mkdir()
        artifacts.mkdir()
        for number, seed in enumerate(targets.seeds(name)):
            (corpus / str(number)).write_bytes(seed)
        command = [
            sys.executable,
            __file__,
            "--child",
            name,
            "--seconds",
            str(seconds),
            "--corpus",
            str(corpus),
            "--artifacts",
            str(artifacts),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds + 300)
        count = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr) or re.search(r"Done (\d+) runs", done.stderr)
        kept = []
        for path in sorted(artifacts.iterdir()):
            data = path.read_bytes()
            FOUND.mkdir(exist_ok=True)
            target = FOUND / f"{re.sub(r'[^a-z0-9]+', '-', name)}-{hashlib.sha256(data).hexdigest()[:12]}"
            target.write_bytes(name.encode() + b"\n" + data)
            kept.append(target)
        words = [line for line in done.stderr.splitlines() if re.match(r"\w*(Error|Exception)\b|ALARM|==\d+== ERROR", line)]
        return int(count[1]) if count else 0, kept, words[-1][:160] if words else "" if done.returncode == 0 else done.stderr[-160:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--only", default="")
    parser.add_argument("--child")
    parser.add_argument("--corpus")
    parser.add_argument("--artifacts")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.seconds, options.corpus, options.artifacts)
        return 0
    import targets

    chosen = [name for name in targets.names() if options.only in name]
    shares = {name: len(chosen) / 4 if name == "analyze" else 1.0 for name in chosen}
    total = found = 0
    for name in chosen:
        seconds = max(1.0, options.seconds * shares[name] / sum(shares.values()))
        count, kept, words = fuzz(name, seconds)
        total, found = total + count, found + len(kept)
        print(f"{name:<32}{seconds:7.1f} s {count:>10,} runs {len(kept):>3} found  {words}", flush=True)
    print(f"{len(chosen)} targets, {total:,} runs, {found} inputs found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
