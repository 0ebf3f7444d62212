"""torchvision's operators by shape, for a torch build that its binary does not fit (a CPU torch beside a CUDA wheel).

Signatures as in torchvision's own registrations (``torchvision/csrc/ops``); results have the right shape and dtype
and no values. How many boxes ``nms`` keeps depends on values: ``device/data_dependent``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

_LIBRARIES: list[Any] = []
SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
    " int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward": "(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
    " SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w,"
    " SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask)"
    " -> Tensor",
    "_deform_conv2d_backward": "(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias,"
    " SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups,"
    " SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
}


def describe() -> None:
    """Define the operators, once; before ``torchvision`` is imported."""
    if _LIBRARIES:
        return
    library: Any = torch.library.Library("torchvision", "FRAGMENT")
    _LIBRARIES.append(library)
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
    library.impl("roi_align", _roi_align, "Meta")
    library.impl("_roi_align_backward", _roi_align_backward, "Meta")
    library.impl("deform_conv2d", _deform_conv2d, "Meta")
    library.impl("_deform_conv2d_backward", _deform_conv2d_backward, "Meta")
    torch.library.register_autograd("torchvision::roi_align", _roi_align_gradient, setup_context=_keep_roi, lib=library)  # pyright: ignore[reportUnknownMemberType]
    torch.library.register_autograd("torchvision::deform_conv2d", _deform_gradient, setup_context=_keep_deform, lib=library)  # pyright: ignore[reportUnknownMemberType]


def finish() -> None:
    """After the import: the package takes its operators as loaded."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torchvision."):
            for attribute, answer in (("_has_ops", _yes), ("_assert_has_ops", _nothing)):
                if hasattr(module, attribute):
                    setattr(module, attribute, answer)


def _yes() -> bool:
    return True


def _nothing() -> None:
    return None


def _roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int, aligned: bool
) -> Tensor:
    return input.new_empty((rois.shape[0], input.shape[1], pooled_height, pooled_width))


def _roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    return grad.new_empty((batch_size, channels, height, width))


def _keep_roi(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.options, ctx.size = inputs[2:], tuple(inputs[0].shape)


def _roi_align_gradient(ctx: Any, grad: Tensor) -> Any:
    scale, height, width, ratio, aligned = ctx.options
    backward = torch.ops.torchvision._roi_align_backward.default
    return backward(grad, ctx.saved_tensors[0], scale, height, width, *ctx.size, ratio, aligned), *[None] * 6


def _deform_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Tensor:
    return input.new_empty((input.shape[0], weight.shape[0], offset.shape[2], offset.shape[3]))


def _deform_conv2d_backward(
    grad: Tensor, input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *options: Any
) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in (input, weight, offset, mask, bias))


def _keep_deform(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


def _deform_gradient(ctx: Any, grad: Tensor) -> Any:
    backward = torch.ops.torchvision._deform_conv2d_backward.default
    return *backward(grad, *ctx.saved_tensors, *ctx.options), *[None] * 9
