from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.units import speed_words


def test_no_comes_with_what_makes_it_fit(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("fit", "llama-3.1-8b", "--on", "4090", "--for", "train")
    assert ran.code == 1 and ran.err == ""
    assert ran.out.startswith(
        "Llama 3.1 8B does not fit on 1x RTX 4090 to train every weight, but does with\nfull recompute + Adafactor"
    )
    for part in ("170 GiB", "What makes it fit", "QLoRA", ">99 %", "Assumed", "More: "):
        assert part in ran.out
    last = " ".join(ran.out.splitlines()[-3:])
    assert "--optimizer adafactor" in last and "--lora" not in last  # the first line's change


def test_everything_has_each_change_and_other_gpus(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("fit", "llama-3.1-8b", "--on", "4090", "--for", "train", "--all")
    for part in ("Each change alone", "8-bit AdamW", "slower", "1x MI350X", "8x RTX 4090", "max_memory_allocated", "Alpaca"):
        assert part in ran.out


def test_a_part_is_shown_alone(gpuwise: Callable[..., Any]) -> None:
    out = gpuwise("fit", "llama-3.1-8b", "--on", "4090", "--gpus", "--memory").out
    assert "MI350X" in out and "gradients" in out and "does not fit" in out
    assert "8-bit AdamW" not in out and "Alpaca" not in out
    assert "Nothing of that here" in gpuwise("fit", "llama-3.1-8b", "--on", "4090", "--step").out


def test_yes_comes_with_what_still_fits(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("fit", "gpt2", "--on", "4090", "--seq", "1024")
    assert ran.code == 0
    assert "fits" in ran.out and "does not fit" not in ran.out
    assert "up to 8" in ran.out
    assert ran.out.splitlines()[-1].endswith("gpuwise plan gpt2 --on 4090 --seq 1024")


@pytest.mark.thorough
def test_a_way_that_barely_fits_is_shown_once_with_its_chance(gpuwise: Callable[..., Any]) -> None:
    asked = ("fit", "qwen3-32b", "--on", "4090", "--qlora", "--stack", "compiled-fsdp", "--seq", "3072")
    ways = gpuwise(*asked, "--json").document["combinations"]
    assert len({str(way["strategy"]) for way in ways}) == len(ways)
    assert all(way["fit_probability"] < 0.9 for way in ways)
    out = gpuwise(*asked).out
    assert "* fits because PyTorch gives cached memory back" in " ".join(out.split())


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
