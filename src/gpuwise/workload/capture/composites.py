# pyright: basic
"""Operations that choose their kernel by asking ``tensor.is_cuda()`` in C++, chosen here as a GPU would.

torch decomposes these above the dispatch mode, where a meta tensor would take another way than a CUDA tensor. Each one
is re-registered for meta tensors while a capture is active; their parts then reach the mode like any other operation.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from gpuwise.workload.capture.attention import choose_attention
from gpuwise.workload.capture.patching import register_kernel

if TYPE_CHECKING:
    from gpuwise.workload.capture.accelerator import FakeAccelerator

aten = torch.ops.aten


def original(op: Any, *args: Any, **kwargs: Any) -> Any:
    """What torch itself does with a composite operation."""
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def install(acc: FakeAccelerator) -> Any:
    """Register; returns the function that takes everything back."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in REPLACED.items():
            op = _overload(name)
            if op is None:
                continue
            function = make(acc, op)
            for key in ("AutogradMeta", "Meta"):
                register_kernel(library, name, function, key)
    return library._destroy


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    found = getattr(aten, packet, None)
    return getattr(found, overload or "default", None) if found is not None else None


def _dropout(acc: FakeAccelerator, op: Any) -> Any:
    def dropout(input: Tensor, p: float, train: bool) -> Tensor:
        if train and 0 < p < 1 and input.numel() and acc.is_device(input):
            return aten.native_dropout.default(input, p, True)[0]
        return original(op, input, p, train)

    return dropout


def _softmax(acc: FakeAccelerator, op: Any) -> Any:
    fused = aten._log_softmax.default if "log" in str(op) else aten._softmax.default

    def softmax(self: Tensor, dim: int, dtype: Any = None) -> Tensor:
        if dtype is torch.float32 and self.dtype in (torch.float16, torch.bfloat16) and acc.is_device(self):
            return fused(self, dim, True)
        return original(op, self, dim, dtype)

    return softmax


def _batch_norm(acc: FakeAccelerator, op: Any) -> Any:
    def batch_norm(input: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
                   momentum: float, eps: float, cudnn_enabled: bool) -> Tensor:  # fmt: skip
        if cudnn_enabled and acc.is_device(input) and _cudnn_norm(input, weight, bias, running_mean, training):
            return aten.cudnn_batch_norm.default(
                input.contiguous(memory_format=_format(input)), weight, bias, running_mean, running_var, training, momentum, eps
            )[0]
        return original(op, input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)

    return batch_norm


def _format(x: Tensor) -> Any:
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return torch.channels_last
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d) and not x.is_contiguous():
        return torch.channels_last_3d
    return torch.contiguous_format


def _cudnn_norm(x: Tensor, weight: Any, bias: Any, running_mean: Any, training: bool) -> bool:
    """Whether torch takes cuDNN's batch norm: ``_batch_norm_impl_index`` of ATen/native/Normalization.cpp."""
    return (
        x.dtype is not torch.bfloat16
        and x.dtype is not torch.float64
        and x.dim() >= 3
        and weight is not None
        and bias is not None
        and training
        and x.shape[0] <= 880801
    )


def _attention(acc: FakeAccelerator, op: Any) -> Any:
    def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
                                     is_causal: bool = False, *, scale: Any = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
        return choose_attention(acc, op, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    return scaled_dot_product_attention


REPLACED: dict[str, Any] = {
    "dropout": _dropout,
    "softmax.int": _softmax,
    "log_softmax.int": _softmax,
    "batch_norm": _batch_norm,
    "scaled_dot_product_attention": _attention,
}
