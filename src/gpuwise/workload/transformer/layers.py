"""Whole layers, composed of blocks with their norms and residuals, and the end of the model with its prediction blocks."""

from __future__ import annotations

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks import ends
from gpuwise.workload.blocks.experts import Experts
from gpuwise.workload.blocks.kinds import arch_of_layer, blocks_of_layer, blocks_of_letter, is_plain
from gpuwise.workload.blocks.mlp import Mlp
from gpuwise.workload.blocks.prediction import prediction
from gpuwise.workload.blocks.rows import Rows


def layer(rows: Rows, arch: Architecture, kind: str) -> None:
    """One layer of ``kind``: a word of the model's pattern, or ``dense`` or ``moe``, with suffix ``.local`` for windowed
    attention."""
    if not is_plain(kind):
        for letter in kind:
            _letter(rows, arch, letter)
        return
    p, blocks, arch = rows.point, blocks_of_layer(arch, kind), arch_of_layer(arch, kind)
    at = next(i for i, block in enumerate(blocks) if isinstance(block, (Mlp, Experts)))
    (attention, *others), feed_forward, last = blocks[:at], blocks[at], blocks[at + 1 :]
    rows.norm("attention.norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    attention.fused_rows(rows, arch)
    if arch.norms_per_layer == 4:
        rows.norm("attention.post_norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    if not arch.parallel_block:
        rows.residual("attention.residual", p.shard_tokens, arch.hidden)
    for block in others:
        block.fused_rows(rows, arch)
    if not arch.parallel_block or arch.norms_per_layer >= 2:
        rows.norm("mlp.norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    feed_forward.fused_rows(rows, arch)
    if arch.norms_per_layer == 4:
        rows.norm("mlp.post_norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    rows.residual("mlp.residual", p.shard_tokens, arch.hidden)
    for block in last:
        block.fused_rows(rows, arch)


def _letter(rows: Rows, arch: Architecture, letter: str) -> None:
    """The blocks of a letter with their norm and residual."""
    p, blocks = rows.point, blocks_of_letter(arch, letter)
    where = blocks[0].where
    rows.norm(f"{where}.pre_norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    for block in blocks:
        block.fused_rows(rows, arch)
    for block in blocks[1:]:
        rows.residual(f"{block.where}.sum", p.shard_tokens, arch.hidden)
    rows.residual(f"{where}.residual", p.shard_tokens, arch.hidden)


def head(rows: Rows, arch: Architecture) -> None:
    """The last norm, output projection and loss, and the prediction blocks that the stack trains with it."""
    ends.head(rows, arch)
    if arch.patches is None and rows.point.stack.trains_prediction:
        for _ in range(arch.prediction_layers):
            prediction(rows, arch, lambda inner: layer(inner, arch, "dense" if arch.moe is None else "moe"))
