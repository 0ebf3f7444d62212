"""Gated linear attention by the delta rule (Gated DeltaNet, arXiv 2412.06464, section 3): projection in, causal convolution of
queries, keys and values, recurrence over the sequence, gated norm of each head, projection out (transformers
modeling_qwen3_next.py Qwen3NextGatedDeltaNet, Megatron-Core ssm/gated_delta_net.py).

Every value head has a state of K x V numbers. A chunk of Q tokens is worked on as products of matrices (flash-linear-attention
ops/gated_delta_rule/chunk.py), which per token and head costs

    3 Q K + 2 Q V + Q^2 / 3 + 6 K V   FLOP forward: keys with keys, the triangular system solved (Q^3 / 3 a chunk), its
                                      result with keys and with values, queries with keys, and those with the values (of each the
                                      visible half); what the state returns to keys and to queries, and its update
    8 Q K + 5 Q V + 2 Q^2 + 16 K V    FLOP backward: the states once more, then the gradients
    2 K V / Q                         numbers of the state before a chunk, written and read

One token at a time reads the state and writes it, in fp32. Kept are the inputs of the kernels: of the convolution,
queries and keys repeated for each value head, values, the solved system (Q numbers), gate and result. Times are those of the
state-space kernels (predict/kernels/state_space.py): none of this layer was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture, LinearAttention
from gpuwise.workload.blocks.block import Block
from gpuwise.workload.row_codes import BWD, FWD, Kind

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows

STATE_BYTES = 4.0
"""Bytes per number of the recurrent state (fp32)."""
CHUNK_KERNELS = (8.0, 9.0)
"""Norms of queries and keys, sums of decays, keys with keys, solve, its products, states, outputs; backward the products and
states again, four of gradients, sums and norms (flash-linear-attention ops/gated_delta_rule/chunk.py)."""


class GatedDelta(Block):
    """Linear attention on this rank's heads."""

    where = "linear"
    token_launches = 22
    divided_as = "mixer"

    def parameters(self, arch: Architecture) -> dict[str, int]:
        """Projections, convolution, of each value head its decay and the bias of its step, and a norm that heads share."""
        m = _linear(arch)
        ends = arch.hidden * (m.in_width + m.values) + m.gate_rank * (m.keys + m.values)
        decays = m.value_heads + (m.keys if m.gate_rank else m.value_heads)
        return {"mixer": ends + m.conv_width * m.conv + decays + m.value_dim}

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        m = _linear(arch)
        wide = [("gate", m.gate_rank, m.values), ("decay", m.gate_rank, m.keys)] if m.gate_rank else []
        return [("in_proj", arch.hidden, m.in_width), ("out_proj", m.values, arch.hidden), *wide]

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        p, m = rows.point, _linear(arch)
        share = max(1, m.key_heads // p.tp) / m.key_heads
        width, conv, values = (round(n * share) for n in (m.in_width, m.conv_width, m.values))
        rows.enter("linear", arch.hidden)
        rows.linear("linear.in_proj", p.tokens, arch.hidden, width, saved_tokens=p.column_tokens)
        if p.cp > 1:  # sequence for heads and back, as Megatron-Core's mixers do
            for phase, ending in ((FWD, ""), (BWD, ".backward")):
                rows.collective(f"cp.all_to_all.linear{ending}", p.tokens * (width + values) * p.element_bytes, phase)
        for name, channels in (("gate", m.values), ("decay", m.keys)) if m.gate_rank else ():
            rows.linear(f"linear.{name}", p.tokens, m.gate_rank, round(channels * share))
        _convolution(rows, m, conv)
        _recurrence(rows, m, round(m.value_heads * share))
        elements = float(p.tokens * values)
        rows.memory(
            "linear.norm", 2 * elements, elements, saved=elements, backward_read=3 * elements, backward_written=2 * elements
        )
        rows.linear("linear.out_proj", p.tokens, values, arch.hidden)
        rows.leave("linear", arch.hidden)

    def state_bytes(self, arch: Architecture, tp: int) -> float:
        """The state in fp32 and the last inputs of the convolution in 16 bits (vllm
        model_executor/layers/mamba/mamba_utils.py gated_delta_net_state_shape), over the tensor group."""
        m = _linear(arch)
        return (m.value_heads * m.key_dim * m.value_dim * STATE_BYTES + m.conv_width * (m.conv - 1) * 2.0) / tp

    def trained_parts(self, arch: Architecture) -> tuple[int, ...]:
        """Key heads are split evenly, and with them their value heads."""
        return (_linear(arch).key_heads,)


def _linear(arch: Architecture) -> LinearAttention:
    assert arch.linear_attention is not None
    return arch.linear_attention


def _convolution(rows: Rows, m: LinearAttention, conv: int) -> None:
    p = rows.point
    elements = float(p.tokens * conv)
    sides = ((FWD, "linear.conv", 1.0, elements), (BWD, "linear.conv.backward", 2.0, 0.0))
    for phase, name, times, saved in sides:
        rows.to.add(
            name,
            Kind.MEMORY,
            phase,
            p.dtype,
            (p.tokens, conv, m.conv),
            flop=2.0 * times * elements * m.conv,
            read_bytes=times * elements * p.element_bytes,
            written_bytes=elements * p.element_bytes,
            saved=saved * p.element_bytes,
            n_kernels=times,
            family="state_space",
            kernel="causal_conv",
        )


def _recurrence(rows: Rows, m: LinearAttention, heads: int) -> None:
    """The delta rule of ``heads`` value heads, in chunks or token by token."""
    p = rows.point
    e, k, v, chunk = p.element_bytes, m.key_dim, m.value_dim, min(m.chunk, p.seq_len)
    inside = chunk if chunk > 1 else 0
    # queries, keys, values, decay and step; of chunks the solved system, its products with keys and values, and the states
    inputs, gates, between = 2 * k + v, 2 * STATE_BYTES, (inside + k + v) * e
    state = k * v * e / chunk if chunk > 1 else k * v * STATE_BYTES
    forward = (inputs * e + gates + between + state, v * e + between + state)
    backward = (2 * (inputs * e + gates) + v * e + 3 * (between + state), inputs * e + gates + 2 * (between + state))
    scores = (
        3.0 * inside * k + 2.0 * inside * v + inside**2 / 3 + 6.0 * k * v,
        8.0 * inside * k + 5.0 * inside * v + 2.0 * inside**2 + 16.0 * k * v,
    )
    shape = (p.tokens, heads * v, k, chunk, heads, heads * m.key_heads // m.value_heads)
    sides = ((FWD, "linear.scan", forward), (BWD, "linear.scan.backward", backward))
    for (phase, name, (read, written)), flop, kernels in zip(sides, scores, CHUNK_KERNELS, strict=True):
        rows.to.add(
            name,
            Kind.MEMORY,
            phase,
            p.dtype,
            shape,
            flop=flop * heads * p.tokens,
            read_bytes=read * heads * p.tokens,
            written_bytes=written * heads * p.tokens,
            # what the backward pass reads again, and the result for the norm
            saved=((inputs + inside + v) * e + gates) * heads * p.tokens if phase is FWD else 0.0,
            n_kernels=kernels if chunk > 1 else 1.0,
            family="state_space",
            kernel="chunk_scan",
        )
