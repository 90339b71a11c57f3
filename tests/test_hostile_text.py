"""Hostile text through `analyze`: huge lines, junk, floods, absurd numbers, deep nesting; bounded, and nothing raises."""

from __future__ import annotations

import io
import json
import os
import random
import tracemalloc

import pytest

from forensics import analyze, blocks
from forensics.analysis import reader_for

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 79.15 GiB of which 1.62 MiB is free."
TRACEBACK = (
    "[rank{r}]: Traceback (most recent call last):\n"
    '[rank{r}]:   File "/app/train.py", line 42, in main\n[rank{r}]:     loss.backward()\n'
    "[rank{r}]: " + OOM + "\n"
)


class Endless(io.RawIOBase):
    """`size` bytes of one repeated piece, made as they are read."""

    def __init__(self, piece: bytes, size: int):
        self.piece = piece * (1 + (1 << 20) // len(piece))
        self.left = size

    def readable(self):
        return True

    def read1(self, size=-1):
        data = self.piece[: min(self.left, size if size >= 0 else self.left, len(self.piece))]
        self.left -= len(data)
        return data


@pytest.mark.parametrize("piece", [b"x", b"\0", b"loss: 1.5 step 3 ", b"CUDA out of memory "])
def test_one_line_without_an_end_takes_bounded_memory(piece):
    # 256 MB stand for 5 GB: pieces are dropped as they come, so the peak is that of a few blocks however long the line is.
    peaks = []
    for size in (64 << 20, 256 << 20):
        tracemalloc.start()
        count = sum(len(block.data) for block in blocks.blocks(Endless(piece, size), 1 << 20))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count == size
    assert peaks[1] < 16 << 20
    assert peaks[1] < peaks[0] * 1.5


def failures(report):
    found = [f"{f.rule}: {f.needs}" for f in report.run.findings if f.needs.startswith("the rule failed")]
    return found + [note for info in report.run.files.values() for note in info.notes if "reader failed" in note]


def nested(depth):
    return {
        "metrics.jsonl": '{"loss": 1, "a": ' + "[" * depth + "]" * depth + "}\n",
        "trainer_state.json": '{"log_history": ' + "[" * depth,
        "x.json": '{"a":' * depth,
    }


CASES = {
    "nul": {"train.log": b"\0" * (4 << 20) + OOM.encode() + b"\n"},
    "nul-inside": {"train.log": b"step 1\0\0\0 loss 2\n" * 20 + OOM.encode() + b"\n"},
    "random": {"train.log": random.Random(3).randbytes(1 << 20), "ok.log": OOM + "\n"},
    "random-after-text": {"train.log": (OOM + "\n").encode() * 50 + random.Random(4).randbytes(1 << 20)},
    "mixed-encodings": {
        "train.log": "Speicher lösen größer\n".encode("latin-1") * 9
        + "内存不足\n".encode("gb18030") * 9
        + "内存\n".encode() * 9
        + OOM.encode()
    },
    "utf-16": {"train.log": ("\ufeffstep 1 loss 2\n" + OOM + "\n").encode("utf-16-le")},
    "identical": {"train.log": (OOM + "\n") * 60_000},
    "identical-readings": {"train.log": "step: 3 loss: 1.5 grad_norm: 0.3\n" * 20_000 + OOM + "\n"},
    "behind-nuls": {"train.log": b"\0" * (1 << 20) + b"\n" + OOM.encode() + b"\n"},
    "ranks": {
        "train.log": "".join(
            f"2026-03-01 10:0{n}:00 [rank{rank}] node{rank // 8:03d} step {n} loss 2.5\n" for n in range(2) for rank in range(4096)
        )
        + f"2026-03-01 10:03:00 [rank77]: {OOM}\n"
        + "".join(
            f"2026-03-01 10:04:00 [rank{rank}]: RuntimeError: NCCL communicator was aborted on rank {rank}.\n" for rank in range(4096)
        ),
    },
    "long-line": {"train.log": "'loss': 1.0, " * 200_000 + "\n" + OOM + "\n"},
    "carriage-returns": {"train.log": "\r 12%|##  | 5/1000 [01:12<04:07, 6.28it/s, loss=2.5]" * 8_000 + "\n" + OOM + "\n"},
    "years": {
        "train.log": f"0001-01-01 00:00:00 step 1 loss 2\n9999-12-31 23:59:59 step 2 loss 2\n99999999999.5 x\n2026-02-30 25:61:61 {OOM}\n"
    },
    "nested-json": nested(100_000),
    "digits": {
        "train.log": (f"step {'9' * 10_000} loss {'1' * 10_000}\n{{'loss': {'8' * 10_000}, 'step': {'9' * 9_999}}}\n") * 20 + OOM + "\n",
        "metrics.jsonl": ('{"step": ' + "9" * 10_000 + ', "loss": ' + "1" * 10_000 + "}\n") * 20,
    },
    "wide-csv": {
        "metrics.csv": ",".join(["step", *(f"c{n}" for n in range(10_000))]) + "\n" + (",".join(["1.5"] * 10_001) + "\n") * 20,
        "ok.log": OOM,
    },
    "yaml": {
        "config.yaml": "a: &a [x, x]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(20))
        + '!!python/object/apply:os.system ["touch pwned"]\nlr: 1\n',
        "ok.log": OOM,
    },
    "names": {
        "metrics.jsonl": "".join(json.dumps({"step": n, **{f"x/loss_{n}_{k}": 1.0 for k in range(20)}}) + "\n" for n in range(1_500)),
        "ok.log": OOM,
    },
    "escapes": {"train.log": f"\x1b]0;title\x07\x1b[2J\x9b31m{OOM}\x1b[0m\x1bPq\x9c\n" * 5},
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_text_is_read_through(tmp_path, monkeypatch, name, capsys):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    for file, content in CASES[name].items():
        (run / file).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
    report = analyze(run)
    assert failures(report) == []
    document, page = report.to_json(), report.to_html()
    assert len(page) < 2_500_000
    assert len(document) < 1_000_000
    report.to_markdown()
    report.print()
    printed = capsys.readouterr().out
    assert not any(c in printed for c in ("\x9b", "\x1bP", "\x1b]", "\x07")) and "\x1b" not in document
    if any(OOM.encode() in (c if isinstance(c, bytes) else c.encode()) for c in CASES[name].values()):
        assert json.loads(document)["verdict"]["cause"] == "gpu-oom"
    assert os.listdir(tmp_path) == ["run"]
    if name == "names":
        assert report.run.metrics.height <= 60_000 and report.run.metrics["name"].n_unique() <= 2_000


def test_a_file_name_cannot_write_to_the_terminal(tmp_path, capsys):
    folder = tmp_path / "a\x1b]0;x\x07b"
    folder.mkdir()
    (folder / "\x1b[31mtrain\x9b.log").write_text(OOM + "\n")
    report = analyze(folder)
    report.print()
    assert "\x1b]" not in (text := capsys.readouterr().out) and "\x9b" not in text and "\x07" not in text
    assert "\x1b" not in report.to_markdown() + report.to_html()


def test_tracebacks_of_a_thousand_ranks_in_one_file(tmp_path):
    (tmp_path / "train.log").write_text("".join(TRACEBACK.format(r=n) for n in range(1_000)))
    report = analyze(tmp_path)
    assert failures(report) == []
    assert report.verdict.cause == "gpu-oom"
    assert len(report.to_html()) < 2_500_000


def test_a_line_with_every_literal_there_is(tmp_path):
    every = " ".join(literal.decode() for literal in reader_for(()).matcher.literals)
    (tmp_path / "train.log").write_text("\n".join(every[at : at + 30_000] for at in range(0, 8_000, 4_000)))
    report = analyze(tmp_path)
    assert failures(report) == []
    assert len(report.to_html()) < 2_500_000


class Evil:
    def __reduce__(self):
        return os.system, ("touch pwned",)


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'touch pwned'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0btouch pwned\x85R.",
        b"\x80\x02}(U\x07entriesctorch\nload\nu.",
        b"\x80\x04" + b"(" * 1_000_000 + b".",
        b"\x80\x04" + b"]\x94" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x04r\xff\xff\xff\x7fentries.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fentries.",
        __import__("pickle").dumps({"entries": [Evil()], "pg_config": 1}),
    ],
)
def test_a_pickle_is_never_executed(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "nccl_trace_rank_0").write_bytes(data + b" pg_config entries profiling_name")
    (run / "train.log").write_text(OOM + "\n")
    report = analyze(run)
    assert failures(report) == []
    assert not (tmp_path / "pwned").exists()
    assert report.verdict.cause == "gpu-oom"


def test_a_users_own_pattern_cannot_hang_the_analysis(tmp_path):
    import time

    pack = tmp_path / "own.toml"
    pack.write_text(
        '[[signature]]\nid = "evil"\ncause = "training/code-exception"\nrole = "root"\nweight = 0.5\nsources = ["any"]\nliteral = ["evil:"]\n'
        'regex = \'(a|a|aa)+$\'\ntitle = { en = "x", zh = "x" }\nwhy = { en = "x", zh = "x" }\nsource = "x"\nbasis = "memory"\n'
    )
    run = tmp_path / "run"
    run.mkdir()
    (run / "train.log").write_text(("evil:" + "a" * 60 + "!\n") * 500 + OOM + "\n")
    started = time.monotonic()
    report = analyze(run, rules=[str(pack)])
    assert time.monotonic() - started < 30
    assert report.verdict.cause == "gpu-oom"
    assert any("takes too long" in note for info in report.run.files.values() for note in info.notes)
