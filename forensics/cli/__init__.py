"""The command line: one small module per command, each a thin wrapper on one library function of the same name."""

from __future__ import annotations

import gc
import sys

import forensics


def main() -> None:
    """Entry point of `forensics`; errors are one clear line, never a traceback."""
    if sys.argv[1:] == ["--version"]:  # answered before anything else is imported
        print(f"forensics {forensics.__version__}")
        return
    gc.set_threshold(*forensics.CALM)
    from forensics.cli.app import run

    sys.exit(run())
