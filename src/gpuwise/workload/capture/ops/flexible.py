# pyright: basic
"""``flex_attention`` as one fused attention operation, like its compiled kernel on a GPU.

The Triton kernel is not run; the record has the fused aten attention of the same shapes instead. Its score and mask functions
cost nothing here; blocks of scores that a block mask skips are not counted.
"""

from __future__ import annotations

import importlib
import math
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gpuwise.facts.software.compatibility import parse_version

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

aten = torch.ops.aten
_MODULE = "torch.nn.attention.flex_attention"
if parse_version(torch.__version__) < (2, 9):  # it loads torch's compiler, which fails on the pretended device
    importlib.import_module(_MODULE)
_acc: list[DeviceState] = []
_MOST = 1 << 24
"""Maximum number of scores to evaluate a mask function on."""
_ASKED = 4
"""Sequences and heads of a block mask that are looked at."""
_SHARES: weakref.WeakKeyDictionary[Any, float | None] = weakref.WeakKeyDictionary()


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
    visible = _visible(block_mask)
    note = (
        "its block mask depends on values: all scores are counted"
        if visible is None
        else f"its block mask leaves out {1 - visible:.0%} of the scores"
    )
    acc.finding("flex-attention", f"flex_attention is taken as one fused attention; {note}", "")
    acc.visible = visible if visible is not None and visible < 1 else None
    try:
        out = _kernel(query, key, value, scale)
    finally:
        acc.visible = None
    return out[0], out[1]


def _kernel(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Any:
    half = query.dtype in (torch.float16, torch.bfloat16)
    if half and query.shape[-1] == value.shape[-1] and query.shape[-1] <= 256 and key.shape[0] == query.shape[0]:
        return aten._scaled_dot_product_flash_attention.default(query, key, value, 0.0, False, False, scale=scale)
    return aten._scaled_dot_product_efficient_attention.default(query, key, value, None, True, 0.0, False, scale=scale)


def _visible(block_mask: Any) -> float | None:
    """Share of blocks that are not skipped; None if it depends on device values.

    The mask function is evaluated for the first and last query of each block (for at most :data:`_MOST` scores).
    """
    if block_mask is None or getattr(block_mask, "kv_num_blocks", None) is None:
        return 1.0
    if not block_mask.kv_num_blocks.is_meta:
        return 1 - float(block_mask.sparsity()) / 100
    share = _SHARES.get(block_mask)
    if share is None and block_mask not in _SHARES:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            share = _SHARES[block_mask] = _share(block_mask)
    return share


def _share(block_mask: Any) -> float | None:
    queries, keys = (int(n) for n in block_mask.seq_lengths)
    q_block, kv_block = block_mask.BLOCK_SIZE
    batch, heads = block_mask.kv_num_blocks.shape[:2]
    blocks = range(0, queries, max(q_block, -(-queries // max(1, _MOST // (2 * keys) * q_block)) * q_block))
    rows = torch.tensor([r for first in blocks for r in (first, min(first + q_block, queries) - 1)])
    columns = torch.arange(keys)
    shares: list[float] = []
    for i in range(min(batch, _ASKED)):
        for h in range(min(heads, _ASKED)):
            try:
                visible = block_mask.mask_mod(torch.tensor(i), torch.tensor(h), rows[:, None], columns[None, :])
            except Exception:  # noqa: BLE001 - a person's function, asked in another way than they wrote it for
                return None
            if not isinstance(visible, Tensor) or visible.is_meta or visible.dtype is not torch.bool:
                return None
            visible = visible.expand(len(rows), keys)
            padded = torch.nn.functional.pad(visible, (0, -keys % kv_block)).view(len(rows) // 2, 2, -1, kv_block)
            shares.append(float(padded.any(-1).any(1).float().mean()))
    return sum(shares) / len(shares) if shares else None


def _finish(found: Any, return_lse: bool, return_aux: Any, module: Any) -> Any:
    out, lse = found
    if return_aux is not None:
        return out, module.AuxOutput(lse=lse if return_aux.lse else None, max_scores=lse if return_aux.max_scores else None)
    return (out, lse) if return_lse else out


def run(query: Any, key: Any, value: Any, block_mask: Any, scale: Any, gqa: bool, return_lse: bool, return_aux: Any) -> Any:
    """Replacement of ``flex_attention``."""
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
    function: Any = importlib.import_module(_MODULE).flex_attention
    original = function.__code__, function.__defaults__, function.__kwdefaults__
    _acc.append(acc)
    function.__code__, function.__defaults__ = _replacement.__code__, _replacement.__defaults__
    function.__kwdefaults__ = dict(_replacement.__kwdefaults__ or {})

    def undo() -> None:
        _acc.clear()
        function.__code__, function.__defaults__, function.__kwdefaults__ = original

    return undo
