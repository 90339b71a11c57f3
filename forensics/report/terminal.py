"""The account in a terminal: at most 24 lines."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from forensics.report import text as t
from forensics.report.model import PostMortem
from forensics.report.view import LAYERS, View

LINES = 24


def render_terminal(model: PostMortem, lang: str = "en", console: Console | None = None) -> None:
    """Print the verdict to `console` (default: standard output), at most 24 lines whatever its width."""
    out = console or Console(highlight=False)
    width = max(40, out.width)
    for line in summary(model, lang, width)[:LINES]:
        out.print(line, no_wrap=True, overflow="ellipsis", crop=True, soft_wrap=False, highlight=False)


def summary(model: PostMortem, lang: str = "en", width: int = 80) -> list[Text]:
    """The lines of the summary, none wider than `width` cells; the order is that of importance."""
    v = View(model, lang)
    w = v.words
    lines: list[Text] = []
    bad = v.layer in LAYERS
    tone = "bold red" if bad else "bold green" if v.layer == "none" else "bold yellow"
    lines += _fold(v.sentence, width, 3, tone)
    if v.summary and v.summary != v.title:
        lines += _fold(v.summary, width, 3, "")
    lines.append(Text(""))
    labels = [w("confidence.label"), w("restart.label"), w("first.ran")]
    wide = max(cell_len(label) for label in labels) + 2
    rows = [f"{v.confidence_words} ({v.percent})", v.restart_words, " · ".join([v.name, *v.run_line])]
    lines += [_row(label, row, wide, width) for label, row in zip(labels, rows, strict=True)]
    lines.append(_onion(v, width))
    strongest = v.strongest()
    if strongest:
        lines += [Text(""), Text(w("first.evidence"), "bold")]
        for quote in strongest:
            lines.append(_cut(Text("  ").append(quote.place, "cyan"), width))
            if quote.text.strip():
                lines.append(_cut(Text("    ").append(quote.text.strip()), width))
    unread = [row for row in v.page.files if not row.used and any("could not be read" in str(note) for note in row.notes)]
    if unread:
        lines.append(_cut(Text(w("files.unread", n=len(unread), first=t.visible(unread[0].path, 80)), "yellow"), width))
    remedies = [item for item in v.facts.get("remedies") or [] if item.get("do")]
    room = LINES - len(lines) - 2
    if remedies and room >= 1:
        lines += [Text(""), Text(w("remedies.title"), "bold")]
        for item in remedies[: min(3, room)]:
            lines.append(_cut(Text("  • " + t.visible(str(item["do"]), 300)), width))
    return lines[:LINES]


def _row(label: str, text: str, wide: int, width: int) -> Text:
    return _cut(Text(label + " " * (wide - cell_len(label)), "dim").append(text, "not dim"), width)


def _onion(v: View, width: int) -> Text:
    """The six layers in one line, the responsible one lit."""
    out = Text("")
    for index, layer in enumerate(LAYERS):
        name = v.words(f"layer.{layer}")
        if index:
            out.append(" > ", "dim")
        out.append(f"[{name}]" if layer == v.layer else name, "bold red" if layer == v.layer else "dim")
    return _cut(out, width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _fold(text: str, width: int, limit: int, style: str) -> list[Text]:
    """`text` broken at blanks (anywhere in scripts without them) into at most `limit` lines."""
    lines: list[str] = [""]
    for word in text.split(" "):
        pieces = chop_cells(word, width) if cell_len(word) > width else [word]
        for piece in pieces:
            joint = f"{lines[-1]} {piece}" if lines[-1] and piece is pieces[0] else lines[-1] + piece
            if cell_len(joint) <= width:
                lines[-1] = joint
            else:
                lines.append(piece)
    if len(lines) > limit:
        lines = [*lines[: limit - 1], lines[limit - 1] + " …"]
    return [_cut(Text(line, style), width) for line in lines]
