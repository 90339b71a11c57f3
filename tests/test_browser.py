"""The page in a real browser: nothing but its own script runs, everything on it can be seen, reached and used."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import support_report as made

from forensics.report.html import render_html

CHROMIUM = next(
    (path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome") if Path(path).exists()),
    shutil.which("chromium"),
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
SECTIONS = ("verdict", "story", "window", "ranks", "remedies", "steps", "layers", "others", "gaps", "environment", "clocks", "files")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as play:
        engine = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield engine
        engine.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    models = {
        "eight": made.lost_gpu(),
        "many": made.lost_gpu(1024),
        "huge": made.lost_gpu(2048),
        "healthy": made.healthy(),
        "hostile": made.hostile(),
    }
    out = {}
    for name, model in models.items():
        out[name] = folder / f"{name}.html"
        out[name].write_text(render_html(model), "utf-8")
    out["zh"] = folder / "zh.html"
    out["zh"].write_text(render_html(made.lost_gpu(), "zh"), "utf-8")
    return out


class Opened:
    """A page and everything it said or asked for."""

    def __init__(self, browser: Any, path: Path, plot: bool = True, **context: Any):
        self.context = browser.new_context(**{"viewport": {"width": 1366, "height": 768}, **context})
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.on("dialog", lambda d: (self.said.append("dialog"), d.dismiss()))
        self.page.goto(path.as_uri())
        if plot:
            self.page.wait_for_selector("#plot svg.main-svg", timeout=30_000)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize("name", ["eight", "many", "healthy", "hostile", "zh"])
def test_says_nothing_and_asks_for_nothing(browser: Any, pages: dict[str, Path], name: str) -> None:
    with Opened(browser, pages[name], plot=name != "healthy") as o:
        o.page.wait_for_timeout(100)
        assert o.said == []
        assert o.asked == [pages[name].as_uri()]
        for section in SECTIONS:
            assert o.page.locator(f"section#{section}").is_visible(), section
        assert o.page.evaluate("document.documentElement.scrollWidth") <= 1366


def test_first_screen_fits_a_laptop(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["eight"], plot=False) as o:
        timing = o.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        assert timing < 1500
        for selector in ("h1", ".tiles", ".onion svg", ".evidence li:nth-child(3)"):
            box = o.page.locator(selector).bounding_box()
            assert box["y"] + box["height"] <= 768, selector
        assert o.page.locator(".ring.lit").count() == 1
        assert "Infrastructure" in o.page.locator(".ring.lit").text_content()


def test_policy_forbids_what_is_not_ours(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["eight"]) as o:
        added = """() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s);
            document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.pwned = 2"><a id=j href="javascript:window.pwned=3">x</a>');
            document.getElementById('j').click(); }"""
        o.page.evaluate(added)
        o.page.wait_for_timeout(200)
        assert o.page.evaluate("window.pwned") is None
        assert any("Content Security Policy" in text for text in o.said)


def test_hostile_run_changes_nothing(browser: Any, pages: dict[str, Path]) -> None:
    count = "[...document.querySelectorAll('script, style, link, iframe, object, img, form, base, meta')].map(e => e.tagName).sort().join()"
    with Opened(browser, pages["eight"]) as plain, Opened(browser, pages["hostile"]) as o:
        assert o.page.evaluate("window.pwned") is None
        assert o.page.evaluate(count) == plain.page.evaluate(count)
        assert "<script>window.pwned=1</script>" in o.page.locator("h1").inner_text()
        o.page.set_viewport_size({"width": 390, "height": 844})
        assert o.page.evaluate("document.documentElement.scrollWidth") == 390
        o.page.set_viewport_size({"width": 1366, "height": 768})
        o.page.locator("#all-ranks summary").click()
        for point in o.page.locator("#plot .scatterlayer .points path").all()[:12]:
            box = point.bounding_box()
            if box:
                o.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert o.page.evaluate("window.pwned") is None
        assert o.said == []


def test_plot_has_lanes_marks_zoom_and_hover(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["eight"]) as o:
        page = o.page
        titles = page.locator("#plot .annotation-text").all_text_contents()
        for lane in (
            "loss",
            "gradient norm",
            "reward",
            "KL",
            "GPU memory (GiB)",
            "GPU use (%)",
            "power (W)",
            "temperature (°C)",
            "step time",
            "Events",
            "first failure",
        ):
            assert lane in titles
        assert page.locator("#plot .points path").count() >= 5
        spread = "() => { const r = document.getElementById('plot')._fullLayout.xaxis.range.map(v => new Date(v + 'Z').getTime()); return r[1] - r[0]; }"
        wide = page.evaluate(spread)
        page.get_by_role("button", name="Last minute").click()
        assert page.evaluate(spread) < 70_000 < wide
        assert page.get_by_role("button", name="Last minute").get_attribute("aria-pressed") == "true"
        page.get_by_role("button", name="Whole run").click()
        assert page.evaluate(spread) == wide
        page.get_by_label("Logarithmic scale").check()
        assert page.evaluate("document.getElementById('plot')._fullLayout.yaxis.type") == "log"
        page.locator("#plot").scroll_into_view_if_needed()
        box = page.locator("#plot .subplot.xy .scatterlayer").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] - 1)
        page.wait_for_selector("#plot .hovertext", timeout=5000)
        text = page.locator("#plot .hovertext").first.text_content()
        assert "step" in text
        assert "loss" in text
        assert "Thinned for display" in page.locator("#window").inner_text()


def expect(locator: Any) -> Any:
    """Playwright's waiting assertion; `wait_for_function` would need the eval that the page's policy forbids."""
    from playwright.sync_api import expect as waiting

    return waiting(locator)


def test_context_toggle_copy_and_theme(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["eight"], plot=False, permissions=["clipboard-read", "clipboard-write"]) as o:
        page = o.page
        around = page.locator("#story .root details.around")
        assert not around.locator("pre").is_visible()
        around.locator("summary").press("Enter")
        assert around.locator("pre").is_visible()
        assert around.locator(".row.here .n").inner_text() == "2214"
        colour = "e => getComputedStyle(e).color"
        tones = [page.locator(f".tag.{name}").first.evaluate(colour) for name in ("hardware", "model", "train")]
        assert len(set(tones)) == 3
        button = page.locator("#remedies button.copy").first
        button.click()
        expect(button).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "nvidia-smi -q -i 5 | grep -i 'bus id'"
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#theme").press("Enter")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


@pytest.mark.parametrize(("name", "world"), [("eight", 8), ("many", 1024)])
def test_odd_rank_stands_out(browser: Any, pages: dict[str, Path], name: str, world: int) -> None:
    with Opened(browser, pages[name], plot=False) as o:
        page = o.page
        assert page.locator("#grid .cell").count() == world
        assert page.locator("#grid .cell.odd").count() == 1
        fill = "e => getComputedStyle(e.querySelector('rect')).fill"
        assert page.locator("#grid .cell.odd").evaluate(fill) != page.locator("#grid .cell.t0").first.evaluate(fill)
        expect(page.locator("#rank-read")).to_contain_text("odd one out")
        page.locator("#grid").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#rank-read")).not_to_contain_text("odd one out")
        page.locator("#all-ranks summary").click()
        assert page.locator("#all-ranks tbody tr").count() == world


def test_two_thousand_ranks_are_drawn_as_paths_and_read_under_the_pointer(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["huge"], plot=False) as o:
        page = o.page
        assert page.locator("#grid .cell").count() == 1  # the odd one
        assert page.locator("#grid path.cells").evaluate_all("all => all.map(e => e.getAttribute('d').split('M').length - 1)") == [2047]
        expect(page.locator("#rank-read")).to_contain_text("Rank 517 (odd one out)")
        page.locator("#grid").scroll_into_view_if_needed()
        box = page.locator("#grid .cell.odd").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 1.5 * box["height"] + 2.5)  # the cell below: one row of 64 on
        expect(page.locator("#rank-read")).to_contain_text("Rank 581")
        page.locator("#grid").focus()
        page.keyboard.press("ArrowUp")
        expect(page.locator("#rank-read")).to_contain_text("Rank 517 (odd")


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [("eight", "light", 1366), ("zh", "dark", 390)],
)
def test_accessible(browser: Any, pages: dict[str, Path], name: str, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with Opened(browser, pages[name], color_scheme=scheme, viewport={"width": width, "height": 844}, bypass_csp=True) as o:
        assert o.page.evaluate("document.documentElement.scrollWidth") <= width
        o.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        result = axe.Axe().run(
            o.page,
            context={"exclude": [["#plot > *"]]},
            options={"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]},
        )
        assert [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0]["failureSummary"][:300]) for v in result.response["violations"]] == []


def test_chinese_page_is_chinese(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["zh"]) as o:
        assert o.page.evaluate("document.documentElement.lang") == "zh-Hans"
        text = o.page.locator("main").inner_text()
        for word in ("责任在基础设施层", "置信度", "最有力的证据", "崩溃窗口", "排查十二步", "处理办法", "缺失的证据"):
            assert word in text
        for english in ("Confidence", "Strongest", "Restart", "Thinned", "no evidence", "Verify", "Lines around"):
            assert english not in text
        assert "首次故障" in o.page.locator("#plot .annotation-text").all_text_contents()


def test_prints(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["eight"], color_scheme="dark") as o:
        for size in ("A4", "Letter"):
            data = o.page.pdf(format=size)
            assert data.startswith(b"%PDF")
            assert 3 <= data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") <= 14
        o.page.emulate_media(media="print")
        o.page.wait_for_timeout(200)
        assert not o.page.locator(".bar").is_visible()
        assert o.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert o.page.locator("#plot svg.main-svg").first.bounding_box()["width"] <= 700
