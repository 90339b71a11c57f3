"""`collect` on a machine with and without tools, GPU samples, and a wrapped command; what it writes is what `analyze` reads."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support_tools import SMI, tools
from typer.testing import CliRunner

import forensics
from forensics.cli.app import app
from forensics.collecting import collect, system, watch
from forensics.collecting.commands import Answer, ask
from forensics.collecting.items import ITEMS, items
from forensics.collecting.watch import Sampler
from forensics.evidence import Unusable

STAMPED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ")


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs, whose kernel log tells of an OOM kill; versions are asked of a stand-in interpreter."""
    folder = tools(
        tmp_path / "bin",
        nvidia_smi=SMI,
        dmesg='echo "2026-11-28T09:00:00,000000+00:00 Out of memory: Killed process 4242 (python) total-vm:9000kB, anon-rss:8000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"',
        python='echo "PyTorch version: 2.4.0+cu121"',
        ibstat='echo "CA \'mlx5_0\'"; echo "State: Active"',
    )
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(system, "training_processes", lambda: iter(()))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_API_KEY", "hidden")
    return folder


def test_everything_the_guide_names_is_asked_for() -> None:
    covered = {item for entry in ITEMS for item in entry.covers}
    assert {"L0.1", "L0.4", "L0.6", "S1", "S6", "S11", "S12"} <= covered
    assert len({entry.file for entry in ITEMS}) == len(ITEMS)


def test_a_folder_that_analyze_reads(gpus: Path, tmp_path: Path) -> None:
    found = collect(tmp_path / "out", python=str(gpus / "python"))
    host = next((tmp_path / "out").iterdir())
    names = {path.name for path in host.iterdir()}
    assert {"nvidia-smi-query.csv", "nvidia-smi-q.txt", "nvidia-smi-topo.txt", "dmesg.log", "ulimit.txt", "ps.txt", "df.txt", "free.txt", "versions.txt", "swappiness.txt", "ibstat.txt", "collected.json"} <= names  # fmt: skip
    first = (host / "nvidia-smi-query.csv").read_text().splitlines()[0]
    assert first == "0, NVIDIA H100 80GB HBM3, 41, 97, 71234, 81559"
    environment = (host / "environment.txt").read_text()
    assert "NCCL_DEBUG=INFO" in environment
    assert "hidden" not in environment
    manifest = json.loads((host / "collected.json").read_text())
    assert manifest["host"] == host.name
    assert {entry["file"] for entry in manifest["files"]} == names - {"collected.json"} | {"swappiness.txt"}
    assert [note for name, note in found.notes if name == "rocm-smi.txt"] == ["not installed (AMD GPUs)"]
    result = forensics.analyze(tmp_path / "out")
    kinds = {path.rpartition("/")[2]: info.kinds for path, info in result.run.files.items()}
    assert [
        name
        for name, kind in kinds.items()
        if "train" in kind and name not in ("ibstat.txt", "rocm-smi.txt", "uname.txt", "clock.txt", "nvidia-smi-nvlink.txt")
    ] == []
    assert result.run.started is None or result.run.started > time.time() - 120  # the boot is not the run's beginning
    report = result.to_dict()
    assert report["environment"]["version.driver"] == "550.54.15"
    assert report["environment"]["version.torch"] == "2.4.0+cu121"
    assert report["environment"]["env.NCCL_DEBUG"] == "INFO"
    assert not any(finding["evidence"] and "collected.json" in finding["evidence"][0]["file"] for finding in report["findings"])
    assert report["environment"]["gpu.name"] == "NVIDIA H100 80GB HBM3"


def test_within_a_slurm_job_the_schedulers_record_is_kept(gpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools(gpus, scontrol='echo "JobId=77 JobName=grpo"; echo "   JobState=RUNNING Reason=None TimeLimit=1-00:00:00"')
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    collect(tmp_path / "out", python=str(gpus / "python"))
    report = forensics.analyze(tmp_path / "out").to_dict()
    assert report["environment"]["slurm.time_limit"] == "1-00:00:00"
    assert {item.file for item in items({"SLURM_JOB_ID": "7; rm"})} == {item.file for item in ITEMS}


def test_an_archive_that_analyze_reads(gpus: Path, tmp_path: Path) -> None:
    found = collect(tmp_path / "node.tar.gz", python=str(gpus / "python"))
    with tarfile.open(found.path) as tar:
        members = tar.getnames()
    assert all(name.startswith("node/") for name in members)
    assert not any(path.suffix == ".part" for path in tmp_path.iterdir())
    report = forensics.analyze(found.path).to_dict()
    assert report["environment"]["gpu.name"] == "NVIDIA H100 80GB HBM3"
    with pytest.raises(Unusable, match="exists already"):
        collect(found.path)


def test_nothing_is_overwritten(gpus: Path, tmp_path: Path) -> None:
    collect(tmp_path / "out", python=str(gpus / "python"))
    with pytest.raises(Unusable, match="holds a collection already"):
        collect(tmp_path / "out")
    (tmp_path / "file").write_text("x")
    with pytest.raises(Unusable, match="name a folder or an archive"):
        collect(tmp_path / "file")


def test_without_any_tool_there_are_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    found = collect(tmp_path / "out", python="/nonexistent/python")
    missing = dict(found.notes)
    assert missing["nvidia-smi.txt"].startswith("not installed")
    assert missing["versions.txt"].startswith("not installed")
    assert any(name.endswith("machine.txt") for name in found.files)
    assert forensics.analyze(tmp_path / "out").to_dict()["verdict"]["layer"] in ("none", "unknown")


def test_what_a_failing_gpu_tool_says_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tools(tmp_path / "bin", nvidia_smi='echo "Failed to initialize NVML: Driver/library version mismatch" >&2; exit 18', dmesg='echo "dmesg: read kernel buffer failed: Operation not permitted" >&2; exit 1', journalctl="exit 1")  # fmt: skip
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    found = collect(tmp_path / "out")
    host = next((tmp_path / "out").iterdir())
    assert "Driver/library version mismatch" in (host / "nvidia-smi.txt").read_text()
    assert not (host / "dmesg.log").exists()
    assert dict(found.notes)["dmesg.log"].startswith("needs more rights (try as root)")
    assert not any("permitted" in path.read_text(errors="replace") for path in host.rglob("*.json"))


def test_a_tool_that_hangs_costs_its_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tools(tmp_path / "bin", stuck="exec sleep 60")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    started = time.monotonic()
    answer = ask(("stuck",), 0.3)
    assert answer.note == "gave no answer within 0.3 s"
    assert time.monotonic() - started < 5


def test_control_groups_of_both_kinds(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/kubepods/pod1\n")
    (root / "kubepods/pod1").mkdir(parents=True)
    (root / "kubepods/pod1/memory.max").write_text("68719476736\n")
    (root / "memory").mkdir()
    (root / "memory/memory.limit_in_bytes").write_text("1024\n")
    text = system.container(root, proc)
    assert text is not None
    assert f"{root}/kubepods/pod1/memory.max: 68719476736" in text
    assert "memory.limit_in_bytes: 1024" in text
    assert system.container(tmp_path / "none", proc) is None


def test_only_variables_that_decide_the_run_are_kept() -> None:
    text = system.environment({"NCCL_IB_DISABLE": "1", "HF_TOKEN": "hf_x", "AWS_SECRET_ACCESS_KEY": "y", "PATH": "/bin", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert text == "CUDA_VISIBLE_DEVICES=\nNCCL_IB_DISABLE=1\nSLURM_JOB_ID=7\n"


def test_processes_are_described() -> None:
    files = system.process_files(os.getpid())
    assert "VmPeak" in files["status"]
    assert "Max open files" in files["limits"]


# ---------------------------------------------------------------------------------------------------- samples


def test_samples_have_our_clock_and_the_fixed_columns(gpus: Path) -> None:
    lines: list[str] = []
    sampler = Sampler(1, lines.append)
    assert sampler.sample()
    rows = list(csv.reader(lines, skipinitialspace=True))
    assert rows[0][:7] == ["timestamp", "index", "name", "temperature.gpu", "utilization.gpu", "memory.used", "memory.total"]
    assert [row[1] for row in rows[1:]] == ["0", "1"]
    assert all(row[0].endswith("+00:00") for row in rows[1:])


def test_an_older_driver_gets_the_guides_query(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMI_OLD", "1")
    lines: list[str] = []
    Sampler(1, lines.append).sample()
    assert lines[0] == "timestamp,index,name,temperature.gpu,utilization.gpu,memory.used,memory.total\n"
    assert "not a valid field" not in "".join(lines)
    assert len(lines) == 3


def test_a_lost_gpu_is_a_row_and_an_error_in_the_report(gpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    sampler = Sampler(1, lines.append)
    sampler.sample()
    monkeypatch.setenv("SMI_LOST", "1")
    sampler.sample()
    assert "GPU is lost" in lines[-1]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/gpu.csv").write_text("".join(lines))
    report = forensics.analyze(tmp_path / "run")
    assert report.run.samples is not None
    assert report.run.samples["memory_used"].to_list()[:2] == [71234.0, 71234.0]
    assert report.run.samples["time"][0] == pytest.approx(time.time(), abs=120)
    assert [event.kind for event in report.run.events if "GPU is lost" in event.text]


def test_no_driver_no_samples() -> None:
    sampler = Sampler(1, lambda text: None, lambda command, timeout: Answer(note="not installed"))
    assert not sampler.sample()
    assert "nvidia-smi is not installed" in sampler.note


def test_a_silent_driver_leaves_a_row(gpus: Path) -> None:
    lines: list[str] = []
    Sampler(1, lines.append, lambda command, timeout: Answer(note="gave no answer within 30 s")).sample()
    assert lines[-1].endswith("nvidia-smi gave no answer within 30 s\n")


def test_watching_ends_cleanly(gpus: Path) -> None:
    stop = threading.Event()
    lines: list[str] = []

    def write(text: str) -> None:
        lines.append(text)
        if len(lines) > 4:
            stop.set()

    sampler = watch(0.2, write, stop)
    assert sampler.samples >= 2


def test_watch_on_the_command_line(gpus: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "forensics", "collect", "--watch", "0.2", "--out", str(tmp_path / "w")], stderr=subprocess.PIPE
    )
    path = tmp_path / "w/gpu.csv"
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not (path.exists() and len(path.read_text().splitlines()) > 2):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"samples in" in said


# --------------------------------------------------------------------------------------------- wrapped command

TRAIN = """
import os, signal, sys, time
print("step 1 loss 2.5")
print("to standard error", file=sys.stderr)
sys.stdout.write("  0%|  | 0/2\\r"); sys.stdout.flush()
time.sleep(1.2)
sys.stdout.write(" 50%|# | 1/2\\r100%|##| 2/2\\n")
mode = sys.argv[1]
if mode == "raise":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free.")
if mode == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "wait":
    signal.signal(signal.SIGUSR1, lambda *_: (print("checkpoint now", flush=True), sys.exit(7)))
    print("ready", flush=True)
    time.sleep(60)
"""


def wrapped(tmp_path: Path, mode: str, *options: str, more: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [
        sys.executable,
        "-m",
        "forensics",
        "collect",
        "--out",
        str(tmp_path / "run"),
        *options,
        "--run",
        sys.executable,
        str(script),
        mode,
        *more,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)


def test_a_failure_is_kept_and_analysed(gpus: Path, tmp_path: Path) -> None:
    process = wrapped(tmp_path, "raise", "--watch", "0.5", more=["--token", "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"])
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1
    assert out.startswith(b"step 1 loss 2.5\n")
    assert b"  0%|  | 0/2\r 50%|# | 1/2\r100%|##| 2/2\n" in out  # passed through byte by byte
    log = (tmp_path / "run/train.log").read_bytes().decode().removesuffix("\n").split("\n")
    assert all(STAMPED.match(line) for line in log)
    texts = [STAMPED.sub("", line) for line in log]
    assert texts[0].startswith("forensics: running ")
    assert "--token [REDACTED:" in texts[0]
    assert "to standard error" in texts
    assert "  0%|  | 0/2" in texts  # the redraw has a time of its own
    assert texts[-1] == "forensics: the command ended with exit code: 1"
    assert (tmp_path / "run/gpu.csv").read_text().count("\n") >= 3
    host = next(path for path in (tmp_path / "run").iterdir() if path.is_dir())
    assert (host / "after/dmesg.log").exists()
    assert (tmp_path / "run.postmortem.html").exists()
    assert b"GPU" in err
    verdict = forensics.analyze(tmp_path / "run").to_dict()["verdict"]
    assert verdict["layer"] in ("training", "infra")


def test_success_is_silent_and_takes_nothing_twice(gpus: Path, tmp_path: Path) -> None:
    process = wrapped(tmp_path, "fine", "--watch", "0")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert err == b"to standard error\n"
    assert not (tmp_path / "run/gpu.csv").exists()
    assert not any((tmp_path / "run").glob("*/after"))


def test_signals_and_status_are_passed_on(gpus: Path, tmp_path: Path) -> None:
    process = wrapped(tmp_path, "wait", "--quiet", "--watch", "0")
    log = tmp_path / "run/train.log"
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not (log.exists() and "ready" in log.read_text()):
        time.sleep(0.1)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 7
    text = log.read_text()
    assert "received signal SIGUSR1, passing it on" in text
    assert "checkpoint now" in text


def test_ctrl_c_reaches_the_command_once_and_is_no_failure(gpus: Path, tmp_path: Path) -> None:
    """On a terminal of its own, as a user would: the interrupt goes to the whole foreground group."""
    import pty

    script = tmp_path / "count.py"
    script.write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: print('got one', flush=True))\nprint('ready', flush=True)\ntime.sleep(2)\nsys.exit(4)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(
            sys.executable,
            [sys.executable, "-m", "forensics", "collect", "--out", "run", "--watch", "0", "--run", sys.executable, str(script)],
        )
    log = tmp_path / "run/train.log"
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not (log.exists() and "ready" in log.read_text()):
        time.sleep(0.05)
    os.write(terminal, b"\x03")
    try:
        while os.read(terminal, 4096):  # until the terminal is closed
            pass
    except OSError:
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 4
    text = log.read_text()
    assert text.count("got one") == 1
    assert "received signal SIGINT from the terminal" in text
    assert not (tmp_path / "run.postmortem.html").exists()


def test_death_by_a_signal_is_the_shells_status(gpus: Path, tmp_path: Path) -> None:
    process = wrapped(tmp_path, "kill", "--quiet", "--watch", "0")
    process.communicate(timeout=120)
    assert process.returncode == 128 + 9
    assert "exit code: 137" in (tmp_path / "run/train.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["collect", "--run"], "--run needs a command"),
        (["collect", "train.py"], "put --run before the command"),
        (["collect", "--watch", "-1"], "seconds between two samples"),
        (["collect", "--run", "/nonexistent/program"], "No such file"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-m", "forensics", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert process.returncode == 2
    assert says in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_summary_says_what_to_do_next(gpus: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["collect", "--out", str(tmp_path / "out"), "--python", str(gpus / "python")])
    assert result.exit_code == 0
    assert f"forensics analyze {tmp_path / 'out'}" in result.output
    assert "rocm-smi.txt: not installed" in result.output
