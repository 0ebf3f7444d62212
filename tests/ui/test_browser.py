# pyright: reportMissingImports=false
"""The pages in the system's Chromium: numbers, keys, roles, narrow and wide, and nothing said on the console."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from tests.ui.documents import document
from tests.ui.serving import start, stop

from gpuwise.units import format_duration

PLAN = {"model": "gpt2", "on": "4xA100-80GB", "tokens": "1B"}
PRESSED = "document.activeElement.id || document.activeElement.textContent.trim()"


def numbers(page: Any) -> dict[str, float]:
    """Every number of the answer by its place in the document."""
    found = page.eval_on_selector_all("section[aria-label=Answer] data", "all => all.map(d => [d.dataset.path, d.value])")
    return {path: float(value) for path, value in found}


def at(made: Any, pointer: str) -> Any:
    for name in pointer.split("/")[1:]:
        made = made[int(name)] if isinstance(made, list) else made[name.replace("~1", "/").replace("~0", "~")]
    return made


def test_a_plan_from_a_link_shows_the_numbers_of_the_command(visit: Callable[..., Any]) -> None:
    page = visit("/plan?" + urlencode(PLAN))
    page.wait_for_selector(".answer .tiles")
    found, made = numbers(page), document("plan")
    assert len(found) > 50 and {p: v for p, v in found.items() if at(made, p) != v} == {}
    assert "token=" not in page.url and page.title() == "Plan - gpuwise"
    assert page.locator(".command code").first.inner_text() == "gpuwise plan gpt2 --on 4xA100-80GB --tokens 1B"


def test_a_slider_by_the_keyboard_answers_beside_the_last_answer_and_the_link_restores_it(
    visit: Callable[..., Any], gpuwise: Callable[..., Any]
) -> None:
    page = visit("/plan?" + urlencode(PLAN))
    page.wait_for_selector(".answer .tiles")
    page.locator("#s-recompute").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".before")
    last = page.eval_on_selector_all(".before data", "all => all.map(d => [d.dataset.path, +d.value])")
    assert last and all(at(document("plan"), p) == v for p, v in last)
    printed = json.loads(gpuwise(*page.locator(".command code").first.inner_text().split()[1:], "--json").out.splitlines()[-1])
    assert all(at(printed, p) == v for p, v in numbers(page).items() if p.startswith("/best"))
    before, after = document("plan")["best"]["strategy"], printed["best"]["strategy"]
    assert {k for k in after if after[k] != before[k]} == {"recompute"}  # a slider changes only what it names
    again = visit(urlsplit(page.url).path + "?" + urlsplit(page.url).query)
    again.wait_for_selector(".answer .tiles")
    assert {p: v for p, v in numbers(again).items() if p.startswith("/best")} == {
        p: v for p, v in numbers(page).items() if p.startswith("/best")
    }
    page.locator("button.held", has_text="layout").click()
    page.wait_for_function("!location.search.includes('sharding')")
    page.wait_for_selector("text=One change")


def test_home_answers_at_once_and_its_model_goes_from_page_to_page(visit: Callable[..., Any]) -> None:
    page = visit("/")
    page.wait_for_selector("section[aria-label=Answer] h2")
    assert page.title() == "Home - gpuwise" and page.locator("#f-model").input_value() == "llama-3.1-8b"
    page.locator("#f-model").fill("qwen3-4b")
    page.locator("#f-on").fill("rtx-4090")
    page.locator("button.go").click()
    page.wait_for_selector("h2:has-text('Qwen3 4B')")
    page.locator("header a", has_text="Fit").click()
    page.wait_for_selector("h1:has-text('Fit')")
    assert (page.locator("#f-model").input_value(), page.locator("#f-on").input_value()) == ("qwen3-4b", "rtx-4090")
    page.wait_for_selector("h2:has-text('Qwen3 4B')")
    page.go_back()
    page.locator("header a", has_text="Home").click()
    page.locator("a", has_text="200 people").click()
    page.wait_for_selector("h1:has-text('Serve')")
    assert page.locator("#f-users").input_value() == "200" and "users=200" in page.url


def test_a_question_in_words_leads_to_the_page_that_answers_it(visit: Callable[..., Any]) -> None:
    page = visit("/")
    page.locator("#words").fill("can I run flux on a 4070?")
    page.locator("#words").press("Enter")
    page.wait_for_selector("h2:has-text('FLUX.1-dev on 1x RTX 4070')")
    assert "/fit?model=flux-dev" in page.url
    page.go_back()
    page.locator("#words").fill("how much vram does mixtral 8x7b need?")
    page.locator("#words").press("Enter")
    page.wait_for_selector("code:has-text('gpuwise models mixtral-8x7b')")
    page.locator("#words").fill("hello there my friend")
    page.locator("#words").press("Enter")
    page.wait_for_selector("[role=alert]:has-text('no command')")


def test_an_exercise_is_chosen_from_the_list(visit: Callable[..., Any]) -> None:
    page = visit("/learn?ask=exercise")
    page.locator("button", has_text="4. Memory").click()
    page.wait_for_selector("h2:has-text('4. Memory')")
    assert "number=4" in page.url


def test_a_word_of_a_lesson_explains_itself_on_hover_and_focus(visit: Callable[..., Any]) -> None:
    page = visit("/learn?lesson=04-memory")
    word = page.locator(".lesson .word").first
    tooltip = word.locator("[role=tooltip]")
    word.wait_for()
    assert not tooltip.is_visible()
    word.hover()
    assert tooltip.is_visible() and len(tooltip.inner_text()) > 20
    page.mouse.move(0, 0)
    word.locator(".term").focus()
    assert tooltip.is_visible()
    page.keyboard.press("Escape")
    assert not tooltip.is_visible()
    for place in page.locator(".lesson .term").all():  # inside the window, whichever word it is
        place.focus()
        box = page.locator(".term:focus + [role=tooltip]").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 1280


def test_a_lesson_leads_to_its_exercise_and_to_the_next_one(visit: Callable[..., Any]) -> None:
    page = visit("/learn")
    page.wait_for_selector("article h2:has-text('1. Why GPUs')")
    page.locator("article a", has_text="gpuwise lab exercise 1").first.click()
    page.wait_for_selector("h2:has-text('1. Why a GPU')")
    assert "number=1" in page.url and page.locator("#f-answer").is_visible()
    page.go_back()
    page.locator("article a", has_text="set-up").last.click()
    page.wait_for_selector("article h2:has-text('2. Set-up')")
    assert page.url.endswith("/learn?lesson=02-set-up")


@pytest.mark.thorough
@pytest.mark.parametrize("width", [375, 1280])
def test_every_lesson_has_its_picture_and_fits_the_screen(visit: Callable[..., Any], width: int) -> None:
    page = visit("/learn", width)
    page.locator("article h2").first.wait_for()
    names = page.eval_on_selector_all(".lesson nav a", "all => all.map(a => a.getAttribute('href'))")
    assert len(names) >= 12
    for path in names:
        page.evaluate("path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }", path)
        page.wait_for_selector(f"nav a[href='{path}'][aria-current=true]", state="attached")
        title = page.locator(f"nav a[href='{path}']").text_content()
        page.locator("article h2", has_text=title).wait_for()
        picture = page.locator("article img").first
        picture.evaluate("image => image.decode()")
        assert picture.evaluate("image => image.naturalWidth") > 100, path
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), path


@pytest.mark.slow
def test_a_point_of_the_front_is_chosen_by_the_keyboard(visit: Callable[..., Any]) -> None:
    page = visit("/plan?" + urlencode(PLAN))
    page.wait_for_selector("#front [role=button]")
    page.locator("#front [role=button]").last.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".before")
    front = document("plan")["pareto"][-1]
    assert numbers(page)["/best/step_time_s/expected"] == front["step_time_s"]["expected"]
    assert page.locator("#front").count() <= 1  # an id stands once, the last answer beside the next


@pytest.mark.slow
def test_the_first_answer_of_a_fit_is_its_three_uses(visit: Callable[..., Any]) -> None:
    page = visit("/fit?" + urlencode({"model": "llama-3.1-8b", "on": "4090"}))
    page.wait_for_selector("section[aria-label=Answer] h2.yes")
    table = page.locator("section[aria-label=Answer] .scroll table").first
    assert [row.split("\n")[0] for row in table.locator("tbody th").all_inner_texts()] == ["run it", "adapt it", "train it"]
    page.locator("button[data-set='for=run']").click()
    page.wait_for_selector("text=Formats of weights, and what each costs")
    assert "for=run" in page.url
    page.get_by_label("For", exact=True).select_option("train")
    page.locator("button.go").first.click()
    page.wait_for_selector("#memory")
    assert "for=train" in page.url


@pytest.mark.slow
def test_a_remedy_is_ticked_and_let_go(visit: Callable[..., Any]) -> None:
    page = visit("/fit?" + urlencode({"model": "llama-3.1-8b", "on": "4090", "for": "train"}))
    page.wait_for_selector("section[aria-label=Answer] h2.no")
    page.get_by_label("QLoRA", exact=False).and_(page.locator("[data-tick]")).first.check()
    page.wait_for_selector("section[aria-label=Answer] h2.yes")
    page.locator(".held", has_text="QLoRA").click()  # the remedy sets the software too, which alone changes nothing
    page.wait_for_selector("section[aria-label=Answer] h2.no")
    assert "qlora" not in page.url


def test_a_refusal_is_said_with_its_hint_and_names_are_text(visit: Callable[..., Any]) -> None:
    page = visit("/plan?" + urlencode({"model": "<img src=x onerror=alert(1)>", "on": "4090"}))
    alert = page.wait_for_selector("[role=alert]")
    assert "<img src" in alert.inner_text() and page.locator("main img").count() == 0
    assert "<img src" in page.locator("#f-model-fault").inner_text()


def test_three_wrong_fields_are_named_at_once_each_beside_its_field(visit: Callable[..., Any]) -> None:
    page = visit("/plan?" + urlencode({"model": "gpt9", "on": "4090x", "tokens": "abc"}))
    page.wait_for_selector("[role=alert]")
    faults = {f: page.locator(f"#f-{f}-fault").inner_text() for f in ("model", "on", "tokens")}
    assert "unknown model" in faults["model"] and "unknown GPU" in faults["on"] and "not a count" in faults["tokens"]
    assert page.locator("[aria-invalid=true]").count() == 3
    page.locator("#f-tokens").fill("1B")
    assert page.locator("[aria-invalid=true]").count() == 2 and page.locator("#f-tokens-fault").count() == 0


def test_a_name_is_found_and_chosen_by_the_keyboard(visit: Callable[..., Any]) -> None:
    page = visit("/plan")
    page.locator("#f-on").fill("8x")
    page.locator("#f-on-names li").first.wait_for()
    assert "GB" in page.locator("#f-on-names li small").nth(1).inner_text()
    page.locator("#f-on").press_sequentially("h200 sxm")
    page.keyboard.press("ArrowDown")
    assert page.locator("#f-on-names [aria-selected=true]").inner_text().startswith("h200-sxm")
    page.keyboard.press("Enter")
    assert page.locator("#f-on").input_value().startswith("8xh200-sxm")
    assert not page.locator("#f-on-names").is_visible()
    page.locator("#f-model").click()  # all of them, the common ones first
    page.locator("#f-model-names li").first.wait_for()
    names = page.locator("#f-model-names li b").all_inner_texts()
    assert "llama-3.1-8b" in names[:20]
    page.keyboard.press("Escape")
    assert not page.locator("#f-model-names").is_visible()


def test_an_answer_to_other_fields_is_marked(visit: Callable[..., Any]) -> None:
    page = visit("/")
    page.wait_for_selector("section[aria-label=Answer] h2")
    assert page.locator(".changed").count() == 0
    page.locator("#f-model").fill("qwen3-4b")
    assert "gpuwise fit llama-3.1-8b" in page.locator(".changed").inner_text()
    page.locator(".changed button").click()
    page.wait_for_selector("h2:has-text('Qwen3 4B')")
    assert page.locator(".changed").count() == 0


def test_home_lists_the_last_answers(visit: Callable[..., Any]) -> None:
    page = visit("/fit?" + urlencode({"model": "qwen3-4b", "on": "rtx-4090"}))
    page.wait_for_selector("section[aria-label=Answer] h2")
    page.locator("header a", has_text="Home").click()
    last = page.locator(".last a").first
    assert "Qwen3 4B" in last.inner_text() and last.get_attribute("href") == "/fit?model=qwen3-4b&on=rtx-4090"


def test_serving_without_gpus_names_some(visit: Callable[..., Any]) -> None:
    page = visit("/serve?" + urlencode({"model": "llama-3.1-8b", "users": "200"}))
    page.wait_for_selector("section[aria-label=Answer] h2")
    assert page.locator("#f-on").input_value() == ""
    assert "for 200 users" in page.locator("section[aria-label=Answer] h2").first.inner_text()
    page.wait_for_selector("#latency")


def test_an_answer_is_scrolled_to_on_a_telephone(visit: Callable[..., Any]) -> None:
    page = visit("/plan?" + urlencode(PLAN), 375)
    page.wait_for_selector(".answer .tiles")
    page.wait_for_function("Math.abs(document.querySelector('section[aria-label=Answer]').getBoundingClientRect().top) < 40")
    verdict, sliders = (page.locator(s).bounding_box()["y"] for s in ("section[aria-label=Answer] h2 >> nth=0", ".sliders"))
    assert verdict < sliders


def test_a_value_of_a_chart_is_shown_by_pointer_and_by_touch(visit: Callable[..., Any]) -> None:
    page = visit("/plan?" + urlencode(PLAN), 375, has_touch=True)
    page.wait_for_selector("#memory [data-tip]")
    page.locator("#memory").scroll_into_view_if_needed()
    page.wait_for_timeout(300)  # a page that moves shows none
    page.locator("#memory [data-tip]").first.tap()
    assert ": " in page.locator(".tip").inner_text() and page.locator(".tip").is_visible()
    page.locator("#step [data-tip]").first.hover()
    assert "matmul" in page.locator(".tip").inner_text()


@pytest.mark.slow
def test_an_answer_is_kept_as_a_file(visit: Callable[..., Any], tmp_path: Path) -> None:
    page = visit("/plan?" + urlencode(PLAN))
    page.wait_for_selector(".files a")
    for kind in ("html", "svg", "json", "csv"):
        with page.expect_download() as download:
            page.get_by_role("link", name=kind.upper(), exact=True).click()
        download.value.save_as(tmp_path / f"plan.{kind}")
        text = (tmp_path / f"plan.{kind}").read_text()
        assert ("<svg" if kind == "svg" else "GPT-2") in text


@pytest.mark.thorough
@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_and_a_screen_and_reads_in_both(visit: Callable[..., Any], width: int, scheme: str) -> None:
    page = visit("/plan?" + urlencode(PLAN), width, color_scheme=scheme)
    page.wait_for_selector(".answer .tiles")
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    for one in (".answer p.layout", "h1", ".tiles dd", "button.go"):
        assert contrast(page, one) >= 4.5, one


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path", ["/plan?" + urlencode(PLAN), "/choose?" + urlencode({"ask": "cost", "on": "8xH100-SXM", "hours": "5000/month"})]
)
def test_no_word_of_a_chart_is_cut_on_a_telephone(visit: Callable[..., Any], path: str) -> None:
    page = visit(path, 375)
    page.wait_for_selector(".answer .tiles")
    page.wait_for_selector("figure svg text")
    cut = page.evaluate(
        """() => [...document.querySelectorAll('figure svg text')].filter(t => { const r = t.getBoundingClientRect();
        return r.left < 0 || r.right > innerWidth }).map(t => t.textContent)"""
    )
    assert cut == []


@pytest.mark.thorough
def test_the_numbers_of_the_occupancy_chart_can_be_read_on_a_telephone(visit: Callable[..., Any]) -> None:
    page = visit("/lab?ask=occupancy&on=V100&regs=37&block=320", 375)
    page.wait_for_selector("#chart text")
    size = page.evaluate(
        """() => { const s = document.querySelector('#chart svg'), t = s.querySelector('text');
        return parseFloat(getComputedStyle(t).fontSize) * s.getBoundingClientRect().width / s.viewBox.baseVal.width }"""
    )
    assert size >= 12
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


@pytest.mark.thorough
@pytest.mark.parametrize("width", [375, 1280])
def test_every_column_of_a_comparison_is_on_the_screen(visit: Callable[..., Any], width: int) -> None:
    page = visit("/choose?" + urlencode({"ask": "compare", "names": "H100-SXM,4090,L40S", "model": "llama-3.1-8b"}), width)
    page.wait_for_selector(".scroll table")
    wide = page.evaluate("[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)")
    assert wide and max(wide) <= 0
    over = page.evaluate("[...document.querySelectorAll('td small')].filter(e => e.scrollWidth > e.clientWidth + 1).length")
    assert over == 0


@pytest.mark.thorough
def test_another_file_of_the_folder_can_be_chosen(browser: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("def make_step():\n    raise SystemExit(3)\n")
    own = start(cwd=tmp_path)
    try:
        page = browser.new_page()
        page.goto(f"http://{own.host}/fit?ask=own&token={own.token}")
        page.wait_for_selector("#o-file")
        page.select_option("#o-file", "b.py")
        page.fill("#o-on", "4090")
        page.wait_for_timeout(200)
        assert page.locator("button.go").is_enabled() and page.locator("#o-file").input_value() == "b.py"
        page.close()
    finally:
        assert stop(own) == 0


def contrast(page: Any, selector: str) -> float:
    """WCAG 2.2 contrast of an element's text on what is behind it."""
    ink, paper = page.evaluate(
        """s => { let e = document.querySelector(s), b = e; const of = c => c.match(/[\\d.]+/g).map(Number);
        while (b && (of(getComputedStyle(b).backgroundColor)[3] === 0)) b = b.parentElement;
        return [of(getComputedStyle(e).color), of(getComputedStyle(b || document.body).backgroundColor)] }""",
        selector,
    )

    def light(colour: list[float]) -> float:
        parts = [c / 255 for c in colour[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(ink), light(paper)))
    return (high + 0.05) / (low + 0.05)


def test_every_field_has_a_name_and_every_part_a_role(visit: Callable[..., Any]) -> None:
    page = visit("/plan?" + urlencode(PLAN))
    page.wait_for_selector(".answer .tiles")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('input,select,button,a,[role=button],svg[role],section,nav')].filter(e =>
        !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.textContent.trim() && !e.closest('datalist'))
        .map(e => e.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert page.get_by_role("main").count() == 1 and page.get_by_role("navigation").count() >= 1
    assert page.evaluate("document.documentElement.lang") == "en"
    page.keyboard.press("Tab")
    assert page.evaluate(PRESSED) == "To the answer"


def violations(page: Any) -> list[str]:
    """What axe-core (MPL-2.0, of the test extra alone) says breaks WCAG or its best practices, each with one element."""
    import axe_playwright_python

    page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found]


PAGES = {
    "/": "section[aria-label=Answer] h2",
    "/learn?ask=exercise&number=4&hint=1": ".answer .notes",
    "/learn?lesson=04-memory": ".lesson article h2",
    "/lab?ask=occupancy&on=V100&regs=37&block=320": "#chart",
    "/lab?task=matmul-tiled&size=64&on=v100": "#race .play",
    "/plan?model=gpt9&on=4090": "[role=alert]",
}
LONG_PAGES = {
    "/plan?" + urlencode(PLAN): "#front",
    "/fit?model=llama-3.1-8b&on=4090&for=train": "#memory",
    "/fit?model=llama-3.1-8b&on=4090": "section[aria-label=Answer] .scroll table",
    "/choose?for=infer&model=llama-3.1-8b": "section[aria-label=Answer] h2",
    "/choose?ask=compare&names=H100-SXM,4090": ".scroll table",
    "/choose?ask=cost&on=8xH100-SXM&hours=5000/month": "#drivers",
    "/serve?model=llama-3.1-8b&on=H100-SXM&users=50&quick=yes": "#latency",
    "/machine?demo=1": ".live canvas",
    "/runs": ".answer, [role=alert]",
}


def check_all(visit: Callable[..., Any], pages: dict[str, str], scheme: str, width: int) -> None:
    pytest.importorskip("axe_playwright_python")
    for path, shown in pages.items():
        page = visit(path, width, color_scheme=scheme)
        page.locator(shown).first.wait_for()
        assert violations(page) == [], path
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), path


@pytest.mark.thorough
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 375)])
def test_axe_finds_nothing(visit: Callable[..., Any], scheme: str, width: int) -> None:
    check_all(visit, PAGES, scheme, width)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 375)])
def test_axe_finds_nothing_on_the_longer_pages(visit: Callable[..., Any], scheme: str, width: int) -> None:
    check_all(visit, LONG_PAGES, scheme, width)


FOCUSABLE = """() => [...document.querySelectorAll('a[href],button,input,select,summary,[tabindex="0"]')]
.filter(e => !e.disabled && e.checkVisibility() && !e.closest('details:not([open]) > :not(summary)'))"""
STOP = f"""() => {{ const e = document.activeElement, s = getComputedStyle(e), b = e.getBoundingClientRect();
return [({FOCUSABLE})().indexOf(e), e.tagName + ' ' + (e.id || e.textContent.trim().slice(0, 40)),
s.outlineStyle !== 'none' && b.width > 0 && b.bottom > 0 && b.top < innerHeight] }}"""


def check_the_keyboard(visit: Callable[..., Any], pages: dict[str, str]) -> None:
    """Tab stops at everything that can be used, in the order in which it stands, each to be seen with its outline."""
    for path, shown in pages.items():
        page = visit(path)
        page.locator(shown).first.wait_for()
        count = page.evaluate(f"({FOCUSABLE})().length")
        assert count > 8, path
        for expected in range(count):
            page.keyboard.press("Tab")
            at, words, seen = page.evaluate(STOP)
            assert (at, seen) == (expected, True), (path, words)
        page.keyboard.press("Tab")
        assert page.evaluate(STOP)[0] == -1, path  # out of the page again: no trap


@pytest.mark.thorough
def test_the_keyboard_reaches_everything_in_order(visit: Callable[..., Any]) -> None:
    check_the_keyboard(visit, PAGES)


@pytest.mark.slow
def test_the_keyboard_reaches_everything_in_order_on_the_longer_pages(visit: Callable[..., Any]) -> None:
    check_the_keyboard(visit, {p: s for p, s in LONG_PAGES.items() if not p.startswith("/machine")})


@pytest.mark.thorough
def test_axe_sees_a_field_without_a_name(visit: Callable[..., Any]) -> None:
    """The check can fail."""
    pytest.importorskip("axe_playwright_python")
    page = visit("/")
    page.wait_for_selector("button.go")
    page.evaluate("document.querySelector('main').append(document.createElement('select'))")
    assert any(v.startswith("select-name") for v in violations(page))


@pytest.mark.thorough
def test_a_simulation_is_scrubbed_by_the_keyboard_and_played(visit: Callable[..., Any]) -> None:
    page = visit("/lab?ask=simulate&task=transpose&size=64&on=v100", reduced_motion="reduce")
    page.locator("summary", has_text="Why").click()
    slider = page.get_by_label("Time of the simulation")
    veil = "+document.querySelector('#timeline .veil').getAttribute('width')"
    assert page.evaluate(veil) == 0
    slider.focus()
    page.keyboard.press("Home")
    whole = page.evaluate(veil)
    page.keyboard.press("ArrowRight")
    assert 0 < page.evaluate(veil) < whole
    button = page.locator("#timeline button").first
    button.click()
    while page.evaluate(veil) > whole * 0.98:  # no evaluation in the page: its policy forbids it
        page.wait_for_timeout(50)
    button.click()
    held = page.evaluate(veil)
    assert button.inner_text() == "Play" and page.evaluate(veil) == held


RACE = "/lab?task=vector-add&size=100000&against=i5-12400&on=rtx-4090"
SIDES = """() => [...document.querySelectorAll('#race .side')].map(s => ({phase: s.dataset.phase,
...Object.fromEntries([...s.querySelectorAll('dd')].map(d => [d.dataset.show, d.textContent]))}))"""


def count(text: str) -> int:
    return int(text.replace(",", ""))


def test_both_sides_of_the_race_advance_and_end_at_the_simulated_times(
    visit: Callable[..., Any], gpuwise: Callable[..., Any]
) -> None:
    words = "lab simulate attention-fused --size 64 --against i5-12400 --on rtx-4090 --json"
    made = json.loads(gpuwise(*words.split()).out.splitlines()[-1])
    beside = made["beside"]
    times = [beside["cpu"]["time_s"], made["time_s"] + beside["launch_s"] + beside["copy_s"]]
    page = visit("/lab?task=attention-fused&size=64&against=i5-12400&on=rtx-4090")
    page.wait_for_selector("#race .play")
    assert page.locator("#race button").first.inner_text() == "Pause"  # it plays as it opens
    seen = [page.evaluate(SIDES)]
    while seen[-1][0]["phase"] != "done" or seen[-1][1]["phase"] != "done":
        page.wait_for_timeout(50)
        seen.append(page.evaluate(SIDES))
    for side, seconds in enumerate(times):
        items = [count(s[side]["items"]) for s in seen]
        assert items == sorted(items) and len({i for i in items if 0 < i < 64}) > 1  # between the ends, too
        assert seen[-1][side]["items"] == "64" and seen[-1][side]["time"] == format_duration(seconds)
    instructions = made["counters"]["warp_instructions"] * made["blocks"] / made["blocks_timed"]
    assert count(seen[-1][1]["instructions"]) == round(instructions)
    page.get_by_label("The data is on the GPU already").check()
    assert page.evaluate(SIDES)[1]["time"] == format_duration(times[1] - beside["copy_s"])


def test_the_race_plays_as_long_as_there_is_work_at_the_pace_it_states(visit: Callable[..., Any]) -> None:
    page = visit(RACE, reduced_motion="reduce")
    page.wait_for_selector("#race .play")
    button, slider = page.locator("#race button").first, page.get_by_label("Time of the race")
    assert button.inner_text() == "Play" and {s["phase"] for s in page.evaluate(SIDES)} == {"done"}  # nothing moves by itself
    end = max(float(s["time"].split()[0]) for s in page.evaluate(SIDES))
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert {s["phase"] for s in page.evaluate(SIDES)} == {"done", "wait"}  # the copy back ends at the last moment
    page.keyboard.press("Home")
    assert [s["items"] for s in page.evaluate(SIDES)] == ["0", "0"]
    page.get_by_label("Speed").first.select_option("2")
    pace, unit = page.locator("#race output").inner_text().split()[4:6]
    assert unit == "us," and "times slower" in page.locator("#race output").inner_text()
    began = page.evaluate("performance.now()")
    button.focus()
    page.keyboard.press("Space")
    while button.inner_text() == "Pause":
        page.wait_for_timeout(20)
    taken = (page.evaluate("performance.now()") - began) / 1000
    assert end / float(pace) <= taken < 1.3 * end / float(pace) + 0.5
    page.get_by_role("button", name="Step").first.click()
    assert {s["phase"] for s in page.evaluate(SIDES)} == {"done"}


def test_a_size_is_tried_by_the_keyboard(visit: Callable[..., Any]) -> None:
    page = visit(RACE.replace("100000", "4096"), 375)
    page.wait_for_selector("#race .play")
    page.locator("#s-size").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("h2:has-text('size 1,024')")
    assert "size=1024" in page.url and not page.evaluate("document.documentElement.scrollWidth > innerWidth")
