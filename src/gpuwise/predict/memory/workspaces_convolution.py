"""Workspaces of cuDNN's convolutions.

Tensor cores read channels-last operands, so cuDNN runs a channels-first convolution by writing channels-last copies of
what the kernel reads and a channels-last result into its workspace (its nchwToNhwcKernel and nhwcToNchwKernel):
forward x, w, y; backward to the data dy, w, dx; backward to the filter x, dy, dw. How much of each a job holds at its
peak is fitted on measured jobs (``coefficients/captured_memory.json``); channels-last needs none. Depthwise
convolutions run in torch's own kernels, which need nothing (native/cuda/DepthwiseConv2d.cu), unless cuDNN takes them.

An explicit product first writes the columns it multiplies, ``N C R S Ho Wo`` elements. Benchmark mode tries that too, with
one workspace as large as the largest of its plans (cudnn/Conv_v8.cpp generate_and_filter_plans); gradients of grouped
convolutions hold a part of it in every step. Both shares are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import cast

from gpuwise.predict.coefficients import load_json
from gpuwise.predict.memory.workspaces_kernels import KernelEnvironment, is_channels_last, is_dense, item_bytes, tensor_bytes
from gpuwise.workload.capture.captured import Signature, TensorSpec


@cache
def shares() -> dict[str, float]:
    """Fitted shares: of the transformed operands ``read``, ``written`` and ``filter``; of the columns of an explicit product
    ``search`` (benchmark mode) and ``grouped`` (gradients of grouped convolutions)."""
    return load_json("captured_memory")["convolution"]


def _groups(signature: Signature) -> int:
    groups = signature.attribute("groups", 1)
    return groups if isinstance(groups, int) else 1


def is_depthwise(signature: Signature, x: TensorSpec, w: TensorSpec) -> bool:
    """Whether each channel has its own filters."""
    groups = _groups(signature)
    return groups > 1 and groups == x.shape[1] and w.shape[0] % groups == 0 and w.shape[1] == 1


def takes_depthwise(signature: Signature, x: TensorSpec, w: TensorSpec, environment: KernelEnvironment) -> bool:
    """Whether cuDNN takes a depthwise convolution from torch's own kernels (native/Convolution.cpp use_cudnn_depthwise and
    check_cudnn_depthwise_workload_with_filter): any in channels-last, and in half precision the filters it is fast at."""
    if is_channels_last(x) and not is_contiguous_too(x):
        return True
    if len(x.shape) != 4 or x.dtype not in ("fp16", "bf16") or environment.capability < (7, 0):
        return False
    stride, dilation = (cast("tuple[int, ...]", signature.attribute(n, (1, 1))) for n in ("stride", "dilation"))
    channels, height, width = x.shape[1:]
    if max(dilation) > 1 or channels < 32 or (stride[0] != stride[-1] and height != 1):
        return False
    size = w.shape[-1]
    if w.shape[-2] != size or size not in (1, 3, 5) or width < 7:
        return False
    if stride[-1] == 1:
        return True
    return stride[-1] == 2 and size > 1 and (x.shape[0] == 1 or channels >= 512 or (channels >= 256 and width >= 28))


def tensor_cores(dtype: str, environment: KernelEnvironment) -> bool:
    """Whether cuDNN runs a convolution of this format on tensor cores: half precision since Volta, fp32 as TF32 since
    Ampere where ``torch.backends.cudnn.allow_tf32`` is set (the default)."""
    if dtype in ("fp16", "bf16"):
        return environment.capability >= (7, 0)
    return dtype == "fp32" and environment.cudnn_tf32 and environment.capability >= (8, 0)


def _layout_copies(tensors: tuple[TensorSpec, ...]) -> tuple[int, ...]:
    """Operands that are in neither layout are made dense (cudnn/ConvShared.cpp)."""
    return tuple(tensor_bytes(t) for t in tensors if not is_dense(t))


def forward(signature: Signature, environment: KernelEnvironment) -> tuple[int, ...]:
    """Workspace of one forward convolution, with the copies of operands that are not dense."""
    if len(signature.inputs) < 2 or not signature.outputs or len(signature.inputs[0].shape) < 3:
        return ()
    x, w, y = signature.inputs[0], signature.inputs[1], signature.outputs[0]
    copies = _layout_copies((x, w))
    torch_kernel = is_depthwise(signature, x, w) and not takes_depthwise(signature, x, w, environment)
    if torch_kernel or (is_channels_last(x) and not is_contiguous_too(x)):
        return copies
    if not tensor_cores(x.dtype, environment) or _is_pointwise(w):
        return copies
    fitted = shares()
    size = fitted["read"] * tensor_bytes(x) + fitted["written"] * tensor_bytes(y) + fitted["filter"] * tensor_bytes(w)
    return (*copies, int(size))


def is_contiguous_too(spec: TensorSpec) -> bool:
    """Both layouts at once (one channel or one pixel): no copy is needed either way."""
    return spec.shape[1] == 1 or math.prod(spec.shape[2:]) == 1


def _is_pointwise(w: TensorSpec) -> bool:
    """1 x 1 filters run as matrix products on the operands as they are (mobilenetv2_100 on the A100: with copies the
    process would be 9 % larger than measured)."""
    return math.prod(w.shape[2:]) == 1


def columns_bytes(x: TensorSpec, w: TensorSpec, y: TensorSpec) -> int:
    """``N C R S Ho Wo`` elements: each output pixel's window, written out."""
    return x.shape[0] * x.shape[1] * math.prod(w.shape[2:]) * math.prod(y.shape[2:]) * item_bytes(x.dtype)


def backward(signature: Signature, environment: KernelEnvironment) -> tuple[int, ...]:
    """The larger of the workspaces of the gradient to the data and to the filter: they run one after the other."""
    if len(signature.inputs) < 3 or len(signature.inputs[0].shape) < 3:
        return ()
    dy, x, w = signature.inputs[:3]
    copies = _layout_copies((dy, x, w))
    if is_depthwise(signature, x, w):
        return copies
    fitted = shares()
    filter_fp32 = 4 * math.prod(w.shape) if item_bytes(x.dtype) < 4 else 0
    if is_channels_last(x) and not is_contiguous_too(x):
        # half-precision filters are summed in fp32
        return (*copies, filter_fp32)
    if not tensor_cores(x.dtype, environment) or _is_pointwise(w):
        return copies
    mask = cast("tuple[bool, ...]", signature.attribute("output_mask", (True, True, True)))
    data, filters = bool(mask[0]), bool(mask[1])
    both = fitted["read"] * tensor_bytes(dy) + fitted["filter"] * tensor_bytes(w)
    to_data = both + fitted["written"] * tensor_bytes(x) if data else 0.0
    to_filter = both + fitted["read"] * tensor_bytes(x) + filter_fp32 if filters else 0.0
    columns = fitted["grouped"] * columns_bytes(x, w, dy) if _groups(signature) > 1 else 0.0
    return (*copies, int(max(to_data, to_filter, columns)))


def search_bytes(signature: Signature, environment: KernelEnvironment) -> int | None:
    """Workspace of cuDNN's benchmark mode while it tries its plans for this convolution: the largest among them, fitted as
    ``search`` times the columns of an explicit product. 1 x 1 and grouped convolutions need almost nothing. None for
    operations that cuDNN does not search."""
    name = signature.op.split(".")[1:2]
    backwards = name == ["convolution_backward"]
    if not backwards and name not in (["convolution"], ["cudnn_convolution"], ["_convolution"]):
        return None
    if len(signature.inputs) < 2 + backwards or len(signature.inputs[0].shape) < 3:
        return None
    x, w = signature.inputs[1:3] if backwards else signature.inputs[:2]
    groups = _groups(signature)
    if is_depthwise(signature, x, w) and not is_channels_last(x):
        return None
    y = signature.inputs[0] if backwards else signature.outputs[0]
    if groups > 1 or _is_pointwise(w):
        return 0
    return int(shares()["search"] * columns_bytes(x, w, y))


RULES: dict[str, Callable[[Signature, KernelEnvironment], tuple[int, ...]]] = {
    "convolution": forward,
    "cudnn_convolution": forward,
    "_convolution": forward,
    "convolution_backward": backward,
}
