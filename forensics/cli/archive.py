"""`forensics bulk ROOT... --out DIR`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forensics.archive.bulk import Summary, Ticker


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("bulk", epilog=EXAMPLES)(bulk)


EXAMPLES = """Examples:
\n  forensics bulk /archive/2026 --out fleet --jobs 16 \n
  forensics bulk s3://logs/jobs --out fleet --resume \n
  forensics bulk runs --out fleet --run-glob '*/job-*' --timeout 120"""


def bulk(
    roots: Annotated[
        list[str], typer.Argument(help="Folders, archives or URLs (s3://, gs://, az://) below which runs lie.", metavar="ROOT...")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the pages and tables.", metavar="DIR")],
    jobs: Annotated[int | None, typer.Option(help="Processes at once; default: the number of CPUs.", min=1)] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster (RAY_ADDRESS).")] = "local",
    resume: Annotated[bool, typer.Option("--resume", help="Keep earlier results whose evidence has not changed.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds one run may take; 0 for no limit.", metavar="SECONDS", min=0)] = 600,
    memory: Annotated[
        float | None,
        typer.Option(help="GiB of memory one run may take; default: four fifths of the machine's over the jobs.", metavar="GIB"),
    ] = None,
    run_glob: Annotated[
        str | None, typer.Option(help="Paths below ROOT that are runs, whatever they hold; ** crosses folders.", metavar="PATTERN")
    ] = None,
    lang: Annotated[str, typer.Option(help="Language of the texts: en or zh.")] = "en",
    tz: Annotated[str | None, typer.Option(help="Zone of stamps that do not name theirs.", metavar="ZONE")] = None,
    rules: Annotated[list[Path] | None, typer.Option(help="A further signature pack; may be repeated.", metavar="PACK")] = None,
    no_redact: Annotated[bool, typer.Option("--no-redact", help="Keep secrets and personal details in the outputs.")] = False,
    hide_hosts: Annotated[bool, typer.Option("--hide-hosts", help="Replace host names and addresses by stable pseudonyms.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Analyse every run below the roots: one page and one JSON document each, two tables, and a page over them all.

    Exit status: 0 every run was analysed, 1 some could not be (skipped.jsonl says which and why), 2 nothing to analyse, 130 interrupted.
    """
    if lang not in ("en", "zh"):
        raise typer.BadParameter(f"{lang}: the languages are en and zh", param_hint="--lang")
    if engine not in ("local", "ray"):
        raise typer.BadParameter(f"{engine}: the engines are local and ray", param_hint="--engine")
    from forensics.archive.bulk import Options
    from forensics.archive.bulk import bulk as library

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop is an interrupt: what is done is kept
    options = Options(lang, tz, tuple(str(pack) for pack in rules or ()), not no_redact, hide_hosts, run_glob)
    with _bar(not quiet) as tick:
        summary = library(
            roots, out, jobs=jobs, engine=engine, resume=resume, timeout=timeout or None, memory=int(memory * (1 << 30)) if memory else None,
            options=options, tick=tick,
        )  # fmt: skip
    _tell(summary, out, quiet)
    if summary.status:
        raise typer.Exit(summary.status)


def _tell(summary: Summary, out: Path, quiet: bool) -> None:
    if not quiet:
        again = f", {summary.reused} of them unchanged" if summary.reused else ""
        typer.echo(f"{summary.runs} runs{again}: {out / 'index.html'}")
    if summary.left:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.left.items()))
        typer.echo(f"forensics: left out: {counts}; see {out / 'skipped.jsonl'}", err=True)
    if summary.fatal:
        typer.echo(f"forensics: {summary.fatal}; what was done is kept, --resume goes on", err=True)
    elif summary.interrupted:
        typer.echo("forensics: interrupted; what was done is kept, --resume goes on", err=True)


@contextmanager
def _bar(wanted: bool) -> Iterator[Ticker | None]:
    """A bar with rate and remaining time on a terminal, nothing in a pipe."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Runs a second."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.1f}/s" if task.speed else "-/s")

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("finding runs", total=None)

        def show(done: int, known: int, path: str) -> None:
            name = "".join(c if c.isprintable() else "?" for c in path)[-40:]
            bar.update(line, completed=done, total=known, description=name or None)

        yield show
