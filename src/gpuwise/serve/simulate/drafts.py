"""Speculative decoding: a draft proposes tokens, one step of the model verifies them all.

With ``k`` draft tokens and ``L`` tokens per step on average (its own included, between 1 and ``k + 1``), a token takes

    ((work((k + 1) n) + attention) + k d (fixed(n) + slope(n) S) + host(n)) / L

seconds for ``n`` sequences with ``S`` cached tokens: the products run over ``k + 1`` rows of each, the caches are read once,
and each draft token takes the share ``d`` of a step; ``host`` is the scheduler's time if it waits for the accepted tokens.
Drafts are slower if rows cost more than the accepted tokens save: at large batches, or with few accepted. Tokens arrive in
bursts of ``L``; here they are spread evenly. ``L`` differs by model and text (SemiAnalysis InferenceX, golden_al_distribution:
2.5 to 3.4 for three guesses on code).

A drafter has weights and a cache of its own (:func:`drafter_bytes`). Of Llama-3.1-8B with EAGLE on an H100, vLLM 0.9.1 logs 51.63
GiB of cache and 410,128 tokens (issue 19996): 33 layers cache a token, and the layer, with copies of embedding and head, takes
2.4 GiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.memory.kv_cache import PAGED, kv_page_bytes, kv_pool_tokens
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import DRAFTERS, EAGLE3, MTP, NGRAM, Drafts
from gpuwise.serve.formats import FORMATS, WIDE_BYTES, weight_bytes
from gpuwise.serve.simulate.kernel_steps import KernelSteps
from gpuwise.workload.transformer.parameters import count_parameters

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


EAGLE3_VOCAB = 32_000
"""Rows of EAGLE-3's own head (draft_vocab_size of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B config.json)."""


def drafter_bytes(arch: Architecture, config: EngineConfig, drafts: Drafts) -> tuple[float, float]:
    """Bytes of the drafter's weights on a rank, and of its cache for a token relative to the model's. Raises InputError and
    UnknownNameError."""
    kind = drafts.drafter_of(arch)
    if kind == NGRAM:
        return 0.0, 0.0
    if kind not in DRAFTERS:
        small, own = find_model(kind), replace(PAGED, tp=config.tp, dtype=config.kv_dtype)
        cached = [kv_page_bytes(a, own) / max(kv_pool_tokens(a, kv_page_bytes(a, own), own), 1.0) for a in (small, arch)]
        return weight_bytes(small, small.published_weights or "bf16") / config.tp, cached[0] / cached[1]
    table, layer = arch.vocab * arch.hidden, 1.0 / max(arch.n_attention_layers, 1)
    if kind == MTP:
        block, moe = count_parameters(arch).prediction / arch.prediction_layers, arch.moe
        experts = 0 if moe is None else 3 * moe.n_experts * (moe.latent or arch.hidden) * moe.expert_ffn
        narrow = FORMATS[config.expert_weights or config.weights].bytes_per_weight
        weights = (block - experts) * FORMATS[config.weights].bytes_per_weight / config.tp
        weights += experts * narrow / (config.moe_tp * config.moe_ep)
        return weights + 2 * WIDE_BYTES * table / config.tp, layer
    wide, attends = (3, 2) if kind == EAGLE3 else (2, 1)  # states joined before the layer, and in its attention
    inner = arch.heads * arch.head_dim
    attention = attends * arch.hidden * (inner + 2 * arch.kv_heads * arch.head_dim) + inner * arch.hidden
    head = min(arch.vocab, EAGLE3_VOCAB) * arch.hidden if kind == EAGLE3 else table
    numbers = wide * arch.hidden**2 + attention + 3 * arch.hidden * arch.ffn + table + head
    return WIDE_BYTES * numbers / config.tp, layer


def draft_share(arch: Architecture, drafts: Drafts) -> float:
    """Share of a step's time for a guess, by the weights it reads: those of one layer and the head, or of a smaller model."""
    kind, count = drafts.drafter_of(arch), count_parameters(arch)
    if drafts.share is not None or kind == NGRAM:
        return drafts.share or 0.0
    if kind not in DRAFTERS:
        return count_parameters(find_model(kind)).active / count.active
    head = arch.vocab * arch.hidden
    part = head / max(count.total - head, head)
    return part + (1.0 - part) / arch.n_layers


class DraftSteps:
    """:class:`~gpuwise.serve.simulate.step_time.StepTime` of a token under speculative decoding, from that of plain steps."""

    def __init__(self, plain: KernelSteps, drafts: Drafts, arch: Architecture, host_s: tuple[float, float] = (0.0, 0.0)) -> None:
        """``host_s`` of a step and of each sequence in it, which no kernel hides."""
        self.plain, self.tables = plain, plain.tables
        share = draft_share(arch, drafts)
        k, n_kept = drafts.tokens, drafts.kept
        wide, alone = (plain.products(width) for width in (k + 1, 1))
        fixed, slope = np.array(plain.fixed, np.float64), np.array(plain.slope, np.float64)
        host = host_s[0] + host_s[1] * np.arange(len(fixed))
        self._added: F64 = (fixed + (wide - alone) + k * share * fixed + host) / n_kept - fixed
        self._steeper: F64 = slope * (1.0 + k * share) / n_kept - slope
        self.fixed: Sequence[float] = (fixed + self._added).tolist()
        self.slope: Sequence[float] = (slope + self._steeper).tolist()
        self.host: Sequence[float] = (np.array(plain.host) / n_kept).tolist()

    def mixed(self, decoding: int, cached_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step with the prompt chunks ``(new tokens, tokens before them)``."""
        seconds = self.plain.mixed(decoding, cached_tokens, chunks)
        if not decoding:
            return seconds
        return seconds + float(self._added[decoding]) + float(self._steeper[decoding]) * cached_tokens

    def parts(self, decoding: I64, prompt_tokens: I64, cached_tokens: I64, n_steps: I64, total_s: F64) -> dict[str, float]:
        """Parts of plain steps, scaled to the total time."""
        parts_s = self.plain.parts(decoding, prompt_tokens, cached_tokens, n_steps, total_s)
        factor = float(total_s.sum()) / max(sum(parts_s.values()), 1e-300)
        return {name: seconds * factor for name, seconds in parts_s.items()}
