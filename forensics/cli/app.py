"""The typer application: commands registered by name, errors turned into one line, exit statuses of the contract."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from forensics.cli import analyze, archive, bring, compare, explain, setup

app = typer.Typer(
    name="forensics",
    help="Reads the directory a crashed multi-GPU training run left behind and says which layer is responsible, with the evidence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: forensics analyze RUN",
)


def _version(wanted: bool) -> None:
    if wanted:
        from forensics import __version__

        typer.echo(f"forensics {__version__}")
        raise typer.Exit


@app.callback()
def root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    """Reads the directory a crashed multi-GPU training run left behind and says which layer is responsible, with the evidence."""


for module in (analyze, compare, archive, bring, explain, setup):
    module.register(app)


def run() -> int:
    """Run the command line; returns the exit status: 0 analysed, 1 internal fault, 2 unusable input or usage, 3 a failure was named (`--check`)."""
    try:
        status = app(standalone_mode=False)  # a raised typer.Exit comes back as its status
        if isinstance(status, int):
            return status
    except typer.Exit as leave:
        return leave.exit_code
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 1
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; say nothing, and keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _fault(error)
    return 0


def _fault(error: Exception) -> int:
    from forensics.evidence import Unusable
    from forensics.knowledge import PackError

    if any(kind.__name__ == "ClickException" for kind in type(error).__mro__):  # typer brings its own click
        shown = getattr(error, "format_message", lambda: str(error))()
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(shown)
            return 2
        where = getattr(getattr(error, "ctx", None), "command_path", None) or "forensics"
        _say(f"{shown}  (try: {where} --help)")
        return 2
    if isinstance(error, (Unusable, PackError)):
        _say(str(error))
        return 2
    if isinstance(error, OSError):
        _say(f"{error.filename or 'output'}: {error.strerror or error}")
        return 1
    if os.environ.get("FORENSICS_DEBUG"):
        import traceback

        traceback.print_exc()
    _say(f"internal fault: {type(error).__name__}: {error}  (set FORENSICS_DEBUG=1 for the details, and please report it)")
    return 1


def _say(text: str) -> None:
    line = " ".join(text.split())
    printable = "".join(c if c.isprintable() else "?" for c in line)
    print(f"forensics: {printable}", file=sys.stderr)
