"""The MCP server through an in-memory client: answers, bounds, and paths that must be refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

mcp = pytest.importorskip("mcp", reason="the server needs the extra: mcp")
import anyio  # noqa: E402

from forensics.mcp_server import Allowed, Refused, server  # noqa: E402

LOG = """2026-11-28 10:00:00,000 INFO step 1 loss 2.0 token=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH
2026-11-28 10:00:05,000 INFO step 2 loss 1.9
Traceback (most recent call last):
  File "train.py", line 10, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free.
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An allowed folder with one run, beside a folder that is not allowed."""
    run = tmp_path / "allowed/run1"
    run.mkdir(parents=True)
    (run / "train.log").write_text(LOG)
    secret = tmp_path / "private"
    secret.mkdir()
    (secret / "train.log").write_text(LOG)
    return tmp_path


def ask(folder: Path, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """The results of tool calls over one in-memory connection."""
    results: list[Any] = []

    async def talk() -> None:
        async with mcp.Client(server([folder])) as client:
            for name, arguments in calls:
                results.append(await client.call_tool(name, arguments))

    run: Callable[[Callable[[], Awaitable[None]]], None] = anyio.run
    run(talk)
    return results


def test_analyse_names_the_cause_and_hides_secrets(home: Path) -> None:
    short, full = ask(home / "allowed", ("analyse", {"path": "run1"}), ("analyse", {"path": str(home / "allowed/run1"), "detail": "full"}))
    assert not short.is_error
    document = short.structured_content
    assert document["verdict"]["cause"] == "gpu-oom"
    assert document["verdict"]["first_failure"]["file"] == "train.log"
    assert "findings" not in document
    assert full.structured_content["findings"]
    assert "hf_abcdefghijkl" not in str(full)


def test_timeline_is_filtered_and_bounded(home: Path) -> None:
    found, metrics, late, wrong = ask(
        home / "allowed",
        ("timeline", {"path": "run1", "contains": "out of memory"}),
        ("timeline", {"path": "run1", "table": "metrics", "name": "loss", "limit": 1}),
        ("timeline", {"path": "run1", "after": "2030-01-01T00:00:00Z"}),
        ("timeline", {"path": "run1", "table": "secrets"}),
    )
    assert found.structured_content["matching"] >= 1
    assert all("out of memory" in row["text"] for row in found.structured_content["rows"])
    assert metrics.structured_content["matching"] == 2
    assert len(metrics.structured_content["rows"]) == 1
    assert late.structured_content["rows"] == []
    assert wrong.is_error


def test_explain_and_list(home: Path) -> None:
    told, unknown, listed = ask(
        home / "allowed", ("explain", {"cause": "gpu-fell-off-bus"}), ("explain", {"cause": "infra/nothing"}), ("list_runs", {})
    )
    assert "infra/gpu-fell-off-bus" in told.content[0].text
    assert unknown.is_error
    assert [row["path"] for row in listed.structured_content["result"]] == [str(home / "allowed/run1")]


def test_every_tool_says_it_only_reads(home: Path) -> None:
    async def tools() -> list[Any]:
        async with mcp.Client(server([home / "allowed"])) as client:
            return list((await client.list_tools()).tools)

    found = anyio.run(tools)
    assert {tool.name for tool in found} == {"list_runs", "analyse", "timeline", "explain"}
    assert all(tool.annotations.read_only_hint for tool in found)
    assert all(tool.description for tool in found)


ESCAPES = ["../private", "/etc", "run1/../../private", "run1/./../../private/train.log", "~", "", "run1/\0", "//etc/passwd", "missing"]


@pytest.mark.parametrize("path", ESCAPES)
def test_paths_that_leave_are_refused(home: Path, path: str) -> None:
    with pytest.raises(Refused):
        Allowed([home / "allowed"]).path(path)


def test_links_that_leave_are_refused(home: Path) -> None:
    allowed = Allowed([home / "allowed"])
    os.symlink(home / "private", home / "allowed/link")
    with pytest.raises(Refused, match="not in the allowed folders"):
        allowed.path("link")
    os.symlink(home / "private/train.log", home / "allowed/run1/second.log")
    with pytest.raises(Refused, match="a link that leads out"):
        allowed.path("run1")
    (result,) = ask(home / "allowed", ("analyse", {"path": "run1"}))
    assert result.is_error
    assert "leads out" in result.content[0].text


def test_links_that_stay_are_followed(home: Path) -> None:
    os.symlink(home / "allowed/run1/train.log", home / "allowed/run1/latest.log")
    assert Allowed([home / "allowed"]).path("run1") == home / "allowed/run1"


def test_a_sibling_with_the_same_beginning_is_outside(home: Path) -> None:
    other = home / "allowed-not"
    other.mkdir()
    with pytest.raises(Refused):
        Allowed([home / "allowed"]).path(str(other))


def test_the_evidence_is_not_written_to(home: Path) -> None:
    before = sorted((str(p), p.stat().st_mtime_ns) for p in home.rglob("*"))
    ask(home / "allowed", ("analyse", {"path": "run1"}), ("timeline", {"path": "run1"}))
    assert sorted((str(p), p.stat().st_mtime_ns) for p in home.rglob("*")) == before


@pytest.mark.parametrize(("arguments", "says"), [([], "name at least one folder"), (["--allow", "/nonexistent"], "no such folder")])
def test_wrong_use_of_the_command(arguments: list[str], says: str) -> None:
    process = subprocess.run([sys.executable, "-m", "forensics", "mcp", *arguments], capture_output=True, text=True, timeout=60)
    assert process.returncode == 2
    assert says in process.stderr


def test_without_the_extra_the_command_says_so(home: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; sys.argv = ['forensics', 'mcp', '--allow', sys.argv[1]]; from forensics.cli import main; main()"
    process = subprocess.run([sys.executable, "-c", code, str(home / "allowed")], capture_output=True, text=True, timeout=60)
    assert process.returncode == 2
    assert "pip install 'train-forensics[mcp]'" in process.stderr
