"""When the first page of `gpuwise ui` is painted, and when its form can be used, as Chromium's performance timeline says.

    python benchmarks/ui/first_paint.py --times 7

Each time is a new context: nothing is in the browser's cache. Processor time of the page stands beside, and the same of a page of
one word that Python's own server gives, in turns: on a machine with other work the difference says more than the time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PAINT = """() => new Promise(painted => {
    const look = () => {
        const [paint] = performance.getEntriesByName('first-contentful-paint')
        paint ? painted(paint.startTime) : requestAnimationFrame(look)
    }
    look()
})"""

WORD = b"<!DOCTYPE html><title>word</title><p>word</p>"


class Word(BaseHTTPRequestHandler):
    """One word, whatever is asked for."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(WORD)))
        self.end_headers()
        self.wfile.write(WORD)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is written."""


def once(browser: Any, address: str, until: str) -> tuple[float, float, float]:
    """Milliseconds to the first paint and to the form, and the renderer's processor milliseconds until then."""
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(address)
    page.wait_for_selector(until)
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
    word = ThreadingHTTPServer(("127.0.0.1", 0), Word)
    threading.Thread(target=word.serve_forever, daemon=True).start()
    blank = f"http://127.0.0.1:{word.server_address[1]}/"
    try:
        address = json.loads(server.stdout.readline())["address"]
        with sync_playwright() as playwright:
            path = next(p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n)))
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
            once(browser, address, "button.go")  # the browser's own first page
            pairs = [(once(browser, address, "button.go"), once(browser, blank, "p")) for _ in range(times)]
            browser.close()
    finally:
        word.shutdown()
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)
    for which, found in zip(("gpuwise ui", "one word"), zip(*pairs, strict=True), strict=True):
        for name, values in zip(("first paint", "usable", "processor"), zip(*found, strict=True), strict=True):
            ordered = sorted(values)
            print(f"{which}, {name}: {ordered[0]:.0f} ms at best, {ordered[len(ordered) // 2]:.0f} ms in the middle")
    later = sorted(mine[0] - other[0] for mine, other in pairs)
    middle = later[len(later) // 2]
    print(f"first paint after that of one word, by pair: {later[0]:.0f} to {later[-1]:.0f} ms, {middle:.0f} in the middle")


if __name__ == "__main__":
    main()
