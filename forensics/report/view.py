"""The account as every renderer tells it: sentences, quotes, story, groups of ranks; no markup."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from forensics.report import text as t
from forensics.report.model import Cited, PostMortem, RankRow, localise
from forensics.report.notes import translate
from forensics.report.words import Words

LAYERS = ("infra", "data", "model", "training", "comms", "reward")
STEPS = tuple(f"S{n}" for n in range(1, 13))
VERDICTS = ("ok", "suspect", "guilty", "no-evidence")
RESTARTS = ("as-is", "after-change", "without-host", "unknown")


@dataclass(slots=True)
class Quote:
    """A cited line ready to show: cleaned text, and the lines around it (number, text, whether it is the cited one)."""

    file: str
    line: int
    text: str
    time: str = ""
    note: str = ""  # what was read from the line, where that is not in its words
    around: list[tuple[int, str, bool]] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(slots=True)
class Event:
    """One entry of the story.  `kind`: healthy, root, consequence, symptom, last."""

    kind: str
    label: str
    title: str
    says: str
    offset: str
    rank: str
    quote: Quote | None


@dataclass(slots=True)
class Group:
    """Ranks that ended alike."""

    ranks: list[int]
    last_step: str
    collective: str
    exit: str
    error: Quote | None
    odd: bool
    tone: int  # index of its colour; 0 = the common end

    @property
    def names(self) -> str:
        return t.ranges(self.ranks)


class View:
    """The model in one language, with the derived sentences; built once per rendering."""

    def __init__(self, model: PostMortem, lang: str):
        self.words = Words(lang)
        self.lang = lang
        self.page = model.page
        self.facts: dict[str, Any] = localise(model.facts, lang)
        self.run = _dict(self.facts.get("run"))
        self.verdict = _dict(self.facts.get("verdict"))
        self.culprit = _dict(self.verdict.get("culprit"))
        self.advice = _dict(self.facts.get("advice"))
        self.first = _dict(self.verdict.get("first_failure"))
        layer = str(self.verdict.get("layer") or "unknown")
        self.zone = self.page.zone or None  # None: times are shown in the zone they were written with
        self.layer = layer if layer in (*LAYERS, "none") else "unknown"
        self._findings: dict[tuple[str, str | None], list[dict[str, Any]]] | None = None
        self._shown: dict[tuple[str, int], tuple[str, list[tuple[int, str, bool]]]] = {}

    # the first screen

    @property
    def name(self) -> str:
        return t.visible(str(self.run.get("name") or ""), 120)

    @property
    def title(self) -> str:
        return t.visible(str(self.verdict.get("title") or self.verdict.get("cause") or self.words("layer.unknown")), 200)

    @property
    def summary(self) -> str:
        return t.visible(str(self.verdict.get("summary") or ""), 1500)

    @property
    def sentence(self) -> str:
        """Layer and cause with time, rank and host, in one plain sentence."""
        w = self.words
        at = self.when
        when = w("sentence.when", time=at) if at else ""
        title = self.title.rstrip(" .。")
        if self.layer in LAYERS:
            where = self.where
            layer = w(f"layer.{self.layer}").lower() if self.lang == "en" else w(f"layer.{self.layer}")
            return w("sentence.blame", layer=layer, title=title, where=w("sentence.where", list=where) if where else "", when=when)
        return w(f"sentence.{self.layer}", title=title, when=when)

    @property
    def when(self) -> str:
        return t.clock(self.first.get("time") or self.page.first_failure, self.zone)

    @property
    def where(self) -> str:
        """`rank 5, host node03, GPU 2`, as far as it is known."""
        w, culprit = self.words, self.culprit
        ranks = [r for r in culprit.get("ranks") or [] if isinstance(r, int)]
        parts = []
        if len(ranks) > 1:
            parts.append(w("sentence.ranks", rank=t.ranges(ranks)))
        elif culprit.get("rank") is not None or ranks:
            parts.append(w("sentence.rank", rank=culprit.get("rank") if culprit.get("rank") is not None else ranks[0]))
        for key in ("host", "gpu"):
            if culprit.get(key) not in (None, ""):
                parts.append(w(f"sentence.{key}", **{key: t.visible(str(culprit[key]), 80)}))
        return w("sentence.comma").join(parts)

    @property
    def confidence(self) -> float | None:
        value = self.verdict.get("confidence")
        return min(1.0, max(0.0, float(value))) if isinstance(value, int | float) else None

    @property
    def percent(self) -> str:
        return "–" if self.confidence is None else f"{min(99, round(self.confidence * 100)) if self.confidence < 1 else 100} %"

    @property
    def confidence_words(self) -> str:
        p = self.confidence or 0.0
        return self.words("confidence." + ("certain" if p >= 0.9 else "high" if p >= 0.75 else "fair" if p >= 0.5 else "low"))

    @property
    def restart(self) -> str:
        key = str(self.advice.get("restart") or "unknown")
        return key if key in RESTARTS else "unknown"

    @property
    def excluded_hosts(self) -> list[str]:
        return [t.visible(str(h), 80) for h in self.advice.get("exclude_hosts") or []]

    @property
    def restart_words(self) -> str:
        text = self.words(f"restart.{self.restart}")
        hosts = self.excluded_hosts
        if hosts:
            shown = ", ".join(hosts[:4]) + (", …" if len(hosts) > 4 else "")
            if self.restart == "without-host":
                return self.words("restart.without", hosts=shown)
            text += " · " + self.words("restart.exclude", hosts=shown)
        return text

    @property
    def run_line(self) -> list[str]:
        """Start and end, world size, hosts, last step, exit: what is known of the run, in that order."""
        w, run = self.words, self.run
        out = []
        start, end = t.clock(run.get("started"), self.zone), t.clock(run.get("ended"), self.zone)
        if start or end:
            same = start[:10] == end[:10] and start[19:] == end[19:]
            out.append(f"{start[:19]} – {end[11:] if same else end}" if start and end else start or end)
        if isinstance(run.get("duration_s"), int | float):
            out.append(self.duration(run["duration_s"]))
        if run.get("world_size"):
            out.append(w("first.world", n=run["world_size"]))
        hosts = run.get("hosts") or []
        if len(hosts) > 1:
            out.append(w("first.hosts", n=len(hosts)))
        elif hosts:
            out.append(t.visible(str(hosts[0]), 80))
        if run.get("last_step") is not None:
            out.append(w("first.last_step", step=t.number(run["last_step"])))
        out.extend(t.visible(str(name), 40) for name in (run.get("frameworks") or [])[:4])
        return out

    def duration(self, seconds: float) -> str:
        for limit, unit, key in ((120, 1, "seconds"), (7200, 60, "minutes"), (172800, 3600, "hours"), (float("inf"), 86400, "days")):
            if seconds < limit:
                value = seconds / unit
                return self.words(f"time.{key}", n=f"{value:.1f}" if value < 10 and unit > 1 else f"{value:.0f}")
        return ""

    # quotes

    def quote(self, item: Any) -> Quote | None:
        """A quote of a `Cited` or of a dict with file, line, text, time; None where it names no file."""
        if isinstance(item, Cited):
            item = {"file": item.file, "line": item.line, "text": item.text, "time": item.time}
        item = _dict(item)
        if not item.get("file"):
            return None
        file, line = str(item["file"]), _int(item.get("line"))
        if (file, line) not in self._shown:
            lines = self.page.context.get(f"{file}:{line}", [])
            self._shown[file, line] = (
                t.visible(next((text for n, text in lines if n == line), ""), 20_000).strip(),
                [(n, t.visible(text), n == line) for n, text in lines],
            )
        raw, around = self._shown[file, line]
        shown, note = t.visible(str(item.get("text") or "")), ""
        if raw and shown.rstrip("…") not in raw:
            # A reading ("loss = 0") was cited: the line itself is the evidence.
            shown, note = _excerpt(raw, shown.partition(" = ")[0]), shown
        return Quote(t.visible(file, 200), line, shown, t.clock(item.get("time"), self.zone), note, around)

    def strongest(self) -> list[Quote]:
        """At most three different lines, best first."""
        items: list[Any] = list(self.page.strongest)
        if not items:
            items = [self.first, *(self.verdict.get("chain") or [])]
            for finding in self.findings("found"):
                items += finding.get("evidence") or []
        out: dict[str, Quote] = {}
        for item in items:
            quote = self.quote(item)
            if quote is not None:
                quote.text = t.visible(quote.text, 320)
                out.setdefault(quote.place, quote)
        return list(out.values())[:3]

    # the story

    def story(self) -> list[Event]:
        """The chain in order of time with the root first, between the last healthy step and the last line.

        Where steps went on after the root (a silent failure), the last step stands behind it and is not called healthy.
        """
        chain = [_dict(item) for item in self.verdict.get("chain") or []]
        roots = [c for c in chain if c.get("role") == "root"]
        rest = sorted(
            (c for c in chain if c.get("role") != "root"), key=lambda c: (_seconds(c.get("time")) is None, _seconds(c.get("time")) or 0.0)
        )
        zero = next((_seconds(c.get("time")) for c in roots if c.get("time")), None)
        if zero is None:
            zero = _seconds(self.first.get("time")) or self.page.first_failure
        out = [self._link(item, zero) for item in [*roots, *rest][:60]]
        healthy = self.page.healthy
        if healthy is not None:
            after = bool(roots) and _after(healthy, roots[0], zero)
            key = "step" if after else "healthy"
            step = self.page.healthy_step
            label = self.words(f"story.{key}_n", step=t.number(step)) if step is not None else self.words(f"story.{key}")
            at = 0
            if after:
                at = len(roots) + sum(healthy.time is not None and (_seconds(c.get("time")) or float("inf")) < healthy.time for c in rest)
            out.insert(at, self._event(key, label, "", "", healthy, zero))
        if self.page.last is not None:
            out.append(self._event("last", self.words("story.last"), "", "", self.page.last, zero))
        return out

    def _link(self, item: dict[str, Any], zero: float | None) -> Event:
        role = str(item.get("role") or "symptom")
        role = role if role in ("root", "consequence", "symptom") else "symptom"
        title = t.visible(str(item.get("title") or self.cause(item.get("cause"))), 200)
        says = t.visible(str(item.get("says") or ""), 400)
        return self._event(role, self.words(f"story.{role}"), title, says if says != title else "", item, zero)

    def _event(self, kind: str, label: str, title: str, says: str, item: Any, zero: float | None) -> Event:
        time = item.time if isinstance(item, Cited) else item.get("time")
        rank = None if isinstance(item, Cited) else item.get("rank")
        seconds = _seconds(time)
        gap = t.offset(seconds - zero) if seconds is not None and zero is not None else ""
        shown = self.words("sentence.rank", rank=rank) if rank is not None else ""
        return Event(kind, label, title, says, gap, shown, self.quote(item))

    def text(self, value: Any) -> str:
        """A text of the page part in this language."""
        return translate(value, self.lang) if isinstance(value, str) else str(localise(value, self.lang))

    def cause(self, cause: Any) -> str:
        """`infra/gpu-hang` as words where no title came with it."""
        return str(cause or "").rpartition("/")[2].replace("-", " ")

    def colour(self) -> tuple[Quote, str] | None:
        """The last three-colour line before the end and what its colour points at."""
        cited = self.page.last_colour
        match = t.COLOUR.search(cited.text) if cited else None
        quote = self.quote(cited)
        return (quote, self.words(f"colour.{match[1]}")) if match and quote else None

    # findings, steps

    def findings(self, outcome: str, layer: str | None = None) -> list[dict[str, Any]]:
        """Findings with this outcome (`found` where none is given), of one layer where one is named."""
        if self._findings is None:
            self._findings = defaultdict(list)
            for item in map(_dict, self.facts.get("findings") or []):
                kind = item.get("outcome") or "found"
                self._findings[kind, None].append(item)
                self._findings[kind, self.layer_of(item)].append(item)
        return self._findings.get((outcome, layer), [])

    def layer_of(self, item: dict[str, Any]) -> str:
        layer = str(item.get("layer") or str(item.get("cause") or "").partition("/")[0])
        return layer if layer in LAYERS else "other"

    def layer_state(self, layer: str) -> str:
        """`lit` (responsible), `found`, `excluded`, `undecided` or `quiet` (nothing judged)."""
        if layer == self.layer:
            return "lit"
        return next((o for o in ("found", "excluded", "undecided") if self.findings(o, layer)), "quiet")

    def steps(self) -> list[dict[str, Any]]:
        """All twelve, in order; a step the model does not hold has no evidence."""
        known = {str(_dict(s).get("id")): _dict(s) for s in self.facts.get("checklist") or []}
        out = []
        for step in STEPS:
            item = known.get(step, {})
            verdict = item.get("verdict")
            verdict = verdict if verdict in VERDICTS else "no-evidence"
            quotes = [q for q in map(self.quote, (item.get("evidence") or [])[:4]) if q]
            out.append(
                {
                    "id": step,
                    "title": self.words(f"steps.{step}"),
                    "verdict": verdict,
                    "reading": item.get("reading") or "",
                    "quotes": quotes,
                }
            )
        return out

    # ranks

    def groups(self) -> list[Group]:
        """Ranks that ended alike, the odd ones first, then the rare before the common."""
        rows = self.page.ranks
        alike: dict[tuple[Any, ...], list[RankRow]] = defaultdict(list)
        for row in rows:
            alike[(row.last_step, row.last_collective, row.exit, row.first_error is not None, row.odd)].append(row)
        common = max(alike.values(), key=len, default=[])
        marked = any(row.odd for row in rows)
        out = []
        for members in alike.values():
            # Nobody singled out: a rare end beside a common one is odd (a tenth of the ranks at most, against half or more).
            rare = len(rows) > 1 and len(members) <= max(1, len(rows) // 10) and len(common) * 2 >= len(rows) and members is not common
            row = members[0]
            out.append(
                Group(
                    ranks=[m.rank for m in members],
                    last_step=t.number(row.last_step),
                    collective=t.visible(row.last_collective or "", 120),
                    exit=t.visible(row.exit or "", 60),
                    error=self.quote(
                        min((m.first_error for m in members if m.first_error), key=lambda c: c.time or float("inf"), default=None)
                    ),
                    odd=row.odd or (rare and not marked),
                    tone=0,
                )
            )
        out.sort(key=lambda g: (not g.odd, len(g.ranks), g.ranks[0]))
        tone = 0
        for group in out:
            if len(group.ranks) != len(common) or group.odd:
                tone += 1
                group.tone = min(tone, 7)
        return out


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _seconds(value: Any) -> float | None:
    stamp = t.moment(value)
    return None if stamp is None else stamp.timestamp()


def _after(healthy: Cited, root: dict[str, Any], zero: float | None) -> bool:
    """Whether a step was made after the root: by time, or by line where both stand in one file."""
    if healthy.file == root.get("file"):
        return healthy.line > _int(root.get("line"))
    return healthy.time is not None and zero is not None and healthy.time > zero


def _excerpt(line: str, name: str, wide: int = 110) -> str:
    """The part of a long line around `name` (its beginning where `name` does not stand in it), cut marks shown."""
    line = " ".join(line.split())
    if len(line) <= 2 * wide:
        return line
    at = max(0, line.find(name)) if name else 0
    start = max(0, min(at - wide // 2, len(line) - 2 * wide))
    end = start + 2 * wide
    return ("… " if start else "") + line[start:end] + (" …" if end < len(line) else "")
