"""Decode steps and prompts of models that nothing was fitted to, as an engine runs them (:mod:`fused_decoder`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clock import held, paced
from timing import Rows, attempt, captured, device, wall_s

Step = tuple[int, int, int]
"""Sequences, new tokens of each, tokens that the last of them sees."""
STEPS: dict[str, tuple[str, str, int | None, tuple[Step, ...]]] = {
    # item: model, weights, layers (None: all), steps in order of worth
    "qwen3-8b": (
        "qwen3-8b",
        "bf16",
        None,
        (
            (1, 2048, 2048),
            (16, 1, 1024),
            (1, 8192, 8192),
            (256, 1, 1024),
            (8, 1, 32768),
            (1, 512, 512),
            (1, 1, 1024),
            (64, 1, 1024),
            (32, 1, 8192),
            (1, 1, 32768),
        ),
    ),
    "qwen3-30b-a3b": (
        "qwen3-30b-a3b",
        "bf16",
        12,
        ((16, 1, 1024), (1, 1, 1024), (64, 1, 1024), (256, 1, 1024), (1, 2048, 2048)),
    ),
    "qwen3-8b fp8": ("qwen3-8b", "fp8", None, ((16, 1, 1024), (128, 1, 1024), (1, 2048, 2048), (1, 8192, 8192))),
    "gemma-2-2b": ("gemma-2-2b", "bf16", None, ((1, 1, 1024), (32, 1, 1024), (16, 1, 8192), (128, 1, 1024), (1, 2048, 2048))),
    "qwen2.5-1.5b": ("qwen2.5-1.5b", "bf16", None, ((1, 1, 1024), (64, 1, 1024), (256, 1, 1024), (32, 1, 8192), (4, 2048, 2048))),
}
PACED: Step = (1, 2048, 2048)
MIXED = ("qwen3-8b mixed", "qwen3-8b", (1, 2048, 2048), (64, 1, 1024), (4, 16))
"""Item, model, a prompt, a decode step, and how many of them follow each prompt."""
HELD_S = {True: 0.9, False: 0.35}
"""Seconds of a prompt, and of a decode step."""


def step_name(item: str, step: Step) -> str:
    sequences, q_len, kv_len = step
    return f"{item} {sequences} x {q_len} of {kv_len}"


def mixed_name(n: int) -> str:
    return f"{MIXED[0]} {n} steps a prompt"


def predict_steps(system: Any) -> dict[str, Any]:
    """Kernels, of them attention, the whole iteration with vLLM's own costs, and kernels with FlashAttention-2 for prompts; of
    experts a layer, as predicted of real text and of an even choice."""
    import numpy as np

    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.predict.kernels.experts.grouped import moe_layer_time
    from gpuwise.serve.engines.engine import EngineConfig
    from gpuwise.serve.engines.vllm import EXPERT_KERNELS
    from gpuwise.serve.iteration import iteration_time, one_iteration

    found: dict[str, Any] = {}
    for item, (model, weights, layers, steps) in STEPS.items():
        arch = find_model(model)
        arch = arch if layers is None else replace(arch, n_layers=layers)
        for step in steps:
            config = EngineConfig(weights=weights)
            made = one_iteration(arch, system, config, *step)
            whole = iteration_time(arch, system, config, *step)
            row = {"kernels_s": float(made.kernels_s[0]), "attention_s": float(made.attention_s[0])}
            row |= {"memory_s": float(made.memory_s[0]), "engine_s": whole.expected}
            if step[1] > 1:
                older = one_iteration(arch, system, replace(config, attention="fa2"), *step)
                row["kernels_fa2_s"] = float(older.kernels_s[0])
            if arch.moe is not None:
                moe = arch.moe
                for name in ("power_law", "balanced"):
                    layer = moe_layer_time(
                        system.accelerator,
                        weights,
                        np.array([float(step[0] * step[1])]),
                        arch.hidden,
                        moe.expert_ffn,
                        moe.n_active,
                        moe.n_experts,
                        distribution=name,
                        implementation=EXPERT_KERNELS[weights][0],
                    )
                    row[f"experts_{name}_s"] = float(layer.time_s[0])
            found[step_name(item, step)] = row
    _, model, prompt, decode, counts = MIXED
    arch = find_model(model)
    first = float(one_iteration(arch, system, EngineConfig(attention="fa2"), *prompt).kernels_s[0])
    each = float(one_iteration(arch, system, EngineConfig(), *decode).kernels_s[0])
    return found | {mixed_name(n): {"kernels_s": first + n * each} for n in counts}


def measure_steps(rows: Rows, item: str) -> None:
    """The steps of one model, each held for a while; prompts with clock and watts, one of them paced besides."""
    from fused_decoder import FusedDecoder, Shape

    from gpuwise.facts.models.catalogue import find_model

    model, weights, layers, steps = STEPS[item]
    shape = Shape.of(find_model(model))
    shape = shape if layers is None else replace(shape, n_layers=layers)
    if rows.tiny:
        small = {"hidden": 64, "ffn": 128, "n_layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 512}
        shape = replace(shape, **small, n_experts=min(shape.n_experts, 8), n_active=min(shape.n_active, 2))
    decoder = FusedDecoder(shape, device(), weights)

    def one(step: Step) -> dict[str, Any]:
        sequences, q_len, kv_len = (min(x, most) if rows.tiny else x for x, most in zip(step, (2, 32, 64), strict=True))
        run = captured(decoder.step(sequences, q_len, max(kv_len, q_len)))
        found = held(run, HELD_S[q_len > 1])
        found["awaited_s"] = wall_s(run, seconds=0.2)
        return found | (paced(run) if step == PACED and item == "qwen3-8b" else {})

    for step in steps:
        attempt(rows, step_name(item, step), lambda step=step: one(step))


def measure_mixed(rows: Rows) -> None:
    """Prompts with decode steps between them: whether the power limit sees their mean."""
    from fused_decoder import FusedDecoder, Shape

    from gpuwise.facts.models.catalogue import find_model

    _, model, prompt, decode, counts = MIXED
    shape = Shape.of(find_model(model))
    shape = replace(shape, hidden=64, ffn=128, n_layers=2, heads=4, kv_heads=2, head_dim=16, vocab=512) if rows.tiny else shape
    decoder = FusedDecoder(shape, device())
    first, each = (captured(decoder.step(*((2, min(step[1], 32), 64) if rows.tiny else step))) for step in (prompt, decode))

    def run(n: int) -> None:
        first()
        for _ in range(n):
            each()

    for n in counts:
        attempt(rows, mixed_name(n), lambda n=n: held(lambda: run(n), 1.5))


def check_kernels(rows: Rows) -> None:
    """How far the small kernels are from torch's arithmetic."""
    from fused_kernels import differences

    attempt(rows, "small kernels", lambda: differences(device()))
