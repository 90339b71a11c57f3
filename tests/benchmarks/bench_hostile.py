"""The hostile inputs at their full size: processor time, peak memory and size of the page of each, in one table.

    python tests/benchmarks/bench_hostile.py [--only TEXT] [--folder DIR]

Each is made in a temporary folder (up to 5 GB, sparse where it may be), analysed in a process of its own and removed.  The tests hold
the same inputs at a size that takes seconds (tests/test_hostile_text.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 79.15 GiB of which 1.62 MiB is free.\n"
CHILD = """
import json, re, sys, time
from forensics import analyze
report = analyze(sys.argv[1])
page, document = report.to_html(), report.to_json()
failed = [f.rule for f in report.run.findings if f.needs.startswith("the rule failed")]
failed += [str(n) for i in report.run.files.values() for n in i.notes if "reader failed" in str(n)]
print(json.dumps([report.verdict.cause, time.process_time(), int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024, len(page.encode()), len(document.encode()), failed]))
"""


def one_line(piece: bytes) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        block = piece * ((4 << 20) // len(piece))
        with (run / "train.log").open("wb") as out:
            for _ in range((5 << 30) // len(block)):
                out.write(block)
            out.write(b"\n" + OOM.encode())

    return make


def nuls(run: Path) -> None:
    with (run / "train.log").open("wb") as out:
        out.truncate(5 << 30)
        out.seek(5 << 30)
        out.write(b"\n" + OOM.encode())


def repeated(line: str, count: int) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        block = (line * 10_000).encode()
        with (run / "train.log").open("wb") as out:
            for _ in range(count // 10_000):
                out.write(block)
            out.write(OOM.encode())

    return make


def tracebacks(run: Path) -> None:
    with (run / "train.log").open("w") as out:
        for n in range(100_000):
            out.write(f'[rank{n % 64}]: Traceback (most recent call last):\n[rank{n % 64}]:   File "/app/train.py", line 42, in main\n')
            out.write(f"[rank{n % 64}]:     loss.backward()\n[rank{n % 64}]: {OOM}")


def ranks(files: bool) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        def step(rank: int, n: int) -> str:
            return f"2026-03-01 10:{n:02d}:00 [rank{rank}] node{rank // 8:03d} step {n} loss {2 - n / 100:.3f}\n"

        def end(rank: int) -> str:
            if rank == 77:
                return f"2026-03-01 10:20:01 [rank77]: {OOM}"
            work = f"[{rank}] is setting up NCCL communicator and retrieving ncclUniqueId from [0]"
            return f"2026-03-01 10:21:{rank % 60:02d} [rank{rank}]: RuntimeError: {work}\n"

        everyone = range(4096)
        if files:
            for rank in everyone:
                text = "".join(step(rank, n) for n in range(20)) + end(rank)
                (run / f"node{rank // 8:03d}_rank_{rank}.log").write_text(text)
        else:
            with (run / "train.log").open("w") as out:
                for n in range(20):
                    out.writelines(step(rank, n) for rank in everyone)
                out.writelines(sorted((end(rank) for rank in everyone), key=lambda line: line[:19]))

    return make


def years(run: Path) -> None:
    text = "0001-01-01 00:00:00 step 1 loss 2\n9999-12-31 23:59:59 step 2 loss 2\n[99999999999.500000] x\n2026-02-30 25:61:61 "
    (run / "train.log").write_text(text + OOM)


def nested(run: Path) -> None:
    deep = 100_000
    (run / "metrics.jsonl").write_text('{"loss": 1, "a": ' + "[" * deep + "]" * deep + "}\n")
    (run / "trainer_state.json").write_text('{"log_history": ' + "[" * deep)
    (run / "config.json").write_text('{"a":' * deep + "1" + "}" * deep)
    (run / "config.yaml").write_text("a: " + "[" * deep + "]" * deep + "\n")
    (run / "train.log").write_text("{'loss': " + "{'a': " * deep + "\n" + OOM)


def wide(run: Path) -> None:
    rows = (",".join(["1.5"] * 10_001) + "\n") * 500
    (run / "metrics.csv").write_text(",".join(["step", *(f"c{n}" for n in range(10_000))]) + "\n" + rows)
    (run / "ok.log").write_text(OOM)


def digits(run: Path) -> None:
    line = f"step {'9' * 10_000} loss {'1' * 10_000}\n{{'loss': {'8' * 10_000}, 'step': {'9' * 9_999}}}\n"
    (run / "train.log").write_text(line * 1000 + OOM)
    (run / "metrics.jsonl").write_text(('{"step": ' + "9" * 10_000 + ', "loss": ' + "1" * 10_000 + "}\n") * 1000)


def names(kind: str) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        with (run / ("metrics.jsonl" if kind == "jsonl" else "x.log")).open("w") as out:
            for n in range(50_000):
                if kind == "jsonl":
                    out.write(json.dumps({"step": n, **{f"x/loss_{n}_{k}": 1.0 for k in range(20)}}) + "\n")
                else:
                    out.write(f"step: {n} " + " ".join(f"loss_{n}_{k}: 1.0" for k in range(20)) + "\n")
        (run / "ok.log").write_text(OOM)

    return make


def readings(run: Path) -> None:
    with (run / "metrics.jsonl").open("w") as out:
        for n in range(150_000):
            out.write(
                f'{{"step": {n}, "loss": {2 - n / 1e5:.4f}, "grad_norm": 1.5, "lr": 1e-05, "kl": 0.1, "reward": 0.5, "entropy": 1.25}}\n'
            )
    (run / "ok.log").write_text(OOM)


def noise(run: Path) -> None:
    (run / "train.log").write_bytes(OOM.encode() * 50 + random.Random(4).randbytes(200 << 20))


def yaml(run: Path) -> None:
    text = "a: &a [x, x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(20))
    (run / "config.yaml").write_text(text + '!!python/object/apply:os.system ["touch pwned"]\nlr: 1\n')
    (run / "ok.log").write_text(OOM)


CASES: dict[str, Callable[[Path], None]] = {
    "5 GB in one line, x": one_line(b"x"),
    "5 GB in one line, readings": one_line(b"loss: 1.5 step 3 "),
    "5 GB of NULs (sparse)": nuls,
    "200 MB of random bytes": noise,
    "10 million equal lines, an error": repeated(OOM, 10_000_000),
    "10 million equal lines, a reading": repeated("step: 3 loss: 1.5 grad_norm: 0.3\n", 10_000_000),
    "10 million equal lines, plain": repeated("hello world, nothing here\n", 10_000_000),
    "100,000 tracebacks": tracebacks,
    "4,096 ranks in one file": ranks(False),
    "4,096 rank files": ranks(True),
    "years 1 and 9999": years,
    "JSON and YAML 100,000 deep": nested,
    "YAML anchors and tags": yaml,
    "CSV of 10,000 columns": wide,
    "numbers of 10,000 digits": digits,
    "a million metric names, JSON lines": names("jsonl"),
    "a million metric names, log": names("log"),
    "1.05 million readings, JSON lines": readings,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", help="where the inputs are made")
    options = parser.parse_args()
    print(f"{'input':<38}{'MB':>8}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}{'page kB':>9}{'JSON kB':>9}  cause")
    for name, make in CASES.items():
        if options.only not in name:
            continue
        folder = Path(tempfile.mkdtemp(prefix="hostile-", dir=options.folder))
        try:
            run = folder / "run"
            run.mkdir()
            make(run)
            size = sum(path.stat().st_size for path in run.iterdir()) / 1e6
            started = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", CHILD, str(run)],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=folder,
            )
            wall = time.monotonic() - started
            if done.returncode:
                print(f"{name:<38}{size:>8.0f}{wall:>8.1f}  FAILED {done.stderr[-300:]}", flush=True)
                continue
            cause, cpu, peak, page, document, failed = json.loads(done.stdout)
            print(
                f"{name:<38}{size:>8.0f}{wall:>8.1f}{cpu:>8.1f}{peak:>9.0f}{page / 1000:>9.0f}{document / 1000:>9.0f}  {cause} {failed or ''}",
                flush=True,
            )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
