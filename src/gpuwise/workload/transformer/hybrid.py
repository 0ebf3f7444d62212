"""Layers by kind: those of a plain transformer, and those of a pattern of sub-blocks (state space, attention, MLP, experts)."""

from __future__ import annotations

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.transformer.blocks import Rows
from gpuwise.workload.transformer.layers import attention, experts, layer, mlp
from gpuwise.workload.transformer.state_space import mixer


def layer_of_kind(rows: Rows, arch: Architecture, kind: str) -> None:
    """One layer of ``kind``: a word of the model's pattern, or what :func:`layer` says."""
    if not arch.pattern:
        layer(rows, arch, kind)
        return
    for block in kind:
        _block(rows, arch, block)


def _block(rows: Rows, arch: Architecture, block: str) -> None:
    """One sub-block with its norm and its residual."""
    p = rows.point
    where = {"M": "mamba", "*": "attention", "P": "attention", "-": "mlp", "E": "mlp"}[block]
    rows.norm(f"{where}.pre_norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    if block in "*P":
        attention(rows, arch, 0)
    if block in "MP" and arch.mamba is not None:
        mixer(rows, arch, arch.mamba)
    if block == "-":
        mlp(rows, arch, arch.ffn)
    if block == "E" and arch.moe is not None:
        experts(rows, arch, arch.moe)
    if block == "P":  # the sum of both
        rows.residual("mamba.sum", p.shard_tokens, arch.hidden)
    rows.residual(f"{where}.residual", p.shard_tokens, arch.hidden)
