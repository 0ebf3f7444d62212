"""What an engine was told when it was started, and what it takes where it was told nothing: by engine, version and device."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.serve.engine import EngineConfig, version_number
from gpuwise.units import GIB

NEWEST = {"vllm": "0.33.0", "sglang": "0.5.23", "trtllm": "1.2.0"}
"""The release whose files were read last."""
_LARGE, _HUGE = 70 * GIB, 160 * GIB
_NOT_LARGE = ("a100", "gb10")


@dataclass(frozen=True, slots=True)
class Settings:
    """An engine's own options, by the names of vLLM's; None: the engine's default on the device."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    memory_share: float | None = None
    """Of the device's memory (``gpu_memory_utilization``, ``mem_fraction_static``)."""
    chunked_prefill: bool = True
    prefix_caching: bool = True
    max_model_len: int | None = None
    kv_blocks: int | None = None
    """Blocks of the pool where they are known (``num_gpu_blocks_override``); None: from the device's memory."""
    graph_most: int = 512
    """Largest batch with a captured graph."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "block_size", "max_model_len", "kv_blocks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}", hint="it is at least 1")
        if self.memory_share is not None and not 0.0 < self.memory_share <= 1.0:
            raise InputError(f"memory_share is {self.memory_share:g}", hint="it is a share between 0 and 1")


@dataclass(frozen=True, slots=True)
class EngineRules:
    """An entry of ``engines.toml``: how an engine schedules and what it takes by default."""

    since: str
    source: str
    scheduler: str
    memory_share: float
    block_tokens: int
    graphs_in_budget: bool
    """Memory of captured graphs comes out of the share."""
    ahead: bool
    """The scheduler prepares a step while the device runs the one before."""
    large_tokens: int
    large_sequences: int
    small_tokens: int
    small_sequences: int
    huge_tokens: int = 0
    huge_sequences: int = 0


@cache
def _tables() -> dict[str, tuple[EngineRules, ...]]:
    text = files("gpuwise.serve.simulate").joinpath("engines.toml").read_text(encoding="utf-8")
    data: dict[str, list[dict[str, Any]]] = tomllib.loads(text)
    names = {f.name for f in fields(EngineRules)}
    return {e: tuple(EngineRules(**{k: v for k, v in row.items() if k in names}) for row in rows) for e, rows in data.items()}


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


def resolved(settings: Settings, config: EngineConfig, accelerator: Accelerator) -> Settings:
    """``settings`` with the defaults of the engine on the device filled in: a batch of tokens holds every sequence, and the whole
    of the longest prompt where prompts are not cut."""
    rules = engine_rules(config)
    name = accelerator.id.lower()
    memory = accelerator.memory_bytes
    if rules.huge_tokens and memory >= _HUGE:
        tokens, sequences = rules.huge_tokens, rules.huge_sequences
    elif memory >= _LARGE and not name.startswith(_NOT_LARGE):
        tokens, sequences = rules.large_tokens, rules.large_sequences
    else:
        tokens, sequences = rules.small_tokens, rules.small_sequences
    sequences = settings.max_num_seqs or sequences
    tokens = settings.max_num_batched_tokens or tokens
    if not settings.chunked_prefill and settings.max_model_len:
        tokens = max(tokens, settings.max_model_len)
    return replace(
        settings,
        max_num_batched_tokens=max(tokens, sequences) if settings.max_num_batched_tokens is None else tokens,
        max_num_seqs=min(sequences, tokens),
        block_size=settings.block_size or rules.block_tokens,
        memory_share=settings.memory_share or rules.memory_share,
    )
