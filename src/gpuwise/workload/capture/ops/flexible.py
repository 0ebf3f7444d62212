# pyright: basic
"""``flex_attention`` as one fused attention operation: what its compiled kernel is on a GPU.

The Triton kernel is not run; the fused aten attention of the same shapes stands for it in the record. Its score and
mask functions cost nothing here, and the part of the scores that a block mask leaves out is told as a finding.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

aten = torch.ops.aten
_MODULE = "torch.nn.attention.flex_attention"
_acc: list[DeviceState] = []


def fused(acc: DeviceState, query: Tensor, key: Tensor, value: Tensor, block_mask: Any, scale: float | None, gqa: bool) -> Any:
    """Output and log-sum-exp [B, H, L] of attention over query [B, H, L, E] and key [B, Hk, S, E]."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    if not gqa and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={query.shape[1]} and "
            f"Hkv={key.shape[1]}. Try setting enable_gqa=True for GQA."
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    sparsity = _sparsity(block_mask)
    told = (
        "its block mask is unknown: all scores are counted"
        if sparsity is None
        else f"its block mask leaves out {sparsity:.0%} of the scores"
    )
    acc.finding("flex-attention", f"flex_attention is taken as one fused attention; {told}", "")
    half = query.dtype in (torch.float16, torch.bfloat16)
    if half and query.shape[-1] == value.shape[-1] and query.shape[-1] <= 256 and key.shape[0] == query.shape[0]:
        out = aten._scaled_dot_product_flash_attention.default(query, key, value, 0.0, False, False, scale=scale)
    else:
        out = aten._scaled_dot_product_efficient_attention.default(query, key, value, None, True, 0.0, False, scale=scale)
    return out[0], out[1]


def _sparsity(block_mask: Any) -> float | None:
    """Share of blocks that are skipped, if the mask's values are known."""
    counts = getattr(block_mask, "kv_num_blocks", None)
    if block_mask is None or counts is None:
        return 0.0
    if counts.is_meta:
        return None
    return float(block_mask.sparsity()) / 100


def _finish(found: Any, return_lse: bool, return_aux: Any, module: Any) -> Any:
    out, lse = found
    if return_aux is not None:
        return out, module.AuxOutput(lse=lse if return_aux.lse else None, max_scores=lse if return_aux.max_scores else None)
    return (out, lse) if return_lse else out


def run(query: Any, key: Any, value: Any, block_mask: Any, scale: Any, gqa: bool, return_lse: bool, return_aux: Any) -> Any:
    """What the replaced function calls."""
    return _finish(fused(_acc[0], query, key, value, block_mask, scale, gqa), return_lse, return_aux, sys.modules[_MODULE])


def _replacement(
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale=None,
    enable_gqa=False,
    return_lse=False,
    kernel_options=None,
    *,
    return_aux=None,
):
    from gpuwise.workload.capture.ops.flexible import run

    return run(query, key, value, block_mask, scale, enable_gqa, return_lse, return_aux)


def install(acc: DeviceState) -> Any:
    """Replace the body of ``flex_attention``, so that every reference to it is met; returns the undoing function."""
    import torch.nn.attention.flex_attention as module

    function: Any = module.flex_attention
    held = function.__code__, function.__defaults__, function.__kwdefaults__
    _acc.append(acc)
    function.__code__, function.__defaults__ = _replacement.__code__, _replacement.__defaults__
    function.__kwdefaults__ = dict(_replacement.__kwdefaults__ or {})

    def undo() -> None:
        _acc.clear()
        function.__code__, function.__defaults__, function.__kwdefaults__ = held

    return undo
