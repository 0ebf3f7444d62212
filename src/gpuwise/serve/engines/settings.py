"""Options an engine is started with, and the rules and defaults of one of its releases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.facts.models.architecture import Architecture

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

GREEDY, DRAWN, FILTERED = "greedy", "drawn", "filtered"
SAMPLING = (GREEDY, DRAWN, FILTERED)
"""The most probable token, one by its probability, or one of the most probable (``top_p``, ``top_k``)."""
SAMPLED_ON = 3.35e12
"""Bytes a second of the memory beside which samplers were timed: H100 SXM."""
KEPT_ON_CODE = 0.78
"""Acceptance probability of each next draft token, for code from models with multi-token prediction heads: fitted on 96 rows
of six models of SemiAnalysis InferenceX, golden_al_distribution (Apache-2.0), 9 % off on them and 5 % on a seventh."""
USUAL_RANK, USUAL_RESIDENT = 16, 8
"""Rank of most published adapters (vLLM's ``max_lora_rank`` is 16), and the default number of adapters on the device."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks an engine has kernels for (vllm config/lora.py MaxLoRARanks)."""


EAGLE, EAGLE3, MTP, NGRAM = "eagle", "eagle3", "mtp", "ngram"
DRAFTERS = (EAGLE, EAGLE3, MTP, NGRAM)
"""What proposes tokens: a layer trained beside the model, the model's own multi-token prediction, or earlier text. Any other name
is that of a smaller model."""

NGRAM_MOST = 4
"""Tokens of earlier text that are looked up (examples of docs.vllm.ai, speculative decoding)."""


def kept_on_code(tokens: int) -> float:
    """Tokens a step of ``tokens`` guesses keeps, ``1 + a + .. + a^k``, on code. Other texts keep fewer."""
    return sum(KEPT_ON_CODE**j for j in range(tokens + 1))


@dataclass(frozen=True, slots=True)
class Drafts:
    """``tokens`` drafted per step, ``kept`` tokens per step on average including the model's own, ``share`` of a step's time
    per draft token (None: that of ``drafter``)."""

    tokens: int
    kept: float
    share: float | None = None
    drafter: str = ""
    """One of :data:`DRAFTERS` or a model's name; empty: multi-token prediction if the model has it, else EAGLE-3."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise InputError(f"{self.tokens} guessed tokens", hint="give at least one, or no drafts")
        if not 1.0 <= self.kept <= self.tokens + 1:
            raise InputError(
                f"{self.kept:g} tokens accepted per step of {self.tokens} guesses", hint=f"it is between 1 and {self.tokens + 1}"
            )
        if self.share is not None and self.share < 0:
            raise InputError(f"a guess takes {self.share:g} of a step", hint="it is at least 0")

    def drafter_of(self, arch: Architecture) -> str:
        """What proposes tokens for ``arch``. Raises InputError for multi-token prediction that it does not have."""
        if self.drafter == MTP and not arch.prediction_layers:
            raise InputError(f"{arch.name} has no multi-token prediction layers", hint=f"take {EAGLE3} or a smaller model's name")
        return self.drafter or (MTP if arch.prediction_layers else EAGLE3)


@dataclass(frozen=True, slots=True)
class Adapters:
    """``count`` adapters of ``rank``, used equally often; ``resident`` of them are on the device at once."""

    count: int
    rank: int = USUAL_RANK
    resident: int = 0
    """0: all, as far as eight."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"{self.count} adapters", hint="give at least one, or none at all")
        if self.rank not in RANKS:
            raise InputError(f"adapters of rank {self.rank}", hint="engines have kernels for " + ", ".join(map(str, RANKS)))
        if self.resident < 0 or self.resident > self.count:
            raise InputError(f"{self.resident} of {self.count} adapters on the device", hint="at most all of them")

    @property
    def at_once(self) -> int:
        """Adapters in one step at most."""
        return self.resident or min(self.count, USUAL_RESIDENT)

    def distinct(self, sequences: I64) -> F64:
        """[N] mean number of distinct adapters among that many sequences [N]."""
        return np.minimum(self.count * (1.0 - (1.0 - 1.0 / self.count) ** sequences), self.at_once)


@dataclass(frozen=True, slots=True)
class Settings:
    """An engine's own options, by the names of vLLM's; None: the engine's default on the device."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    memory_share: float | None = None
    """Share of the device's memory (``gpu_memory_utilization``, ``mem_fraction_static``)."""
    chunked_prefill: bool | None = None
    """Whether prompts are split into chunks of a step's tokens, and ``prefix_caching`` whether their blocks stay cached; None:
    the engine's default at its version."""
    prefix_caching: bool | None = None
    max_model_len: int | None = None
    kv_blocks: int | None = None
    """Blocks of the pool if known (``num_gpu_blocks_override``); None: from the device's memory."""
    graph_most: int | None = None
    """Largest batch with a captured graph."""
    graph_sizes: tuple[int, ...] | None = None
    """Batch sizes with a graph, in order, if the engine was configured with them (``cuda_graph_config.batch_sizes``)."""
    eager: bool = False
    """No graphs: the host launches every kernel (``enforce_eager``)."""
    scheduler: str | None = None
    """Scheduler from :data:`~gpuwise.serve.simulate.server.POLICIES`, if not the engine's default."""
    max_output: int | None = None
    """Maximum output tokens per request (``max_tokens``), which engines that reserve ahead reserve; None: the actual length."""

    batch_wait_timeout_iters: int = 0
    """Steps for which TensorRT-LLM holds prompts back to fill ``batch_wait_max_tokens_ratio`` of a step's tokens."""
    batch_wait_max_tokens_ratio: float = 0.0
    balance_timeout_iters: int = 0
    """Steps for which TensorRT-LLM holds the prompts of a group that attends apart back until every group has one
    (``attention_dp_config`` with ``enable_balance``)."""
    drafts: Drafts | None = None
    """Speculative decoding; None: none."""
    adapters: Adapters | None = None
    """Low-rank adapters served beside the model; None: none."""
    sampling: str = FILTERED
    """Sampling method, from :data:`SAMPLING`. By default engines use the model's ``generation_config.json``, which has
    ``top_p`` or ``top_k`` for most chat models."""
    in_process: bool = False
    """A program calls the engine (vLLM's ``LLM.generate``) without a server: up to 0.7, vLLM's server shared its process and
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
    """A release in an engine's TOML file: how it schedules and what it takes by default."""

    since: str
    source: str
    scheduler: str
    pool: str
    """Memory rule of the cache. ``share``: a share of the device less everything else; ``static``: a share less the weights;
    ``free``: a share of the memory left over."""
    block_tokens: int
    ahead: bool
    """The scheduler prepares a step while the device runs the one before."""
    tiers: tuple[Tier, ...]
    """Tiers by the device's memory, the smallest first."""
    memory_share: float | None = None
    """None: what its own reserve leaves."""
    prompts: int = 1
    """Read at once, where a step has rows of several."""
    logit_bytes: float | None = None
    """Bytes of the sampler's profiling run for each logit; None: as fitted."""
    graphs_in_budget: bool = True
    """Memory of captured graphs comes out of the share."""
    chunked: bool = True
    prefix_cache: bool = True
    chunk_beyond: int = 1 << 60
    """Prompts are cut where requests may be longer than this."""
    whole_context: bool = False
    """If prompts are not chunked, a step takes at least the tokens of the longest request."""
    watermark: float = 0.0
    """Share of blocks that stays free when a request is admitted."""
    fixed_whole: bool = True
    """Answers of a fixed length are reserved whole."""
    attends_all: bool = False
    """Windows of a model are ignored, as max_attention_window is the longest sequence by default (TensorRT-LLM 0.17
    docs/source/performance/performance-tuning-guide/useful-runtime-flags.md)."""
    windows: bool = False
    """Layers with a sliding window free the blocks behind it."""
    prompt_graphs: bool = True
    """Steps with prompts run captured graphs up to their largest size; False: the host launches every one of them."""
    chunk_graphs: bool = False
    """Prompts have graphs of their own up to a step's tokens, if started as ``releases.prompt_graph_most`` says."""
    graph_tokens: int | None = None
    """Tokens of the largest graph for each sequence at once, if those are fewer."""
    ahead_in_stages: bool = False
    """A batch more than pipeline stages is scheduled ahead."""
    drawn: tuple[float, float] = (0.0, 0.0)
    """Seconds of a step that draws its tokens by their probability, and of each logit in it, over a step that takes the most
    probable, on an H100; 0: within what a sequence costs."""
    filtered: tuple[float, float] = (0.0, 0.0)
    """The same of a step that draws from the most probable."""
    greedy_client: bool = False
    """The engine's own load test asks for the most probable token."""
    host_sequence_s: float = 0.0
    """Scheduler seconds of each sequence of a step beyond the fitted costs."""
    draft_host_s: tuple[float, float] = (0.0, 0.0)
    """Scheduler seconds spent waiting for the accepted draft tokens, per step and per sequence."""

    def sampling_s(self, sampling: str, logits: F64, memory_bytes_per_s: float) -> F64:
        """[N] seconds for sampling one token per sequence in steps of ``logits`` [N], relative to greedy: passes over memory."""
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
