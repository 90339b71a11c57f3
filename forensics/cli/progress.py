"""A progress bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from forensics.reading import Progress


@contextmanager
def progress_bar(wanted: bool) -> Iterator[Progress | None]:
    """A callback for `analyze` that draws a bar on standard error, or None where there is no terminal."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def show(path: str, done: int, total: int) -> None:
            name = "".join(c if c.isprintable() else "?" for c in path)[-40:]
            bar.update(task, description=name or "judging", completed=done, total=total)

        yield show
