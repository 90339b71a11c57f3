"""What is fuzzed: one function per target that takes bytes and must not raise, whatever they are.

Targets: `line:<parser>` and `file:<parser>` for every parser, `prefixes`, `stamps`, `unpickle`, `blocks`, and `analyze` for the whole
way from a folder to the rendered report.  The first byte of a `line:` input chooses which of the parser's triggers leads it.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import parsers
from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source

Target = Callable[[bytes], None]
SEEDS = 60  # of one target
SAMPLES = Path(__file__).parents[2] / "sample_logs"


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
        head = Head("run/events.out.tfevents.json", data[: 64 << 10], data[: 64 << 10].decode("utf-8", "replace"))
        parser.recognises(head)
        with contextlib.suppress(ValueError, EOFError):  # allowed: the message becomes a remark in the report
            parser.parse(Source("run/rank_3.json", lambda: io.BytesIO(data)), Rows("run/rank_3.json"))

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

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(data)
        with open_plain(path) as stream:
            for block in blocks(stream, 64, lambda text: None):
                assert len(block.data) <= 4096 or b"\n" in block.data


def _analyze(data: bytes) -> None:
    from forensics import analyze
    from forensics.evidence import Unusable

    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(data.split(b"\xff\xfe\xff")[:3]):
            (Path(folder) / ("train.log", "dmesg.txt", "metrics.jsonl")[number]).write_bytes(part)
        try:
            report = analyze(folder)
        except Unusable:
            return
        failed = [f"{f.rule}: {f.needs}" for f in report.run.findings if f.needs.startswith("the rule failed")]
        failed += [note for info in report.run.files.values() for note in info.notes if "reader failed" in note]
        assert not failed, failed
        report.to_json()
        report.to_html()
        report.to_markdown()


def seeds(name: str) -> Iterator[bytes]:
    """Beginnings for a target: lines of the samples and of the signatures that hold its triggers, else whole samples."""
    from forensics.knowledge import load

    lines, _ = parsers.load()
    kind, _, which = name.partition(":")
    texts = [path.read_bytes()[:20_000] for path in sorted(SAMPLES.rglob("*")) if path.is_file()][:400]
    hits = [hit.encode() for signature in load(()).signatures for hit in signature.hits]
    if kind == "line":
        parser = next(p for p in lines if p.name == which)
        triggers = (*parser.triggers, *parser.sparse)
        for number, trigger in enumerate(triggers[:30]):
            yield bytes([number % 256]) + trigger.encode() + b" 12"
        count = 0
        for text in (*hits, *(line for sample in texts for line in sample.splitlines())):
            if count < SEEDS and any(t.encode() in text for t in triggers):
                count += 1
                yield b"\0" + text[:2000]
    elif kind == "file":
        yield from (text[:4000] for text in texts[:SEEDS])
        yield from (
            b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n',
            b"step,loss\n1,2.5\n2,2.4\n",
            b'{"log_history": [{"loss": 1, "step": 2}]}',
        )
        yield from (
            b":W&B\x00\x00\x01",
            b"\x18\0\0\0\0\0\0\0aaaa\x09\0\0\0\0\0\0\xf0?\x1a\rbrain.Event:2bbbb",
            b"\x80\x04}\x94\x8c\x07entries\x94]\x94s.",
        )
    else:
        yield from hits[:SEEDS]
        yield from (text[:4000] for text in texts[:SEEDS])
