# pyright: reportMissingImports=false
"""The built site in the system's Chromium: nothing fetched from outside, tables inside their column, no text cut, search."""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.ui.serving import CHROMIUM, FLAGS

ROOT = Path(__file__).parent.parent.parent
pytest.importorskip("material", reason="mkdocs-material is of the extra dev")
WIDTHS = (375, 1280)
FAULTS = """() => {
    const column = document.querySelector("article"), box = column.getBoundingClientRect(), style = getComputedStyle(column);
    const left = box.left - 1, right = box.right + 1, faults = [];
    const name = e => `${e.tagName} ${(e.getAttribute("src") || e.textContent).trim().slice(0, 40)}`;
    const whole = document.documentElement.scrollWidth;
    if (whole > innerWidth) faults.push(`the page scrolls: ${whole}`);
    for (const e of column.querySelectorAll("table, td, th, img, p, li, h1, h2, h3, blockquote")) {
        const r = e.getBoundingClientRect();
        if (r.width && (r.left < left || r.right > right)) faults.push(`${name(e)} from ${r.left} to ${r.right} of ${box.right}`);
    }
    for (const e of document.querySelectorAll("body *")) {
        const s = getComputedStyle(e);
        if (!e.offsetParent || !["hidden", "clip"].includes(s.overflowX)) continue;
        if (e.closest("svg, .md-search, .md-header, .md-sidebar__scrollwrap")) continue;
        if (e.scrollWidth > e.clientWidth + 1) faults.push(`cut: ${e.className} ${name(e)}`);
    }
    for (const e of column.querySelectorAll("pre code"))
        if (innerWidth >= 1280 && e.scrollWidth > e.clientWidth + 1) faults.push(`scrolls: ${name(e)} ${e.scrollWidth}`);
    for (const e of document.images) if (!e.complete || !e.naturalWidth) faults.push(`no picture: ${name(e)}`);
    return faults;
}"""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as the gate builds it."""
    place = tmp_path_factory.mktemp("site")
    built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(place)], cwd=ROOT, timeout=300)
    assert built.returncode == 0
    return place


@pytest.fixture(scope="session")
def pages(site: Path) -> list[str]:
    return sorted(str(p.relative_to(site)) for p in site.rglob("*.html") if p.name != "404.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Fetched(HTMLParser):
    """What a browser fetches by itself when it shows a page: links that are followed by hand are not in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.urls += [v for k in ("src", "srcset", "poster", "data", "style") if (v := values.get(k))]
        if (tag == "link" and values.get("rel") not in ("canonical", "prev", "next")) or tag in ("image", "use"):
            self.urls += [v for k in ("href", "xlink:href") if (v := values.get(k))]


def outside(text: str) -> list[str]:
    """Addresses of other servers that this page, style or drawing fetches."""
    styles = re.findall(r"@import[^;]+|url\((?![\"']?data:)[^)]*\)", text)
    return [u for u in [*Fetched(text).urls, *styles] if re.search(r"(?:^|[\s\"'(])(?:https?:)?//\w", u)]


def test_nothing_is_fetched_from_outside(site: Path) -> None:
    files = [p for p in site.rglob("*") if p.suffix in (".html", ".css", ".svg")]
    assert len(files) > 60
    assert {str(p.relative_to(site)): found for p in files if (found := outside(p.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://unpkg.com/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        "<style>@font-face{src:url(https://example.org/a.woff2)}</style>",
        '<img src="http://example.org/a.png">',
    ],
)
def test_what_comes_from_outside_is_noticed(text: str) -> None:
    assert outside(text) and not outside('<a href="https://example.org">a link</a><img src="pictures/a.svg">')


@pytest.mark.parametrize("width", WIDTHS)
def test_no_table_is_wider_than_its_column_and_no_text_is_cut(width: int, browser: Any, address: str, pages: list[str]) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, faults, asked = context.new_page(), {}, set()
    page.on("request", lambda r: asked.add(r.url))
    for name in pages:
        page.goto(f"{address}/{name}")
        if found := page.evaluate(FAULTS):
            faults[name] = found
    context.close()
    assert faults == {}
    assert {u for u in asked if not u.startswith((address, "data:"))} == set()


def test_a_table_that_is_too_wide_is_noticed(browser: Any, address: str) -> None:
    page = browser.new_page(viewport={"width": 375, "height": 900})
    page.goto(f"{address}/index.html")
    page.evaluate("document.querySelector('article').insertAdjacentHTML('beforeend', '<table class=x><td>' + 'x'.repeat(999))")
    assert any(fault.startswith("TABLE") for fault in page.evaluate(FAULTS))
    page.close()


def test_search_finds_a_page_without_a_server(browser: Any, site: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("bank conflict")
    page.locator(".md-search-result__link").first.wait_for(timeout=30_000)
    assert "glossary" in " ".join(page.eval_on_selector_all(".md-search-result__link", "all => all.map(a => a.href)"))
    page.close()


def test_a_word_shows_its_meaning_once_a_page(site: Path) -> None:
    text = (site / "learn" / "07-profiling.html").read_text(encoding="utf-8")
    titles = re.findall(r'<abbr title="([^"]+)"', text)
    assert any("FLOP" in t for t in titles) and len(titles) == len(set(titles))
