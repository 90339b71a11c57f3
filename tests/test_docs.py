"""The documentation cannot drift: generated pages are fresh, commands and options exist, links resolve, examples run and print what they show."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from check_dependencies import canonical, closure
from typer.testing import CliRunner

import forensics
import parsers
from forensics import docs
from forensics.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
WRITTEN = [page for page in PAGES if page.name not in docs.PAGES]
FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```", re.M | re.S)
OURS = {
    "tutorial.md",
    "reading-a-report.md",
    "collecting.md",
    "probes.md",
    "api.md",
    "ci.md",
    "mcp.md",
    "limits.md",
    "writing-rules.md",
    "writing-parsers.md",
}
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
TREE = dict(docs.command_tree())
GLOBAL = {"--help", "-h", "--version", "--install-completion", "--show-completion"}


def blocks(page: Path, *kinds: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text("utf-8")) if kind in kinds]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def options(command: Any) -> set[str]:
    return GLOBAL | {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-")}


def unknown(line: str) -> str:
    """Why a command line that begins with `forensics` cannot be right; empty where it can."""
    words = shlex.split(line, comments=True)[1:]
    if not words or words[0] in GLOBAL or words[0].isupper():
        return ""
    name = f"{words[0]} {words[1]}" if len(words) > 1 and f"{words[0]} {words[1]}" in TREE else words[0]
    if name not in TREE:
        return f"no command {name}"
    known = options(TREE[name])
    for word in words[1:]:
        if word == "--run":
            break  # what follows is somebody else's command
        if word in ("|", "&&", ">", ";", "||"):
            break
        if word.startswith("-") and len(word) > 1 and word.partition("=")[0] not in known:
            return f"{name} has no option {word}"
    return ""


def shown_commands(page: Path) -> Iterator[str]:
    for body in blocks(page, "sh", "console", "bash", "shell", ""):
        for line in body.splitlines():
            for part in re.split(r"&&|;", line.strip().removeprefix("$ ")):
                if re.match(r"forensics(?:\s|$)", part.strip()):
                    yield part.strip()
    for _, span in SPAN.findall(prose(page)):
        if re.match(r"forensics [a-z]", span):
            yield " ".join(span.split())


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_pages_are_fresh(name: str) -> None:
    assert (ROOT / "docs" / name).exists(), "run: python -m forensics.docs"
    assert (ROOT / "docs" / name).read_text("utf-8") == docs.PAGES[name](), "stale; run: python -m forensics.docs"


def test_staleness_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "timeline.md").write_text("old")
    for name in set(docs.PAGES) - {"timeline.md"}:
        (tmp_path / name).write_text((ROOT / "docs" / name).read_text("utf-8"), "utf-8")
    assert docs.main(["--check", "--out", str(tmp_path)]) == 1
    assert (tmp_path / "timeline.md").read_text() == "old"
    assert docs.main(["--out", str(tmp_path)]) == 0
    assert docs.main(["--check", "--out", str(tmp_path)]) == 0
    assert "stale: timeline.md" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_shown_exist(page: Path) -> None:
    wrong = {line: why for line in shown_commands(page) if (why := unknown(line))}
    assert wrong == {}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_options_that_are_named_exist(page: Path) -> None:
    known = set().union(*(options(command) for command in TREE.values())) | {"--audit", "--check"}
    named = {span.split()[0].partition("=")[0] for _, span in SPAN.findall(prose(page)) if re.match(r"--[a-z]", span)}
    assert named - known == set()


def anchors(page: Path) -> set[str]:
    text = prose(page)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#{1,6} (.+)$", text, re.M):
        found.add(docs.anchor(re.sub(r"[`*]", "", heading)))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
            broken.append(target)
    assert broken == []


def test_every_page_is_linked() -> None:
    linked = {target.removeprefix("docs/").partition("#")[0] for page in PAGES for target in LINK.findall(prose(page))}
    assert {page.name for page in PAGES if page.parent.name == "docs"} - linked - {"README.md"} == set()
    assert set(LINK.findall(prose(ROOT / "docs/README.md"))) >= {page.name for page in WRITTEN if page.name in OURS}


@pytest.fixture
def beside_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that sees the sample runs as a checkout does."""
    (tmp_path / "sample_logs").symlink_to(ROOT / "sample_logs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


CONSOLE = [
    pytest.param(line[2:], id=f"{page.stem}: {line[2:]}")
    for page in WRITTEN
    for body in blocks(page, "console")
    for line in body.splitlines()
    if line.startswith("$ ")
]


@pytest.mark.usefixtures("beside_samples")
@pytest.mark.parametrize("line", CONSOLE)
def test_console_examples_run(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "forensics"
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("beside_samples")
@pytest.mark.parametrize("page", [page for page in WRITTEN if blocks(page, "output")], ids=lambda page: page.name)
def test_python_examples_print_what_they_show(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    printed = ""
    for kind, body in FENCE.findall(page.read_text("utf-8")):
        if kind == "python":
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(body, page.name, "exec"), names)
            printed = said.getvalue()
        elif kind == "output":
            assert printed == body


def test_the_public_names_are_documented() -> None:
    text = (ROOT / "docs/api.md").read_text("utf-8")
    for name in forensics.__all__:
        if not name.startswith("__"):
            assert re.search(rf"\b{name}\b", text), name
            assert getattr(forensics, name).__doc__


# ------------------------------------------------------------------------------------------- worked examples


def pack_of_the_page() -> str:
    return next(body for body in blocks(ROOT / "docs/writing-rules.md", "toml") if "[[signature]]" in body)


@pytest.fixture
def quota_run(tmp_path: Path) -> Path:
    """A run whose log holds the line of the page, and nothing else that is known."""
    line = blocks(ROOT / "docs/writing-rules.md", "")[0].strip()
    run = tmp_path / "run"
    run.mkdir()
    (run / "train.log").write_text(f"2026-11-28 10:00:00 step 1 loss 2.0\n2026-11-28 10:00:05 {line}\n")
    return run


def test_the_pack_of_the_page_through_the_option(quota_run: Path, tmp_path: Path) -> None:
    pack = tmp_path / "acme.toml"
    pack.write_text(pack_of_the_page(), "utf-8")
    checked = CliRunner().invoke(app, ["rules", "check", str(pack)])
    assert (checked.exit_code, checked.output) == (0, "1 pack in order\n")
    assert forensics.analyze(quota_run).verdict.cause != "quota-exceeded"
    report = forensics.analyze(quota_run, rules=[str(pack)])
    assert (report.verdict.layer, report.verdict.cause) == ("infra", "quota-exceeded")
    assert "acme-quota" in CliRunner().invoke(app, ["rules", "list", "--rules", str(pack)]).output


def test_a_bad_pack_is_told_so(tmp_path: Path) -> None:
    pack = tmp_path / "acme.toml"
    pack.write_text(pack_of_the_page().replace("granted", "denied"), "utf-8")
    checked = CliRunner().invoke(app, ["rules", "check", str(pack)])
    assert checked.exit_code == 2
    assert "the near miss matches" in checked.output


def test_the_pack_of_the_page_through_an_entry_point(quota_run: Path, tmp_path: Path) -> None:
    """An installed package: its folder and its dist-info on the path, as pip would lay them."""
    site = tmp_path / "site"
    (site / "acme_rules").mkdir(parents=True)
    (site / "acme_rules/__init__.py").write_text('from pathlib import Path\n\nPACK = Path(__file__).parent / "acme.toml"\n')
    (site / "acme_rules/acme.toml").write_text(pack_of_the_page(), "utf-8")
    info = site / "acme_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-rules\nVersion: 1.0\n")
    declared = next(body for body in blocks(ROOT / "docs/writing-rules.md", "toml") if "entry-points" in body)
    points = tomllib.loads(declared)["project"]["entry-points"]
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in items.items()) for group, items in points.items())
    )
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "forensics", "analyze", str(quota_run), "--json", "-", "--quiet"]
    process = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert process.returncode == 0, process.stderr
    assert '"cause": "quota-exceeded"' in process.stdout


def test_the_parser_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs/writing-parsers.md"
    (tmp_path / "more").mkdir()
    (tmp_path / "more/acme.py").write_text(blocks(page, "python")[0])
    run = tmp_path / "run"
    run.mkdir()
    line = blocks(page, "")[0].strip()
    (run / "train.log").write_text("\n".join(line.replace("it 120", f"it {120 + n}").replace("10:00:00", f"10:00:0{n}") for n in range(5)))
    from forensics import analysis

    monkeypatch.setattr(parsers, "__path__", [*parsers.__path__, str(tmp_path / "more")])
    monkeypatch.setattr(analysis, "_READERS", {})
    parsers.load.cache_clear()
    try:
        report = forensics.analyze(run)
        hostile = importlib.import_module("parsers.acme").PARSER
    finally:
        parsers.load.cache_clear()
        sys.modules.pop("parsers.acme", None)
    loss = report.run.series("loss")
    assert loss.value == [0.5312] * 5
    assert loss.step == [120.0, 121.0, 122.0, 123.0, 124.0]
    assert report.run.series("learning_rate").value[0] == 1e-05
    assert next(event.fields for event in report.run.kind("acme_peers")) == {"present": 7, "expected": 8}
    from support_lines import feed

    assert feed(hostile, "acme| it 1 | L -.e. | eta nan | peers 99999999/1\nacme| it \x00").metrics[0].raw == "eta"


# --------------------------------------------------------------------------------------------- help, dependencies


@pytest.mark.parametrize("path", [path for path, command in TREE.items() if not getattr(command, "commands", None)])
def test_help_has_a_text_and_an_example(path: str) -> None:
    command = TREE[path]
    assert command.help
    assert f"forensics {path}" in (command.epilog or ""), f"no example in the help of {path}"
    result = CliRunner().invoke(app, [*path.split(), "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    for line in (command.epilog or "").splitlines():
        text = line.strip().removeprefix("Examples:").removeprefix("Example:").strip()
        text = text.split("  ")[0]
        if text.startswith("forensics "):
            assert unknown(text) == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str) -> None:
    env = {**os.environ, "_FORENSICS_COMPLETE": f"source_{shell}"}
    code = "import sys; sys.argv = ['forensics']; from forensics.cli import main; main()"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert "_FORENSICS_COMPLETE" in process.stdout
    assert "Usage" not in process.stdout


def test_every_dependency_is_listed_with_its_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    wanted = [*project["dependencies"], *(r for name, items in extras.items() if name not in ("test", "dev", "torch") for r in items)]
    names = {canonical(re.split(r"[<>=!~\[ ;]", text, maxsplit=1)[0]) for text in wanted}
    rows = [line.split("|") for line in (ROOT / "docs/dependencies.md").read_text().splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row[1].partition("(")[0])}
    assert listed == names
    assert all(re.search(r"MIT|BSD|Apache", row[3]) for row in rows)


def test_what_is_installed_with_us_is_permissive() -> None:
    packages = closure()
    assert packages
    assert [package for package in packages if not package.permissive] == []


def test_what_collect_writes_is_listed() -> None:
    from forensics.collecting.items import items

    text = (ROOT / "docs/collecting.md").read_text("utf-8")
    assert [item.file for item in items({"SLURM_JOB_ID": "1"}) if f"`{item.file}`" not in text] == []


def test_what_the_probes_print_is_listed() -> None:
    from forensics.probes import KNOWN, snippets

    text = (ROOT / "docs/probes.md").read_text("utf-8")
    assert [name for name, _, _ in KNOWN if f"| `{name}` |" not in text] == []
    tags = set(re.findall(r"\[(DATA|LOSS|GRAD|KL|SYNC|LR)\]", snippets()["loop"].text))
    assert tags == set(re.findall(r"`\[(DATA|LOSS|GRAD|KL|SYNC|LR)\]", text))


def test_the_servers_tools_are_listed() -> None:
    pytest.importorskip("mcp")
    from forensics import mcp_server

    names = set(re.findall(r"@made\.tool\(annotations=hints\)\n    async def (\w+)", Path(mcp_server.__file__).read_text("utf-8")))
    listed = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/mcp.md").read_text("utf-8"), re.M))
    assert names == listed != set()
