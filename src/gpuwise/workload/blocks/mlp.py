"""The feed-forward block: two or three matrices with the activation between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.block import Block

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows


class Mlp(Block):
    """A dense feed-forward block of the model's width."""

    where = "mlp"
    token_launches = 5
    divided_as = "ffn"
    after_norm = ("mlp.up",)
    after_activation = ("mlp.down",)

    def parameters(self, arch: Architecture) -> dict[str, int]:
        return {"mlp": matrices(arch, arch.hidden, arch.ffn)}

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        return widths(arch, arch.ffn)

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        mlp(rows, arch, arch.ffn)

    def trained_parts(self, arch: Architecture) -> tuple[int, ...]:
        return (arch.ffn,)


def matrices(arch: Architecture, hidden: int, ffn: int) -> int:
    """Weights and biases of a block of width ``ffn``."""
    n = 3 if arch.gated_mlp else 2
    bias = (n - 1) * ffn + hidden if arch.mlp_bias else 0
    return n * hidden * ffn + bias


def widths(arch: Architecture, ffn: int) -> list[tuple[str, int, int]]:
    """(name, inputs, outputs) of its linear layers."""
    wide = [("up", arch.hidden, ffn), ("down", ffn, arch.hidden)]
    return [("gate", arch.hidden, ffn), *wide] if arch.gated_mlp else wide


def mlp(
    rows: Rows, arch: Architecture, ffn: int, *, where: str = "mlp", collectives: bool = True, saves_input: bool = True
) -> None:
    """Two or three matrices with the activation between; F is divided by the tensor-parallel degree.

    ``saves_input`` False: another row keeps the input already (a shared expert reads what the router keeps)."""
    p = rows.point
    f = max(1, ffn // p.tp)
    if collectives:
        rows.enter(where, arch.hidden)
    rows.linear(
        f"{where}.up",
        p.tokens,
        arch.hidden,
        f * (2 if arch.gated_mlp else 1),
        bias=arch.mlp_bias,
        saves_input=saves_input,
        saved_tokens=p.column_tokens,
        parts=(("gate", f), ("up", f)) if arch.gated_mlp and not arch.fused_projections else (),
    )
    activation(rows, arch, where, float(p.tokens * f))
    rows.linear(f"{where}.down", p.tokens, f, arch.hidden, bias=arch.mlp_bias)
    if collectives:
        rows.leave(where, arch.hidden)


def activation(rows: Rows, arch: Architecture, where: str, elements: float) -> None:
    """Rows of the activation of ``elements``, with the gate's product."""
    fused = rows.point.stack.fused_activation
    inputs = 2.0 if arch.gated_mlp else 1.0
    if arch.activation == "gelu_new" and not fused and not arch.gated_mlp:
        # x/2, x, tanh and 1 + tanh, each saved; the power and all later operations are in fp32 under autocast
        p = rows.point
        saved_width = 4.0 if not p.autocast else 1.0 + 3 * 4.0 / p.element_bytes
        rows.memory(
            f"{where}.activation",
            elements,
            elements,
            saved=saved_width * elements,
            backward_read=2 * elements,
            backward_written=elements,
        )
    elif fused or not arch.gated_mlp:
        rows.memory(
            f"{where}.activation",
            inputs * elements,
            elements,
            saved=inputs * elements,
            backward_read=(inputs + 1) * elements,
            backward_written=inputs * elements,
        )
    else:  # silu, then multiply: the activated gate is written, read again and saved
        rows.memory(
            f"{where}.activation",
            3 * elements,
            2 * elements,
            saved=3 * elements,
            n_kernels=2.0,
            backward_read=5 * elements,
            backward_written=3 * elements,
        )
