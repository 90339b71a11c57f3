"""`forensics analyze RUN`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forensics.verdict import Verdict


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("analyze", epilog=EXAMPLES)(analyze)


EXAMPLES = """Examples:
\n  forensics analyze runs/2026-11-28 \n
  forensics analyze logs.tar.zst --json - --quiet | jq .verdict \n
  forensics analyze run --html post-mortem.html --lang zh --tz Asia/Shanghai"""


def analyze(
    run: Annotated[Path, typer.Argument(help="A run directory, one log file, or an archive (.tar, .tar.gz, .tar.zst, .tar.xz, .zip).")],
    html: Annotated[Path | None, typer.Option(help="Write the page here; - is standard output.", metavar="FILE")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the JSON document here.", metavar="FILE")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a ticket-sized text here.", metavar="FILE")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write a SARIF document for CI systems here.", metavar="FILE")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit document for CI systems here.", metavar="FILE")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write events, metrics and samples as Parquet into this folder.", metavar="DIR")
    ] = None,
    lang: Annotated[str, typer.Option(help="Language of the texts: en or zh.")] = "en",
    tz: Annotated[
        str | None,
        typer.Option(
            help="Zone of stamps that do not name theirs, such as Europe/Berlin or +08:00; times are shown in it (JSON and tables: in UTC).",
            metavar="ZONE",
        ),
    ] = None,
    rules: Annotated[
        list[Path] | None, typer.Option(help="A further signature pack (file or folder); may be repeated.", metavar="PACK")
    ] = None,
    no_redact: Annotated[bool, typer.Option("--no-redact", help="Keep secrets and personal details in the outputs.")] = False,
    hide_hosts: Annotated[bool, typer.Option("--hide-hosts", help="Replace host names and addresses by stable pseudonyms.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with status 3 when a failure is named.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Say which layer is responsible for a crashed run, with the evidence.

    With no output option the page is written to <run name>.postmortem.html in the current directory and the verdict printed.
    """
    if lang not in ("en", "zh"):
        raise typer.BadParameter(f"{lang}: the languages are en and zh", param_hint="--lang")
    from forensics.analysis import analyze as library
    from forensics.cli.progress import progress_bar

    writable(html, json, markdown, sarif, junit)

    with progress_bar(not quiet) as progress:
        report = library(
            run,
            on_first=first_look if progress else None,
            lang=lang,
            tz=tz,
            rules=[str(pack) for pack in rules or ()],
            redact=not no_redact,
            hide_hosts=hide_hosts,
            progress=progress,
        )
    outputs = {html: report.to_html, json: report.to_json, markdown: report.to_markdown, sarif: report.to_sarif, junit: report.to_junit}
    wanted = [(path, render) for path, render in outputs.items() if path is not None]
    if not wanted and timeline is None:
        page = Path(f"{report.name}.postmortem.html")
        wanted = [(page, report.to_html)]
        if not quiet:
            report.print()
            typer.echo(f"\nWrote {page}")
    elif not quiet and not any(str(path) == "-" for path, _ in wanted):
        report.print()
    for path, render in wanted:
        put(path, render())
    if timeline is not None:
        report.write_timeline(timeline)
    if check and report.verdict.layer not in ("none", "unknown"):
        raise typer.Exit(3)


def first_look(verdict: Verdict) -> None:
    """Say on standard error what the ends of large files suggest, while the rest is being read."""
    from rich.console import Console

    named = f"{verdict.layer}/{verdict.cause}" if verdict.cause else verdict.layer
    Console(stderr=True, highlight=False).print(
        f"First look at the ends of the files: {named} ({verdict.confidence:.0%}); reading the whole …", markup=False
    )


def writable(*outputs: Path | None) -> None:
    """Refuse outputs that could not be written, before any work is done for them."""
    from forensics.evidence import Unusable
    from forensics.files import unwritable

    for path in outputs:
        if path is not None and str(path) != "-" and (why := unwritable(path)):
            raise Unusable(why)


def put(path: Path, text: str) -> None:
    """Write text to a file, whole or not at all; `-` is standard output."""
    if str(path) == "-":
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
        return
    from forensics.files import write_text

    write_text(path, text)
