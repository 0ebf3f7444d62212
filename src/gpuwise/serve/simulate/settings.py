"""What an engine was told when it was started, and what it takes where it was told nothing: by engine, version and device."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.serve.engine import EngineConfig, version_number
from gpuwise.serve.simulate.adapters import Adapters
from gpuwise.serve.simulate.drafts import Drafts
from gpuwise.units import GIB, MIB

F64 = NDArray[np.float64]

NEWEST = {"vllm": "0.33.0", "sglang": "0.5.23", "trtllm": "1.2.0", "llama.cpp": "6918"}
"""The release whose files were read last."""
GROUP = 4
"""Ranks from which SGLang captures graphs of more sequences."""
_NOT_LARGE = ("a100", "gb10")
GREEDY, DRAWN, FILTERED = "greedy", "drawn", "filtered"
SAMPLING = (GREEDY, DRAWN, FILTERED)
"""The most probable token, one by its probability, or one of the most probable (``top_p``, ``top_k``)."""
SAMPLED_ON = 3.35e12
"""Bytes a second of the memory beside which samplers were timed: H100 SXM."""


@dataclass(frozen=True, slots=True)
class Settings:
    """An engine's own options, by the names of vLLM's; None: the engine's default on the device."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    memory_share: float | None = None
    """Of the device's memory (``gpu_memory_utilization``, ``mem_fraction_static``)."""
    chunked_prefill: bool | None = None
    """Whether prompts are cut to the tokens of a step, and ``prefix_caching`` whether their blocks are kept; None: the engine's
    default at its version."""
    prefix_caching: bool | None = None
    max_model_len: int | None = None
    kv_blocks: int | None = None
    """Blocks of the pool where they are known (``num_gpu_blocks_override``); None: from the device's memory."""
    graph_most: int | None = None
    """Largest batch with a captured graph."""
    graph_sizes: tuple[int, ...] | None = None
    """Batches with a graph, in order, where the engine was told which (``cuda_graph_config.batch_sizes``)."""
    scheduler: str | None = None
    """Of :data:`~gpuwise.serve.simulate.server.POLICIES`: another policy of the engine than its usual one."""
    max_output: int | None = None
    """Tokens of an answer that requests allow (``max_tokens``): what engines that reserve ahead reserve; None: as many as
    come."""

    batch_wait_timeout_iters: int = 0
    """Steps that TensorRT-LLM lets prompts wait for a step of ``batch_wait_max_tokens_ratio`` of its tokens."""
    batch_wait_max_tokens_ratio: float = 0.0
    drafts: Drafts | None = None
    """Speculative decoding; None: none."""
    adapters: Adapters | None = None
    """Low-rank adapters served beside the model; None: none."""
    sampling: str = FILTERED
    """How tokens are chosen: of :data:`SAMPLING`. Engines take what the model's ``generation_config.json`` says where a request
    says nothing, and that is ``top_p`` or ``top_k`` for most models that people talk to."""
    in_process: bool = False
    """A program calls the engine (vLLM's ``LLM.generate``), no server stands before it: to 0.7 vLLM's shared its process and
    slowed every step."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "block_size", "max_model_len", "kv_blocks", "max_output"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}", hint="it is at least 1")
        if self.sampling not in SAMPLING:
            raise InputError(f"sampling {self.sampling!r} is not one of " + ", ".join(SAMPLING))
        if self.memory_share is not None and not 0.0 < self.memory_share <= 1.0:
            raise InputError(f"memory_share is {self.memory_share:g}", hint="it is a share between 0 and 1")


@dataclass(frozen=True, slots=True)
class EngineRules:
    """An entry of ``engines.toml``: how an engine schedules and what it takes by default."""

    since: str
    source: str
    scheduler: str
    pool: str
    """What the cache gets: ``share`` of the device less all else; ``static``: a share less the weights; ``free``: a share of what
    is left beside all else."""
    block_tokens: int
    ahead: bool
    """The scheduler prepares a step while the device runs the one before."""
    tiers: tuple[Tier, ...]
    """By the device's memory, the smallest first."""
    memory_share: float | None = None
    """None: what its own reserve leaves."""
    graphs_in_budget: bool = True
    """Memory of captured graphs comes out of the share."""
    chunked: bool = True
    prefix_cache: bool = True
    chunk_beyond: int = 1 << 60
    """Prompts are cut where requests may be longer than this."""
    whole_context: bool = False
    """Where prompts are not cut, a step takes as many tokens as the longest request, if those are more."""
    watermark: float = 0.0
    """Share of blocks that stays free when a request is admitted."""
    fixed_whole: bool = True
    """Answers of a fixed length are reserved whole."""
    attends_all: bool = False
    """Windows of a model are ignored, as max_attention_window is the longest sequence by default (TensorRT-LLM 0.17
    docs/source/performance/performance-tuning-guide/useful-runtime-flags.md)."""
    windows: bool = False
    """Layers with a window give back the blocks behind it."""
    prompt_graphs: bool = True
    """Steps with prompts run captured graphs up to their largest size; False: the host launches every one of them."""
    graph_tokens: int | None = None
    """Tokens of the largest graph for each sequence at once, if those are fewer."""
    ahead_in_stages: bool = False
    """A batch more than pipeline stages is scheduled ahead."""
    drawn: tuple[float, float] = (0.0, 0.0)
    """Seconds of a step that draws its tokens by their probability, and of each logit in it, over a step that takes the most
    probable, on an H100; 0: within what a sequence costs."""
    filtered: tuple[float, float] = (0.0, 0.0)
    """The same of a step that draws from the most probable."""
    draft_host_s: tuple[float, float] = (0.0, 0.0)
    """Seconds that the scheduler waits for what was kept of a draft's guesses, of a step and of each sequence in it."""

    def sampling_s(self, sampling: str, logits: F64, memory_bytes_per_s: float) -> F64:
        """[N] seconds that choosing a token of each sequence takes in steps of so many ``logits`` [N], over taking the most
        probable: passes over memory."""
        fixed, each = {GREEDY: (0.0, 0.0), DRAWN: self.drawn, FILTERED: self.filtered}[sampling]
        return np.where(logits > 0, fixed + each * logits * (SAMPLED_ON / memory_bytes_per_s), 0.0)


@dataclass(frozen=True, slots=True)
class Tier:
    """Defaults on devices of at most ``gib`` of memory: tokens of a step, sequences at once, the largest batch with a graph, the
    same in a group of four or more."""

    gib: float
    tokens: int
    sequences: int
    graph_most: int
    group_graph_most: int
    a100: bool = True
    """Whether an A100 or GB10 may be of it; else it takes the tier before."""


@cache
def _tables() -> dict[str, tuple[EngineRules, ...]]:
    text = files("gpuwise.serve.simulate").joinpath("engines.toml").read_text(encoding="utf-8")
    data: dict[str, list[dict[str, Any]]] = tomllib.loads(text)
    return {e: tuple(map(_rules, accumulate(rows, _whole))) for e, rows in data.items()}


def _whole(before: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return row if "scheduler" in row else before | row


def _rules(entry: dict[str, Any]) -> EngineRules:
    row = dict(entry)
    tiers: list[list[Any]] = row.pop("tiers")
    samplers = {name: tuple(row.pop(name)) for name in ("drawn", "filtered", "draft_host_s") if name in row}
    return EngineRules(tiers=tuple(Tier(*t) for t in tiers), **samplers, **row)


def engine_rules(config: EngineConfig) -> EngineRules:
    """Rules of the engine at its version. Raises InputError for an engine or a version that is not simulated."""
    rows = _tables().get(config.engine)
    if rows is None:
        raise InputError(
            f"the scheduler of {config.engine} is not simulated", hint="simulated are " + ", ".join(sorted(_tables()))
        )
    version = version_number(config.version or NEWEST[config.engine])
    old_enough = [row for row in rows if version_number(row.since) <= version]
    if not old_enough:
        raise InputError(f"{config.engine} {config.version} is not simulated", hint=f"the oldest is {rows[0].since}")
    return old_enough[-1]


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
    graph = tier.group_graph_most if config.tp >= GROUP else tier.graph_most
    if rules.graph_tokens is not None:
        graph = min(graph, rules.graph_tokens * sequences)
    return replace(
        settings,
        max_num_batched_tokens=max(tokens, sequences) if settings.max_num_batched_tokens is None and not apart else tokens,
        max_num_seqs=sequences if apart else min(sequences, tokens),
        block_size=settings.block_size or rules.block_tokens,
        memory_share=settings.memory_share or rules.memory_share or _static_share(tokens, tier, config, accelerator),
        chunked_prefill=chunked,
        prefix_caching=rules.prefix_cache if settings.prefix_caching is None else settings.prefix_caching,
        graph_most=settings.graph_most or graph,
        scheduler=settings.scheduler or ("budget" if chunked and rules.scheduler == "prefill_first" else rules.scheduler),
    )


def _tier(rules: EngineRules, accelerator: Accelerator) -> Tier:
    """The first the device's memory is within, by what its maker calls it: an 80 GB device has 79 GiB."""
    weak = accelerator.id.lower().startswith(_NOT_LARGE)
    allowed = [t for t in rules.tiers if t.a100 or not weak]
    return next((t for t in allowed if accelerator.memory_bytes < t.gib * GIB), allowed[-1])


def _static_share(tokens: int, tier: Tier, config: EngineConfig, accelerator: Accelerator) -> float:
    """SGLang's share for weights and cache: what is left beside 0.5 GiB, 1.5 MiB a token of a step, an eighth of a GiB a rank and
    2 MiB a sequence of the largest graph, at least 10 GiB on devices above 60 (arg_groups/memory_hook.py)."""
    memory = accelerator.memory_bytes / MIB
    graphs = 2.0 * (tier.group_graph_most if config.tp >= GROUP else tier.graph_most)
    reserve = 512.0 + 1.5 * max(tokens, 2048) + 128.0 * config.tp + graphs
    if memory > 60 * 1024:
        reserve = max(reserve, 10 * 1024.0)
    return round((memory - reserve) / memory, 3)
