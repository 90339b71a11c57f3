"""The command line from outside: statuses, outputs, silence, evidence left alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import polars as pl
import pytest
from sample_runs import SAMPLES

from forensics.timeline import EVENTS, METRICS
from forensics.timeline import SAMPLES as SAMPLE_SCHEMA

ROOT = SAMPLES.parent
SMALL = SAMPLES / "checkpoint-shapes" / "logs"
HEALTHY = SAMPLES / "interrupted" / "logs"
PACK = """
[[signature]]
id = "house-rule"
cause = "data/corrupt-sample"
role = "root"
weight = 0.97
sources = ["any"]
literal = ["frobnicator jammed"]
regex = '''frobnicator jammed at (?P<what>\\S+)'''
title = { en = "The frobnicator jammed", zh = "frobnicator 卡住" }
why = { en = "House rule.", zh = "自定义规则。" }
source = "our own"
basis = "source code"
hits = ["frobnicator jammed at shard-7"]
near_misses = ["frobnicator running"]
"""


def forensics(*words: str | Path, cwd: Path | None = None, **more: object) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "forensics", *map(str, words)],
        cwd=cwd or ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
        **more,  # type: ignore[call-overload]
    )


def digest(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Every file below with its content, time of change and mode."""
    return {
        f.relative_to(folder).as_posix(): (hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_mtime_ns, f.stat().st_mode)
        for f in sorted(folder.rglob("*"))
        if f.is_file()
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evidence") / "wide-8b"
    shutil.copytree(SMALL, folder)
    return folder


@pytest.fixture(scope="module")
def whole(
    run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[bytes], dict[str, object], dict[str, object]]:
    """One run with every output: (folder of outputs, process, evidence before, evidence after)."""
    out = tmp_path_factory.mktemp("out")
    before = digest(run)
    done = forensics(
        "analyze",
        run,
        "--html",
        out / "a.html",
        "--json",
        out / "a.json",
        "--markdown",
        out / "a.md",
        "--timeline",
        out / "tables",
        "--quiet",
    )
    return out, done, dict(before), dict(digest(run))


def test_version_and_help_import_next_to_nothing() -> None:
    """`--version` answers before the heavy libraries are loaded, and `--help` without them."""
    code = "import sys; sys.argv = ['forensics', {!r}]\nfrom forensics.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\nbad = {{'polars', 'plotly', 'pyarrow', 'numpy', 'jinja2'}} & set(sys.modules)\nsys.exit('loaded: ' + ', '.join(bad) if bad else 0)"
    for flag in ("--version", "--help"):
        done = subprocess.run([sys.executable, "-c", code.format(flag)], capture_output=True, cwd=ROOT, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert b"forensics" in done.stdout


@pytest.mark.parametrize("command", ["analyze", "explain", "rules"])
def test_every_command_explains_itself(command: str) -> None:
    done = forensics(command, "--help")
    assert done.returncode == 0
    assert b"Usage" in done.stdout


def test_outputs_are_written_and_nothing_is_printed(
    whole: tuple[Path, subprocess.CompletedProcess[bytes], dict[str, object], dict[str, object]],
) -> None:
    out, done, before, after = whole
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    said = json.loads((out / "a.json").read_text("utf-8"))
    assert said["schema"] == "forensics.postmortem/1"
    assert said["verdict"]["layer"] == "model"
    assert (out / "a.html").read_text("utf-8").lstrip().lower().startswith("<!doctype html")
    assert "checkpoint" in (out / "a.md").read_text("utf-8").lower()
    assert len((out / "a.md").read_text("utf-8")) < 4000
    assert sorted(f.name for f in out.iterdir()) == ["a.html", "a.json", "a.md", "tables"], "temporary files were left behind"
    assert before == after, "the evidence was changed or written beside"


def test_timeline_has_its_schemas(whole: tuple[Path, subprocess.CompletedProcess[bytes], dict[str, object], dict[str, object]]) -> None:
    out = whole[0]
    for name, schema in (("events", EVENTS), ("metrics", METRICS), ("samples", SAMPLE_SCHEMA)):
        table = pl.read_parquet(out / "tables" / f"{name}.parquet")
        assert set(schema) <= set(table.columns), name
    events = pl.read_parquet(out / "tables" / "events.parquet")
    assert events.height > 3


def test_default_page_takes_the_runs_name(run: Path, tmp_path: Path) -> None:
    done = forensics("analyze", run, cwd=tmp_path)
    assert done.returncode == 0
    assert [f.name for f in tmp_path.iterdir()] == ["wide-8b.postmortem.html"]
    text = done.stdout.decode()
    assert "wide-8b.postmortem.html" in text
    assert "train.log:" in text
    assert len(text.splitlines()) <= 28
    assert b"\x1b" not in done.stdout, "colours belong on a terminal, not in a pipe"


def test_dash_is_standard_output_and_nothing_else_goes_there(run: Path) -> None:
    done = forensics("analyze", run, "--json", "-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdict"]["cause"].endswith("checkpoint-mismatch")


def test_check_exits_3_only_for_a_named_failure(run: Path) -> None:
    assert forensics("analyze", run, "--json", os.devnull, "--quiet", "--check").returncode == 3
    assert forensics("analyze", HEALTHY, "--json", os.devnull, "--quiet", "--check").returncode == 0


def test_chinese(run: Path) -> None:
    done = forensics("analyze", run, "--json", "-", "--lang", "zh", "--quiet")
    title = json.loads(done.stdout)["verdict"]["title"]
    assert any("\u4e00" <= c <= "\u9fff" for c in title), title


def test_zone_of_stamps_without_one(run: Path) -> None:
    done = forensics("analyze", run, "--json", "-", "--tz", "Asia/Shanghai", "--quiet")
    started = datetime.fromisoformat(json.loads(done.stdout)["run"]["started"])
    assert started == datetime(2026, 6, 2, 7, 31, 8, tzinfo=timezone(timedelta(hours=8)))


def test_times_are_shown_in_the_zone_given_and_written_in_utc(tmp_path: Path) -> None:
    import forensics

    (tmp_path / "train.log").write_text(
        "".join(f"2026-03-01 10:00:{n:02d} INFO step {n} loss 2.0\n" for n in range(20))
        + "2026-03-01 10:00:30 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 79.15 GiB of which 1.62 MiB is free.\n"
    )
    said = forensics.analyze(tmp_path, tz="Asia/Shanghai")
    assert said.to_dict()["verdict"]["first_failure"]["time"] == "2026-03-01T02:00:30.000+00:00"
    assert "2026-03-01 10:00:30 +08:00" in said.to_markdown()
    assert "2026-03-01 10:00:30 +08:00" in said.to_html()
    assert "2026-03-01 10:00:30 UTC" in forensics.analyze(tmp_path).to_markdown()


def test_own_rules_count(run: Path, tmp_path: Path) -> None:
    (tmp_path / "house.toml").write_text(PACK, "utf-8")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\nfrobnicator jammed at shard-7\n", "utf-8")
    assert forensics("rules", "check", tmp_path / "house.toml").returncode == 0
    without = json.loads(forensics("analyze", tmp_path / "logs", "--json", "-", "--quiet").stdout)
    with_it = json.loads(forensics("analyze", tmp_path / "logs", "--json", "-", "--quiet", "--rules", tmp_path / "house.toml").stdout)
    assert without["verdict"]["layer"] in ("none", "unknown")
    assert with_it["verdict"]["layer"] == "data"
    assert with_it["verdict"]["first_failure"]["line"] == 3


@pytest.mark.parametrize("case", ["missing", "empty", "zone", "odd zone", "lang", "option", "pack", "no command"])
def test_unusable_input_is_one_line_and_status_2(case: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.toml").write_text("[[signature]\n", "utf-8")
    words: dict[str, list[str | Path]] = {
        "missing": ["analyze", tmp_path / "nowhere"],
        "empty": ["analyze", tmp_path / "empty"],
        "zone": ["analyze", run, "--tz", "Mars/Olympus", "--json", "-"],
        "odd zone": ["analyze", run, "--tz", "+ab:cd", "--json", "-"],
        "lang": ["analyze", run, "--lang", "tlh", "--json", "-"],
        "option": ["analyze", run, "--frobnicate"],
        "pack": ["analyze", run, "--rules", tmp_path / "broken.toml", "--json", "-"],
        "no command": ["frobnicate"],
    }
    done = forensics(*words[case], cwd=tmp_path)
    assert done.returncode == 2, done.stderr.decode()
    assert done.stdout == b""
    assert len(done.stderr.decode().strip().splitlines()) == 1
    assert b"Traceback" not in done.stderr


def test_hostile_file_names_and_lines_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Escape sequences in the evidence (titles, clipboard, cursor) are shown harmless or not at all."""
    folder = tmp_path / "run"
    folder.mkdir()
    nasty = "\x1b]0;owned\x07\x1b[2J\x1b]52;c;aGk=\x07"
    text = f"step 1 loss 2.0\n{nasty}torch.OutOfMemoryError: CUDA out of memory. {nasty}Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free.\n"
    (folder / "train\x1b]0;x\x07.log").write_text(text, "utf-8")
    for words in (
        ["analyze", folder],
        ["analyze", folder, "--json", "-", "--quiet"],
        ["analyze", folder, "--markdown", "-"],
        ["analyze", tmp_path / "\x1b]0;gone\x07"],
    ):
        done = forensics(*words, cwd=tmp_path)
        assert b"\x1b" not in done.stdout + done.stderr
        assert b"\x07" not in done.stdout + done.stderr


def test_read_only_evidence_is_enough(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ro"
    shutil.copytree(run, folder)
    for path in [*folder.rglob("*"), folder]:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    before = digest(folder)
    done = forensics("analyze", folder, "--json", "-", "--quiet", cwd=tmp_path)
    assert done.returncode == 0
    assert digest(folder) == before
    assert [p.name for p in folder.iterdir()] == ["train.log"]


def test_a_pipe_is_written_to_not_replaced(run: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    done = forensics("analyze", run, "--json", pipe, "--quiet")
    text, _ = reader.communicate(timeout=60)
    assert done.returncode == 0
    assert json.loads(text)["schema"] == "forensics.postmortem/1"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_closed_reader_is_no_fault(run: Path) -> None:
    """`forensics … | head -1` ends quietly."""
    command = f"{sys.executable} -m forensics analyze {run} --json - --quiet | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert done.stdout.strip() in (b"0", b"141")
    assert done.stderr == b""


def test_unwritable_output_is_one_line_and_leaves_no_scrap(run: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "no such folder" / "a.json", tmp_path, Path("/proc/nowhere/a.json")):
        done = forensics("analyze", run, "--json", target, "--quiet")
        assert done.returncode in (1, 2)
        assert len(done.stderr.decode().strip().splitlines()) == 1
        assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_older_output_survives_a_failed_write(run: Path, tmp_path: Path) -> None:
    """Outputs are replaced whole: with a full disk (a file-size limit here) the old page stays."""
    page = tmp_path / "a.html"
    page.write_text("old", "utf-8")
    done = forensics("analyze", run, "--html", page, "--quiet", preexec_fn=_small_files)
    assert done.returncode == 1, done.stderr.decode()
    assert page.read_text("utf-8") == "old"
    assert [f.name for f in tmp_path.iterdir()] == ["a.html"]


def _small_files() -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


@pytest.mark.parametrize("kind", ["gztar", "zip", "single"])
def test_archives_and_single_files_say_the_same(kind: str, run: Path, tmp_path: Path) -> None:
    target = run / "train.log" if kind == "single" else Path(shutil.make_archive(str(tmp_path / "pack"), kind, run.parent, run.name))
    before = target.read_bytes()
    said = json.loads(forensics("analyze", target, "--json", "-", "--quiet").stdout)["verdict"]
    assert (said["layer"], said["first_failure"]["file"].split("/")[-1]) == ("model", "train.log")
    assert target.read_bytes() == before


def test_explain_knows_causes_and_corrects_typing() -> None:
    assert b"GPU" in forensics("explain", "infra/gpu-fell-off-bus").stdout
    wrong = forensics("explain", "gpu-fell-off-buss")
    assert wrong.returncode == 2
    assert b"gpu-fell-off-bus" in wrong.stderr


def test_rules_list_is_tab_separated() -> None:
    rows = [line.split("\t") for line in forensics("rules", "list", "--layer", "comms").stdout.decode().splitlines()]
    assert len(rows) > 10
    assert all(row[2].startswith("comms/") for row in rows)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("analyze", "nowhere"), "give a run's directory, one log file or an archive"),
        (("analyze", "empty"), "nothing to read (it is empty); give the directory"),
        (("analyze", "{run}", "--json", "no/such/out.json"), "no/such: no such directory; make it first (mkdir -p no/such)"),
        (("analyze", "{run}", "--html", "empty"), "empty: is a directory; give a file name"),
        (("compare", "{run}", "{run}", "--html", "no/x.html"), "make it first"),
        (("bulk", "empty", "--out", "fleet"), "no run found"),
        (("explain",), "all causes: forensics explain --list"),
        (("explain", "blah"), "all causes: forensics explain --list"),
        (("explain", "gpu-fell-of-bus"), "did you mean gpu-fell-off-bus?"),
        (("rules", "check", "bad.toml"), "did you mean infra/quota-exceeded"),
        (("analyze", "{run}", "--rules", "broken.toml"), "not a TOML file"),
        (("bulk",), "bulk --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_refusal_says_what_to_do_next(run: Path, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.toml").write_text("x = [")
    (tmp_path / "bad.toml").write_text(
        '[[signature]]\nid = "acme"\ncause = "infra/quota-exeeded"\nrole = "root"\nweight = 0.8\nsources = ["any"]\nliteral = ["(EQUOTA)"]\n'
        'regex = "EQUOTA"\ntitle = { en = "x", zh = "x" }\nwhy = { en = "x", zh = "x" }\nsource = "x"\nbasis = "memory"\n'
        'hits = ["a (EQUOTA) b"]\nnear_misses = ["a b"]\n'
    )
    done = forensics(*(str(run) if part == "{run}" else part for part in arguments), cwd=tmp_path)
    said = (done.stderr + done.stdout).decode()
    assert done.returncode == 2
    assert says in said
    assert "Traceback" not in said


def test_every_cause_is_listed() -> None:
    listed = forensics("explain", "--list").stdout.decode().splitlines()
    assert len(listed) > 120
    assert "infra/gpu-fell-off-bus\tGPU fell off the PCIe bus" in listed
