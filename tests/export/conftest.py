"""Plans at random that the layout rules of their stack allow, and real parsers of the tools, where they are installed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from gpuwise.errors import LayoutError
from gpuwise.export.job import Job
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.space.conditions import Setting
from gpuwise.plan.space.rules import check_strategy
from gpuwise.workload.adapters import DEFAULT_TARGETS
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import CUDA_GRAPHS, EXPERT_DISPATCHES, OPTIMIZERS, PRECISIONS, RECOMPUTES, Strategy

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "gpt3-175b",
    "gpt2",
    "qwen3-14b",
    "qwen3-30b-a3b",
    "mixtral-8x7b",
    "deepseek-v3",
    "deepseek-v2-lite",
    "llama-7b",
)
CLUSTERS = ("1xH100-SXM", "4xA100-80GB", "8xH100-SXM", "2x8xH100-SXM", "16x8xH200", "8x8xB200", "32x8xA100-80GB")
DEGREES = (1, 1, 1, 2, 4, 8, 16)


@cache
def _drawn(stack: str) -> tuple[list[Job], Iterator[Job]]:
    """The jobs of ``stack`` drawn so far in this process, and the source of more: a job takes some fifteen draws."""
    return [], _draw(stack)


def _jobs(stack: str, n: int) -> Iterator[Job]:
    """The first ``n`` jobs of ``stack``, all different, the same ones in every test."""
    drawn, more = _drawn(stack)
    for i in range(n):
        if i == len(drawn):
            drawn.append(next(more))
        yield drawn[i]


def _draw(stack: str) -> Iterator[Job]:
    """Different jobs of ``stack`` without end."""
    draw = random.Random(stack)
    rules = find_stack(stack).layout
    seen: set[Strategy] = set()
    archs, clusters = [find_model(m) for m in MODELS], [find_cluster(c) for c in CLUSTERS]
    while True:
        arch, cluster = draw.choice(archs), draw.choice(clusters)
        tp, pp, cp = (draw.choice(DEGREES) for _ in range(3))
        if cluster.n_accelerators % (tp * pp * cp):
            continue
        dp = cluster.n_accelerators // (tp * pp * cp)
        schedule = draw.choice(sorted(rules.schedules)) if pp > 1 else "1f1b"
        sharding = draw.choice(sorted(rules.shardings))
        lora_rank, half = draw.choice((0, 0, 0, 16)), draw.random() < 0.2
        strategy = Strategy(
            precision=draw.choice(PRECISIONS),
            micro_batch=draw.choice((1, 1, 2, 3, 4, 8)),
            accumulation=draw.choice((1, 2, 4, 8, 12, 32)),
            dp=dp,
            tp=tp,
            pp=pp,
            cp=cp,
            ep=draw.choice(DEGREES) if arch.moe is not None else 1,
            virtual_stages=draw.choice((2, 4)) if schedule == "interleaved" else 1,
            sequence_parallel=draw.random() < 0.8,
            schedule=schedule,
            context_parallel=draw.choice(sorted(rules.context) or ["ring"]),
            sharding=sharding,
            shard_group=draw.choice((0, 0, 0, 0, 2, 4, 8)) if sharding != "none" else 0,
            recompute=draw.choice(RECOMPUTES),
            recompute_every=draw.choice((1, 1, 1, 1, 1, 2)),
            optimizer=draw.choice((*OPTIMIZERS, "adamw", "adamw", "adamw", "adamw")),
            master_weights=not half,
            gradient_dtype="bf16" if half or draw.random() < 0.1 else "fp32",
            step_in_backward=draw.random() < 0.02,
            offload_optimizer=draw.random() < 0.1,
            offload_activations=draw.random() < 0.05,
            expert_dispatch=draw.choice(EXPERT_DISPATCHES),
            overlap_ep=draw.random() < 0.5,
            cuda_graphs=draw.choice(CUDA_GRAPHS),
            fused_attention=draw.random() < 0.95,
            fused_loss=draw.random() < 0.1,
            lora_rank=lora_rank,
            lora_targets=draw.choice((DEFAULT_TARGETS, ("attention",), ("mlp",), ("q_proj", "v_proj"))),
            quantized_base=bool(lora_rank) and draw.random() < 0.3,
            stack=stack,
        )
        by_zero3 = strategy.offload_optimizer and stack == "deepspeed" and (sharding == "zero3" or dp == 1)
        strategy = strategy.with_(offload_parameters=by_zero3 and not strategy.quantized_base)
        seq_len = min(draw.choice((1024, 4096, 8192)), arch.max_seq_len)
        try:
            check_strategy(Setting.of(arch, cluster, strategy, seq_len, strategy.global_batch), strategy)
        except LayoutError:
            continue
        if strategy not in seen:
            seen.add(strategy)
            yield Job(arch, cluster, strategy, seq_len, tokens=draw.choice((None, 1e9)), save_every_s=1800.0, step_time_s=7.0)


@pytest.fixture(scope="session")
def jobs() -> Callable[..., Iterator[Job]]:
    """``jobs(stack, n)``."""
    return _jobs


@pytest.fixture(scope="session")
def transformers_loads() -> None:
    """What transformers' Trainer imports is installed."""
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
