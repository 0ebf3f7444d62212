"""Selection of the blocks of a layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.attention import Attention
from gpuwise.workload.blocks.block import Block
from gpuwise.workload.blocks.cross_attention import CrossAttention
from gpuwise.workload.blocks.experts import Experts
from gpuwise.workload.blocks.latent_attention import LatentAttention
from gpuwise.workload.blocks.linear_attention import GatedDelta
from gpuwise.workload.blocks.mlp import Mlp
from gpuwise.workload.blocks.per_layer_input import PerLayerInput
from gpuwise.workload.blocks.short_conv import ShortConvolution
from gpuwise.workload.blocks.state_space import StateSpace

ATTENTION, WINDOWED = Attention(), Attention(windowed=True)
BORROWING, BORROWING_WINDOWED = Attention(borrows=True), Attention(windowed=True, borrows=True)
LATENT, LATENT_WINDOWED = LatentAttention(), LatentAttention(windowed=True)
CROSS, MLP, EXPERTS, STATE_SPACE, LINEAR = CrossAttention(), Mlp(), Experts(), StateSpace(), GatedDelta()
PER_LAYER, SHORT_CONV = PerLayerInput(), ShortConvolution()

KINDS: tuple[Block, ...] = (ATTENTION, LATENT, CROSS, MLP, EXPERTS, STATE_SPACE, LINEAR, PER_LAYER, SHORT_CONV)
"""One block of each kind."""
REPEATED_APART = tuple(block for block in KINDS if block.repeated)


def attention_of(arch: Architecture, *, windowed: bool = False, borrows: bool = False) -> Attention:
    """The attention of a plain transformer's layer; ``borrows``: on the keys and values of an earlier layer."""
    if arch.mla is not None:
        return LATENT_WINDOWED if windowed else LATENT
    if borrows:
        return BORROWING_WINDOWED if windowed else BORROWING
    return WINDOWED if windowed else ATTENTION


@lru_cache(maxsize=256)
def arch_of_layer(arch: Architecture, kind: str) -> Architecture:
    """``arch`` with the sizes of a layer of ``kind``: those of all its layers, but for models whose layers differ in size."""
    _, *how = kind.split(".")
    wide, shared = arch.global_attention, arch.shared_cache
    if not is_plain(kind) or (wide is None and shared is None):
        return arch
    if wide is not None and "local" not in how:
        sizes = {"heads": wide.heads, "kv_heads": wide.kv_heads, "head_dim": wide.head_dim}
        arch = replace(arch, **sizes, keys_are_values=wide.keys_are_values)
    if shared is not None and "shared" in how:
        arch = replace(arch, ffn=shared.ffn)
    return arch


def attention_sizes(arch: Architecture) -> tuple[Architecture, ...]:
    """``arch`` with the sizes of each kind of attention that it has: one, or of a model whose global layers differ two."""
    wide = arch_of_layer(arch, "dense")
    return (arch,) if wide is arch else (wide, arch)


def is_plain(kind: str) -> bool:
    """Whether layers of ``kind`` are those of a plain transformer (a pattern's prediction blocks too), not words of a pattern."""
    return kind.partition(".")[0] in ("dense", "moe")


def blocks_of_letter(arch: Architecture, letter: str) -> tuple[Block, ...]:
    """The blocks of a letter of :attr:`Architecture.pattern`; the outputs of several are summed."""
    attention = attention_of(arch)
    by_letter: dict[str, tuple[Block, ...]] = {
        "M": (STATE_SPACE,),
        "L": (LINEAR,),
        "C": (SHORT_CONV,),
        "*": (attention,),
        "P": (attention, STATE_SPACE),
        "-": (MLP,),
        "E": (EXPERTS,),
    }
    return by_letter[letter]


def blocks_of_layer(arch: Architecture, kind: str) -> tuple[Block, ...]:
    """Blocks of a layer of ``kind``: a word of the model's pattern, or ``dense`` or ``moe``, with suffix ``.local`` for windowed
    attention and ``.shared`` for the cache of another layer."""
    if not is_plain(kind):
        return tuple(block for letter in kind for block in blocks_of_letter(arch, letter))
    base, *how = kind.split(".")
    mixing = (
        attention_of(arch, windowed="local" in how, borrows="shared" in how),
        *((CROSS,) if arch.encoder is not None else ()),
    )
    feed_forward = EXPERTS if base == "moe" and arch.moe is not None else MLP
    return (*mixing, feed_forward, *((PER_LAYER,) if arch.per_layer_embedding else ()))


def layer_kinds(arch: Architecture) -> list[str]:
    """The kind of each layer from first to last: ``dense`` or ``moe``, with ``.local`` when its attention is windowed and
    ``.shared`` when it reads the cache of another; of a model with a pattern its sub-blocks, as ``M-``."""
    if arch.pattern:
        return list(arch.layer_blocks)
    kinds: list[str] = []
    for i in range(arch.n_layers):
        after = i - arch.moe.first_dense if arch.moe is not None else -1
        moe = arch.moe is not None and after >= 0 and after % arch.moe.every == arch.moe.every - 1
        is_global = arch.window is None or (arch.global_every is not None and (i + 1) % arch.global_every == 0)
        shared = arch.shared_cache is not None and i >= arch.n_layers - arch.shared_cache.layers
        kinds.append(("moe" if moe else "dense") + ("" if is_global else ".local") + (".shared" if shared else ""))
    return kinds


@lru_cache(maxsize=64)
def leading_layers(arch: Architecture) -> int:
    """Dense layers before the first layer with experts, where no later layer is dense; otherwise 0."""
    if arch.moe is None or not arch.moe.first_dense:
        return 0
    kinds, lead = layer_kinds(arch), arch.moe.first_dense
    return lead if set(kinds[:lead]) == {"dense"} and "dense" not in kinds[lead:] else 0


@lru_cache(maxsize=64)
def caching_layers(arch: Architecture) -> tuple[int, int]:
    """Layers of the main stack with keys and values of their own: those that see the whole context, and those with a window."""
    if arch.shared_cache is None:
        return arch.n_global_layers, arch.n_attention_layers - arch.n_global_layers
    own = [kind for kind in layer_kinds(arch) if "shared" not in kind.split(".")]
    near = sum("local" in kind.split(".") for kind in own)
    return len(own) - near, near


@lru_cache(maxsize=64)
def block_counts(arch: Architecture) -> Mapping[Block, int]:
    """How many layers of the main stack have each block."""
    counts: Counter[Block] = Counter()
    for kind, n in Counter(layer_kinds(arch)).items():
        for block in blocks_of_layer(arch, kind):
            counts[block] += n
    return counts
