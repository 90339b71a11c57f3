"""Sizes and opening times of the sample runs' pages in headless Chromium.

    python tests/benchmarks/bench_page.py [--repeat 3]

`load` is the time to the load event (the text is readable), `plot` the time until the figure is drawn; medians.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

import forensics

SAMPLES = Path(__file__).resolve().parents[2] / "sample_logs"
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"{'run':28}{'page MB':>9}{'load s':>9}{'plot s':>9}")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        for sample in sorted(p for p in SAMPLES.iterdir() if (p / "logs").is_dir()):
            page = Path(folder, f"{sample.name}.html")
            page.write_text(forensics.analyze(sample / "logs").to_html(), encoding="utf-8")
            loads, plots = [], []
            for _ in range(options.repeat):
                tab = browser.new_page(viewport={"width": 1366, "height": 768})
                tab.goto(page.as_uri(), wait_until="load")
                loads.append(tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000)
                if tab.locator("#plot, .plot").count():
                    tab.wait_for_selector(".js-plotly-plot .main-svg", state="attached", timeout=60_000)
                    plots.append(tab.evaluate("performance.now()") / 1000)
                tab.close()
            drawn = f"{statistics.median(plots):9.2f}" if plots else f"{'-':>9}"
            print(f"{sample.name:28}{page.stat().st_size / 1e6:9.2f}{statistics.median(loads):9.2f}{drawn}")
        browser.close()


if __name__ == "__main__":
    main()
