"""A state-space mixer: projection in, causal convolution, recurrence over the sequence, gated norm, projection out.

Per token of a rank, with I channels, N numbers of state a channel, h heads in G groups and chunks of Q tokens (all but N and
Q over the tensor group), Mamba-2's forward (state-space duality, arXiv 2405.21060 section 6; mamba_ssm ops/triton/ssd_*.py)
runs five kernels of

    2 Q N G + Q I + 4 N I   FLOP: scores of B and C, their products with a chunk (the visible half), states in and out
    16 N I / Q              bytes of states in fp32, written, passed on (read and written) and read

and its backward those of the gradients and once more the scores and the states. Mamba scans every channel by itself
(arXiv 2312.00752, section 3.3): 9 N I operations forward that no matrix unit takes. What is kept is the projection's output,
the recurrence's and the projection's inputs: everything between runs again (``mamba_split_conv1d_scan_combined``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture, Mamba
from gpuwise.workload.blocks.block import Block
from gpuwise.workload.row_codes import BWD, FWD, Kind

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows

STATE_BYTES = 4.0
"""Bytes per number of the recurrent state (fp32)."""
SCAN_OPERATIONS = 9.0
"""Operations of a channel's recurrence per number of state: step times decay, exponential, step times B, update, times C, sum."""
CHUNK_KERNELS = (5.0, 11.0)
"""Kernels of the chunked recurrence, forward and backward (mamba_ssm ops/triton/ssd_combined.py)."""


class StateSpace(Block):
    """A mixer on this rank's channels."""

    where = "mamba"
    token_launches = 11
    divided_as = "mixer"

    def parameters(self, arch: Architecture) -> dict[str, int]:
        return {"mixer": _weights(arch.hidden, _mamba(arch))}

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        h, m = arch.hidden, _mamba(arch)
        ends = [("in_proj", h, m.in_width), ("out_proj", m.inner, h)]
        if m.heads:
            return ends
        return [*ends, ("x_proj", m.inner, m.dt_rank + 2 * m.state), ("dt_proj", m.dt_rank, m.inner)]

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        mamba = _mamba(arch)
        p = rows.point
        inner, conv = max(1, mamba.inner // p.tp), _split(mamba.conv_width, mamba, p.tp)
        heads, width = mamba.heads // p.tp, inner + conv + mamba.heads // p.tp
        rows.enter("mamba", arch.hidden)
        saved_tokens = p.shard_tokens if p.stack.regathers_input else p.tokens
        rows.linear("mamba.in_proj", p.tokens, arch.hidden, width, bias=mamba.projection_bias, saved_tokens=saved_tokens)
        if p.cp > 1:  # sequence for channels and back (Megatron-Core ssm/mamba_context_parallel.py)
            for phase, ending in ((FWD, ""), (BWD, ".backward")):
                rows.collective(f"cp.all_to_all.mamba{ending}", p.tokens * (width + inner) * p.element_bytes, phase)
        elements = float(p.tokens * conv)
        rows.to.add(
            "mamba.conv",
            Kind.MEMORY,
            FWD,
            p.dtype,
            (p.tokens, conv, mamba.conv),
            flop=2.0 * elements * mamba.conv,
            read_bytes=elements * p.element_bytes,
            written_bytes=elements * p.element_bytes,
            saved=p.tokens * width * p.element_bytes,
            family="state_space",
            kernel="causal_conv",
        )
        rows.to.add(
            "mamba.conv.backward",
            Kind.MEMORY,
            BWD,
            p.dtype,
            (p.tokens, conv, mamba.conv),
            flop=4.0 * elements * mamba.conv,
            read_bytes=2.0 * elements * p.element_bytes,
            written_bytes=elements * p.element_bytes,
            n_kernels=2.0,  # and once more the forward
            family="state_space",
            kernel="causal_conv",
        )
        if mamba.heads:
            _chunked(rows, mamba, inner, heads, conv - inner)
            if mamba.gated_norm:
                _gated_norm(rows, inner)
        else:
            _channels(rows, mamba, inner)
        rows.linear("mamba.out_proj", p.tokens, inner, arch.hidden, bias=mamba.projection_bias)
        rows.leave("mamba", arch.hidden)

    def state_bytes(self, arch: Architecture, tp: int) -> float:
        """The state in fp32 and the last inputs of the convolution in 16 bits (vllm
        model_executor/layers/mamba/mamba_utils.py), over the tensor group."""
        m = _mamba(arch)
        shared = (m.conv_width - m.inner) / min(tp, m.groups)
        return m.inner / tp * m.state * 4.0 + (m.inner / tp + shared) * (m.conv - 1) * 2.0

    def trained_parts(self, arch: Architecture) -> tuple[int, ...]:
        """Megatron-Core ssm/mamba_mixer.py: heads and groups are split evenly."""
        m = _mamba(arch)
        return (m.groups if m.heads else m.inner,)

    def served_parts(self, arch: Architecture) -> tuple[int, ...]:
        m = _mamba(arch)
        return (m.heads or m.inner,)


def _mamba(arch: Architecture) -> Mamba:
    assert arch.mamba is not None
    return arch.mamba


def _weights(hidden: int, m: Mamba) -> int:
    """A state-space mixer: projections in and out, the convolution, and of the recurrence decay, skip and step (of
    each head in Mamba-2; in Mamba of each channel, with the projections that make step, B and C from it)."""
    total = hidden * m.in_width + m.inner * hidden + (m.in_width + hidden if m.projection_bias else 0)
    total += m.conv_width * (m.conv + int(m.conv_bias))
    if m.heads:
        return total + 3 * m.heads + (m.inner if m.gated_norm else 0)
    total += m.inner * (m.dt_rank + 2 * m.state) + m.dt_rank * m.inner + m.inner
    total += m.inner * m.state + m.inner
    return total + (m.dt_rank + 2 * m.state if m.parameter_norms else 0)


def _split(conv_width: int, mamba: Mamba, tp: int) -> int:
    """This rank's channels of the convolution: groups are not split below one."""
    shared = conv_width - mamba.inner
    return max(1, mamba.inner // tp) + (shared // mamba.groups * max(1, mamba.groups // tp) if shared else 0)


def _chunked(rows: Rows, mamba: Mamba, inner: int, heads: int, shared: int) -> None:
    """Mamba-2's recurrence; ``shared`` channels are B and C. One token at a time it reads the state and writes it."""
    p = rows.point
    e, chunk = p.element_bytes, min(mamba.chunk, p.seq_len)
    groups = shared // (2 * mamba.state)
    states = STATE_BYTES * inner * mamba.state / chunk
    passes = 4.0 if chunk > 1 else 2.0
    scores = 2.0 * chunk * mamba.state * groups
    through, inside = 2.0 * inner * mamba.state, float(chunk * inner)
    inputs, outputs = (inner + shared) * e + 8.0 * heads, inner * e
    shape = (p.tokens, inner, mamba.state, chunk, heads, groups)
    sides = (
        (FWD, scores + inside + 2.0 * through, inputs + passes * states / 2, outputs + passes * states / 2),
        # scores and states again, then gradients of scores (twice), of inputs, of B and of C, and of the states between chunks
        (BWD, 3.0 * scores + 3.0 * inside + 6.0 * through, 3.0 * inputs + 6.0 * states, inputs + outputs + 6.0 * states),
    )
    for (phase, flop, read_bytes, written_bytes), kernels in zip(sides, CHUNK_KERNELS, strict=True):
        rows.to.add(
            "mamba.scan" if phase is FWD else "mamba.scan.backward",
            Kind.MEMORY,
            phase,
            p.dtype,
            shape,
            flop=flop * p.tokens,
            read_bytes=read_bytes * p.tokens,
            written_bytes=written_bytes * p.tokens,
            saved=outputs * p.tokens if phase is FWD else 0.0,
            n_kernels=kernels if chunk > 1 else 1.0,
            family="state_space",
            kernel="chunk_scan",
        )


def _gated_norm(rows: Rows, inner: int) -> None:
    """The result times the gate's activation, normalised."""
    elements = float(rows.point.tokens * inner)
    rows.memory("mamba.norm", 2 * elements, elements, backward_read=3 * elements, backward_written=3 * elements)


def _channels(rows: Rows, mamba: Mamba, inner: int) -> None:
    """Mamba's recurrence, with the projections that make step, B and C of the convolution's result, and the gate."""
    p = rows.point
    e, n = p.element_bytes, float(p.tokens * inner)
    rows.linear("mamba.x_proj", p.tokens, inner, mamba.dt_rank + 2 * mamba.state)
    if rows.point.tp > 1:
        rows.collective("tp.all_reduce.mamba.x_proj", p.tokens * (mamba.dt_rank + 2 * mamba.state) * e, FWD)
        rows.collective("tp.all_reduce.mamba.x_proj.dgrad", p.tokens * (mamba.dt_rank + 2 * mamba.state) * e, BWD)
    rows.linear("mamba.dt_proj", p.tokens, mamba.dt_rank, inner, bias=True)
    state = STATE_BYTES * p.micro_batch * inner * mamba.state
    shape = (p.tokens, inner, mamba.state, p.seq_len)
    work = SCAN_OPERATIONS * n * mamba.state
    for name, phase, times, read_bytes, written_bytes in (
        ("mamba.scan", FWD, 1.0, 3 * n * e + state, n * e + state),
        ("mamba.scan.backward", BWD, 3.0, 5 * n * e, 3 * n * e),
    ):
        rows.to.add(
            name,
            Kind.MEMORY,
            phase,
            p.dtype,
            shape,
            flop=times * work,
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            # step and the scan's result before the gate
            saved=2 * n * e if phase is FWD else 0.0,
            family="state_space",
            kernel="channel_scan",
        )
