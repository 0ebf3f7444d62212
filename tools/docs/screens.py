"""Photographs the pages of ``gpuwise ui`` and the screen of ``gpuwise top --demo`` for the documentation.

python -m tools.docs.screens docs/pictures

It needs Chromium and playwright (extra test-browser) and Pillow, which makes the pictures small.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WIDTH = 1040
ANSWER = "section[aria-label=Answer] h2"


@dataclass(frozen=True, slots=True)
class Shot:
    """A page of the web application by its address, once ``ready`` is on it; ``scrolled``: from there on."""

    name: str
    address: str
    ready: str = ANSWER
    dark: bool = False
    height: int = 900
    scrolled: bool = False
    keys: str = ""
    """Pressed on the slider of what plays."""


SHOTS = (
    Shot("home", "/"),
    Shot("plan", "/plan?model=llama-3.1-8b&on=8xH100-SXM&tokens=15B", dark=True),
    Shot("fit", "/fit?model=llama-3.1-8b&on=4090"),
    Shot("serve", "/serve?model=llama-3.1-8b&on=H100&users=200"),
    Shot("choose", "/choose?for=infer&model=qwen3-30b-a3b&budget=1000"),
    Shot("machine", "/machine?demo=1", ready="canvas", dark=True),
    Shot("learn", "/learn", ready="article img"),
    Shot("lab", "/lab", ready="#race .play", scrolled=True, keys="Home" + 4 * " PageUp"),
)


def photograph(folder: Path, shots: Sequence[Shot] = SHOTS) -> None:
    """The pages, from a server of this run, and the screen of ``top``."""
    from playwright.sync_api import sync_playwright

    drawn = top()
    command = [sys.executable, "-m", "gpuwise", "ui", "--port", "0", "--no-browser", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = urlsplit(json.loads(server.stdout.readline())["address"])
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
            for shot in shots:
                page = browser.new_page(
                    viewport={"width": WIDTH, "height": shot.height},
                    color_scheme="dark" if shot.dark else "light",
                    reduced_motion="reduce",
                )
                join = "&" if "?" in shot.address else "?"
                page.goto(f"http://{address.netloc}{shot.address}{join}{address.query}")
                page.locator(shot.ready).first.wait_for(timeout=120_000)
                page.wait_for_timeout(2_000)  # what comes after the first line of an answer
                for key in shot.keys.split():
                    page.locator(".play input").first.press(key)
                if shot.scrolled:
                    page.locator(shot.ready).first.evaluate("e => e.scrollIntoView()")
                save(page.screenshot(), folder / f"ui-{shot.name}.webp")
                page.close()
            save(_drawn(browser, drawn), folder / "top.webp")
            browser.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def top(columns: int = 104, rows: int = 36) -> str:
    """The screen of ``gpuwise top --demo`` as SVG."""
    from gpuwise.machine.telemetry.demo import DemoDevices, DemoReader
    from gpuwise.machine.telemetry.monitor import Monitor
    from gpuwise.machine.telemetry.options import ScreenOptions
    from gpuwise.tui.app import TopApp
    from gpuwise.tui.preferences import Preferences

    now = [5000.0]
    devices = DemoDevices(8, clock=lambda: now[0])
    with Monitor(
        [devices], reader=DemoReader(devices), demo=True, clock=lambda: now[0], background=False, watch_xids=False
    ) as monitor:
        for _ in range(120):
            monitor.refresh()
            now[0] += 1.0
        app = TopApp(monitor, ScreenOptions(interval_s=1000.0), chosen=Preferences())

        async def screen() -> str:
            async with app.run_test(size=(columns, rows)) as pilot:
                while app.screen_lines is None:
                    await pilot.pause(0.05)
                await pilot.pause(0.5)
                return app.export_screenshot()

        return asyncio.run(screen())


def _drawn(browser: Any, svg: str) -> bytes:
    """An SVG as PNG, without the fonts that it would fetch from another server."""
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    page.set_content(f"<body style='margin:0'>{svg}<style>svg{{width:{WIDTH}px;height:auto;display:block}}</style>")
    picture: bytes = page.locator("svg").first.screenshot()
    page.close()
    return picture


def save(picture: bytes, place: Path) -> None:
    """As WebP: a tenth of the PNG."""
    from PIL import Image

    Image.open(io.BytesIO(picture)).convert("RGB").save(place, "WEBP", quality=80, method=6)


def main(arguments: Sequence[str]) -> int:
    """Write all pictures into a folder."""
    if len(arguments) != 1:
        sys.stderr.write("error: name the folder\nhint: python -m tools.docs.screens docs/pictures\n")
        return 2
    folder = Path(arguments[0])
    folder.mkdir(exist_ok=True)
    photograph(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
