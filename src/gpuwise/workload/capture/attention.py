# pyright: basic
"""Which kernel scaled dot-product attention takes on a GPU, by dtype, head size, mask and compute capability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import DispatchKey

if TYPE_CHECKING:
    from gpuwise.workload.capture.accelerator import FakeAccelerator

aten = torch.ops.aten


def choose_attention(acc: FakeAccelerator, op: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any,
                     dropout_p: float, is_causal: bool, scale: Any, enable_gqa: bool) -> Tensor:  # fmt: skip
    """Run attention as the fused operation a GPU of ``acc.capability`` would take, else as torch's own composite."""
    if not acc.is_device(query):
        return op._op_dk(DispatchKey.CompositeImplicitAutograd, query, key, value, attn_mask, dropout_p, is_causal,
                         scale=scale, enable_gqa=enable_gqa)  # fmt: skip
    half = query.dtype in (torch.float16, torch.bfloat16)
    simple = query.dim() == 4 and query.dtype == key.dtype == value.dtype
    d = query.shape[-1]
    backends = torch.backends.cuda
    if (simple and half and attn_mask is None and d <= 256 and d == value.shape[-1] and acc.capability >= (8, 0)
            and backends.flash_sdp_enabled()):  # fmt: skip
        pad = -d % 8
        q, k, v = (F.pad(t, (0, pad)) if pad else t for t in (query, key, value))
        out = aten._scaled_dot_product_flash_attention.default(
            q, k, v, dropout_p, is_causal, False, scale=scale if scale is not None else d**-0.5
        )[0]
        return out[..., :d] if pad else out
    same_heads = query.dim() == 4 and query.shape[-3] == key.shape[-3]
    if simple and same_heads and (half or query.dtype is torch.float32) and backends.mem_efficient_sdp_enabled():
        needs = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        bias = attn_mask
        if bias is not None:
            if bias.dtype is torch.bool:
                bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(~bias, float("-inf"))
            bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return aten._scaled_dot_product_efficient_attention.default(
            query, key, value, bias, needs, dropout_p, is_causal, scale=scale
        )[0]
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, query, key, value, attn_mask, dropout_p, is_causal,
                     scale=scale, enable_gqa=enable_gqa)  # fmt: skip
