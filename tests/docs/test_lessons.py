"""Lessons of the web application: those of ``docs/learn``, each with a picture, and links that lead somewhere."""

from __future__ import annotations

import re

from tools.docs.lessons import LEARN, lesson
from tools.docs.lessons import lessons as written

from gpuwise.lab.exercises import exercises
from gpuwise.ui.application import assets
from gpuwise.ui.questions import PAGES, lessons

FOLDER = "src/gpuwise/ui/assets/lessons"


def test_lessons_are_those_of_the_docs() -> None:
    shipped = LEARN.parents[1] / FOLDER
    there = {p.name: p.read_text(encoding="utf-8") for p in shipped.iterdir()}
    assert there == written(), f"python -m tools.docs.lessons {FOLDER}"
    assert [one.name for one in lessons()] == sorted(p.stem for p in LEARN.glob("[0-9]*.md"))


def test_each_lesson_has_a_picture_words_and_an_exercise() -> None:
    numbers = {str(e.number) for e in exercises()}
    names = {one.name for one in lessons()}
    for name in names:
        page = assets()[f"{name}.html"][1].decode()
        assert '<img alt="' in page and 'role="tooltip"' in page and "/learn?ask=exercise" in page, name
        assert set(re.findall(r"number=(\d+)", page)) <= numbers, name
        assert set(re.findall(r"lesson=([\w-]+)", page)) <= names, name
        pictures = re.findall(r'src="/assets/([^"]+)"', page)
        assert pictures and all(picture in assets() for picture in pictures), name
        pages = set(re.findall(r'href="/(\w+)', page))
        assert pages <= {p.name for p in PAGES}, name
        assert not re.search(r'(?:src|href)="(?!/|https://)', page), name


def test_a_link_to_a_page_that_the_application_lacks_is_its_words() -> None:
    assert lesson('<a href="../guides/run.md">the guide</a>') == "the guide"
    assert lesson('<a href="01-why-gpus.md#when">why</a>') == '<a href="/learn?lesson=01-why-gpus">why</a>'
    assert 'rel="noreferrer"' in lesson('<a href="https://arxiv.org/abs/2207.08815">trees</a>')
    assert lesson("<h1>A</h1><h3>B</h3>") == "<h2>A</h2><h4>B</h4>"
