"""A gated short convolution (LFM2, arXiv 2511.23404; transformers modeling_lfm2.py Lfm2ShortConv): one projection makes two gates
and a value, a causal convolution over a few tokens runs between the gates, a projection ends it. Times of the convolution are
those of the state-space kernels (predict/kernels/state_space.py): it was not measured in this model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture, ShortConv
from gpuwise.workload.blocks.block import Block
from gpuwise.workload.row_codes import BWD, FWD, Kind

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows


class ShortConvolution(Block):
    """It on this rank's channels."""

    where = "short_conv"
    token_launches = 5
    divided_as = "mixer"

    def parameters(self, arch: Architecture) -> dict[str, int]:
        h, m = arch.hidden, _short(arch)
        return {"mixer": 4 * h * h + h * m.conv + (5 * h if m.bias else 0)}

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        return [("in_proj", arch.hidden, 3 * arch.hidden), ("out_proj", arch.hidden, arch.hidden)]

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        p, m = rows.point, _short(arch)
        width = max(1, arch.hidden // p.tp)
        elements = float(p.tokens * width)
        rows.enter("short_conv", arch.hidden)
        rows.linear("short_conv.in_proj", p.tokens, arch.hidden, 3 * width, bias=m.bias, saved_tokens=p.column_tokens)
        for name in ("short_conv.gate_in", "short_conv.gate_out"):
            rows.memory(name, 2 * elements, elements, saved=elements, backward_read=3 * elements, backward_written=2 * elements)
            if name.endswith("in"):
                _convolution(rows, m, width)
        rows.linear("short_conv.out_proj", p.tokens, width, arch.hidden, bias=m.bias)
        rows.leave("short_conv", arch.hidden)

    def state_bytes(self, arch: Architecture, tp: int) -> float:
        """The last inputs of the convolution in 16 bits (vllm model_executor/layers/mamba/short_conv.py)."""
        return arch.hidden * (_short(arch).conv - 1) * 2.0 / tp

    def trained_parts(self, arch: Architecture) -> tuple[int, ...]:
        return (arch.hidden,)


def _short(arch: Architecture) -> ShortConv:
    assert arch.short_conv is not None
    return arch.short_conv


def _convolution(rows: Rows, m: ShortConv, width: int) -> None:
    p = rows.point
    elements = float(p.tokens * width)
    for phase, name, times, saved in (
        (FWD, "short_conv.conv", 1.0, elements),
        (BWD, "short_conv.conv.backward", 2.0, 0.0),
    ):
        rows.to.add(
            name,
            Kind.MEMORY,
            phase,
            p.dtype,
            (p.tokens, width, m.conv),
            flop=2.0 * times * elements * m.conv,
            read_bytes=times * elements * p.element_bytes,
            written_bytes=elements * p.element_bytes,
            saved=saved * p.element_bytes,
            n_kernels=times,
            family="state_space",
            kernel="causal_conv",
        )
