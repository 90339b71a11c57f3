"""The wheel and the source archive hold what they must; the wheel works in an environment of its own; no dependency is idle."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from sample_runs import SAMPLES

ROOT = SAMPLES.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DATA = {".toml", ".j2", ".css", ".js", ".typed"}


def sources() -> list[Path]:
    return [f for top in ("forensics", "parsers", "rules") for f in (ROOT / top).rglob("*") if f.is_file() and "__pycache__" not in f.parts]


def imported() -> set[str]:
    """Top-level names that the packages import, anywhere in their code."""
    names: set[str] = set()
    for file in sources():
        if file.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names


def test_every_dependency_is_used_and_declared() -> None:
    declared = {re.split(r"[<>=!~\[; ]", line)[0] for line in PROJECT["dependencies"]}
    used = imported()
    idle = {name for name in declared if name.replace("-", "_") not in used}
    assert idle == set()
    optional = {re.split(r"[<>=!~\[; ]", line)[0] for lines in PROJECT.get("optional-dependencies", {}).values() for line in lines}
    known = {n.replace("-", "_") for n in declared | optional} | set(sys.stdlib_module_names) | {"forensics", "parsers", "rules"}
    guarded = {"anyio", "deepspeed", "transformers"}  # of optional companions: found where those are installed
    assert used - known <= guarded, used - known - guarded


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(wheel, source archive), built without leaving anything in the checkout."""
    build = pytest.importorskip("build", reason="the package is built by `build` (extra: test)")
    assert build
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode and re.search(
        r"(?i)connection|network|could not find a version|no matching distribution", done.stdout + done.stderr
    ):
        pytest.skip("the build back end cannot be fetched here")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_wheel_holds_the_program_and_its_data(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"forensics", "parsers", "rules"}
    tracked = {f.relative_to(ROOT).as_posix() for f in sources() if f.suffix in {".py", *DATA}}
    assert tracked - names == set()
    assert any(n.endswith("entry_points.txt") for n in names)
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert "Requires-Python: >=3.11" in metadata
    assert not re.search(r"(?m)^(?:Name|Version): .*\s(?:/|C:)", metadata)


def test_source_archive_is_enough_to_test(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for wanted in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "tests/test_package.py",
        "docs/architecture.md",
        "sample_logs/gpu-lost/logs/train.log",
    ):
        assert wanted in names
    assert not any(part in name for name in names for part in (".git/", "__pycache__", ".venv", ".hypothesis"))


def test_wheel_works_on_its_own(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Installed into a fresh environment (dependencies borrowed from this one), outside the checkout, under a C locale."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=120)
    python = home / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(built[0])], check=True, timeout=120)
    site = Path(
        subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    ours = {"forensics", "parsers", "rules"}
    borrowed = [p for p in sys.path if p.endswith("-packages") and Path(p).is_dir()]
    for folder in borrowed:
        for entry in Path(folder).iterdir():
            if (
                entry.name not in ours
                and "train_forensics" not in entry.name
                and entry.suffix != ".pth"
                and not (site / entry.name).exists()
            ):
                (site / entry.name).symlink_to(entry)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"LC_ALL": "C"}
    logs = SAMPLES / "token-id-out-of-range" / "logs"
    done = subprocess.run(
        [str(home / "bin" / "forensics"), "analyze", str(logs), "--json", "out.json", "--html", "out.html", "--lang", "zh"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    said = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert said["verdict"]["cause"].endswith("token-id-out-of-range")
    assert said["version"] == PROJECT["version"]
    assert (tmp_path / "out.html").stat().st_size > 20_000
    where = subprocess.run(
        [str(python), "-c", "import forensics; print(forensics.__file__)"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(home))
