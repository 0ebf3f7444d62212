"""``fit`` and ``plan`` give one speed: that of a choice is the same in both, and what ``fit`` offers for adapters is not faster
than the plan of the same training."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.agreement.questions import Words, answer

from gpuwise.cli.called import Asked

MODELS = ("gpt2-xl", "llama-3.2-1b", "llama-3.2-3b", "qwen2.5-7b", "llama-3.1-8b", "gemma-2-9b", "qwen3-14b", "qwen3-32b")
CARDS = ("3060", "3090", "4090", "5090", "A10", "L4", "L40S", "A100-SXM-40GB", "A100-SXM-80GB", "H100-SXM")
SEEDS = [pytest.param(seed, marks=pytest.mark.thorough if seed < 4 else pytest.mark.slow) for seed in range(40)]
FASTER = 1.02
"""Ranking counts a layout in host memory, or one that is tight, as slower by this factor."""


def question(draw: random.Random) -> Words:
    task = draw.choice(["finetune", "finetune", "qlora", "full"])
    return draw.choice(MODELS), "--on", f"{draw.choice([1, 2, 2, 4, 8])}x{draw.choice(CARDS)}", "--for", task


def without_method(words: Words) -> Words:
    """The question without what it is for."""
    return words[:-2]


def method(strategy: Any) -> Words:
    """What trains the way of a strategy."""
    return ("--for", "qlora" if strategy["quantized_base"] else "finetune" if strategy["lora_rank"] else "full")


def layout(row: Any) -> Words:
    """Every option of a row's layout, so that nothing is left to search."""
    s = row["strategy"]
    sizes = ("tp", "pp", "cp", "dp", "micro_batch", "accumulation", "recompute", "sharding", "stack", "optimizer")
    words = [f"--{name.replace('_', '-')}={s[name]}" for name in sizes]
    words += [f"--{'' if s[name] else 'no-'}{name.replace('_', '-')}" for name in ("offload_optimizer", "offload_activations")]
    words += ["--offload-parameters"] * s["offload_parameters"] + ["--chunked-loss"] * s["fused_loss"]
    words += ["--half-weights"] * (not s["master_weights"] and not s["lora_rank"])
    words += [] if s["lora_rank"] else [f"--gradient-dtype={s['gradient_dtype']}"]
    return (*words, f"--global-batch={s['micro_batch'] * s['accumulation'] * s['dp']}", "--risk=0.99")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_way_that_fit_offers_is_as_fast_in_plan(seed: int) -> None:
    draw = random.Random(seed)
    words = question(draw)
    asked = answer(("fit", *words))
    if not isinstance(asked, Asked):
        return
    for row in asked["combinations"]:
        there = answer(("plan", *without_method(words), *method(row["strategy"]), *layout(row)))
        assert isinstance(there, Asked), (words, row["name"], there)
        assert there["best"] is not None, (words, row["name"], layout(row))
        assert there["best"]["tokens_per_s"] == row["tokens_per_s"], (words, row["name"], there["best"]["strategy"])


@pytest.mark.parametrize("seed", SEEDS)
def test_no_adapters_of_fit_are_faster_than_the_plan_of_them(seed: int) -> None:
    draw = random.Random(seed)
    words = question(draw)
    asked = answer(("fit", *words))
    if not isinstance(asked, Asked):
        return
    for row in asked["combinations"]:
        if row["strategy"]["lora_rank"] and row["fit_probability"] >= 0.9:
            planned = answer(("plan", *without_method(words), *method(row["strategy"])))
            assert isinstance(planned, Asked) and planned["best"] is not None, words
            fast = planned["best"]["tokens_per_s"]["expected"], row["tokens_per_s"]["expected"]
            assert fast[1] <= FASTER * fast[0], (words, row["name"], fast, planned["best"]["strategy"])
