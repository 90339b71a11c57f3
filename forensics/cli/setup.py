"""`forensics mcp`: the server for assistants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:
\n  forensics mcp --allow /data/runs \n
  forensics mcp --allow /data/runs --allow /scratch/collected \n
In an assistant's configuration: command "forensics", arguments ["mcp", "--allow", "/data/runs"]."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("mcp", epilog=EXAMPLES)(mcp)


def mcp(
    more: Annotated[list[Path] | None, typer.Argument(help="Further folders, as after --allow.", metavar="DIR")] = None,
    allow: Annotated[list[Path] | None, typer.Option(help="A folder that may be read; may be repeated.", metavar="DIR")] = None,
    rules: Annotated[list[Path] | None, typer.Option(help="A further signature pack; may be repeated.", metavar="PACK")] = None,
) -> None:
    """Serve analyses to an assistant over the Model Context Protocol (standard input and output).

    Read-only, and limited to the folders named here: other paths, and runs with links that lead elsewhere, are refused.  Needs the
    extra: pip install 'train-forensics[mcp]'.
    """
    folders = [*(allow or []), *(more or [])]
    if not folders:
        raise typer.BadParameter("name at least one folder, such as: forensics mcp --allow /data/runs", param_hint="--allow")
    from forensics.evidence import Unusable
    from forensics.mcp_server import Refused, serve

    try:
        serve(folders, tuple(str(pack) for pack in rules or ()))
    except Refused as error:
        raise Unusable(str(error)) from error
    except ImportError as error:
        raise Unusable(f"forensics mcp needs an extra package ({error.name}): pip install 'train-forensics[mcp]'") from error
