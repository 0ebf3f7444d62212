"""Which kernel scaled dot-product attention takes on a GPU, by dtype, sizes, mask and compute capability.

The filters are those of ``ATen/native/transformers/cuda/sdp_utils.cpp`` (``can_use_flash_attention``,
``can_use_mem_efficient_attention``, ``can_use_cudnn_attention``, ``check_prefer_cudnn_attention``) and what surrounds
the kernel is ``scaled_dot_product_attention`` of ``ATen/native/transformers/attention.cpp``. Shapes: query [B, H, L, E],
key [B, Hk, S, E], value [B, Hk, S, Ev].
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from gpuwise.workload.step import CUDNN_ATTENTION_ON

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

aten = torch.ops.aten
MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3
"""Values of ``torch.nn.attention.SDPBackend``."""
_NAMES = {MATH: "math", FLASH: "flash", EFFICIENT: "memory-efficient", CUDNN: "cuDNN"}
_MASK_ALIGNMENT = 8
_HALF = (torch.float16, torch.bfloat16)
_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
_CUDNN_PREFERRED_SINCE = (2, 10)
"""First release whose default wheels include the cuDNN (above 9.15) that torch prefers on 9.x and 10.x."""
_CUDNN_DROPOUT_STEPS_SINCE = (2, 12)
"""First release that keeps cuDNN to dropouts of its resolution: 2.11 has no such check, and ran a dropout of 0.1 there (H100)."""
_CUDNN_WIDE_HEADS_BEFORE = (2, 12)
"""Releases up to 2.11 gave heads of up to 256 to cuDNN where it is preferred (160 wide, trained on an H100); later ones need a
cuDNN above 9.22."""
_EFFICIENT_GQA_SINCE = (2, 14)
"""First release whose memory-efficient kernel takes fewer key heads than query heads."""


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one attention call and the device it is for."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    gqa: bool
    capability: tuple[int, int]

    @property
    def needs_grad(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.query, self.key, self.value))


def _common(c: Call) -> str:
    """Why no fused kernel takes the call; empty if one may."""
    tensors = (c.query, c.key, c.value)
    if any(t.dim() != 4 for t in tensors):
        return f"inputs have {c.query.dim()} dimensions, fused kernels take 4"
    if len({t.dtype for t in tensors}) > 1:
        return "query, key and value differ in dtype"
    if len({t.shape[0] for t in tensors}) > 1:
        return "query, key and value differ in batch size"
    if any(t.shape[2] == 0 for t in tensors):
        return "a sequence is empty"
    heads, key_heads, value_heads = (t.shape[1] for t in tensors)
    if c.gqa:
        if heads % key_heads or heads % value_heads:
            return "the number of key heads does not divide that of query heads"
    elif not heads == key_heads == value_heads:
        return "query, key and value differ in heads and enable_gqa is not set"
    return ""


def _last_stride(c: Call, singleton_allowed: bool) -> str:
    for t in (c.query, c.key, c.value, *((c.mask,) if c.mask is not None else ())):
        if t.stride(-1) != 1 and not (singleton_allowed and t.shape[-1] == 1):
            return "the last dimension of an input is not contiguous"
    return ""


def why_not_flash(c: Call) -> str:
    """The first filter of flash attention the call fails; empty if it runs."""
    e, cap = c.query.shape[-1], c.capability
    if not torch.backends.cuda.flash_sdp_enabled():
        return "it is switched off"
    if c.mask is not None:
        return "it takes no mask"
    if not (e == c.key.shape[-1] == c.value.shape[-1] and e <= 256):
        return "heads must be of one size of at most 256"
    if not (8, 0) <= cap <= (12, 1):
        return f"it needs compute capability 8.0 to 12.1, the device has {cap[0]}.{cap[1]}"
    small = (8, 6) <= cap <= (8, 9) or (12, 0) <= cap <= (12, 1)
    if small and c.needs_grad and e > 192 and not (c.dropout == 0 and e > 224):
        return "it cannot train heads above 192 on this device"
    if c.causal and c.query.shape[-2] != c.key.shape[-2]:
        return "it takes is_causal only for square scores"
    if c.query.dtype not in _HALF:
        return f"it takes fp16 and bf16, not {c.query.dtype}"
    return _common(c) or _last_stride(c, True)


def why_not_efficient(c: Call) -> str:
    """The first filter of memory-efficient attention the call fails."""
    e, cap, dtype = c.query.shape[-1], c.capability, c.query.dtype
    if not torch.backends.cuda.mem_efficient_sdp_enabled():
        return "it is switched off"
    if not (5, 0) <= cap <= (12, 1):
        return f"it needs compute capability 5.0 to 12.1, the device has {cap[0]}.{cap[1]}"
    if common := _common(c):
        return common
    half = dtype in _HALF
    alignment = 4 if cap >= (8, 0) else 1
    if cap >= (8, 0) or (cap >= (7, 0) and half):
        alignment = max(alignment, 128 // (16 if half else 32))
    if e != c.key.shape[-1] or e % alignment or c.value.shape[-1] % alignment or not e:
        return f"head sizes must be multiples of {alignment}"
    if c.gqa and c.query.shape[1] != c.key.shape[1] and _VERSION < _EFFICIENT_GQA_SINCE:
        return "it takes no grouped heads"
    if dtype not in ((torch.float16, torch.float32, torch.bfloat16) if cap >= (8, 0) else (torch.float16, torch.float32)):
        return f"it takes no {dtype} on this device"
    return _last_stride(c, False)


def why_not_cudnn(c: Call) -> str:
    """The first filter of cuDNN attention the call fails."""
    e, v, cap = c.query.shape[-1], c.value.shape[-1], c.capability
    if not torch.backends.cuda.cudnn_sdp_enabled():
        return "it is switched off"
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return "it is not deterministic"
    if not (8, 0) <= cap <= (12, 1) or c.query.dtype not in _HALF:
        return "it takes fp16 and bf16 on compute capability 8.0 to 12.1"
    if _VERSION >= _CUDNN_DROPOUT_STEPS_SINCE and c.dropout * 16 != math.floor(c.dropout * 16):
        return "its dropout is a multiple of 1/16"
    preferred = f"{cap[0]}.{cap[1]}" in CUDNN_ATTENTION_ON
    limit = 192 if (e, v) == (192, 128) and preferred else 256 if preferred and _VERSION < _CUDNN_WIDE_HEADS_BEFORE else 128
    if e > limit or v > limit or e % 8 or v % 8:
        return f"head sizes must be multiples of 8 of at most {limit}"
    if c.key.shape[-2] == 1 or (c.dropout and c.query.shape[-2] == 1):
        return "it takes no sequence of length 1"
    return _common(c) or _last_stride(c, True)


_FILTERS = {FLASH: why_not_flash, EFFICIENT: why_not_efficient, CUDNN: why_not_cudnn}


def _order(capability: tuple[int, int]) -> list[int]:
    """Kernels in the order torch tries them: the program's own order, else torch's for the device."""
    get = getattr(torch._C, "_get_sdp_priority_order", None)  # pyright: ignore[reportPrivateUsage]
    order = [int(b) for b in get()] if get is not None else [FLASH, EFFICIENT, MATH, CUDNN]
    default = order[:4] == [FLASH, EFFICIENT, MATH, CUDNN]
    cudnn_first = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    if (
        default
        and cudnn_first
        and _VERSION >= _CUDNN_PREFERRED_SINCE
        and f"{capability[0]}.{capability[1]}" in CUDNN_ATTENTION_ON
    ):
        return [CUDNN, FLASH, EFFICIENT, MATH]
    return order


def select(call: Call) -> tuple[int, dict[int, str]]:
    """The kernel a GPU takes, and why each one before it in order was passed over."""
    reasons: dict[int, str] = {}
    for backend in _order(call.capability):
        if backend == MATH:
            if torch.backends.cuda.math_sdp_enabled():
                return MATH, reasons
            continue
        check = _FILTERS.get(backend)
        if check is None:
            continue
        reason = check(call)
        if not reason:
            return backend, reasons
        reasons[backend] = reason
    raise RuntimeError("No available kernel. Aborting execution. (" + _reasons_text(reasons) + ")")


def _reasons_text(reasons: dict[int, str]) -> str:
    return "; ".join(f"{_NAMES[b]}: {why}" for b, why in reasons.items())


def attention(
    acc: DeviceState,
    op: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: Any,
    gqa: bool,
) -> Tensor:
    """Scaled dot-product attention as the device's kernel, with what torch does before and after it."""
    if not acc.is_device(query):
        return op._op_dk(
            DispatchKey.CompositeImplicitAutograd, query, key, value, mask, dropout, causal, scale=scale, enable_gqa=gqa
        )
    _validate(query, key, value, mask, causal)
    call = Call(query, key, value, mask, dropout, causal, gqa, acc.capability)
    backend, reasons = select(call)
    if mask is not None and mask.dtype is torch.bool:
        lowest = torch.scalar_tensor(-math.inf, dtype=query.dtype, device="cuda")
        mask = torch.where(mask, 0.0, lowest)
    if backend == CUDNN:
        return aten._scaled_dot_product_cudnn_attention.default(
            query, key, value, mask, call.needs_grad, dropout, causal, False, scale=scale
        )[0]
    if backend == FLASH:
        return _flash(query, key, value, dropout, causal, scale)
    if backend == EFFICIENT:
        if mask is not None:
            mask = _aligned(mask).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return aten._scaled_dot_product_efficient_attention.default(
            query, key, value, mask, call.needs_grad, dropout, causal, scale=scale
        )[0]
    acc.finding(
        "attention",
        f"attention is not fused: {_reasons_text(reasons)}",
        "its scores are written to memory: fp16 or bf16 inputs of four dimensions without a mask run fused",
    )
    return aten._scaled_dot_product_attention_math.default(
        query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=gqa
    )[0]


def _validate(query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool) -> None:
    if query.dtype != key.dtype or query.dtype != value.dtype:
        raise RuntimeError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {query.dtype} "
            f"key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if any(t.dim() < 2 for t in (query, key, value)):
        raise RuntimeError("Expected query, key, and value to all be  at least 2 dimensional")
    if mask is not None:
        if mask.dtype is not torch.bool and mask.dtype != query.dtype and mask.dtype is not torch.float32:
            raise RuntimeError(
                f"Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: {mask.dtype} "
                f"and  query.dtype: {query.dtype} instead."
            )
        if causal:
            raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: Any) -> Tensor:
    """Flash attention pads the head size to a multiple of 8, with copies."""
    size = query.shape[-1]
    pad = -size % 8
    if pad:
        query, key, value = (aten.constant_pad_nd(t, [0, pad], 0.0) for t in (query, key, value))
    scale = 1 / math.sqrt(size) if scale is None else scale
    out = aten._scaled_dot_product_flash_attention.default(query, key, value, dropout, causal, False, scale=scale)[0]
    return out[..., :size] if pad else out


def _aligned(mask: Tensor) -> Tensor:
    """The mask with rows of a multiple of 8 elements: memory-efficient attention copies it where they are not."""
    if all(s % _MASK_ALIGNMENT == 0 for s in mask.stride()[:-1]) and mask.stride(-1) == 1:
        return mask
    n = mask.shape[-1]
    return aten.constant_pad_nd(mask, [0, _MASK_ALIGNMENT - n % _MASK_ALIGNMENT], 0.0)[..., :n]
