"""Device memory of the key-value cache of a sequence, as serving engines hold it.

    bytes = sum over kinds of layers ( pages(kind) * layers(kind) * page )
    page  = p * 2 * ceil(K / t) * D * e      attention with K kv heads of D, on each of t tensor-parallel ranks
    page  = p * (R + rope) * e               latent attention: one vector of R + rope a token, whole on every rank

``p`` tokens of a page, ``e`` bytes of an element. A layer that sees every token keeps ``ceil(C / p)`` pages of a
sequence of ``C`` tokens; one with a window of ``w`` at most ``ceil((w + chunk) / p) + spare``: older pages are given
back; one with cross-attention the encoder's positions. A state-space layer keeps no tokens but one state (:func:`state_bytes`).

vLLM: pages of 16 tokens, ``max(1, K / t)`` heads a rank, a window need not begin where a page does, and layers of two
kinds are put in groups of equal size, the last padded, so that every page has the same bytes
(v1/kv_cache_interface.py AttentionSpec, MLAAttentionSpec, SlidingWindowSpec; v1/core/kv_cache_utils.py
_get_kv_cache_groups_uniform_page_size). llama.cpp: cells padded to 256, windows only in models that mix both kinds,
with room for one batch of 512 (src/llama-kv-cache-iswa.cpp; its Phi-3 and Mistral keep everything).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.kinds import attention_of, attention_sizes, block_counts, caching_layers

F64 = NDArray[np.float64]
ELEMENT_BYTES = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp32": 4.0,
    "fp8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
    "q8_0": 1.0625,
    "q5_1": 0.75,
    "q5_0": 0.6875,
    "q4_1": 0.625,
    "q4_0": 0.5625,
}
"""Bytes of an element with its scales: NVFP4 one E4M3 per 16; llama.cpp's one fp16 per 32, of ``_1`` a second for the least
(ggml/src/ggml-common.h)."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How an engine lays the cache out. ``tp`` tensor-parallel ranks share the kv heads, ``stages`` pipeline stages
    (llama.cpp: devices in turn) the layers."""

    dtype: str = "bf16"
    tp: int = 1
    stages: int = 1
    page_tokens: int = 16
    chunk_tokens: int = 0
    """Tokens a window layer keeps beyond its window, for those computed at once."""
    spare_pages: int = 1
    """Pages a window layer keeps because its window need not begin where a page does."""
    grouped: bool = True
    """Layers of two kinds in groups of equal size, padded to it."""
    window_everywhere: bool = True
    """Also in models whose every layer has the window."""

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_BYTES:
            raise UnknownNameError("cache format", self.dtype, ELEMENT_BYTES)
        if min(self.tp, self.stages, self.page_tokens) < 1 or min(self.chunk_tokens, self.spare_pages) < 0:
            raise InputError("a cache is laid out over at least one rank, stage and token a page")

    @property
    def unpadded(self) -> CacheLayout:
        """The same without pages or room to spare: what the attention of one new token reads."""
        return replace(self, page_tokens=1, chunk_tokens=0, spare_pages=0, grouped=False)


PAGED = CacheLayout()


class _Layers(NamedTuple):
    """Layers of one kind: how many, and the most tokens each keeps (None: all)."""

    n_layers: int
    most_tokens: int | None
    """A window, or the encoder's positions."""
    crossed: bool = False
    share: float = 1.0
    """Cache bytes of a token in such a layer, relative to the model's own sizes."""


def kv_cache_bytes(arch: Architecture, tokens: ArrayLike, layout: CacheLayout = PAGED) -> F64:
    """Bytes of the cache of one sequence of ``tokens`` tokens on the fullest rank, in the shape of ``tokens``; 0 for
    a model that does not generate.

    Raises InputError for a negative length.
    """
    states = np.where(np.asarray(tokens) > 0, state_bytes(arch, layout), 0.0)
    return kv_pages(arch, tokens, layout) * kv_page_bytes(arch, layout) + states


def state_bytes(arch: Architecture, layout: CacheLayout = PAGED) -> float:
    """Bytes of the states of one sequence, however long it is, over the tensor group."""
    return sum((-(-n // layout.stages) * block.state_bytes(arch, layout.tp) for block, n in block_counts(arch).items()), 0.0)


def kv_pages(arch: Architecture, tokens: ArrayLike, layout: CacheLayout = PAGED) -> F64:
    """Pages of one sequence of ``tokens`` tokens, of :func:`kv_page_bytes` each, in the shape of ``tokens``."""
    lengths = np.asarray(tokens, np.float64)
    if (lengths < 0).any():
        raise InputError("a sequence of a negative number of tokens")
    kinds = _kinds(arch, layout)
    size = _group_layers(kinds, layout)
    pages = np.zeros_like(lengths)
    for kind in kinds:
        groups = -(-kind.n_layers // size)
        pages = pages + groups * kind.share * _pages_of(kind, lengths, layout)
    return pages


def kv_page_bytes(arch: Architecture, layout: CacheLayout = PAGED) -> float:
    """Bytes of one page over all layers of a group: a pool of ``N`` bytes holds ``N // kv_page_bytes`` of them."""
    kinds = _kinds(arch, layout)
    token = attention_of(arch).cache_elements(arch, layout.tp) * ELEMENT_BYTES[layout.dtype]
    return _group_layers(kinds, layout) * layout.page_tokens * token


def kv_pool_tokens(arch: Architecture, pool_bytes: float, layout: CacheLayout = PAGED) -> float:
    """Tokens that fit in a pool of ``pool_bytes`` if every layer caches all of them (vLLM logs this as ``GPU KV cache size``);
    0 for a model that does not generate."""
    kinds = _kinds(arch, layout)
    groups = sum(-(-k.n_layers // _group_layers(kinds, layout)) * k.share for k in kinds)
    return pool_bytes // kv_page_bytes(arch, layout) * layout.page_tokens / groups if groups else 0.0


@lru_cache(256)
def _kinds(arch: Architecture, layout: CacheLayout) -> Sequence[_Layers]:
    """Kinds of layers of the fullest stage."""
    if arch.kind not in ("decoder", "encoder-decoder"):
        return []
    wide, *_ = attention_sizes(arch)
    own = attention_of(arch).cache_elements(arch, layout.tp)
    share = attention_of(wide).cache_elements(wide, layout.tp) / own if wide is not arch else 1.0
    whole, near = caching_layers(arch)
    window = arch.window
    if not attention_of(arch).shared_heads(arch) or not (whole or layout.window_everywhere):
        window = None
    if window is None and share == 1.0:
        whole, near = whole + near, 0
    kinds = [_Layers(whole, None, share=share), _Layers(near, window)]
    if arch.encoder is not None:
        kinds.append(_Layers(arch.n_layers, arch.encoder.seq_len, crossed=True))
    return [k._replace(n_layers=-(-k.n_layers // layout.stages)) for k in kinds if k.n_layers]


def _group_layers(kinds: Sequence[_Layers], layout: CacheLayout) -> int:
    """Layers of a group: the smallest number of any kind, or the largest if they are nearly equal, to keep padding small."""
    if not kinds or not layout.grouped:
        return 1
    least, most = min(k.n_layers for k in kinds), max(k.n_layers for k in kinds)
    return most if most < 1.25 * least else least


def _pages_of(kind: _Layers, tokens: F64, layout: CacheLayout) -> F64:
    p = float(layout.page_tokens)
    if kind.most_tokens is None:
        return np.ceil(tokens / p)
    if kind.crossed:
        return np.where(tokens > 0, np.ceil(kind.most_tokens / p), 0.0)
    most = np.ceil((kind.most_tokens + layout.chunk_tokens) / p) + layout.spare_pages
    return np.minimum(np.ceil(tokens / p), most)
