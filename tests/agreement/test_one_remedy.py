"""What ``fit`` says of a change is what it says when the change is asked for, on whatever stack that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Ask = Callable[..., Any]
SAME = ("step_time_s", "tokens_per_s", "memory_bytes", "fit_probability")
PAIRS = [
    pytest.param("qwen3-8b", ("4090",), marks=pytest.mark.thorough),
    pytest.param("qwen3-4b", ("mi300x", "--precision=fp32", "--micro-batch=2"), marks=pytest.mark.thorough),
    ("llama-3.1-70b", ("8xH100-SXM", "--lora")),
    *(
        pytest.param(model, (on,), marks=pytest.mark.slow)
        for model, on in (
            ("llama-3.2-1b", "rtx 3060"),
            ("gpt2-xl", "4090"),
            ("llama-3.1-8b", "8xH100-SXM"),
            ("qwen3-32b", "2x4090"),
            ("mixtral-8x7b", "8xA100-SXM-80GB"),
        )
    ),
]
SWITCHES = ("offload_optimizer", "offload_parameters", "offload_activations", "step_in_backward")


def options(name: str, before: Any, after: Any) -> list[str]:
    """The options of ``fit`` that lead from one strategy to another; the stack where the remedy's name gives one."""
    words = [f"--stack={after['stack']}"] if f"(stack {after['stack']})" in name else []
    for field in ("precision", "tp", "pp", "cp", "ep", "micro_batch", "sharding", "recompute", "recompute_every", "optimizer"):
        left_open = (field == "recompute" and after["quantized_base"]) or (field == "sharding" and after["dp"] > 1)
        if after[field] != before[field] or left_open:
            words.append(f"--{field.replace('_', '-')}={after[field]}")
    adapters = after["lora_rank"] and not before["lora_rank"]
    if after["quantized_base"] and not before["quantized_base"]:
        words.append("--qlora")
    elif adapters:
        words.append("--lora")
    elif before["master_weights"] and not after["master_weights"] and not after["lora_rank"]:
        words.append("--half-weights")
    elif after["gradient_dtype"] != before["gradient_dtype"] and not after["lora_rank"]:
        words += ["--gradient-dtype", after["gradient_dtype"]]
    words += ["--chunked-loss"] if after["fused_loss"] and not before["fused_loss"] else []
    return words + [f"--{name.replace('_', '-')}" for name in SWITCHES if after[name] and not before[name]]


@pytest.mark.parametrize(("model", "asked"), PAIRS, ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_remedies_are_what_asking_for_them_gives(ask: Ask, model: str, asked: tuple[str, ...]) -> None:
    fit = ask("fit", model, "--for", "train", "--on", *asked)
    told = [*fit["remedies"], *fit["combinations"]]
    assert told
    for remedy in told:
        assert remedy["name"] != "as asked"
        words = options(remedy["name"], fit["strategy"], remedy["strategy"])
        replaced = {word.partition("=")[0] for word in words} | ({"--lora"} if "--qlora" in words else set())
        again = ask("fit", model, "--for", "train", "--on", *(a for a in asked if a.partition("=")[0] not in replaced), *words)
        assert {k: again[k] for k in SAME} == {k: remedy[k] for k in SAME}, (remedy["name"], words)
