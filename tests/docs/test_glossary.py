"""The glossary and the table of the first page are what the tool says today."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.docs import accuracy, diagrams, gallery
from tools.docs.glossary import page

from gpuwise.facts.words import terms

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = DOCS / "learn" / "glossary.md"
TERMS = terms()


def test_the_numbers_are_todays() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(TERMS), "run `python -m tools.docs.glossary docs/learn/glossary.md`"


def test_there_are_as_many_words_as_promised() -> None:
    assert len(TERMS) >= 80 and len({t.name for t in TERMS}) == len(TERMS)
    assert sum(len(t.figures) for t in TERMS) >= 30
    assert all((PAGE.parent / t.see).exists() for t in TERMS if t.see)


def test_the_first_page_has_the_newest_accuracy() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    assert accuracy.with_table(text) == text, "run `python -m tools.docs.accuracy docs/index.md`"
    assert all(words in text for words in accuracy.FAMILIES.values())


@pytest.mark.parametrize(
    "picture",
    [pytest.param(p, id=p.question, marks=[] if p.question == "occupancy" else [pytest.mark.slow]) for p in gallery.PICTURES],
)
def test_pictures_are_todays(picture: gallery.Picture) -> None:
    kept = DOCS / "learn" / "pictures" / picture.file
    assert kept.read_text(encoding="utf-8") == picture.svg(), "run `python -m tools.docs.gallery docs/learn/gallery.md`"


@pytest.mark.parametrize("name", diagrams.DRAWINGS)
def test_diagrams_are_todays(name: str) -> None:
    drawn = diagrams.DRAWINGS[name]()
    kept = (DOCS / "learn" / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert kept == drawn, "run `python -m tools.docs.diagrams docs/learn/pictures`"
    assert "prefers-reduced-motion" in drawn and "aria-label" in drawn


def test_the_gallery_names_its_pictures_and_commands() -> None:
    assert (DOCS / "learn" / "gallery.md").read_text(encoding="utf-8") == gallery.page()
