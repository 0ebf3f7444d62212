"""Cross-attention of a decoder: its queries over the encoder's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.attention import projections
from gpuwise.workload.blocks.block import Block

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows


class CrossAttention(Block):
    """Decoder queries over the encoder's output; keys and values are projected from the encoder's tokens."""

    where = "cross"

    def parameters(self, arch: Architecture) -> dict[str, int]:
        return {"cross_attention": projections(arch, arch.hidden, arch.heads, arch.kv_heads, arch.head_dim)}

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        """Rows including the norm before it and the residual."""
        p, enc = rows.point, arch.encoder
        assert enc is not None
        heads = max(1, arch.heads // p.tp)
        rows.norm("cross.norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
        rows.enter("cross", arch.hidden)
        rows.linear("cross.q", p.tokens, arch.hidden, heads * arch.head_dim, bias=arch.qkv_bias)
        width = heads * arch.head_dim
        parts = (("k", width), ("v", width))
        rows.linear("cross.kv", p.micro_batch * enc.seq_len // p.cp, enc.hidden, 2 * width, bias=arch.qkv_bias, parts=parts)
        rows.attention_core("cross.core", heads, heads, arch.head_dim, arch.head_dim, causal=False, window=0, kv_len=enc.seq_len)
        rows.linear("cross.out", p.tokens, heads * arch.head_dim, arch.hidden, saves_input=not p.fused_attention)
        rows.leave("cross", arch.hidden)
        rows.residual("cross.residual", p.shard_tokens, arch.hidden)
