"""The command line: one small module per command, each a thin wrapper on one library function of the same name."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `forensics`; errors are one clear line, never a traceback."""
    if sys.argv[1:] == ["--version"]:  # answered before anything else is imported
        from forensics import __version__

        print(f"forensics {__version__}")
        return
    from forensics.cli.app import run

    sys.exit(run())
