# pyright: reportMissingImports=false
"""What a person gets: laws of the layout, and pictures beside kept ones, at the widths of a telephone and of a screen.

``python tests/ui/test_layout.py`` keeps new pictures, once they have been looked at.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

HERE = Path(__file__).parent
LAWS, BLOCKS = (HERE / "layout.js").read_text(), (HERE / "pictures.js").read_text()
KEPT = HERE / "pictures.json"
GREY = """async (png) => { const picture = new Image(); picture.src = 'data:image/png;base64,' + png; await picture.decode();
const small = Object.assign(document.createElement('canvas'), { width: 12, height: 12 }), pen = small.getContext('2d');
pen.imageSmoothingQuality = 'high'; pen.drawImage(picture, 0, 0, 12, 12);
const dots = pen.getImageData(0, 0, 12, 12).data;
return [...Array(144).keys()].map(i => Math.round(.2126 * dots[4 * i] + .7152 * dots[4 * i + 1] + .0722 * dots[4 * i + 2])) }"""
"""The first screen as 12 x 12 greys: other letters change them little, another arrangement or colour much."""
WIDTHS = (375, 1280)
PAGES = {
    "home": ("/", ".answer .scroll"),
    "plan": ("/plan?" + urlencode({"model": "llama-3.1-8b", "on": "8xH100-SXM", "tokens": "15B"}), "#front circle"),
    "fit": ("/fit?model=llama-3.1-8b&on=4090&for=train", "#memory"),
    "wrong": ("/plan?model=gpt9&on=4090x&tokens=abc", "[role=alert]"),
}
LONG_PAGES = {
    "phases": ("/plan?ask=phases&model=qwen2.5-7b&on=8xH100-SXM&for=grpo", "#step"),
    "run": ("/fit?model=llama-3.1-8b&on=4090&for=run", ".answer .scroll"),
    "pick": ("/choose?for=infer&model=llama-3.1-8b", ".answer .scroll"),
    "compare": ("/choose?ask=compare&names=H100-SXM,4090,L40S&model=llama-3.1-8b", ".answer .scroll"),
    "cost": ("/choose?ask=cost&on=8xH100-SXM&hours=5000/month", "#drivers"),
    "serve": ("/serve?model=llama-3.1-8b&on=H100-SXM&users=50&quick=yes", "#latency"),
    "which": ("/serve?model=llama-3.1-8b&users=200&quick=yes", "#latency"),
}
PLACE = 0.04
"""Of the width: how far a block may be from where it was."""
SHADE = 14.0
"""Greys of 255 that a picture may differ by on average."""


def opened(visit: Callable[..., Any], name: str, width: int, scheme: str = "light") -> Any:
    path, shown = (PAGES | LONG_PAGES)[name]
    page = visit(path, width, color_scheme=scheme, reduced_motion="reduce")
    page.locator(shown).first.wait_for()
    page.locator(".status .spin").wait_for(state="detached")
    page.evaluate("document.fonts.ready")
    return page


def picture(page: Any) -> dict[str, list[Any]]:
    """Where blocks stand, and the first screen in greys."""
    blocks = page.evaluate(BLOCKS)
    page.evaluate("scrollTo(0, 0)")
    shot = base64.b64encode(page.screenshot()).decode()
    return {"blocks": blocks, "grey": page.evaluate(GREY, shot)}


def differences(now: dict[str, list[Any]], kept: dict[str, list[Any]]) -> list[str]:
    """How a picture is unlike the kept one, as sentences."""
    found: list[str] = []
    was, is_now = [b[0] for b in kept["blocks"]], [b[0] for b in now["blocks"]]
    if was != is_now:
        found.append(f"other blocks, or in another order: {was} were {is_now}")
    for (kind, *before), (_, *after) in zip(kept["blocks"], now["blocks"], strict=False):
        if any(abs(a - b) > PLACE for a, b in zip(before, after, strict=True)):
            found.append(f"{kind} was at {before}, is at {after}")
    shade = sum(abs(a - b) for a, b in zip(now["grey"], kept["grey"], strict=True)) / len(kept["grey"])
    return [*found, f"the first screen differs by {shade:.0f} of 255"] if shade > SHADE else found


def check_pictures(visit: Callable[..., Any], names: list[str], width: int) -> None:
    kept = json.loads(KEPT.read_text())
    for name in names:
        assert differences(picture(opened(visit, name, width)), kept[f"{name} {width}"]) == [], name


def check_laws(visit: Callable[..., Any], names: list[str], width: int) -> None:
    for name in names:
        page = opened(visit, name, width)
        assert page.evaluate(LAWS) == [], name
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate(LAWS) == [], f"{name}, all opened"


@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_over_text_no_wide_table_nothing_cut(visit: Callable[..., Any], width: int) -> None:
    check_laws(visit, [*PAGES], width)


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_over_text_no_wide_table_nothing_cut_on_the_longer_pages(visit: Callable[..., Any], width: int) -> None:
    check_laws(visit, [*LONG_PAGES], width)


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_look_as_they_were_looked_at(visit: Callable[..., Any], width: int) -> None:
    check_pictures(visit, [*PAGES], width)


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
def test_longer_pages_look_as_they_were_looked_at(visit: Callable[..., Any], width: int) -> None:
    check_pictures(visit, [*LONG_PAGES], width)


BREAKS = {
    "text over text": "document.querySelector('.tiles dd').style.marginTop = '-1.6rem'",
    "wider than its column": "document.querySelector('.answer table').style.width = '3000px'",
    "outside the screen": "document.querySelector('.answer h2').style.cssText = 'position:relative;left:90vw'",
    "cut,": "document.querySelector('.answer .tiles div').style.cssText = 'overflow:hidden;max-width:3rem;white-space:nowrap'",
}


@pytest.mark.parametrize("law", BREAKS)
def test_a_broken_law_is_seen(visit: Callable[..., Any], law: str) -> None:
    page = opened(visit, "home", 1280)
    page.evaluate(BREAKS[law])
    assert any(law in broken for broken in page.evaluate(LAWS))


def test_a_page_that_looks_otherwise_is_seen(visit: Callable[..., Any]) -> None:
    page, kept = opened(visit, "home", 1280), json.loads(KEPT.read_text())["home 1280"]
    page.evaluate("document.querySelector('form').style.marginLeft = '20vw'")
    assert any(d.startswith("form was at") for d in differences(picture(page), kept))
    dark = opened(visit, "home", 1280, "dark")
    assert any("of 255" in d for d in differences(picture(dark), kept))


def main() -> None:
    """Keep the pictures of all pages as they are now."""
    from playwright.sync_api import sync_playwright
    from serving import CHROMIUM, FLAGS, start, stop  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    server, made = start(), dict[str, Any]()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def visit(path: str, width: int, **more: Any) -> Any:
            page = browser.new_context(viewport={"width": width, "height": 900}, **more).new_page()
            page.set_default_timeout(120_000)
            page.goto(f"http://{server.host}{path}{'&' if '?' in path else '?'}token={server.token}")
            return page

        for name in PAGES | LONG_PAGES:
            for width in WIDTHS:
                made[f"{name} {width}"] = picture(opened(visit, name, width))
        browser.close()
    stop(server)
    KEPT.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in made.items()) + "\n}\n")


if __name__ == "__main__":
    main()
