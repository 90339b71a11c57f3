"""The fleet page and its numbers."""

from __future__ import annotations

import base64
import gzip
import json
import math
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forensics.archive import cluster
from forensics.archive.fleet import Words, _table, render_fleet
from forensics.archive.link import link
from forensics.archive.rows import template
from forensics.archive.statistics import between, binomial_tail, offenders, rack_of
from forensics.archive.work import PLOTLY

DAY = 86400.0
T0 = 1_775_000_000.0
CAUSES = (
    ("infra", "gpu-fell-off-bus"),
    ("training", "gpu-oom"),
    ("data", "corrupt-sample"),
    ("comms", "collective-timeout"),
    ("none", "healthy"),
    ("unknown", None),
)


def row(number: int, layer: str = "none", cause: str | None = "healthy", **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "run": f"run-{number:05d}", "path": f"run-{number:05d}", "root": "/a", "report": f"reports/run-{number:05d}.html", "name": f"run-{number:05d}", "job": None,
        "started": T0 + number * 900, "ended": T0 + number * 900 + 600, "duration_s": 600.0, "world_size": 8, "hosts": [f"node{number % 20:03d}"],
        "gpu_hours": 1.33, "gpu_hours_lost": 0.0 if layer == "none" else 0.5, "layer": layer, "cause": cause, "title": cause or "undecided", "confidence": 0.9,
        "culprit_rank": None, "culprit_host": None, "culprit_gpu": None, "first_time": None, "message": None, "template": None, "saved_to": None, "resumed_from": None,
    }  # fmt: skip
    base.update(more)
    base["template"] = template(base["message"])
    return base


def fleet(count: int, message: str = "boom at step {n}") -> list[dict[str, Any]]:
    rng = random.Random(3)
    rows = []
    for number in range(count):
        layer, cause = CAUSES[rng.randrange(len(CAUSES))]
        host = f"node{number % 20:03d}" if layer == "infra" else None
        rows.append(row(number, layer, cause, message=message.format(n=number), culprit_host=host, culprit_gpu="3" if host else None))
    link(rows)
    return rows


def state(page: str) -> dict[str, Any]:
    packed = re.search(r'id="state">([^<]+)<', page)
    assert packed
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("count", "hours", "low", "high"),
    [(0, 100, 27.1085, math.inf), (1, 100, 17.9480, 3949.789), (7, 1000, 69.3353, 355.3202), (250, 9000, 31.8035, 40.9150)],
)
def test_interval_of_the_time_between_failures(count: int, hours: float, low: float, high: float) -> None:
    # Reference: chi-squared quantiles (scipy 1.17, chi2.ppf).
    got = between(count, hours)
    assert got.low == pytest.approx(low, rel=1e-4)
    assert (got.high or math.inf) == pytest.approx(high, rel=1e-4)
    assert got.hours == (hours / count if count else None)
    assert between(3, 0).hours is None


def test_binomial_tail() -> None:
    assert binomial_tail(5, 40, 0.02) == pytest.approx(0.00117519245, rel=1e-6)  # scipy.stats.binom.sf(4, 40, 0.02)
    assert binomial_tail(0, 9, 0.5) == 1.0
    assert binomial_tail(9, 9, 0.5) == pytest.approx(0.5**9)


def test_an_offender_stands_out_and_chance_does_not() -> None:
    even = [row(n, "infra", "gpu-ecc-uncorrectable", culprit_host=f"node{n % 20:03d}", series=f"s{n}") for n in range(40)]
    even += [row(200 + n, series=f"h{n}") for n in range(200)]
    assert not any(one.beyond_chance for one in offenders(even))
    bad = even + [
        row(100 + n, "infra", "gpu-ecc-uncorrectable", hosts=["node007"], culprit_host="node007", culprit_gpu="5", series=f"b{n}")
        for n in range(9)
    ]
    flagged = [(one.kind, one.name) for one in offenders(bad) if one.beyond_chance]
    assert ("host", "node007") in flagged
    assert ("gpu", "node007 GPU 5") in flagged
    assert all("node007" in name for _, name in flagged)


def test_restarts_on_the_same_machine_count_once() -> None:
    rows = [row(n, "infra", "gpu-ecc-uncorrectable", culprit_host="node001", series="one-job") for n in range(9)] + [
        row(50 + n) for n in range(9)
    ]
    assert offenders(rows) == []


def test_what_the_scheduler_did_accuses_no_machine() -> None:
    assert offenders([row(n, "infra", "time-limit", culprit_host="node001", series=f"s{n}") for n in range(9)] + [row(60)]) == []


def test_busy_machines_may_fail_more_often() -> None:
    rows = [row(n, hosts=["busy"], duration_s=360_000.0, series=f"x{n}") for n in range(9)]
    rows += [
        row(20 + n, "infra", "pcie-error", hosts=["busy"], culprit_host="busy", duration_s=360_000.0, series=f"y{n}") for n in range(5)
    ]
    rows += [row(40 + n, "infra", "pcie-error", hosts=["rare"], culprit_host="rare", duration_s=360.0, series=f"z{n}") for n in range(3)]
    flagged = [one.name for one in offenders(rows) if one.beyond_chance]
    assert flagged == ["rare"]


@pytest.mark.parametrize(
    ("host", "rack"), [("r07n12", "r07"), ("rack3-node4", "rack3"), ("node012", None), ("gpu-a100-r2-n1", "r2"), ("worker-3", None)]
)
def test_racks(host: str, rack: str | None) -> None:
    assert rack_of(host) == rack


def test_attempts_by_checkpoint_folder_and_never_at_the_same_time() -> None:
    rows = [
        row(0, "training", "gpu-oom", saved_to="f00d"),
        row(1, "training", "gpu-oom", resumed_from="f00d"),
        row(2, job="7"),
        row(3, job="7", started=T0 + 1700, ended=T0 + 2400),
    ]
    rows[3]["started"] = rows[2]["started"] + 10
    link(rows)
    assert [(r["series"], r["attempt"], r["repeats"]) for r in rows[:2]] == [("run-00000", 1, False), ("run-00000", 2, True)]
    assert rows[2]["series"] != rows[3]["series"], "runs at the same time are no restarts"


def test_unclassified_runs_are_grouped_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(n, "unknown", None, message=f"worker {n} lost lease 0x{n:x}f after {n}.5 s") for n in range(5)] + [
        row(9, "unknown", None, message="totally different words here")
    ]
    for miner in (True, False):
        if not miner:
            monkeypatch.setattr(cluster, "_miner", lambda: None)
        groups = cluster.clusters(rows)
        assert [group.count for group in groups] == [5, 1]
        assert groups[0].run == "run-00000"


def test_words_are_complete() -> None:
    for section, entries in _table().items():
        for key, texts in entries.items():
            assert set(texts) == {"en", "zh"}, f"{section}.{key}"
            assert set(re.findall(r"\{(\w+)\}", texts["en"])) == set(re.findall(r"\{(\w+)\}", texts["zh"])), f"{section}.{key}"
    with pytest.raises(ValueError, match="xx"):
        Words("xx")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_page_of_nothing_and_of_little(lang: str) -> None:
    for rows in ([], fleet(1), fleet(30)):
        page = render_fleet(rows, [{"path": "a", "kind": "timeout", "reason": "r"}], lang)
        assert state(page)["count"] == len(rows)
        assert ("运行" in page) is (lang == "zh")


def test_markup_in_the_evidence_stays_text() -> None:
    rows = fleet(12, "<script>window.pwned=1</script>{n}")
    for one in rows:
        one["culprit_host"] = "<img src=x onerror=window.pwned=2>"
        one["title"] = "</script><b>x"
    link(rows)
    page = render_fleet(rows, [{"path": "<b>", "kind": "died", "reason": "<i>"}], "en")
    assert "<script>window.pwned" not in page
    assert "<img src=x" not in page
    assert page.count("<script>") == 1


def test_ten_thousand_runs_make_a_small_page() -> None:
    page = render_fleet(fleet(10_000), [], "en")
    assert len(page) < 2_000_000
    assert state(page)["count"] == 10_000


CHROMIUM = next(
    (path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome") if Path(path).exists()),
    shutil.which("chromium"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    with sync.sync_playwright() as play:
        engine = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield engine
        engine.close()


def test_the_page_works_from_disk_with_ten_thousand_runs(browser: Any, tmp_path: Path) -> None:
    import plotly
    import support_report as made
    from playwright.sync_api import expect

    from forensics.report.html import render_html

    rows = fleet(10_000)
    (tmp_path / "index.html").write_text(render_fleet(rows, [], "en"), "utf-8")
    (tmp_path / "assets").mkdir()
    (tmp_path / "reports").mkdir()
    shutil.copy(Path(plotly.__file__).parent / "package_data" / PLOTLY, tmp_path / "assets")
    newest = max(rows, key=lambda r: r["started"])["run"]
    (tmp_path / "reports" / f"{newest}.html").write_text(render_html(made.lost_gpu(), plotly_at=f"../assets/{PLOTLY}"), "utf-8")
    page = browser.new_page(viewport={"width": 1366, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "index.html").as_uri())
    page.wait_for_selector("#plot svg.main-svg", timeout=60_000)
    lines = page.locator("#rows tbody tr:not(.gap)")
    assert 10 < lines.count() < 120, "only what is in view exists"
    assert "10000 of 10000" in page.locator("#shown").text_content()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1366
    page.locator("#rows").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(page.locator("#rows tbody")).to_contain_text("run-00000")
    page.locator("#rows thead button", has_text="Run").first.click()
    assert lines.first.locator("a").text_content() == "run-00000"
    page.locator(".pick[data-cause='gpu-oom']").click()
    count = sum(r["cause"] == "gpu-oom" for r in rows)
    assert f"{count} of 10000" in page.locator("#shown").text_content()
    page.locator("#clear").click()
    page.locator("#filter").fill("node003 infra")
    expect(page.locator("#shown")).not_to_have_text("10000 of 10000 runs")
    assert lines.count() > 0
    page.locator("[data-measure=hours]").click()
    page.locator("#clear").click()
    page.locator("#rows thead button", has_text="Started").click()
    assert lines.first.locator("a").text_content() == newest
    lines.first.locator("a").click()
    page.wait_for_selector("#plot svg.main-svg", timeout=60_000)
    assert said == []
    assert {url.rsplit("/", 1)[-1] for url in asked} == {"index.html", PLOTLY, f"{newest}.html"}
    page.evaluate(
        """() => { document.body.insertAdjacentHTML('beforeend', '<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2"><a id=j href="javascript:window.pwned=3">x</a>');
        document.getElementById('j').click(); }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None, "markup cannot run, shared library or not"
    page.close()
