# pyright: reportMissingImports=false
"""The example notebook in a real kernel, and its answers in the templates that people see them in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ui.test_browser import contrast

NOTEBOOK = Path(__file__).parents[2] / "examples" / "six_questions.ipynb"
LOOKS = {"lab light": ("lab", "light"), "lab dark": ("lab", "dark"), "classic": ("classic", "light")}
FIRST_SCREEN_PX = 1700
"""Of the tallest answer, folded, at a width of 1,100 px."""

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook after it ran from top to bottom in a kernel of this Python."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    kernelspec = pytest.importorskip("jupyter_client.kernelspec")
    spec = tmp_path_factory.mktemp("jupyter") / "python3"
    spec.mkdir()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "this Python", "language": "python"}))
    manager = kernelspec.KernelSpecManager(kernel_dirs=[str(spec.parent)], ensure_native_kernel=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    made = client.NotebookClient(notebook, timeout=300, kernel_name="python3")
    made.create_kernel_manager()
    made.km.kernel_spec_manager = manager
    made.execute()
    return notebook


@pytest.fixture(scope="module")
def opened(executed: Any, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that opens the executed notebook in a template, a theme and a width."""
    nbconvert = pytest.importorskip("nbconvert")
    folder = tmp_path_factory.mktemp("pages")

    def show(look: str, width: int) -> Any:
        template, theme = LOOKS[look]
        file = folder / f"{look}.html"
        file.write_text(nbconvert.HTMLExporter(template_name=template, theme=theme).from_notebook_node(executed)[0])
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.route("**/*", lambda r: r.abort() if r.request.url.startswith("http") else r.continue_())
        page.goto(file.as_uri())
        return page

    return show


def test_every_cell_shows_one_answer_and_prints_nothing(executed: Any) -> None:
    code = [c for c in executed.cells if c.cell_type == "code"]
    assert [len(c.outputs) for c in code] == [0, *[1] * (len(code) - 1)]
    answers = [c.outputs[0].data for c in code[1:] if "text/html" in c.outputs[0].data]
    assert len(answers) == 6
    for data in answers:
        assert len(data["text/plain"].splitlines()) <= 27 and data["text/html"].startswith('<div class="gpuwise">')


@pytest.mark.parametrize("width", [700, 1100])
@pytest.mark.parametrize("look", LOOKS)
def test_answers_look_alike_in_every_template(opened: Any, look: str, width: int) -> None:
    page = opened(look, width)
    assert page.locator(".gpuwise").count() == 6
    assert page.evaluate(TEXT_OVER_TEXT) == []
    assert page.evaluate(OUTSIDE) == []
    for one in (
        ".gpuwise h2",
        ".gpuwise dt",
        ".gpuwise dd",
        ".gpuwise td",
        ".gpuwise tbody th",
        ".gpuwise pre",
        ".gpuwise summary",
    ):
        assert contrast(page, one) >= 4.5, one
    aligned = page.eval_on_selector_all(".gpuwise td.words", "all => all.map(e => getComputedStyle(e).textAlign)")
    assert set(aligned) == {"left"}
    if width == 1100:
        heights = page.eval_on_selector_all(".gpuwise", "all => all.map(e => e.getBoundingClientRect().height)")
        assert max(heights) <= FIRST_SCREEN_PX
    page.close()


TEXT_OVER_TEXT = """() => {
  const seen = e => e.checkVisibility() && e.getClientRects().length
  const leaves = [...document.querySelectorAll('.gpuwise *')].filter(e => seen(e) && !e.closest('svg') &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  const boxes = leaves.flatMap(e => [...e.childNodes].filter(n => n.nodeType === 3 && n.data.trim()).flatMap(n => {
    const r = document.createRange(); r.selectNodeContents(n); return [...r.getClientRects()].map(b => [n.data.trim(), b, e]) }))
  const over = []
  for (const [i, [one, a, e]] of boxes.entries()) for (const [other, b, f] of boxes.slice(i + 1)) {
    if (e === f || e.contains(f) || f.contains(e)) continue
    const w = Math.min(a.right, b.right) - Math.max(a.left, b.left), h = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)
    if (w > 2 && h > 4) over.push(one + ' / ' + other)
  }
  return over }"""
"""Pairs of texts of which one stands on the other."""
OUTSIDE = """() => [...document.querySelectorAll('.gpuwise *')].filter(e => e.checkVisibility() && !e.closest('.scroll, svg')
  && e.getBoundingClientRect().right > e.closest('.gpuwise').getBoundingClientRect().right + 1).map(e => e.outerHTML)"""
"""Elements that stand out of their answer on the right."""
