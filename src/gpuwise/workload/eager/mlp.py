"""The feed-forward block."""

from __future__ import annotations

from gpuwise.workload.eager.modules import TURNED, Modules
from gpuwise.workload.eager.tape import Value, add, cast, mul, power, scaled, shifted, unary


def mlp(m: Modules, x: Value) -> Value:
    """The feed-forward block of a dense layer on ``x``."""
    a, t = m.arch, m.t
    with t.inside("mlp", x):
        if a.family in TURNED:
            return m.dropped(m.turned_linear("down", activated(m, m.turned_linear("up", x, a.ffn)), a.hidden))
        if a.gated_mlp:
            return gated(m, x, a.ffn)
        inner = activated(m, m.linear("up", x, a.ffn, bias=a.mlp_bias))
        return m.dropped(m.linear("down", inner, a.hidden, bias=a.mlp_bias))


def activated(m: Modules, x: Value) -> Value:
    """GPT-2's gelu is written out (``NewGELUActivation``); the others are one kernel."""
    t = m.t
    with t.inside("activation", x):
        if m.arch.activation != "gelu_new":
            return unary(t, {"silu": "silu", "relu": "relu"}.get(m.arch.activation, "gelu"), x)
        half = scaled(t, x)
        cubed = power(t, cast(t, x, "fp32") if m.autocast else x)
        inner = scaled(t, add(t, x, scaled(t, cubed)))
        return mul(t, half, shifted(t, unary(t, "tanh", inner)))


def gated(m: Modules, x: Value, ffn: int) -> Value:
    """The MLP of gate, up and down; a shared expert."""
    gate = activated(m, m.linear("gate", x, ffn, bias=m.arch.mlp_bias))
    inner = mul(m.t, gate, m.linear("up", x, ffn, bias=m.arch.mlp_bias))
    return m.linear("down", inner, m.arch.hidden, bias=m.arch.mlp_bias)
