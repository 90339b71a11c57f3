"""`forensics compare`: two runs side by side."""

from __future__ import annotations

import html
import json
import math
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import forensics
from forensics import comparison
from forensics.cli.app import app
from forensics.comparison import pair_of, parting
from forensics.report.model import Curve

SECRET = "hf_" + "a1B2" * 9
CHROMIUM = next(
    (path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome") if Path(path).exists()),
    shutil.which("chromium"),
)


def log(steps: int = 60, diverge: int | None = None, lr: str = "1e-06", start: str = "06") -> str:
    """Transformers' trainer, one line per step, the noise the same in every run."""
    noise = random.Random(7)
    out = []
    for n in range(steps):
        loss = 2 - n / 80 + noise.uniform(-0.02, 0.02)
        if diverge is not None and n >= diverge:
            loss += 0.8 + (n - diverge) * 0.1
        out.append(
            f"2026-03-14 {start}:{n % 60:02d}:{n // 60:02d} {{'loss': {loss:.4f}, 'grad_norm': {1 + noise.uniform(-0.1, 0.1):.4f}, 'learning_rate': {lr}, 'epoch': {n / 100:.2f}}}"
        )
    return "\n".join(out) + "\n"


FREEZE = "accelerate==0.30.1\ndeepspeed==0.14.4\nnumpy==1.26.4\ntorch=={torch}\ntransformers==4.41.2\n{more}"


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    good, bad = tmp_path / "good", tmp_path / "crashed"
    for folder, torch, more, files, text in (
        (good, "2.3.1+cu121", "", 1048576, log()),
        (bad, "2.4.0+cu121", "vllm==0.5.4\n", 1024, log(diverge=40)),
    ):
        folder.mkdir()
        (folder / "train.log").write_text(text)
        (folder / "requirements.txt").write_text(FREEZE.format(torch=torch, more=more))
        (folder / "limits.txt").write_text(
            f"open files                      (-n) {files}\nmax locked memory       (kbytes, -l) unlimited\n"
        )
        (folder / "config.yaml").write_text(
            f"learning_rate: {1e-6 if folder is good else 5e-5}\nnum_generations: 8\nmax_steps: 60\nlaunch_note: {SECRET}\n"
        )
        (folder / "env.txt").write_text(
            f"PATH=/usr/bin\nHOME=/home/alice\nPWD=/home/alice/job\nSHLVL=1\nNCCL_DEBUG=INFO\nLD_LIBRARY_PATH=/home/alice/lib\nVLLM_NOTE={SECRET}\n"
        )
    return good, bad


def state(items: list[comparison.Item]) -> dict[str, tuple[str | None, str | None, str]]:
    return {item.key: (item.a, item.b, item.state) for item in items}


def test_differences_first(runs: tuple[Path, Path]) -> None:
    found = forensics.compare(*runs)
    packages = state(found.packages)
    assert packages["torch"] == ("2.3.1+cu121", "2.4.0+cu121", "differs")
    assert packages["vllm"] == (None, "0.5.4", "only_b")
    assert packages["numpy"][2] == "same"
    assert state(found.environment)["limit.open_files"] == ("1048576", "1024", "differs")
    assert state(found.settings)["learning_rate"][2] == "differs"
    for items in (found.packages, found.environment, found.settings):
        order = [comparison.ORDER[item.state] for item in items]
        assert order == sorted(order)
    assert found.differences == sum(i.state != "same" for g in (found.packages, found.environment, found.settings) for i in g)


def test_first_parting_of_the_metrics(runs: tuple[Path, Path]) -> None:
    found = forensics.compare(*runs)
    pair = found.first_parting
    assert pair is not None
    assert pair.name == "loss"
    assert pair.parts_at is not None
    assert pair.parts_at.step == 40
    assert pair.equal_until == 39
    steady = next(p for p in found.metrics if p.name == "grad_norm")
    assert steady.equal
    assert steady.parts_at is None


def test_a_run_compared_with_itself_is_alike(runs: tuple[Path, Path]) -> None:
    report = forensics.analyze(runs[0])
    found = forensics.compare(report, report)
    assert found.differences == 0
    assert found.first_parting is None
    assert all(pair.equal for pair in found.metrics)
    assert "alike" in found.to_markdown()


def test_json_document(runs: tuple[Path, Path]) -> None:
    document = forensics.compare(*runs).to_dict()
    assert document["schema"] == "forensics.comparison/1"
    assert document["a"]["run"]["name"] == "good"
    assert document["b"]["verdict"]["layer"] == "training"
    assert document["metrics"][0]["parts_at"]["step"] == 40
    assert {"key": "torch", "a": "2.3.1+cu121", "b": "2.4.0+cu121", "state": "differs"} in document["packages"]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_secrets_and_people_stay_out_of_every_rendering(runs: tuple[Path, Path], lang: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = forensics.compare(*runs, lang=lang)
    found.print()
    texts = [found.to_json(), found.to_html(), found.to_markdown(), capsys.readouterr().out]
    for text in texts:
        assert SECRET not in text
        assert "/home/alice" not in text
    assert "/home/alice" in forensics.compare(*runs, redact=False).to_json()


def test_page_runs_only_its_own_script(runs: tuple[Path, Path]) -> None:
    (runs[1] / "requirements.txt").write_text(FREEZE.format(torch="2.4.0", more="vllm==<script>alert(1)</script>\n"))
    (runs[1] / "env.txt").write_text('PATH=/usr/bin\nHOME=/root\nPWD=/\nSHLVL=1\nNCCL_NOTE="><img src=x onerror=alert(1)>"\n')
    page = forensics.compare(*runs).to_html()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert len(re.findall(r"<script\b", page)) == 3
    assert "default-src 'none'" in html.unescape(page)
    assert not re.findall(r"""(?:src|href)=["']?https?:""", page)


def test_page_in_chinese(runs: tuple[Path, Path]) -> None:
    page = forensics.compare(*runs, lang="zh").to_html()
    assert '<html lang="zh-Hans">' in page
    assert "软件包" in page
    with pytest.raises(ValueError, match="no words"):
        forensics.compare(*runs, lang="xx").to_html()


# ----------------------------------------------------------------------------------------------------------- metrics


def noisy(seed: int, count: int = 200) -> list[float]:
    rng = random.Random(seed)
    return [1.0 + rng.uniform(-0.1, 0.1) for _ in range(count)]


def test_other_seeds_of_one_job_do_not_part() -> None:
    steps = [float(n) for n in range(200)]
    assert parting(steps, noisy(1), noisy(2)) is None


def test_a_lasting_shift_parts_where_it_begins() -> None:
    steps = [float(n) for n in range(200)]
    shifted = [v + (0.8 if n >= 120 else 0.0) for n, v in enumerate(noisy(2))]
    point = parting(steps, noisy(1), shifted)
    assert point is not None
    assert point.step == 120


def test_one_spike_is_no_parting_but_nan_is() -> None:
    steps = [float(n) for n in range(50)]
    flat = [1.0 + (n % 2) * 0.01 for n in range(50)]
    spike = [*flat[:20], 9.0, *flat[21:]]
    assert parting(steps, flat, spike) is None
    broken = [*flat[:20], math.nan, *flat[21:]]
    point = parting(steps, flat, broken)
    assert point is not None
    assert point.step == 20


def test_curves_without_steps_are_aligned_by_reading() -> None:
    bare = Curve("loss", [3.0, 2.0, 1.0], [None] * 3, [None] * 3)
    assert pair_of("loss", bare, bare).common == 3
    assert pair_of("loss", bare, None).common == 0


values = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True, width=32))


@given(st.lists(values, max_size=30), st.lists(values, max_size=30))
def test_any_readings_are_taken(a: list[float | None], b: list[float | None]) -> None:
    one = Curve("x", a, [None] * len(a), [float(n) for n in range(len(a))])
    two = Curve("x", b, [None] * len(b), [float(n) for n in range(len(b))])
    pair = pair_of("x", one, two)
    left, right = comparison.by_step(one), comparison.by_step(two)
    both = sorted(left.keys() & right.keys())
    assert pair.common == len(both)
    assert pair.equal == (bool(both) and all(comparison.same(left[s], right[s]) for s in both))
    if pair.equal:
        assert pair.parts_at is None
    if pair.parts_at:
        assert pair.parts_at.step in both


# --------------------------------------------------------------------------------------------------------------- CLI


def test_command(runs: tuple[Path, Path], tmp_path: Path) -> None:
    before = {path: path.read_bytes() for folder in runs for path in folder.iterdir()}
    page, document = tmp_path / "c.html", tmp_path / "c.json"
    result = CliRunner().invoke(app, ["compare", *map(str, runs), "--html", str(page), "--json", str(document)])
    assert result.exit_code == 0, result.output
    assert "torch" in result.output
    assert json.loads(document.read_text("utf-8"))["differences"] > 0
    assert page.stat().st_size > 1000
    assert before == {path: path.read_bytes() for folder in runs for path in folder.iterdir()}


def test_command_to_standard_output_is_the_document_alone(runs: tuple[Path, Path]) -> None:
    result = CliRunner().invoke(app, ["compare", *map(str, runs), "--json", "-"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["schema"] == "forensics.comparison/1"


def test_command_with_an_unusable_run(runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from forensics.cli.app import run

    monkeypatch.setattr("sys.argv", ["forensics", "compare", str(runs[0]), str(runs[0] / "missing")])
    assert run() == 2
    assert "no such file" in capfd.readouterr().err


# ----------------------------------------------------------------------------------------------------------- browser


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_page_in_a_browser(runs: tuple[Path, Path], tmp_path: Path) -> None:
    sync: Any = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "c.html"
    path.write_text(forensics.compare(*runs).to_html(), "utf-8")
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda m: said.append(m.text))
        page.on("pageerror", lambda e: said.append(str(e)))
        page.on("request", lambda r: asked.append(r.url))
        page.goto(path.as_uri())
        page.wait_for_selector("#plot svg.main-svg", timeout=30_000)
        assert said == []
        assert asked == [path.as_uri()]
        for section in ("verdicts", "metrics", "environment", "packages", "settings"):
            assert page.locator(f"section#{section}").is_visible(), section
        titles = page.locator("#plot .annotation-text").all_text_contents()
        assert "loss" in titles
        assert "first parting" in titles
        assert page.locator("#packages tr.odd").first.inner_text().startswith("torch")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1366
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
