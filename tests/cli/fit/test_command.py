from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.cli.answer_tables import speed_words


def test_no_comes_with_remedies(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("fit", "llama-3.1-8b", "--on", "4090")
    assert ran.code == 0 and ran.err == ""
    for part in (
        "does not fit",
        "too much",
        "What makes it fit",
        "One change at a time",
        "bigger GPU",
        "LoRA",
        "slower",
    ):
        assert part in ran.out


def test_yes_comes_with_what_still_fits(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("fit", "gpt2", "--on", "4090", "--seq", "1024")
    assert ran.code == 0
    assert "fits" in ran.out and "does not fit" not in ran.out
    assert "micro-batches up to" in ran.out


@pytest.mark.thorough
def test_a_way_that_barely_fits_is_said_once_with_its_chance(gpuwise: Callable[..., Any]) -> None:
    asked = ("fit", "qwen3-32b", "--on", "4090", "--qlora", "--stack", "compiled-fsdp", "--seq", "3072")
    ways = gpuwise(*asked, "--json").document["combinations"]
    assert len({str(way["strategy"]) for way in ways}) == len(ways)
    assert all(way["fit_probability"] < 0.9 for way in ways)
    out = gpuwise(*asked).out
    assert "What may make it fit" in out and "What makes it fit" not in out
    assert "* fits only because" in out


def test_json_has_the_verdict(gpuwise: Callable[..., Any]) -> None:
    document = gpuwise("fit", "gpt2", "--on", "4090", "--seq", "1024", "--json").document
    assert document["fits"] is True and document["headroom_bytes"] > 0
    assert document["largest_micro_batch"] >= 1


def test_the_way_of_training_is_held(gpuwise: Callable[..., Any]) -> None:
    document = gpuwise(
        "fit",
        "llama-3.1-8b",
        "--on",
        "8xA100-SXM-80GB",
        "--sharding",
        "zero3",
        "--micro-batch",
        "2",
        "--seq",
        "2048",
        "--json",
    ).document
    s = document["strategy"]
    assert (s["sharding"], s["micro_batch"], s["dp"]) == ("zero3", 2, 8)
    assert document["seq_len"] == 2048


def test_speeds_in_words() -> None:
    assert [speed_words(x) for x in (0.0, 0.12, -0.2, 1.5)] == [
        "same",
        "12 % slower",
        "25 % faster",
        "150 % slower",
    ]
