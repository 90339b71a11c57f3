"""The command line: one small module per command, each a thin wrapper on one library function of the same name."""

from __future__ import annotations

import gc
import sys

# What is loaded at the start stays: looking through it for garbage every 700 objects was a tenth of a small run's time.
CALM = (10_000, 20, 20)


def main() -> None:
    """Entry point of `forensics`; errors are one clear line, never a traceback."""
    if sys.argv[1:] == ["--version"]:  # answered before anything else is imported
        from forensics import __version__

        print(f"forensics {__version__}")
        return
    gc.set_threshold(*CALM)
    from forensics.cli.app import run

    sys.exit(run())
