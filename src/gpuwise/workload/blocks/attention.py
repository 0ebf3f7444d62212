"""Attention with grouped queries, on all tokens or in a window: projections, positions, core and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.block import Block
from gpuwise.workload.row_codes import BWD, FWD

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows

EAGER_ROPE_KERNELS = 10
"""two rotations of slice, neg, cat, mul, mul, add (transformers apply_rotary_pos_emb)."""


class Attention(Block):
    """Self-attention; ``windowed`` where it sees the model's window alone."""

    where = "attention"
    token_launches = 11
    divided_as = "heads"
    after_norm = ("attention.qkv",)

    def __init__(self, *, windowed: bool = False, borrows: bool = False) -> None:
        """``borrows``: it has queries alone, and the keys and values of an earlier layer."""
        self.windowed, self.borrows = windowed, borrows

    def window(self, arch: Architecture) -> int:
        """Tokens a query sees; 0: all."""
        return (arch.window or 0) if self.windowed else 0

    def parameters(self, arch: Architecture) -> dict[str, int]:
        gate = arch.heads * arch.head_dim * (arch.hidden + int(arch.qkv_bias)) if arch.attention_output_gate else 0
        kv_heads = 0 if self.borrows else arch.kv_heads
        return {"attention": projections(arch, arch.hidden, arch.heads, kv_heads, arch.head_dim) + gate}

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        h, out, kv = arch.hidden, arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
        q = out * _query_widths(arch)
        if arch.fused_projections:
            return [("qkv", h, q + 2 * kv), ("out", out, h)]
        made = () if self.borrows else ("k",) if arch.keys_are_values else ("k", "v")
        return [("q", h, q), *((name, h, kv) for name in made), ("out", out, h)]

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        p = rows.point
        causal = arch.kind in ("decoder", "encoder-decoder")
        rows.enter("attention", arch.hidden)
        heads, kv_heads, head_dim, v_dim = self.projected(rows, arch)
        _context_exchange(rows, "attention", heads, kv_heads, head_dim, v_dim)
        window = self.window(arch)
        rows.attention_core("attention.core", heads, kv_heads, head_dim, v_dim, causal=causal, window=window)
        gated = arch.attention_output_gate
        if gated:
            _output_gate(rows, float(p.tokens * heads * v_dim))
        saves_input = gated or not p.fused_attention
        rows.linear("attention.out", p.tokens, heads * v_dim, arch.hidden, saves_input=saves_input, bias=arch.attention_out_bias)
        rows.leave("attention", arch.hidden)

    def projected(self, rows: Rows, arch: Architecture) -> tuple[int, int, int, int]:
        """Rows of the projections of queries, keys and values; returns this rank's heads, kv heads, head dim and v head dim."""
        p = rows.point
        heads, kv_heads, head_dim = max(1, arch.heads // p.tp), max(1, arch.kv_heads // p.tp), arch.head_dim
        parts = _qkv_parts(arch, heads, 0 if self.borrows else kv_heads)
        rows.linear(
            "attention.qkv",
            p.tokens,
            arch.hidden,
            sum(width for _, width in parts),
            bias=arch.qkv_bias,
            saved_tokens=p.column_tokens,
            parts=parts,
        )
        turned = heads + (0 if self.borrows else kv_heads)
        if arch.qk_norm:
            rows.norm("attention.qk_norm", p.tokens * turned, head_dim, kind=arch.norm, fp32=arch.norm_in_fp32)
        if arch.position == "rope":
            rope(rows, turned * head_dim)
        return heads, kv_heads, head_dim, head_dim

    def shared_heads(self, arch: Architecture) -> int:
        """Heads of keys and values that tensor ranks divide, or that divide them; 0: every rank has what there is."""
        return arch.kv_heads

    def trained_parts(self, arch: Architecture) -> tuple[int, ...]:
        return (arch.heads,)

    def cache_elements(self, arch: Architecture, tp: int) -> float:
        return 0.0 if self.borrows else 2.0 * -(-arch.kv_heads // tp) * arch.head_dim


def projections(arch: Architecture, hidden: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Projections of one attention with their biases, query-key norms and sinks; ``kv_heads`` 0: queries alone."""
    q, kv = heads * head_dim, kv_heads * head_dim
    total = hidden * (q + (1 if arch.keys_are_values else 2) * kv) + q * hidden
    if arch.qkv_bias:
        total += q + kv * (2 if arch.key_bias else 1)
    if arch.attention_out_bias:
        total += hidden
    if arch.qk_norm and arch.qk_norm_weights:
        total += q + kv if arch.qk_norm_full else head_dim * (2 if kv else 1)
    if arch.attention_sinks:
        total += heads
    return total


def _query_widths(arch: Architecture) -> int:
    """Widths of the queries that their projection makes: the output gate is the second one."""
    return 2 if arch.attention_output_gate else 1


def _output_gate(rows: Rows, elements: float) -> None:
    """Attention's result times the sigmoid of the gate, which is saved (transformers modeling_qwen3_next.py). A fused core
    saves its own result; otherwise it is saved here."""
    kept = elements if rows.point.fused_attention else 2 * elements
    rows.memory("attention.gate", 2 * elements, elements, saved=kept, backward_read=3 * elements, backward_written=2 * elements)


def _qkv_parts(arch: Architecture, heads: int, kv_heads: int) -> tuple[tuple[str, int], ...]:
    q, kv = heads * arch.head_dim * _query_widths(arch), kv_heads * arch.head_dim
    if arch.fused_projections:
        return (("qkv", q + 2 * kv),)
    made = () if not kv else ("k",) if arch.keys_are_values else ("k", "v")
    return (("q", q), *((name, kv) for name in made))


def rope(rows: Rows, width: int) -> None:
    elements = float(rows.point.tokens * width)
    if rows.point.stack.fused_rope:
        rows.memory("attention.rope", elements, elements, backward_read=elements, backward_written=elements)
    else:
        rows.memory(
            "attention.rope",
            elements,
            elements,
            n_kernels=EAGER_ROPE_KERNELS,
            passes=3.0,
            backward_read=elements,
            backward_written=elements,
        )


def _context_exchange(rows: Rows, where: str, heads: int, kv_heads: int, head_dim: int, v_head_dim: int) -> None:
    """Ring attention passes K and V round the group (arXiv 2310.01889); Ulysses swaps sequence for heads (2309.14509)."""
    p = rows.point
    if p.cp == 1:
        return
    e = p.element_bytes
    if p.context_parallel == "ulysses":
        payload = p.tokens * (heads * (head_dim + v_head_dim) + kv_heads * (head_dim + v_head_dim)) * e
        rows.collective(f"cp.all_to_all.{where}", payload, FWD)
        rows.collective(f"cp.all_to_all.{where}.backward", payload, BWD)
        return
    payload = p.tokens * p.cp * kv_heads * (head_dim + v_head_dim) * e
    rows.collective(f"cp.all_gather.{where}", payload, FWD)
    rows.collective(f"cp.all_gather.{where}.backward", payload, BWD)
    rows.collective(f"cp.reduce_scatter.{where}.backward", payload, BWD)
