"""When the first page of `gpuwise ui` is painted, and when its form can be used, as Chromium's performance timeline says.

    python benchmarks/ui/first_paint.py --times 7

Each time is a new context: nothing is in the browser's cache. Processor time of the page stands beside, for a machine with other
work on it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
from typing import Any

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def once(browser: Any, address: str) -> tuple[float, float, float]:
    """Milliseconds to the first paint and to the form, and the renderer's processor milliseconds until then."""
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(address)
    page.wait_for_selector("button.go")
    ready = page.evaluate("performance.now()")
    metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    painted = page.evaluate(PAINT)
    context.close()
    return painted, ready, 1e3 * metrics["TaskDuration"]


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=7)
    times = parser.parse_args().times
    server = subprocess.Popen(
        [sys.executable, "-m", "gpuwise", "ui", "--port", "0", "--no-browser", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        address = json.loads(server.stdout.readline())["address"]
        with sync_playwright() as playwright:
            path = next(p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n)))
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
            found = [once(browser, address) for _ in range(times)]
            browser.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)
    for name, values in zip(("first paint", "form", "processor"), zip(*found, strict=True), strict=True):
        ordered = sorted(values)
        print(f"{name}: {ordered[0]:.0f} ms at best, {ordered[len(ordered) // 2]:.0f} ms in the middle")


if __name__ == "__main__":
    main()
