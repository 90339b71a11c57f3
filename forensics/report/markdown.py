"""The account for a ticket: Markdown under 4,000 characters."""

from __future__ import annotations

import re

from forensics.report import text as t
from forensics.report.model import PostMortem
from forensics.report.view import Quote, View

LIMIT = 4000
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!@&])")
# A zero-width joiner would survive copying; a full stop escaped with a backslash keeps `1.` and `www.` from turning into lists and links.
_LIST = re.compile(r"^(\s*)([-+]|\d+[.)])(?=\s)")


def render_markdown(model: PostMortem, lang: str = "en") -> str:
    """The same facts as the page's first screen, the story, the twelve steps, remedies and gaps; parts that find no room go, last first.

    Texts from the evidence stand in code spans or are escaped: no link, mention, picture or HTML can come out of a log line.
    """
    v = View(model, lang)
    w = v.words
    head = [f"## {escape(v.sentence)}", ""]
    if v.summary and v.summary != v.title:
        head += [escape(_cut(v.summary, 600)), ""]
    head += [
        f"- **{w('confidence.label')}:** {v.confidence_words} ({v.percent})",
        f"- **{w('restart.label')}:** {escape(v.restart_words)}"
        + (f". {escape(_cut(str(v.advice['why']), 240))}" if v.advice.get("why") else ""),
    ]
    if v.where:
        head.append(f"- **{w('first.culprit')}:** {escape(v.where)}")
    run = " · ".join(v.run_line)
    if run:
        head.append(f"- **{w('first.ran')}:** {code(_cut(v.name, 80))} {escape(run)}")
    blocks = ["\n".join(head)]
    evidence = [_quote(q) for q in v.strongest()]
    if evidence:
        blocks.append(f"### {w('first.evidence')}\n" + "\n".join(evidence))
    story = []
    for event in v.story()[:8]:
        label = f"{event.label}: {escape(_cut(event.title, 90))}" if event.title else event.label
        mark = f"**{label}**" if event.kind == "root" else label
        when = f"`{event.offset} s` " if event.offset else ""
        indent = {"consequence": "  ", "symptom": "    "}.get(event.kind, "")
        story.append(f"{indent}- {when}{mark}" + (f" ({code(event.quote.place)})" if event.quote else ""))
    if story:
        blocks.append(f"### {w('story.title')}\n" + "\n".join(story))
    remedies = []
    for index, item in enumerate((v.facts.get("remedies") or [])[:4], 1):
        verify = f" {w('remedies.verify')}: {code(_cut(str(item['verify']), 160))}" if item.get("verify") else ""
        remedies.append(f"{index}. {escape(_cut(str(item.get('do') or ''), 240))}{verify}")
    if remedies:
        blocks.append(f"### {w('remedies.title')}\n" + "\n".join(remedies))
    others = []
    for item in (v.verdict.get("alternatives") or [])[:3]:
        title = str(item.get("title") or v.cause(item.get("cause")))
        others.append(f"- {escape(_cut(title, 90))}: {escape(_cut(str(item.get('why_not') or ''), 160))}")
    if others:
        blocks.append(f"### {w('others.title')}\n" + "\n".join(others))
    steps = [f"{step['id']} {w('steps.' + step['verdict'])}" for step in v.steps() if step["verdict"] != "no-evidence"]
    if steps:
        blocks.append(f"### {w('steps.title')}\n" + ", ".join(steps))
    gaps = []
    for item in (v.facts.get("gaps") or [])[:3]:
        how = f": {code(_cut(str(item['how_to_capture']), 120))}" if item.get("how_to_capture") else ""
        gaps.append(f"- {escape(_cut(str(item.get('missing') or ''), 120))}{how}")
    if gaps:
        blocks.append(f"### {w('gaps.title')}\n" + "\n".join(gaps))
    out = ""
    for block in blocks:
        if len(out) + len(block) + 2 < LIMIT:
            out += block + "\n\n"
    return out.rstrip() + "\n"


def escape(text: str) -> str:
    """Plain text for Markdown: markup characters escaped, mentions and issue numbers cut off from their trigger, one line."""
    return _LIST.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", text).replace("://", ":\u2060//"))


def code(text: str) -> str:
    """A code span holding `text`, fenced with more backticks than stand in it."""
    run = max((len(m) for m in re.findall(r"`+", text)), default=0)
    if not text.strip():
        return ""
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return "`" * (run + 1) + pad + text + pad + "`" * (run + 1)


def _quote(quote: Quote) -> str:
    return f"- {code(_cut(quote.place, 120))}" + (f"\n  {code(_cut(quote.text.strip(), 200))}" if quote.text.strip() else "")


def _cut(text: str, limit: int) -> str:
    text = t.visible(text, limit * 2)
    return text if len(text) <= limit else text[: limit - 1] + "…"
