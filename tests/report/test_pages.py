"""Each page shows the figures of the answer it is made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import InputError
from gpuwise.pick.compare.rows import say
from gpuwise.report.answers.choosing import compare_answer
from gpuwise.report.answers.costs import dollars, own_answer, run_answer
from gpuwise.report.answers.exported import pictures, write_page, write_pictures
from gpuwise.report.answers.written import body
from gpuwise.units import format_usd


def test_every_row_of_a_comparison_is_on_its_page(comparison: dict[str, Any], read: Any) -> None:
    text = read(body(compare_answer(comparison))).text
    for row in comparison["rows"]:
        assert row["title"] in text
        for cell in row["cells"]:
            if cell["value"] is not None:
                assert say(row["unit"], cell["value"]) in text, row["key"]
    for sentence in comparison["verdict"]:
        assert sentence in text


def test_cited_sources_are_listed_with_their_addresses(comparison: dict[str, Any], read: Any) -> None:
    text = read(body(compare_answer(comparison))).text
    cited = {c["source"] for r in comparison["rows"] for c in r["cells"]} & comparison["sources"].keys()
    assert len(cited) >= 3 and all(comparison["sources"][key]["title"] in text for key in cited)
    assert "https://" in text


def test_a_comparison_draws_what_each_does_and_its_roof(comparison: dict[str, Any], plain_comparison: dict[str, Any]) -> None:
    drawn = pictures(body(compare_answer(comparison)))
    assert "Rooflines" in drawn and "train all weights" in drawn and "L40S reaches" in drawn
    rows = {r["key"]: r for r in plain_comparison["rows"]}
    plain = pictures(body(compare_answer(plain_comparison)))
    assert all(rows[key]["title"] in plain for key in ("reached_bf16", "reached_stream", "rent"))


def test_rent_or_own_shows_every_option_and_assumption(owned: dict[str, Any], read: Any) -> None:
    text = read(body(own_answer(owned))).text
    for option in owned["options"]:
        assert option["label"] in text and format_usd(option["usd_per_gpu_hour"]["expected"]) in text
    for assumption in owned["assumptions"]:
        assert assumption["label"] in text and " ".join(assumption["value"].split()) in text


def test_the_figures_of_rent_or_own(owned: dict[str, Any]) -> None:
    drawn = pictures(body(own_answer(owned)))
    for title in ("Spent over time", "What the money is for", "What moves owning", "What a rented GPU-hour", "How many to own"):
        assert title in drawn
    for bar in owned["drivers"][:5]:
        assert bar["label"] in drawn


def test_the_bill_is_on_its_page(billed: dict[str, Any], read: Any) -> None:
    text = read(body(run_answer(billed))).text
    assert "My run" in text
    for line in billed["bill"]:
        assert line["item"] in text
    assert format_usd(billed["total_usd"]["expected"]) in text
    drawn = pictures(body(run_answer(billed)))
    assert "The bill" in drawn and "Power while training" in drawn and "Carbon" in drawn


@pytest.mark.thorough
def test_pages_and_figures_are_written(
    comparison: dict[str, Any], owned: dict[str, Any], billed: dict[str, Any], tmp_path: Path
) -> None:
    write_page(compare_answer(comparison), tmp_path / "c.html")
    write_pictures(compare_answer(comparison), tmp_path / "c.svg")
    write_page(own_answer(owned), tmp_path / "o.html")
    write_pictures(run_answer(billed), tmp_path / "b.svg")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.svg", "c.html", "c.svg", "o.html"]
    assert (tmp_path / "c.svg").read_text().startswith("<svg")


def test_a_wrong_target_is_refused(comparison: dict[str, Any], owned: dict[str, Any], tmp_path: Path) -> None:
    for call in (
        lambda: write_page(compare_answer(comparison), tmp_path / "c.svg"),
        lambda: write_pictures(compare_answer(comparison), tmp_path / "c.png"),
        lambda: write_page(own_answer(owned), tmp_path),
        lambda: write_pictures(own_answer(owned), tmp_path / "o.html"),
    ):
        with pytest.raises(InputError):
            call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "words"), [(0, "$0"), (12.5, "$12.50"), (-340e3, "-$340k"), (1.234e6, "$1.23M"), (2e9, "$2B"), (0.004, "$0.004")]
)
def test_dollars_are_short(value: float, words: str) -> None:
    assert dollars(value) == words
