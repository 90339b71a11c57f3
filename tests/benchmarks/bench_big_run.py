"""Time the analysis of a big run against ripgrep with signatures, `wc -l` and lnav, in one run and one table.

    python tests/benchmarks/bench_big_run.py [--run DIR] [--megabytes 945] [--signatures FILE] [--split 2000] [--repeat 3]

Without --run a run is made (train log of several writers, kernel log, GPU samples).  ripgrep searches for all literals of the
project's own packs and parsers, and with --signatures for the regular expressions of that file too.  --split cuts the train log into
that many rank files beside the others and times that run as well.  The commands take turns, so that a machine whose speed drifts
does not favour one.  Figures are whole-process wall and CPU seconds (median) and peak memory; quote ratios.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCAN = """
import sys
from pathlib import Path
from forensics import blocks
from forensics.analysis import reader_for
from forensics.floods import Floods, Shared
matcher = reader_for(()).matcher
for path in sorted(p for p in Path(sys.argv[1]).iterdir() if p.is_file()):
    floods, before = Floods(matcher, Shared(), path.stat().st_size), 0
    with path.open("rb") as stream:
        for block in blocks.blocks(stream, count=False):
            left_out = floods.flooding
            floods.chosen(floods.search(block.data, before, left_out), block.data, before, left_out)
            before += len(block.data)
"""


def make_run(folder: Path, megabytes: int) -> None:
    """A run whose GPU 5 falls off the bus at its end: chatter of many writers, a step every 400 lines, samples every second."""
    rng = random.Random(0)
    chatter = [
        *(
            f"node01:{41000 + r}:{52000 + r} [{r}] NCCL INFO Channel {c:02d}/0 : {r}[{r}] -> {(r + 1) % 8}[{(r + 1) % 8}] via P2P/CUMEM/read"
            for r in range(8)
            for c in range(8)
        ),
        *(
            f"(WorkerDict pid={61000 + r}) rollout batch {rng.randrange(9999)}: {rng.randrange(900, 1100)} prompts, mean response length {rng.uniform(200, 1800):.1f}"
            for r in range(8)
        ),
        *(
            f"[response] {' '.join(rng.choice(('the', 'sum', 'of', 'error', 'terms', 'failed', 'timeout', 'rank')) for _ in range(30))}"
            for _ in range(64)
        ),
        "UserWarning: `max_length` is ignored when `padding`=`True` and there is no truncation strategy.",
    ]
    size, second, step, start = 0, 0, 0, 1_772_323_200
    with (folder / "train.log").open("w") as log:
        while size < megabytes * 0.88 * 1e6:
            second += 1
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start + second))
            lines = [
                f"{stamp},{n:03d} - trainer.rank{n % 8} - INFO - micro_batch {n} seq_len={n * 7} fwd=63.{n}ms"
                if n % 3 == 0
                else rng.choice(chatter)
                for n in range(70)
            ]
            if second % 4 == 0:
                step += 1
                lines.append(
                    f"step:{step} - actor/pg_loss:{rng.uniform(-0.02, 0.02):.6f} - actor/grad_norm:{rng.uniform(0.2, 1.2):.5f} - critic/rewards/mean:{rng.random():.5f}"
                )
            size += log.write("\n".join(lines) + "\n")
        stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(start + second + 600))
        log.writelines(
            f"[rank{r}]:[E{stamp}.100000 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum=182734, OpType=ALLREDUCE, NumelIn=26214400, NumelOut=26214400, Timeout(ms)=600000) ran for 600069 milliseconds before timing out.\n"
            for r in range(8)
            if r != 5
        )
    with (folder / "dmesg.txt").open("w") as kernel:
        for s in range(0, second, 2):
            kernel.write(f"[{time.ctime(start + s)}] docker0: port {s % 8}(veth{s:07x}) entered forwarding state\n")
        kernel.write(
            f"[{time.ctime(start + second)}] NVRM: Xid (PCI:0000:a8:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        )
    with (folder / "gpu.csv").open("w") as samples:
        samples.write(
            "timestamp, index, pci.bus_id, utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu, power.draw [W]\n"
        )
        for s in range(second):
            stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(start + s))
            samples.writelines(
                f"{stamp}.{g:03d}, {g}, 00000000:{16 * g + 8:02X}:00.0, 97 %, 61000 MiB, 81559 MiB, 55, 520.00 W\n" for g in range(8)
            )


def split(run: Path, target: Path, parts: int) -> None:
    """The run with its largest file cut into `parts` rank files at line ends."""
    files = sorted((p for p in run.iterdir() if p.is_file()), key=lambda p: p.stat().st_size)
    for path in files[:-1]:
        (target / path.name).symlink_to(path.resolve())
    size = files[-1].stat().st_size // parts + 1
    with files[-1].open("rb") as log:
        for number in range(parts):
            piece = log.read(size) + log.readline()
            (target / f"rank_{number:05d}.log").write_bytes(piece)


def measure(command: list[str]) -> tuple[float, float, float]:
    """(wall seconds, CPU seconds, peak in MB) of a command."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):  # ripgrep and lnav say 1 where nothing matched
        raise SystemExit(f"{command[0]} failed: {' '.join(command[:6])}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--megabytes", type=int, default=945)
    parser.add_argument("--signatures", type=Path)
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        run = options.run
        if run is None:
            run = Path(made, "run")
            run.mkdir()
            make_run(run, options.megabytes)
        from forensics.analysis import reader_for

        own = Path(made, "own.txt")
        own.write_bytes(b"\n".join(reader_for(()).matcher.literals) + b"\n")
        files = [str(path) for path in sorted(run.iterdir()) if path.is_file()]
        size = sum(os.path.getsize(path) for path in files) / 1e6
        analyze = [sys.executable, "-m", "forensics", "analyze", "--json", os.devnull, "--quiet"]
        commands = {"forensics analyze (whole)": [*analyze, str(run)]}
        if options.split:
            pieces = Path(made, "split")
            pieces.mkdir()
            split(run, pieces, options.split)
            commands[f"the same as {options.split} files"] = [*analyze, str(pieces)]
        commands["forensics scan alone"] = [sys.executable, "-c", SCAN, str(run)]
        if shutil.which("rg"):
            commands["ripgrep, the same literals"] = ["rg", "-c", "-F", "-f", str(own), str(run)]
            if options.signatures:
                commands["ripgrep, --signatures"] = ["rg", "-c", "-f", str(options.signatures), str(run)]
        commands["wc -l"] = ["wc", "-l", *files]
        if shutil.which("lnav"):
            commands["lnav (no interface)"] = ["lnav", "-n", "-c", ":write-csv-to /dev/null", *files]
        print(f"{size:.0f} MB in {len(files)} files, median of {options.repeat}\n")
        rounds = [{name: measure(command) for name, command in commands.items()} for _ in range(options.repeat)]
        peers = [name for name in commands if name.startswith("ripgrep")]
        print(f"{'':28}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}" + "".join(f"{'x ' + peer:>30}" for peer in peers))
        for name in commands:
            wall, cpu = (statistics.median(r[name][at] for r in rounds) for at in (0, 1))
            ratios = [statistics.median(r[name][0] / r[peer][0] for r in rounds) for peer in peers]
            peak = max(r[name][2] for r in rounds)
            print(f"{name:28}{wall:8.2f}{cpu:8.2f}{peak:9.0f}" + "".join(f"{ratio:30.1f}" for ratio in ratios))


if __name__ == "__main__":
    main()
