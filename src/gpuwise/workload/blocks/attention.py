"""Attention with grouped queries, on all tokens or in a window: projections, positions, core and output."""

from __future__ import annotations

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.attention_flop import attention_pairs
from gpuwise.workload.blocks.block import Block
from gpuwise.workload.blocks.rows import BWD, FWD, Rows, column_saved, tensor_parallel_enter, tensor_parallel_leave
from gpuwise.workload.step import CAUSAL, DROPOUT, FUSED_ATTENTION, FUSED_SOFTMAX, Kind

EAGER_ROPE_KERNELS = 10
"""two rotations of slice, neg, cat, mul, mul, add (transformers apply_rotary_pos_emb)."""


class Attention(Block):
    """Self-attention; ``windowed`` where it sees the model's window alone."""

    where = "attention"
    divided_as = "heads"

    def __init__(self, *, windowed: bool = False) -> None:
        self.windowed = windowed

    def window(self, arch: Architecture) -> int:
        """Tokens a query sees; 0: all."""
        return (arch.window or 0) if self.windowed else 0

    def parameters(self, arch: Architecture) -> dict[str, int]:
        return {"attention": projections(arch, arch.hidden, arch.heads, arch.kv_heads, arch.head_dim)}

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        h, q, kv = arch.hidden, arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
        if arch.fused_projections:
            return [("qkv", h, q + 2 * kv), ("out", q, h)]
        return [("q", h, q), ("k", h, kv), ("v", h, kv), ("out", q, h)]

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        p = rows.point
        causal = arch.kind in ("decoder", "encoder-decoder")
        tensor_parallel_enter(rows, "attention", arch.hidden)
        heads, kv_heads, head_dim, v_dim = self.projected(rows, arch)
        _context_exchange(rows, "attention", heads, kv_heads, head_dim, v_dim)
        window = self.window(arch)
        attention_core(rows, "attention.core", heads, kv_heads, head_dim, v_dim, causal=causal, window=window)
        rows.linear(
            "attention.out", p.tokens, heads * v_dim, arch.hidden, saves_input=not p.fused_attention, bias=arch.attention_out_bias
        )
        tensor_parallel_leave(rows, "attention", arch.hidden)

    def projected(self, rows: Rows, arch: Architecture) -> tuple[int, int, int, int]:
        """Rows of the projections of queries, keys and values; returns this rank's heads, kv heads, head dim and v head dim."""
        p = rows.point
        heads, kv_heads, head_dim = max(1, arch.heads // p.tp), max(1, arch.kv_heads // p.tp), arch.head_dim
        rows.linear(
            "attention.qkv",
            p.tokens,
            arch.hidden,
            (heads + 2 * kv_heads) * head_dim,
            bias=arch.qkv_bias,
            saved_tokens=column_saved(p),
            parts=_qkv_parts(arch, heads, kv_heads),
        )
        if arch.qk_norm:
            rows.norm("attention.qk_norm", p.tokens * (heads + kv_heads), head_dim, kind=arch.norm, fp32=arch.norm_in_fp32)
        if arch.position == "rope":
            rope(rows, (heads + kv_heads) * head_dim)
        return heads, kv_heads, head_dim, head_dim

    def shared_heads(self, arch: Architecture) -> int:
        """Heads of keys and values that tensor ranks divide, or that divide them; 0: every rank has what there is."""
        return arch.kv_heads

    def trained_parts(self, arch: Architecture) -> tuple[int, ...]:
        return (arch.heads,)

    def cache_elements(self, arch: Architecture, tp: int) -> float:
        return 2.0 * -(-arch.kv_heads // tp) * arch.head_dim


def projections(arch: Architecture, hidden: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Projections of one attention with their biases, query-key norms and sinks."""
    q, kv = heads * head_dim, kv_heads * head_dim
    total = hidden * (q + 2 * kv) + q * hidden
    if arch.qkv_bias:
        total += q + kv * (2 if arch.key_bias else 1)
    if arch.attention_out_bias:
        total += hidden
    if arch.qk_norm and arch.qk_norm_weights:
        total += q + kv if arch.qk_norm_full else 2 * head_dim
    if arch.attention_sinks:
        total += heads
    return total


def _qkv_parts(arch: Architecture, heads: int, kv_heads: int) -> tuple[tuple[str, int], ...]:
    q, kv = heads * arch.head_dim, kv_heads * arch.head_dim
    return (("qkv", q + 2 * kv),) if arch.fused_projections else (("q", q), ("k", kv), ("v", kv))


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


def attention_core(
    rows: Rows,
    name: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_head_dim: int,
    *,
    causal: bool,
    window: int,
    kv_len: int | None = None,
) -> None:
    """softmax(q k' / sqrt(D)) v over this rank's heads. Unfused, the [A, Sq, Skv] scores go through memory.

    Causal FLOP count the visible half (and the window), so that model FLOP are what the model needs.
    """
    p = rows.point
    e = p.element_bytes
    doc = None if p.packed_document_len is None else min(p.packed_document_len, p.seq_len)
    batch, seq = (p.micro_batch, p.seq_len) if doc is None else (p.micro_batch * max(1, p.seq_len // doc), doc)
    q_len = max(1, seq // p.cp)
    kv = seq if kv_len is None else kv_len
    pairs = float(attention_pairs(seq, kv, causal=causal, window=window)) / p.cp
    flop = 2.0 * batch * heads * pairs * (head_dim + v_head_dim)
    q, k = batch * q_len * heads * head_dim, batch * (kv / p.cp) * kv_heads * (head_dim + v_head_dim)
    out = batch * q_len * heads * v_head_dim
    flag = (CAUSAL if causal else 0) | (FUSED_ATTENTION if p.fused_attention else 0)
    shape = (batch, q_len, kv, heads, kv_heads, head_dim, v_head_dim)
    masked = p.stack.masks_windows and 0 < window < seq
    repeated = 1 if p.stack.native_gqa and not masked else heads // kv_heads
    saved = (q + repeated * k + out) * e + 4.0 * batch * heads * q_len
    if masked:  # SDPA has no window: a mask of every pair is handed over, and kept
        saved += batch * q_len * kv * e
    if p.cp > 1 and p.context_parallel == "ulysses":
        saved += out * e  # kept by heads for the core and by tokens for the output projection
    kernels_f, kernels_b = (1.0, 3.0) if p.fused_attention else (3.0, 6.0)
    if not p.fused_attention:
        # scores in, probabilities out; with dropout the dropped copy and its mask are kept as well
        scores = batch * heads * q_len * kv
        saved = (q + repeated * k) * e + scores * (2 * e + 1 if p.stack.dropout else e)
        if not p.stack.fused_softmax and e == 2:
            saved += scores * 4.0  # softmax in fp32 keeps its fp32 result besides the cast probabilities
        flag |= (FUSED_SOFTMAX if p.stack.fused_softmax else 0) | (DROPOUT if p.stack.dropout else 0)
        kernels_f = (3.0 if p.stack.fused_softmax else 6.0) + (1.0 if p.stack.dropout else 0.0)
        kernels_b = kernels_f + 2.0
    for phase, times, kernels in ((FWD, 1.0, kernels_f), (BWD, 2.0, kernels_b)):
        rows.to.add(
            name if phase is FWD else f"{name}.backward",
            Kind.ATTENTION,
            phase,
            p.dtype,
            shape,
            flop=times * flop,
            read_bytes=times * (q + k) * e,
            written_bytes=times * out * e,
            saved=saved if phase is FWD else 0.0,
            flag=flag,
            window=window,
            n_kernels=kernels,
        )
    if p.stack.layout_copies:
        n = p.stack.layout_copies * (q + 2 * k + out)
        rows.memory(f"{name}.layout", n, n, n_kernels=4.0 * p.stack.layout_copies, backward_read=n, backward_written=n)
