"""The known causes, signatures and rules as text: for `explain`, `rules list` and the generated documentation."""

from __future__ import annotations

from forensics.knowledge import Cause, Knowledge

HEADINGS = {
    "en": {
        "shows": "How it shows itself",
        "confirmed_by": "Confirmed by",
        "excluded_by": "Excluded by",
        "leads_to": "Usual consequences",
        "remedies": "What to do",
        "verify": "check",
        "capture": "Record next time",
        "restart": "Restart",
        "signatures": "Signatures that can name it",
    },
    "zh": {
        "shows": "表现",
        "confirmed_by": "确认依据",
        "excluded_by": "排除依据",
        "leads_to": "常见后果",
        "remedies": "处理办法",
        "verify": "验证",
        "capture": "下次请记录",
        "restart": "重启建议",
        "signatures": "可识别它的特征",
    },
}


def find(known: Knowledge, text: str) -> list[Cause]:
    """Causes with this full id, or this id within any layer."""
    if text in known.causes:
        return [known.causes[text]]
    return [cause for name, cause in known.causes.items() if name.partition("/")[2] == text]


def describe(cause: Cause, known: Knowledge, lang: str = "en") -> str:
    """A cause's entry as plain text."""
    words = HEADINGS.get(lang, HEADINGS["en"])
    lines = [f"{cause.id}: {cause.text('title', lang)}", "", str(cause.text("what", lang))]
    for key in ("shows", "confirmed_by", "excluded_by"):
        lines += ["", f"{words[key]}: {cause.text(key, lang)}"]
    if cause.leads_to:
        lines += ["", f"{words['leads_to']}: {', '.join(cause.leads_to)}"]
    lines += ["", f"{words['restart']}: {cause.restart}", "", f"{words['remedies']}:"]
    for remedy in cause.text("remedies", lang) or []:
        lines.append(f"  - {remedy.get('do', '')}")
        if remedy.get("verify"):
            lines.append(f"    {words['verify']}: {remedy['verify']}")
    lines += ["", f"{words['capture']}: {cause.text('capture', lang)}"]
    names = [s.id for s in known.signatures if s.cause == cause.id and s.role in ("root", "consequence")]
    if names:
        lines += ["", f"{words['signatures']}: {', '.join(names)}"]
    return "\n".join(lines)


def rows(known: Knowledge) -> list[tuple[str, str, str, str, str]]:
    """(id, role, cause, GUIDE items covered, title) of every signature and reasoning rule."""
    import rules

    out: list[tuple[str, str, str, str, str]] = [
        (s.id, s.role, s.cause or "-", ",".join(s.covers), s.title.get("en", "")) for s in known.signatures
    ]
    out += [(rule.id, "rule", "-", ",".join(rule.covers), (rule.judge.__doc__ or "").strip().partition("\n")[0]) for rule in rules.load()]
    return out
