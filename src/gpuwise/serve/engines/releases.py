"""Releases of engines: their rules, and the options they take by default on a device."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.engines.engine import ENGINES, EngineConfig, version_number
from gpuwise.serve.engines.settings import FILTERED, GREEDY, EngineRules, Settings, Tier
from gpuwise.units import GIB
from gpuwise.workload.blocks.kinds import LATENT, block_counts

GROUP = 4
"""Ranks from which SGLang captures graphs of more sequences."""
_NOT_LARGE = ("a100", "gb10")


@cache
def _releases(engine: str) -> tuple[EngineRules, ...]:
    """Releases in the TOML file, the oldest first."""
    text = Path(__file__).with_name(f"{ENGINES[engine].like or engine}.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["releases"]
    return tuple(map(_rules, accumulate(rows, _whole)))


def _whole(before: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return row if "scheduler" in row else before | row


def _rules(entry: dict[str, Any]) -> EngineRules:
    row = dict(entry)
    tiers: list[list[Any]] = row.pop("tiers")
    samplers = {name: tuple(row.pop(name)) for name in ("drawn", "filtered", "draft_host_s") if name in row}
    return EngineRules(tiers=tuple(Tier(*t) for t in tiers), **samplers, **row)


def engine_rules(config: EngineConfig) -> EngineRules:
    """Rules of the engine at its version. Raises InputError for a version that is not simulated."""
    return _rules_at(config.engine, config.version)


@cache
def _rules_at(engine: str, version: str | None) -> EngineRules:
    program = ENGINES[engine]
    rows = _releases(engine) if program.rules is None else (program.rules,)
    number = version_number(version or program.newest)
    old_enough = [row for row in rows if version_number(row.since) <= number]
    if not old_enough:
        raise InputError(f"{engine} {version} is not simulated", hint=f"the oldest is {rows[0].since}")
    return old_enough[-1]


def client_sampling(config: EngineConfig) -> str:
    """Sampling of requests from the load test of the engine's release: greedy, or as most models' own settings say."""
    return GREEDY if engine_rules(config).greedy_client else FILTERED


def resolved(settings: Settings, config: EngineConfig, accelerator: Accelerator, context: int | None = None) -> Settings:
    """``settings`` with the defaults of the engine on the device filled in: a batch of tokens, of each group that attends apart,
    holds every sequence, and the whole of the longest prompt where prompts are not cut. ``context``: the longest request, where
    the settings do not say."""
    rules = engine_rules(config)
    tier = _tier(rules, accelerator)
    sequences = settings.max_num_seqs or tier.sequences
    tokens = settings.max_num_batched_tokens or tier.tokens
    longest = settings.max_model_len or context or 0
    chunked = settings.chunked_prefill
    if chunked is None:
        chunked = rules.chunked or longest > rules.chunk_beyond
    if not chunked and (settings.max_model_len or rules.whole_context):
        tokens = max(tokens, longest)
    apart = rules.scheduler == "radix"  # prompts have steps of their own
    if apart and settings.max_num_batched_tokens is None:  # groups that attend apart share them (arg_groups/parallel_hook.py:331)
        tokens = max(tokens // config.attention_dp, 1)
    graph = captured = tier.group_graph_most if config.tp >= GROUP else tier.graph_most
    if rules.graph_tokens is not None:
        graph = min(graph, rules.graph_tokens * sequences)
    return replace(
        settings,
        max_num_batched_tokens=max(tokens, sequences) if settings.max_num_batched_tokens is None and not apart else tokens,
        max_num_seqs=sequences if apart else min(sequences, tokens),
        block_size=settings.block_size or rules.block_tokens,
        memory_share=settings.memory_share
        or rules.memory_share
        or config.program.static_share(accelerator, tokens, captured, config.tp),
        chunked_prefill=chunked,
        prefix_caching=rules.prefix_cache if settings.prefix_caching is None else settings.prefix_caching,
        graph_most=settings.graph_most or graph,
        scheduler=settings.scheduler or ("budget" if chunked and rules.scheduler == "prefill_first" else rules.scheduler),
    )


LATENT_GRAPH_TOKENS = 2048
"""Largest graph of a prompt's step with latent attention (sglang docs/advanced_features/piecewise_cuda_graph.md)."""


def prompt_graph_most(arch: Architecture, accelerator: Accelerator, config: EngineConfig, options: Settings) -> int:
    """Tokens of the largest graph of a step with a prompt, beside those of decode steps; 0: none of its own. SGLang has none on
    other vendors' devices, nor for drafts, adapters, attention apart, pipeline stages and experts exchanged between ranks (the
    same document)."""
    apart = config.attention_dp > 1 or config.pp > 1 or config.moe_ep > 1
    if not engine_rules(config).chunk_graphs or accelerator.vendor != "NVIDIA" or apart or options.drafts or options.adapters:
        return 0
    most = options.max_num_batched_tokens or 0
    return min(most, LATENT_GRAPH_TOKENS) if LATENT in block_counts(arch) else most


def _tier(rules: EngineRules, accelerator: Accelerator) -> Tier:
    """The first the device's memory is within, by what its maker calls it: an 80 GB device has 79 GiB."""
    weak = accelerator.id.lower().startswith(_NOT_LARGE)
    allowed = [t for t in rules.tiers if t.a100 or not weak]
    return next((t for t in allowed if accelerator.memory_bytes < t.gib * GIB), allowed[-1])
