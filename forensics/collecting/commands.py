"""Runs one foreign program for a bounded time and a bounded output, and says in words why it gave nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

MAX_OUTPUT = 64 << 20  # bytes kept of one tool's output; a full kernel ring buffer is about 1 MiB


@dataclass(slots=True)
class Answer:
    """What a program printed (standard output, then standard error), its status, and in `note` why it is no good (empty = fine)."""

    output: bytes = b""
    errors: bytes = b""
    status: int | None = None
    note: str = ""


def ask(command: tuple[str, ...], timeout: float) -> Answer:
    """Run `command` without a shell or standard input, in the C locale, for at most `timeout` seconds.  Never raises.

    A program stuck in the kernel (a lost GPU, a dead file server) cannot be killed: it is left behind, not waited for.
    """
    if shutil.which(command[0]) is None:
        return Answer(note="not installed")
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "NO_COLOR": "1", "PAGER": "cat"}
    # Files, not pipes: a program that outlives its time cannot block us on a full or never-closed pipe.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd="/", start_new_session=True
            )
        except OSError as error:
            return Answer(note=f"could not be started: {error.strerror or error}")
        try:
            status: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        answer = Answer(_read(out), _read(err), status)
    if status is None:
        answer.note = f"gave no answer within {timeout:g} s"
    elif status:
        denied = any(word in answer.errors.lower() for word in (b"permitted", b"permission denied", b"must be root", b"access denied"))
        answer.note = "needs more rights (try as root)" if denied else f"ended with status {status}"
    return answer


def _read(stream: object) -> bytes:
    stream.seek(0)  # type: ignore[attr-defined]
    data: bytes = stream.read(MAX_OUTPUT)  # type: ignore[attr-defined]
    return data
