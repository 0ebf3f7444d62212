from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.report.page import Markup, TableCell, TableRow, notes, page, table

NASTY = '<script>alert("x")</script> & <b>'


def test_nothing_a_person_wrote_becomes_markup(read: Any) -> None:
    body = [
        notes([NASTY]),
        table(NASTY, [NASTY], [TableRow(NASTY, [TableCell(NASTY, NASTY)])]),
    ]
    done = read(page(NASTY, NASTY, body))
    assert "script" not in {tag for tag, _ in done.elements} and "b" not in {tag for tag, _ in done.elements}
    assert not any(k.startswith("on") or v.startswith("javascript:") for _, a in done.elements for k, v in a.items())
    assert done.text.count('alert("x")') >= 4


def test_markup_is_taken_as_it_is(read: Any) -> None:
    done = read(table("t", ["a"], [TableRow("r", [TableCell(Markup("<i>x</i>"))])]))
    assert "i" in {tag for tag, _ in done.elements}


def test_no_request_leaves_the_page(page: str, read: Any) -> None:
    done = read(page)
    tags = {tag for tag, _ in done.elements}
    assert not tags & {"script", "iframe", "img", "object", "embed", "video", "audio", "image"}
    for link in done.attributes("link"):
        assert link["href"] == "data:,"
    assert "@import" not in page and "src=" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    # addresses stand only where a reader may follow them, and as the names of the SVG language
    for tag, attributes in done.elements:
        for key, value in attributes.items():
            if value.startswith("http"):
                assert (tag, key) == ("a", "href") or key.startswith("xmlns"), (tag, key, value)


def test_a_page_is_well_formed_and_named(page: str, read: Any) -> None:
    done = read(page)
    assert page.startswith("<!DOCTYPE html>") and done.attributes("html")[0]["lang"] == "en"
    assert len(done.attributes("h1")) == 1 and len(done.attributes("main")) == 1
    assert any(a.get("name") == "viewport" for a in done.attributes("meta"))
    ids = [a["id"] for _, a in done.elements if "id" in a]
    assert len(ids) == len(set(ids))
    anchors = [a["href"][1:] for a in done.attributes("a") if a["href"].startswith("#")]
    assert set(anchors) <= set(ids)


def test_tables_have_headers_with_scope(page: str, read: Any) -> None:
    done = read(page)
    assert done.attributes("table")
    assert all(a.get("scope") in ("col", "row", "rowgroup") for a in done.attributes("th"))
    assert {a["scope"] for a in done.attributes("th")} >= {"col", "row"}
    for region in (a for a in done.attributes("div") if a.get("class") == "scroll"):
        assert region["role"] == "region" and region["aria-label"] and region["tabindex"] == "0"


def test_figures_are_well_formed_and_have_words(page: str, read: Any, svgs_of: Callable[[str], list[Any]]) -> None:
    found = [svg for svg in svgs_of(page) if svg.get("class") != "mark"]
    done = read(page)
    assert len(found) == len(done.attributes("figure")) == len(done.attributes("figcaption")) > 0
    for svg in found:
        assert svg.get("role") == "img" and svg.get("viewBox") and svg.get("width") is None
        assert len(svg.get("aria-label")) > 20


def test_numbers_in_words_are_numbers(page: str, read: Any) -> None:
    text = read(page).text
    for wrong in ("nan", "inf ", "None", "Infinity", "e+", "e-0", "Estimate("):
        assert not re.search(rf"(?<![A-Za-z]){re.escape(wrong)}", text), wrong


@pytest.mark.parametrize("mode", ["prefers-color-scheme:dark", "@media print", "max-width"])
def test_dark_paper_and_telephones_are_thought_of(page: str, mode: str) -> None:
    assert mode in page


def test_a_number_at_the_head_of_a_row_says_what_it_is() -> None:
    """On a telephone the columns' names are gone."""
    made = table(
        "t", ["requests a second", "first token"], [TableRow("6.36", [TableCell("1")]), TableRow("all", [TableCell("2")])]
    )
    assert made.count('data-label="requests a second"') == 1


def test_a_sentence_in_a_cell_is_broken_and_an_interval_is_not() -> None:
    rows = [TableRow("r", [TableCell("1", "64.3 GiB to 72.4 GiB"), TableCell("2", "bf16, one device, micro-batch 1")])]
    assert table("t", ["a", "b", "c"], rows).count('<small class="long">') == 1
