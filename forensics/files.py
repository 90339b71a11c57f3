"""Writing output whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary)` beside `path`, then rename over it; on failure nothing is left behind.

    A path that exists and is no regular file (a pipe, a device) is written to, never replaced.
    """
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        write(path)
        return
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the name that the user gave
        raise


def unwritable(path: Path) -> str:
    """Why a file cannot be written there, with what to do about it; empty where nothing is known against it."""
    folder = path.parent
    if path.is_dir():
        return f"{path}: is a directory; give a file name"
    if not folder.is_dir():
        return f"{folder}: no such directory; make it first (mkdir -p {folder})"
    if not path.exists() and not os.access(folder, os.W_OK):
        return f"{folder}: may not be written to; give another place"
    return ""


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, whole or not at all."""
    write_whole(path, lambda target: target.write_text(text, encoding="utf-8", errors="replace"))
