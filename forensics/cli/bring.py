"""`forensics collect` and `forensics probes`: evidence brought in from a live machine and from inside a training run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forensics.collecting import Collection

COLLECT = """Examples:
\n  forensics collect --out node3.tar.gz \n
  forensics collect --watch 5 --out runs/42 \n
  forensics collect --out runs/42 --run torchrun --nproc-per-node 8 train.py --lr 1e-6 \n
Then: forensics analyze runs/42, or forensics compare good.tar.gz bad.tar.gz"""
PROBES = """Examples:
\n  forensics probes                      list the snippets \n
  forensics probes loop > probes.py     write one to a file \n
  forensics probes allreduce > allreduce.py && torchrun --nproc-per-node 8 allreduce.py"""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("collect", epilog=COLLECT, context_settings={"allow_interspersed_args": False})(collect)
    app.command("probes", epilog=PROBES)(probes)


def collect(
    command: Annotated[list[str] | None, typer.Argument(help="With --run: the training command and its arguments.", metavar="CMD")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder, or an archive such as node3.tar.gz. Default: a new folder here.", metavar="DIR")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run the command that follows (options for collect come before --run).")] = False,
    watch: Annotated[
        float | None,
        typer.Option(help="Sample the GPUs every so many seconds until interrupted; with --run, beside the command.", metavar="SECONDS"),
    ] = None,
    pid: Annotated[list[int] | None, typer.Option(help="A process to look at too; may be repeated.", metavar="PID")] = None,
    python: Annotated[str | None, typer.Option(help="The interpreter whose packages are listed.", metavar="PATH")] = None,
    no_redact: Annotated[bool, typer.Option("--no-redact", help="Keep secrets in command lines and outputs.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing but errors (with --run: not the command's output either).")
    ] = False,
) -> None:
    """Gather the evidence of this machine: GPUs, driver, kernel log, limits, versions, network, processes.

    What cannot be had becomes a note; nothing on the machine is changed.  With --run a training command is wrapped: its output is
    kept with time stamps, the GPUs are sampled beside it, signals and its exit status are passed on, and a failure is analysed.
    """
    if command and not run:
        raise typer.BadParameter(f"{command[0]}: put --run before the command", param_hint="CMD")
    if run:
        if pid or python:
            raise typer.BadParameter("--pid and --python do not go with --run", param_hint="--run")
        raise typer.Exit(_wrap(command or [], out, 5.0 if watch is None else watch, not no_redact, quiet))
    if watch is not None:
        return _watch(watch, out, quiet)
    from forensics.collecting import collect as library

    show = None if quiet or not sys.stderr.isatty() else (lambda name: print(f"\r\033[K{name}", end="", file=sys.stderr))
    found = library(out, python=python, pids=tuple(pid or ()), redact=not no_redact, progress=show)
    if show:
        print("\r\033[K", end="", file=sys.stderr)
    if not quiet:
        _tell(found)


def _tell(found: Collection) -> None:
    typer.echo(f"Wrote {len(found.files)} files to {found.path}")
    if found.notes:
        typer.echo(f"\nNot to be had ({len(found.notes)}):")
        for name, note in found.notes:
            typer.echo(f"  {name}: {note}")
    typer.echo(
        f"\nNext: copy the training log beside it, then   forensics analyze {found.path}\n"
        f"Against a good run:                           forensics compare GOOD {found.path}\n"
        "Self-test of the communication (all GPUs of this machine):\n"
        "  forensics probes allreduce > allreduce.py && torchrun --nproc-per-node gpu allreduce.py"
    )


def _watch(interval: float, out: Path | None, quiet: bool) -> None:
    from forensics.collecting import watch
    from forensics.evidence import Unusable

    if interval <= 0:
        raise typer.BadParameter(f"{interval:g}: give the seconds between two samples", param_hint="--watch")
    import signal

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    if out is None:

        def write(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        sampler = watch(interval, write)
        place = "standard output"
    else:
        path = out if out.suffix == ".csv" else out / "gpu.csv"
        if path.exists():
            raise Unusable(f"{path}: exists already; choose another folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", buffering=1) as stream:
            sampler = watch(interval, stream.write)
        place = str(path)
        if not sampler.samples:
            path.unlink()
    if sampler.note:
        raise Unusable(sampler.note)
    if not quiet:
        typer.echo(f"{sampler.samples} samples in {place}", err=True)


def _wrap(command: list[str], out: Path | None, interval: float, redact: bool, quiet: bool) -> int:
    from forensics.collecting import run

    ended = run(command, out, interval=interval, redact=redact, quiet=quiet)
    for note in ended.notes:
        print(f"forensics: {note}", file=sys.stderr)
    if ended.status and not ended.interrupted and not quiet:
        _explain(ended.folder, ended.status)
    return ended.status


def _explain(folder: Path, status: int) -> None:
    """Analyse a failed run on standard error; a fault of ours must not hide the command's own status."""
    print(f"\nforensics: the command ended with status {status}; its evidence is in {folder}", file=sys.stderr)
    try:
        from rich.console import Console

        from forensics.analysis import analyze
        from forensics.files import write_text
        from forensics.report.terminal import render_terminal

        report = analyze(folder)
        render_terminal(report._model(), report.lang, Console(stderr=True, highlight=False))
        page = folder.with_name(f"{folder.resolve().name}.postmortem.html")
        write_text(page, report.to_html())
        print(f"\nWrote {page}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"forensics: interrupted; the evidence is kept: forensics analyze {folder}", file=sys.stderr)
    except Exception as error:
        print(f"forensics: the analysis failed ({type(error).__name__}: {error}); try: forensics analyze {folder}", file=sys.stderr)


def probes(
    name: Annotated[str | None, typer.Argument(help="The snippet to print; without it, the list.")] = None,
) -> None:
    """Print ready instrumentation whose lines the analyser reads: paste it into the training script."""
    from forensics.probes import snippets

    known = snippets()
    if name is None:
        wide = max(map(len, known))
        for snippet in known.values():
            typer.echo(f"{snippet.name.ljust(wide)}  {snippet.title}  ({', '.join(snippet.covers)})")
        typer.echo("\nPrint one with: forensics probes NAME")
        return
    if name not in known:
        raise typer.BadParameter(f"{name}: the snippets are {', '.join(known)}", param_hint="NAME")
    typer.echo(known[name].text, nl=False)
