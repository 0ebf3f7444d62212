"""``models --on``: which models run on a device, in which format, how fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.ui.test_views import at

from gpuwise.cli.answer import LINES, text
from gpuwise.facts.models.catalogue import find_model
from gpuwise.report.answers.answer import shows
from gpuwise.report.answers.models import models_answer
from gpuwise.serve.load.targets import READING_S
from gpuwise.serve.local_models import LONG


@pytest.mark.parametrize("on", ["RTX 3060", "4090", "M3 Max 64GB", "Ryzen 7 5700G 32GB", "2x3090"])
def test_the_largest_that_are_fast_enough_come_first(on: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("models", "--on", on, "--json")
    assert ran.code == 0
    models = ran.document["models"]
    whole = [m for m in models if m["group"] == "whole" and find_model(m["id"]).max_seq_len >= LONG]
    sizes = [m["parameters"] * m["active_parameters"] for m in whole]
    assert sizes and sizes == sorted(sizes, reverse=True)
    for m in models:
        fast = m["tokens_per_s"]["expected"] * READING_S >= 1
        assert fast == (m["group"] != "slow") and m["license"] and m["longest_context"] >= 8192
        assert m["loss"] in ("none", "very small", "small", "as published")
        assert (m["host_bytes"] > 0) == (m["group"] == "part") or m["group"] == "slow"
    answer = models_answer(ran.document)
    lines = text(answer).splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= 80
    assert lines[-1].endswith("--for run")
    for place in shows(answer):
        assert place.value is None or place.value == at(ran.document, place.pointer), place.pointer


def test_each_is_what_fit_says(gpuwise: Callable[..., Any]) -> None:
    for m in gpuwise("models", "qwen3", "--on", "3060", "--json").document["models"]:
        asked = ("fit", m["id"], "--on", "3060", "--for", "run", "--weights", m["weights"], "--json")
        fit = gpuwise(*asked).document
        if m["group"] == "whole":
            assert fit["fits"] and fit["longest_context"] == m["longest_context"]
            assert fit["formats"][0]["tokens_per_s"] == m["tokens_per_s"]
        elif m["host_bytes"]:
            assert fit["offload"]["tokens_per_s"] == m["tokens_per_s"]


def test_words_and_context_choose_models(gpuwise: Callable[..., Any]) -> None:
    some = gpuwise("models", "gemma", "--on", "4090", "--json").document["models"]
    assert some and all("gemma" in m["id"] for m in some)
    far = gpuwise("models", "--on", "4090", "--context", "128k", "--json").document["models"]
    assert far and all(m["longest_context"] >= 131072 for m in far if m["group"] == "whole")


@pytest.mark.parametrize("words", [("--context", "8k"), ("--ram", "64GB"), ("--on", "no-such-card")])
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...], gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("models", *words)
    assert ran.code == 2 and "hint: " in ran.err and ran.out == ""
