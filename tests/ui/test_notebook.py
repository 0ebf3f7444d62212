# pyright: reportMissingImports=false
"""Answers in a notebook look as the pages do, and touch nothing beside themselves."""

from __future__ import annotations

import pytest
from tests.ui.test_views import read

import gpuwise


@pytest.mark.parametrize(
    "answer",
    [
        lambda: gpuwise.make_plan("gpt2", "4xA100-80GB", gpuwise.Wishes(tokens=1e9)),
        lambda: gpuwise.make_plan("llama-3.1-405b", "4090"),
        lambda: gpuwise.fit("llama-3.1-8b", "4090"),
        lambda: gpuwise.capacity("llama-3.1-8b", "H100-SXM", users=5),
    ],
    ids=["plan", "nothing fits", "fit", "capacity"],
)
def test_an_answer_shows_itself(answer: object) -> None:
    made = answer()._repr_html_()  # type: ignore[operator]
    assert made.startswith('<div class="gpuwise"><style>.gpuwise{') and ":root" not in made
    reader = read(made)
    assert reader.active == ["style"] and "<script" not in made
    assert len(reader.numbers) > 5


def test_an_estimate_shows_its_interval() -> None:
    assert gpuwise.Estimate(1.0, 2.0, 3.0, "fitted")._repr_html_() == "2 <small>1 to 3, fitted</small>"
