"""`forensics compare RUN_A RUN_B`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli.analyze import put, writable


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("compare", epilog=EXAMPLES)(compare)


EXAMPLES = """Examples:
\n  forensics compare runs/good runs/crashed \n
  forensics compare good.tar.gz crashed.tar.gz --html difference.html --lang zh \n
  forensics compare good crashed --json - --quiet | jq '.packages[] | select(.state != "same")'"""


def compare(
    run_a: Annotated[Path, typer.Argument(help="The first run: a directory, one log file, or an archive.")],
    run_b: Annotated[Path, typer.Argument(help="The second run.")],
    html: Annotated[Path | None, typer.Option(help="Write the page here; - is standard output.", metavar="FILE")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the JSON document here.", metavar="FILE")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a ticket-sized text here.", metavar="FILE")] = None,
    lang: Annotated[str, typer.Option(help="Language of the texts: en or zh.")] = "en",
    tz: Annotated[
        str | None, typer.Option(help="Zone of stamps that do not name theirs, such as Europe/Berlin or +08:00.", metavar="ZONE")
    ] = None,
    rules: Annotated[
        list[Path] | None, typer.Option(help="A further signature pack (file or folder); may be repeated.", metavar="PACK")
    ] = None,
    no_redact: Annotated[bool, typer.Option("--no-redact", help="Keep secrets and personal details in the outputs.")] = False,
    hide_hosts: Annotated[bool, typer.Option("--hide-hosts", help="Replace host names and addresses by stable pseudonyms.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Two runs side by side: environment, packages, settings, metrics and verdicts, differences first.

    With no output option the differences are printed and nothing is written.
    """
    if lang not in ("en", "zh"):
        raise typer.BadParameter(f"{lang}: the languages are en and zh", param_hint="--lang")
    from forensics.cli.progress import progress_bar
    from forensics.comparison import compare as library

    writable(html, json, markdown)
    with progress_bar(not quiet) as progress:
        found = library(
            run_a,
            run_b,
            lang=lang,
            tz=tz,
            rules=[str(pack) for pack in rules or ()],
            redact=not no_redact,
            hide_hosts=hide_hosts,
            progress=progress,
        )
    outputs = {html: found.to_html, json: found.to_json, markdown: found.to_markdown}
    wanted = [(path, render) for path, render in outputs.items() if path is not None]
    if not quiet and not any(str(path) == "-" for path, _ in wanted):
        found.print()
    for path, render in wanted:
        put(path, render())
