"""`analyze`: the whole way from a path to a post-mortem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics import engine, evidence, knowledge, verdict
from forensics.clock_dates import named_zone
from forensics.run import Run

if TYPE_CHECKING:
    from forensics.reading import Progress, Reader
    from forensics.report.model import PostMortem
    from forensics.timeline import Timeline


FIRST_LOOK = 256 << 20  # bytes of evidence from which a first verdict on the ends of the files comes before the rest is read
TAIL = 8 << 20


@dataclass
class Report:
    """The result of `analyze`: the facts, the findings and the verdict of one run, and its renderings."""

    run: Run
    verdict: verdict.Verdict
    knowledge: knowledge.Knowledge
    lang: str = "en"
    redact: bool = True
    model: PostMortem | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The document of the contract (`forensics.postmortem/1`), redacted unless asked otherwise."""
        import json

        return json.loads(self.to_json())  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """The same as JSON text."""
        from forensics.report.json import render_json

        return render_json(self._model(), self.lang)

    def to_html(self) -> str:
        """The post-mortem as one offline page."""
        from forensics.report.html import render_html

        return render_html(self._model(), self.lang)

    def to_markdown(self) -> str:
        """The same facts for a ticket, under 4,000 characters."""
        from forensics.report.markdown import render_markdown

        return render_markdown(self._model(), self.lang)

    @property
    def name(self) -> str:
        """The run's name, redacted like everything else, fit for a file name."""
        name = str(self._model().facts["run"]["name"])
        return "".join(c if c.isalnum() or c in "-_.+" else "_" for c in name)[:120] or "run"

    def to_sarif(self) -> str:
        """The verdict as a SARIF 2.1.0 document, for CI systems."""
        from forensics.report.ci import render_sarif

        return render_sarif(self._model(), self.lang)

    def to_junit(self) -> str:
        """The verdict as a JUnit document, for CI systems."""
        from forensics.report.ci import render_junit

        return render_junit(self._model(), self.lang)

    def print(self) -> None:
        """The verdict on the terminal, at most 24 lines."""
        from forensics.report.terminal import render_terminal

        render_terminal(self._model(), self.lang)

    @property
    def timeline(self) -> Timeline:
        """The run's events, metrics and samples as polars frames."""
        from forensics.timeline import Timeline, tables

        return Timeline(**tables(self.run))

    def write_timeline(self, folder: str | Path) -> None:
        """`events.parquet`, `metrics.parquet` and `samples.parquet` (schemas: forensics.timeline)."""
        from forensics.timeline import write

        write(self.run, Path(folder), redact=self.redact)

    def _model(self) -> PostMortem:
        assert self.model is not None
        return self.model

    def _repr_html_(self) -> str:
        """Notebooks show the verdict."""
        from forensics.report.html import render_fragment

        return render_fragment(self._model(), self.lang)


_READERS: dict[tuple[str, ...], Reader] = {}


def reader_for(packs: tuple[str, ...]) -> Reader:
    """The reader for the project's knowledge and these packs, made once per process."""
    from forensics.reading import Reader

    if packs not in _READERS:
        _READERS[packs] = Reader(knowledge.load(packs).signatures)
    return _READERS[packs]


def analyze(
    path: str | Path,
    *,
    lang: str = "en",
    tz: str | None = None,
    rules: tuple[str, ...] | list[str] = (),
    redact: bool = True,
    hide_hosts: bool = False,
    progress: Progress | None = None,
    on_first: Callable[[verdict.Verdict], None] | None = None,
) -> Report:
    """Analyse a run directory, file or archive.

    lang: `en` or `zh`.  tz: the zone (IANA name or +HH:MM) of stamps that do not say theirs, in which page, Markdown
    and terminal show times too; times in JSON and tables are UTC.  rules: further signature packs.
    on_first: called, where the evidence is large, with the verdict on the last part of each file before all of it is read.
    redact: take secrets and personal details out of every rendering; hide_hosts: host names and addresses too.  Raises `forensics.Unusable` where there is nothing to read.
    """
    if tz is not None and named_zone(tz, 0.0) is None:
        raise evidence.Unusable(f"{tz}: no such zone; give a name such as Europe/Berlin or an offset such as +08:00")
    packs = tuple(str(pack) for pack in rules)
    known = knowledge.load(packs)
    reader = reader_for(packs)
    with evidence.gather(Path(path)) as found:
        if on_first and sum(member.info.size for member in found.members) >= FIRST_LOOK:
            with evidence.tails(found, TAIL) as short:
                run = reader.read(short, tz)
                on_first(verdict.decide(run, engine.judge(run, known), known))
        run = reader.read(found, tz, progress)
        findings = engine.judge(run, known)
        result = verdict.decide(run, findings, known)
        report = Report(run, result, known, lang, redact)
        from forensics.postmortem import build

        report.model = build(run, result, known, found, redact=redact, hide_hosts=hide_hosts, tz=tz)
    return report


def rfc3339(seconds: float | None) -> str | None:
    """Unix seconds as RFC 3339 in UTC; None where unknown or beyond the calendar."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return None
