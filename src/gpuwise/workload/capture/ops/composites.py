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
from torch._prims_common import suggest_memory_format

from gpuwise.workload.capture.device.kernels import KERNELS
from gpuwise.workload.capture.device.patching import register_kernel
from gpuwise.workload.capture.ops.attention import attention
from gpuwise.workload.capture.ops.recurrent import RECURRENT

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

aten = torch.ops.aten
_BATCH_NORM_MIN_EPSILON = 0.0
"""``CUDNN_BN_MIN_EPSILON`` of cuDNN 8 and later."""


def original(op: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's own decomposition of a composite operation."""
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def install(acc: DeviceState) -> Any:
    """Register; returns the function that takes everything back."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in {**REPLACED, **RECURRENT}.items():
            op = overload(name)
            if op is None:
                continue
            function = make(acc, op)
            for key in ("AutogradMeta", "Meta"):
                register_kernel(library, name, function, key)
        for name, kernel in KERNELS.items():
            if overload(name) is not None:
                register_kernel(library, name, kernel, "Meta")
    return library._destroy


def overload(name: str) -> Any:
    """The aten overload called ``name`` (``softmax.int``), or None where the running torch has none."""
    packet, _, which = name.partition(".")
    op = getattr(aten, packet, None)
    return getattr(op, which or "default", None) if op is not None else None


def _istft(acc: DeviceState, op: Any) -> Any:
    """It asks whether the window leaves a gap, by a truth value read back."""

    def istft(*args: Any, **kwargs: Any) -> Tensor:
        before, acc.assumed = acc.assumed, False
        try:
            return original(op, *args, **kwargs)
        finally:
            acc.assumed = before

    return istft


def _dropout(acc: DeviceState, op: Any) -> Any:
    """``is_fused_kernel_acceptable`` of ATen/native/Dropout.cpp."""

    def dropout(input: Tensor, p: float, train: bool) -> Tensor:
        if train and 0 < p < 1 and input.numel() and acc.is_device(input):
            return aten.native_dropout.default(input, p, True)[0]
        return original(op, input, p, train)

    return dropout


def _softmax(acc: DeviceState, op: Any) -> Any:
    """Half to float in one kernel: ``softmax`` of ATen/native/SoftMax.cpp."""
    fused = aten._log_softmax.default if "log" in str(op) else aten._softmax.default

    def softmax(self: Tensor, dim: int, dtype: Any = None) -> Tensor:
        if dtype is torch.float32 and self.dtype in (torch.float16, torch.bfloat16) and acc.is_device(self):
            return fused(self, dim, True)
        return original(op, self, dim, dtype)

    return softmax


def _batch_norm(acc: DeviceState, op: Any) -> Any:
    def batch_norm(
        input: Tensor,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        training: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool,
    ) -> Tensor:
        if (
            cudnn_enabled
            and torch.backends.cudnn.enabled
            and eps >= _BATCH_NORM_MIN_EPSILON
            and acc.is_device(input)
            and cudnn_norm(input, weight, bias, running_mean, running_var, training)
        ):
            layout = suggest_memory_format(input)
            return aten.cudnn_batch_norm.default(
                input.contiguous(memory_format=layout), weight, bias, running_mean, running_var, training, momentum, eps
            )[0]
        return original(op, input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)

    return batch_norm


def cudnn_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool) -> bool:
    """Whether torch takes cuDNN's batch norm: ``_select_batch_norm_backend`` of ATen/native/Normalization.cpp."""
    if weight is None or bias is None or x.dim() < 3 or x.dtype is torch.bfloat16 or weight.dtype is torch.bfloat16:
        return False
    if x.dtype is torch.float16 and weight.dtype is not torch.float32:
        return False
    if (mean is None) != (var is None) or (mean is None and not training):
        return False
    return x.shape[0] <= (880801 if training else 65535) and x.numel() < 2**31 - 1


def _grid_sampler(acc: DeviceState, op: Any) -> Any:
    """``cond_cudnn_grid_sampler`` of ATen/native/GridSampler.cpp."""

    def grid_sampler(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
        if (
            interpolation_mode == 0
            and padding_mode == 0
            and align_corners
            and torch.backends.cudnn.enabled
            and input.dtype in (torch.float16, torch.float32, torch.float64)
            and grid.dtype == input.dtype
            and input.dim() == 4
            and input.shape[1] <= 1024
            and input.numel()
            and acc.is_device(input)
        ):
            return aten.cudnn_grid_sampler.default(input, grid)
        return original(op, input, grid, interpolation_mode, padding_mode, align_corners)

    return grid_sampler


def _ctc_loss(acc: DeviceState, op: Any) -> Any:
    """Lengths are read by the host: ``ctc_loss`` of ATen/native/LossCTC.cpp."""

    def ctc_loss(
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Tensor:
        inputs, outputs = input_lengths.cpu().tolist(), target_lengths.cpu().tolist()
        return aten.ctc_loss.IntList(log_probs, targets, inputs, outputs, blank, reduction, zero_infinity)

    return ctc_loss


def _attention(acc: DeviceState, op: Any) -> Any:
    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        return attention(acc, op, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    return scaled_dot_product_attention


REPLACED: dict[str, Any] = {
    "istft": _istft,
    "dropout": _dropout,
    "softmax.int": _softmax,
    "log_softmax.int": _softmax,
    "batch_norm": _batch_norm,
    "ctc_loss.Tensor": _ctc_loss,
    "grid_sampler": _grid_sampler,
    "scaled_dot_product_attention": _attention,
}
