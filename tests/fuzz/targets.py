"""What is fuzzed: one function per target that takes bytes and must not raise, whatever they are.

Targets: `line:<parser>` and `file:<parser>` for every parser, `prefixes`, `stamps`, `unpickle`, `blocks`, and `analyze` for the whole
way from a folder to the report.  The first byte of a `line:` input chooses which of the parser's triggers leads it, that of a `file:`
input the file's name.  Seeds come from the samples, the signatures' own examples and the texts in the parsers' tests.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import pickle
import struct
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import parsers
from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source

Target = Callable[[bytes], None]
SEEDS = 60  # of one target
SAMPLES = Path(__file__).parents[2] / "sample_logs"
TESTS = Path(__file__).parents[1]
MEMORY = Path("/dev/shm")  # a folder in memory, where there is one
CUT = b"\xff\xfe\xff"  # between the files of an `analyze` input
FILES = ("train.log", "dmesg.txt", "metrics.jsonl", "gpu.csv")  # of an `analyze` input, in order
NAMES = (
    "run/rank_3.json", "run/events.out.tfevents.1700000000.node1", "trainer_state.json", "metrics.jsonl", "metrics.csv", "gpu.csv",
    "requirements.txt", "pip_freeze.txt", "env.txt", "config.yaml", "config.json", "run-abc123.wandb", "wandb-summary.json",
    "wandb-metadata.json", "mlruns/0/abc/metrics/loss", "attempt_0/3/error.json", "nccl_trace_rank_0", "ps.txt", "cgroup/memory.max",
    "proc/sys/vm/swappiness", "docker-inspect.json", "nvidia-bug-report.log", "compute-apps.csv", "ulimit.txt", "collected.json",
    "nvidia-smi-q.txt", "environ.txt", "notes.txt",
)  # fmt: skip


def _event(step: int, value: float) -> bytes:
    """A TensorBoard record with one scalar, checksums left empty."""
    scalar = b"\x0a\x0c\x0a\x05loss1\x15" + struct.pack("<f", value) + b"\x18\x01"
    body = b"\x09" + struct.pack("<d", 1.7e9 + step) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(scalar)]) + scalar
    return struct.pack("<Q", len(body)) + b"\0\0\0\0" + body + b"\0\0\0\0"


def _dump() -> dict[str, Any]:
    entry = {"record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1,
             "profiling_name": "nccl:all_reduce", "time_created_ns": 1_700_000_000_000_000_000, "input_sizes": [[4, 4]], "input_dtypes": ["Float"],
             "output_sizes": [[4, 4]], "output_dtypes": ["Float"], "state": "scheduled", "timeout_ms": 600_000, "is_p2p": False,
             "frames": [{"name": "step", "filename": "train.py", "line": 8}]}  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    status = {"0": {"last_enqueued_collective": 1, "last_started_collective": 1, "last_completed_collective": 0}}
    return {"version": "2.5", "pg_config": groups, "pg_status": status, "entries": [entry, {**entry, "record_id": 1, "state": "completed"}]}


# (file name, content) for readers whose formats stand in no sample, and in the tests as bytes made on the spot
WHOLE: dict[str, tuple[tuple[str, bytes], ...]] = {
    "nvidia-bug-report": (("nvidia-bug-report.log", b"Start of NVIDIA bug report log file.\n*** /proc/driver/nvidia/version\nNVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n____\n\n/usr/bin/nvidia-smi -q\n"),),
    "collected state": (("collected.json", b"# forensics collect: \nnofile 1024\nvm.swappiness = 60\n"),),
    "collection's list": (("collected.json", b'{"schema": "forensics.collection/1", "notes": [{"file": "dmesg.txt", "why": "not installed"}]}'),),
    "flight_recorder": (("nccl_trace_rank_0", pickle.dumps(_dump(), 4)), ("nccl_trace_rank_0", pickle.dumps(_dump(), 2)), ("run/rank_3.json", json.dumps(_dump()).encode())),
    "swappiness": (("proc/sys/vm/swappiness", b"60\n"),),
    "cgroup file": (("cgroup/memory.max", b"68719476736\n"), ("cgroup/memory.max", b"max\n")),
    "docker inspect": (("docker-inspect.json", b'[{"Id": "ab", "State": {"OOMKilled": true, "ExitCode": 137}, "HostConfig": {"ShmSize": 67108864, "Memory": 0, "Ulimits": [{"Name": "memlock", "Hard": -1, "Soft": -1}]}, "Config": {"Env": ["NCCL_DEBUG=INFO"]}}]'),),
    "ps list": (("ps.txt", b"root  4711 99.0  1.2 123456 65432 ? Rl 10:00 1:02 python train.py\nroot  4712  0.0  0.0 1234 654 ? S 10:00 0:00 python -m x\n"),),
    "torchelastic-error": (("attempt_0/3/error.json", b'{"message": {"message": "RuntimeError: x", "extraInfo": {"py_callstack": "Traceback (most recent call last):\\n  File \\"t.py\\", line 3, in main\\nRuntimeError: x\\n", "timestamp": "1700000000"}}}'),),
    "tensorboard": (("run/events.out.tfevents.1700000000.node1", b"\x18\0\0\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\xd8\x41\x1a\x0dbrain.Event:2\0\0\0\0" + _event(1, 2.5) + _event(2, 2.0)),),
    "wandb": (("run-abc123.wandb", b":W&B\xe1\xbe\x00" + b"\0\0\0\0\x10\0\x01" + b"\x0a\x0e\x0a\x0c\x12\x05loss1\x1a\x032.5"),),
    "mlflow": (("mlruns/0/abc/metrics/loss", b"1700000000000 2.5 1\n1700000001000 2.25 2\n"),),
    "pip freeze": (("pip_freeze.txt", b"torch==2.6.0\nnumpy==1.26.4\n-e git+https://x/y@abc#egg=z\nfoo @ file:///tmp/foo.whl\n"),),
    "json-config": (("config.json", b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000}'),),
}  # fmt: skip


def names() -> list[str]:
    """All targets."""
    lines, files = parsers.load()
    return [*(f"line:{p.name}" for p in lines), *(f"file:{p.name}" for p in files), "prefixes", "stamps", "unpickle", "blocks", "analyze"]


def target(name: str) -> Target:
    """The function of a target."""
    lines, files = parsers.load()
    kind, _, which = name.partition(":")
    if kind == "line":
        return _line(next(p for p in lines if p.name == which))
    if kind == "file":
        return _file(next(p for p in files if p.name == which))
    return {"prefixes": _prefixes, "stamps": _stamps, "unpickle": _unpickle, "blocks": _blocks, "analyze": _analyze}[name]


def _line(parser: LineParser) -> Target:
    triggers = (*parser.triggers, *parser.sparse)

    def run(data: bytes) -> None:
        from parsers.prefixes import clean, strip

        trigger = triggers[(data[0] if data else 0) % len(triggers)]
        made = []
        for number, piece in enumerate(data[1:].split(b"\n")[:50], 1):
            full = clean(piece)
            if number == 1 and trigger not in full:
                full = trigger + full
            found = strip(full)
            made.append(Line("fuzz.log", number, found.text, full, found.rank, found.host, found.pid, found.actor))
        state: dict = {}
        for at, line in enumerate(made):
            if at == 0 or any(text in line.full for text in triggers):
                context = Context(
                    lambda n, at=at: iter(made[at + 1 : at + 1 + n]), lambda n, at=at: iter(made[max(0, at - n) : at][::-1]), state
                )
                parser.parse(line, Rows("fuzz.log"), context)

    return run


def _file(parser: FileParser) -> Target:
    def run(data: bytes) -> None:
        name, data = NAMES[(data[0] if data else 0) % len(NAMES)], data[1:]
        parser.recognises(Head(name, data[: 64 << 10], data[: 64 << 10].decode("utf-8", "replace")))
        with contextlib.suppress(ValueError, EOFError):  # allowed: the message becomes a remark in the report
            parser.parse(Source(name, lambda: io.BytesIO(data)), Rows(name))

    return run


def _prefixes(data: bytes) -> None:
    from parsers.prefixes import Style, clean, strip, survey

    lines = [clean(piece) for piece in data.split(b"\n")]
    for line in lines:
        assert "\x1b" not in line
        strip(line, survey(lines))
        strip(line, Style(True, frozenset({"node1"})))


def _stamps(data: bytes) -> None:
    from forensics.odd_stamps import finder
    from forensics.stamps import find_stamp, find_stamps
    from parsers.prefixes import clean

    lines = [clean(piece) for piece in data.split(b"\n")[:20]]
    find = finder(lines)
    for line in lines:
        find(line)
        find_stamp(line)
        list(find_stamps(line))


def _unpickle(data: bytes) -> None:
    from parsers.flight_recorder import compact, read_plain

    try:
        content = read_plain(data)
    except ValueError:
        return
    if isinstance(content, dict):
        compact(content)


def _blocks(data: bytes) -> None:
    from forensics.blocks import blocks, open_plain

    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "x"
        path.write_bytes(data)
        with open_plain(path) as stream:
            for block in blocks(stream, 64, lambda text: None):
                assert len(block.data) <= 4096 or b"\n" in block.data


def _analyze(data: bytes) -> None:
    from forensics import analyze
    from forensics.evidence import Unusable

    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        for name, part in zip(FILES, data.split(CUT), strict=False):
            (Path(folder) / name).write_bytes(part)
        try:
            report = analyze(folder)
        except Unusable:
            return
        failed = [f"{f.rule}: {f.needs}" for f in report.run.findings if f.needs.startswith("the rule failed")]
        failed += [str(note) for info in report.run.files.values() for note in info.notes if "reader failed" in str(note)]
        assert not failed, failed
        report.to_json()
        if sum(data) % 16 == 0:  # the renderers see no bytes, only what was made of them: some of the time is enough
            report.to_html()
            report.to_markdown()
            report.to_junit()


@cache
def texts() -> tuple[tuple[str, bytes], ...]:
    """(name, content) of what seeds are taken from: the samples' files, the signatures' examples, long strings of the tests."""
    from forensics.knowledge import load

    found = [(path.relative_to(SAMPLES).as_posix(), path.read_bytes()[:20_000]) for path in sorted(SAMPLES.rglob("*")) if path.is_file()]
    found += [("hits.log", hit.encode()) for signature in load(()).signatures for hit in signature.hits]
    for path in sorted(TESTS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and len(node.value) >= 30:
                text = node.value.encode("utf-8", "replace") if isinstance(node.value, str) else node.value
                found.append((path.name, text[:20_000]))
    return tuple(found)


@cache
def _lines() -> tuple[bytes, ...]:
    """The different lines of `texts`, digits aside, in order."""
    digits = bytes.maketrans(b"123456789", b"0" * 9)
    seen: dict[bytes, bytes] = {}
    for _, text in texts():
        for line in text.splitlines():
            seen.setdefault(line[:200].translate(digits), line[:1500])
    return tuple(seen.values())


def dictionary(name: str) -> list[str]:
    """Words that the fuzzer may put into its inputs: the target's triggers and what numbers, prefixes and stamps look like."""
    lines, _ = parsers.load()
    kind, _, which = name.partition(":")
    words = [
        "nan",
        "-inf",
        "1e999",
        "0x7fffffff",
        "99999999999999999999",
        "[rank0]:",
        "\x1b[31m",
        "\r",
        "\t",
        "{",
        "}",
        "[",
        "]",
        "''",
        '"',
    ]
    words += [
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59",
        "Feb 29 00:00:00",
        "[    0.000000] ",
        "1700000000",
        "None",
        "step",
        "=",
        ": ",
        ",",
    ]
    if kind == "line":
        parser = next(p for p in lines if p.name == which)
        words += [*parser.triggers, *parser.sparse]
    elif name == "analyze":
        words += [trigger for parser in lines for trigger in parser.triggers[:6]]
    return list(dict.fromkeys(words))


def seeds(name: str) -> Iterator[bytes]:
    """Beginnings for a target: lines that hold its triggers (with some of what follows them), files that it recognises."""
    lines, files = parsers.load()
    kind, _, which = name.partition(":")
    if kind == "line":
        yield from _line_seeds(next(p for p in lines if p.name == which))
    elif kind == "file":
        yield from _file_seeds(next(p for p in files if p.name == which))
    elif name == "analyze":
        runs = sorted({path.parent for path in SAMPLES.rglob("*") if path.is_file()})
        for run in runs:
            parts = sorted((p for p in run.iterdir() if p.is_file()), key=lambda p: ("train" not in p.name, "dmesg" not in p.name, p.name))
            yield CUT.join(path.read_bytes()[-1200:] for path in parts[: len(FILES)])
        yield from (text[:1000] for label, text in texts()[::7] if label == "hits.log")
    else:
        yield from (line for line in _lines()[:: max(1, len(_lines()) // SEEDS)])
        yield from (text[:1000] for _, text in texts()[: SEEDS // 2])
        yield from (b"\x80\x04}\x94\x8c\x07entries\x94]\x94s.", b"\x1f\x8b\x08\0\0\0\0\0\0\x03", b"(\xb5/\xfd", b"\xff\xfea\0\n\0")


def _line_seeds(parser: LineParser) -> Iterator[bytes]:
    triggers = [text.encode() for text in (*parser.triggers, *parser.sparse)]
    for number, trigger in enumerate(triggers[:30]):
        yield bytes([number]) + trigger + b" 12"
    count = 0
    wanted = dict.fromkeys(triggers, SEEDS // len(triggers) + 1)  # so that a common trigger leaves room for the others
    pool = _lines()
    for at, line in enumerate(pool):
        number = next((n for n, trigger in enumerate(triggers) if trigger in line and wanted[trigger] > 0), None)
        if number is None or count >= SEEDS:
            continue
        wanted[triggers[number]] -= 1
        count += 1
        yield bytes([number % 256]) + b"\n".join([line, *pool[at + 1 : at + 6]])[:2500]


def _file_seeds(parser: FileParser) -> Iterator[bytes]:
    for name, data in WHOLE.get(parser.name, ()):
        yield bytes([NAMES.index(name)]) + data
    count = 0
    for label, text in texts():
        for number, name in enumerate((*NAMES, label) if count < SEEDS else ()):
            if parser.recognises(Head(name, text, text.decode("utf-8", "replace"))) > 0.5:
                count += 1
                yield bytes([number % len(NAMES)]) + text[:4000]
                break
    for data in (
        b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n',
        b"step,loss\n1,2.5\n2,2.4\n",
        b'{"log_history": [{"loss": 1, "step": 2}]}',
        b":W&B\x00\x00\x01",
        b"\x18\0\0\0\0\0\0\0aaaa\x09\0\0\0\0\0\0\xf0?\x1a\rbrain.Event:2bbbb",
        b"\x80\x04}\x94\x8c\x07entries\x94]\x94s.",
    ):
        yield b"\0" + data
