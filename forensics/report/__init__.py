"""Words and pictures: one model in, text out.

report = Report(model)            # model: forensics.report.model.PostMortem
report.html("zh"); report.markdown(); report.json(); report.print()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.report.model import PostMortem

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["PostMortem", "Report"]


@dataclass(slots=True)
class Report:
    """A post-mortem in all its forms.  In a notebook the verdict shows itself."""

    model: PostMortem
    lang: str = "en"

    def html(self, lang: str | None = None) -> str:
        """The page, one file."""
        from forensics.report.html import render_html

        return render_html(self.model, lang or self.lang)

    def markdown(self, lang: str | None = None) -> str:
        """For a ticket; under 4,000 characters."""
        from forensics.report.markdown import render_markdown

        return render_markdown(self.model, lang or self.lang)

    def json(self, lang: str | None = None) -> str:
        """The document of schema `forensics.postmortem/1`."""
        from forensics.report.json import render_json

        return render_json(self.model, lang or self.lang)

    def print(self, console: Console | None = None, lang: str | None = None) -> None:
        """At most 24 lines on the terminal."""
        from forensics.report.terminal import render_terminal

        render_terminal(self.model, lang or self.lang, console)

    def _repr_html_(self) -> str:
        from forensics.report.html import render_fragment

        return render_fragment(self.model, self.lang)
