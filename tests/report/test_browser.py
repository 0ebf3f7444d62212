"""What a person sees, in a real browser: skipped where there is no Chromium or no playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found")
WIDTHS = (1200, 375)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=180_000)
        yield opened
        opened.close()


def _see(browser: Any, html: str, tmp_path: Path, width: int, scheme: str) -> tuple[Any, list[str], list[str]]:
    file = tmp_path / "page.html"
    file.write_text(html, encoding="utf-8")
    seen = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    asked, said = list[str](), list[str]()
    seen.on("request", lambda r: asked.append(r.url))
    seen.on("console", lambda m: said.append(m.text))
    seen.on("pageerror", lambda e: said.append(str(e)))
    seen.goto(file.as_uri(), timeout=180_000)
    return seen, asked, said


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_quiet_and_fits(browser: Any, page: str, tmp_path: Path, width: int) -> None:
    seen, asked, said = _see(browser, page, tmp_path, width, "light")
    assert len(asked) == 1 and asked[0].startswith("file:") and said == []
    assert seen.evaluate("document.documentElement.scrollWidth") <= width
    boxes = seen.evaluate(
        "[...document.querySelectorAll('figure svg:not(.mark)')].map(s => s.getBoundingClientRect())"
        ".map(b => [b.left, b.right, b.height])"
    )
    assert boxes and all(left >= 0 and right <= width and height > 30 for left, right, height in boxes)
    seen.close()


@pytest.mark.thorough
def test_tables_need_no_scrolling_on_a_telephone(browser: Any, page: str, tmp_path: Path) -> None:
    seen, _, _ = _see(browser, page, tmp_path, 375, "light")
    beyond = seen.evaluate(
        """[...document.querySelectorAll('tbody td, tbody th')].filter(c => {const b = c.getBoundingClientRect();
        return b.left < 0 || b.right > innerWidth}).map(c => c.textContent.trim())"""
    )
    named = seen.evaluate(
        "[...document.querySelectorAll('tbody td')].map(c => getComputedStyle(c, '::before').content).filter(s => s.length > 2)"
    )
    assert beyond == [] and named
    seen.close()


@pytest.mark.thorough
def test_no_text_of_a_figure_is_cut_off(browser: Any, page: str, tmp_path: Path) -> None:
    seen, _, _ = _see(browser, page, tmp_path, 1200, "light")
    cut = seen.evaluate(
        """[...document.querySelectorAll('figure svg:not(.mark)')].flatMap(s => {const o = s.getBoundingClientRect();
        return [...s.querySelectorAll('text')].filter(t => {const b = t.getBoundingClientRect();
        return b.left < o.left - 2 || b.right > o.right + 2 || b.top < o.top - 2 || b.bottom > o.bottom + 2})
        .map(t => s.id + ': ' + t.textContent.trim())})"""
    )
    assert cut == []
    seen.close()


@pytest.mark.thorough
def test_no_labels_lie_on_one_another(browser: Any, page: str, tmp_path: Path) -> None:
    seen, _, _ = _see(browser, page, tmp_path, 1200, "light")
    covered = seen.evaluate(
        """[...document.querySelectorAll('figure svg:not(.mark)')].flatMap(s => {
        const boxes = [...s.querySelectorAll('text')].map(t => [t.textContent.trim(), t.getBoundingClientRect()]);
        const out = [];
        for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
          const [a, p] = boxes[i], [b, q] = boxes[j];
          const w = Math.min(p.right, q.right) - Math.max(p.left, q.left);
          const h = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
          if (w > 2 && h > 0.35 * Math.min(p.height, q.height)) out.push(a + ' on ' + b);
        } return out})"""
    )
    assert covered == []
    seen.close()


def test_dark_screens_get_dark_paper_and_light_ink(browser: Any, page: str, tmp_path: Path) -> None:
    light, dark = (_see(browser, page, tmp_path, 1200, scheme)[0] for scheme in ("light", "dark"))
    ink = "getComputedStyle(document.querySelector('figure svg text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"

    def brightness(seen: Any, what: str) -> float:
        return sum(int(x) for x in seen.evaluate(what).strip("rgb()").split(",")[:3]) / 765

    assert brightness(light, paper) > 0.9 > 0.4 > brightness(light, ink)
    assert brightness(dark, paper) < 0.2 < 0.6 < brightness(dark, ink)
    light.close()
    dark.close()
