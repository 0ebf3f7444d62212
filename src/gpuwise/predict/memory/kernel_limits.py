"""Operations that fail although memory suffices: kernels that index with 32 bits, and grids that are too large.

A CUDA grid has at most 65,535 blocks in y and z (CUDA C++ programming guide, technical specifications); a kernel that counts
elements in ``int32`` cannot reach element 2**31. Each rule names the report or the source it was read in. No failure is known
for operations without a rule: torch's elementwise kernels, products and norms split or widen their indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.memory.library_workspaces import Version, version_of
from gpuwise.predict.memory.workspaces import base_name, environment_of
from gpuwise.predict.memory.workspaces_convolution import is_contiguous_too, is_depthwise, takes_depthwise
from gpuwise.predict.memory.workspaces_kernels import KernelEnvironment, is_channels_last
from gpuwise.workload.capture.captured import Capture, Signature, TensorSpec

MOST_ELEMENTS = 2**31 - 1
MOST_BLOCKS = 65535
"""Maximum blocks of a grid in y and z."""
CHUNKED_SINCE: Version = version_of("2.8")
"""Memory-efficient attention without log-sums cuts the batch into pieces (pytorch#154029)."""
DEPTHWISE_SINCE: Version = version_of("2.8")
"""Depthwise convolutions that need 64-bit indices are no longer torch's own (pytorch#153101); on 2.9.1 networks with 2.01 x 2^31
elements in one ran."""
BILINEAR_SINCE: Version = version_of("2.14")
"""Channels-last bilinear upsampling with 64-bit indices (pytorch#185788)."""


@dataclass(frozen=True, slots=True)
class KernelFailure:
    """``op`` is the first operation of the capture that fails, ``reason`` why, for a person."""

    op: int
    reason: str


def kernel_failures(capture: Capture, accelerator: Accelerator, torch_version: str | None = None) -> tuple[KernelFailure, ...]:
    """The operations of ``capture`` whose kernel cannot take their sizes, one entry a reason, in program order."""
    environment = environment_of(capture, accelerator, torch_version)
    reasons = [_reason(s, environment) for s in capture.signatures]
    if not any(reasons):
        return ()
    first: dict[str, int] = {}
    kinds: list[int] = capture.op_signature.tolist()
    for op, kind in enumerate(kinds):
        if reason := reasons[kind]:
            first.setdefault(reason, op)
    return tuple(KernelFailure(op, reason) for reason, op in first.items())


def _reason(signature: Signature, environment: KernelEnvironment) -> str:
    rule = RULES.get(base_name(signature.op))
    return rule(signature, environment) if rule is not None and signature.inputs else ""


def _elements(specs: Sequence[TensorSpec]) -> int:
    return max((math.prod(s.shape) for s in specs), default=0)


def _too_many(kernel: str, n: int) -> str:
    return f"{kernel} counts elements in 32 bits, and a tensor has {n / 2**31:.2f} times 2^31" if n > MOST_ELEMENTS else ""


def _grid(kernel: str, what: str, n: int) -> str:
    return f"{kernel} starts a block for each {what}, and {n:,} is above the {MOST_BLOCKS:,} of a grid" if n > MOST_BLOCKS else ""


def _depthwise_convolution(signature: Signature, environment: KernelEnvironment) -> str:
    """torch's own depthwise kernels check for 32-bit indices (native/cuda/DepthwiseConv2d.cu; pytorch#80020, #155225) until
    such convolutions are cuDNN's (pytorch#153101), which has none with 64 bits in channels-last: up to 2.4 networks with 1.0 to
    1.12 x 2^31 elements in one ran in pieces of the batch, on 2.9.1 four with 1.12 to 1.15 stopped with memory to spare."""
    backwards = base_name(signature.op) == "convolution_backward"
    x, w = signature.inputs[1:3] if backwards else signature.inputs[:2]
    if len(x.shape) != 4 or not is_depthwise(signature, x, w):
        return ""
    last = is_channels_last(x) and not is_contiguous_too(x)
    recent = environment.torch >= DEPTHWISE_SINCE
    if recent != last or (not last and takes_depthwise(signature, x, w, environment)):
        return ""
    tensors = signature.inputs[:2] if backwards else (x, *signature.outputs[:1])
    return _too_many("the depthwise convolution", _elements(tensors))


def _reflection(signature: Signature, environment: KernelEnvironment) -> str:
    """Input and output must fit 32-bit indices (native/cuda/ReflectionPad.cu)."""
    return _too_many("reflection padding", _elements((*signature.inputs, *signature.outputs)))


def _efficient_attention(signature: Signature, environment: KernelEnvironment) -> str:
    """Sequences and heads are grid dimensions (mem_eff_attention/kernel_forward.h getBlocksGrid; pytorch#142228, #146704)."""
    batch, heads = signature.inputs[0].shape[:2]
    backwards = base_name(signature.op).endswith("backward")
    chunked = environment.torch >= CHUNKED_SINCE and (backwards or not _elements(signature.outputs[1:2]))
    kernel = "memory-efficient attention"
    return (not chunked and _grid(kernel, "sequence", batch)) or _grid(kernel, "head", heads)


def _flash_attention(signature: Signature, environment: KernelEnvironment) -> str:
    """Sequences and heads are grid dimensions (flash_fwd_launch_template.h; flash-attention#1786); the backward counts the
    query gradients' accumulator [B, H, S up to 128, D at least 32] in 32 bits (PriorLabs/TabPFN#1184)."""
    backwards = base_name(signature.op).endswith("backward")
    query = signature.inputs[1 if backwards else 0]
    if len(query.shape) != 4:
        return ""
    batch, heads, length, width = query.shape
    kernel = "flash attention"
    grid = _grid(kernel, "sequence", batch) or _grid(kernel, "head", heads)
    accumulated = batch * heads * -(-length // 128) * 128 * max(width, 32)
    # exactly 2**31 is reached
    return grid or (_too_many(f"{kernel}'s backward", accumulated) if backwards and accumulated > 2**31 else "")


def _bilinear(signature: Signature, environment: KernelEnvironment) -> str:
    """Channels-last kernels compute grids in 32 bits (pytorch#185788)."""
    affected = environment.torch < BILINEAR_SINCE and is_channels_last(signature.inputs[0])
    return _too_many("channels-last bilinear upsampling", _elements((*signature.inputs, *signature.outputs))) if affected else ""


def _average_pool(signature: Signature, environment: KernelEnvironment) -> str:
    """The count of outputs is cut down to ``int`` (native/cuda/AveragePool2d.cu safe_downcast); with inputs of 3.8 x 2^31
    elements and fewer outputs networks ran."""
    return _too_many("average pooling", _elements(signature.outputs))


def _adaptive_pool_backward(signature: Signature, environment: KernelEnvironment) -> str:
    """Plane offsets are 32-bit products (pytorch#188957)."""
    return _too_many("the backward of adaptive average pooling", _elements((*signature.inputs, *signature.outputs)))


RULES: dict[str, Callable[[Signature, KernelEnvironment], str]] = {
    "convolution": _depthwise_convolution,
    "_convolution": _depthwise_convolution,
    "convolution_backward": _depthwise_convolution,
    "_scaled_dot_product_efficient_attention": _efficient_attention,
    "_scaled_dot_product_efficient_attention_backward": _efficient_attention,
    "_scaled_dot_product_flash_attention": _flash_attention,
    "_scaled_dot_product_flash_attention_backward": _flash_attention,
    "avg_pool2d": _average_pool,
    "reflection_pad2d": _reflection,
    "reflection_pad2d_backward": _reflection,
    "upsample_bilinear2d": _bilinear,
    "upsample_bilinear2d_backward": _bilinear,
    "_adaptive_avg_pool2d_backward": _adaptive_pool_backward,
}
"""Operation name without namespace and overload -> reason why its kernel fails, empty if it does not."""
