"""Hidden storages of the fused attention kernels.

B sequences, H query heads, Hk key heads, Sq and Sk positions, D head width. SDPA's operations take [B, H, S, D], the
kernels [B, S, H, D].
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gpuwise.predict.memory.workspaces_kernels import KernelEnvironment, is_contiguous, item_bytes, tensor_bytes
from gpuwise.workload.capture.captured import Signature, TensorSpec


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _bshd_contiguous(spec: TensorSpec) -> bool:
    """[B, H, S, D] whose transpose to [B, S, H, D] is contiguous."""
    if len(spec.shape) != 4:
        return is_contiguous(spec)
    order = (0, 2, 1, 3)
    return is_contiguous(TensorSpec(tuple(spec.shape[i] for i in order), tuple(spec.stride[i] for i in order), spec.dtype))


def split_count(blocks: int, units: int, key_blocks: int, most: int = 128) -> int:
    """Splits of the keys that fill the device: the fewest within 85 % of the best occupancy
    (flash_api.cpp num_splits_heuristic)."""
    if units < 1 or blocks >= 0.8 * units:
        return 1
    most = min(most, units, key_blocks)
    efficiency: list[float] = []
    for n in range(1, most + 1):
        useful = n == 1 or -(-key_blocks // n) != -(-key_blocks // (n - 1))
        waves = blocks * n / units
        efficiency.append(waves / math.ceil(waves) if useful else 0.0)
    best = max(efficiency, default=0.0)
    return next((n for n, e in enumerate(efficiency, 1) if e > 0 and e >= 0.85 * best), 1)


def flash_forward(signature: Signature, environment: KernelEnvironment) -> tuple[int, ...]:
    """With few blocks and no dropout the keys are split: fp32 partial outputs [splits, B, H, Sq, Dr] and log-sums
    (flash_attn/flash_api.cpp mha_fwd, set_params_splitkv)."""
    if len(signature.inputs) < 2 or len(signature.inputs[0].shape) != 4 or signature.attribute("dropout_p", 0.0):
        return ()
    b, h, sq, d = signature.inputs[0].shape
    sk = signature.inputs[1].shape[2]
    block = 256 if d <= 64 else 128 if d <= 128 else 64
    splits = split_count(b * h * -(-sq // 64), 2 * environment.compute_units, -(-sk // block))
    if splits <= 1:
        return ()
    return (4 * splits * b * h * sq, 4 * splits * b * h * sq * _up(d, 32 if d <= 128 else 64))


def flash_backward(signature: Signature, environment: KernelEnvironment) -> tuple[int, ...]:
    """softmax_d [B, H, Sq up to 128] and dq_accum [B, Sq up to 128, H, D rounded] in fp32 (one for each split if
    deterministic), dk and dv for every query head when keys are shared, and dense copies of a gradient and an output in
    another order (flash_attn/flash_api.cpp mha_bwd, transformers/cuda/attention_backward.cu)."""
    if len(signature.inputs) < 3 or len(signature.inputs[1].shape) != 4:
        return ()
    gradient, q, k = signature.inputs[:3]
    b, h, sq, d = q.shape
    hk, sk = k.shape[1], k.shape[2]
    rows = _up(sq, 128)
    accumulators = -(-environment.compute_units // (b * h)) if environment.deterministic and environment.compute_units else 1
    sizes = [tensor_bytes(gradient)] if not _bshd_contiguous(gradient) else []
    sizes += [4 * b * h * rows, 4 * accumulators * b * rows * h * _up(d, 32 if d <= 128 else 64)]
    if hk != h:
        expanded = b * sk * h * d * item_bytes(q.dtype)
        sizes += [expanded, expanded]
    return tuple(sizes)


def efficient_forward(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
    """Half-precision heads wider than 128 accumulate their output in fp32 [B, Sq, H, D]
    (mem_eff_attention/kernel_forward.h kNeedsOutputAccumulatorBuffer)."""
    q, v = signature.inputs[0], signature.inputs[min(2, len(signature.inputs) - 1)]
    if len(q.shape) != 4 or item_bytes(q.dtype) > 2 or v.shape[-1] <= 128:
        return ()
    b, h, sq, _d = q.shape
    return (4 * b * sq * h * v.shape[-1],)


def efficient_backward(signature: Signature, environment: KernelEnvironment) -> tuple[int, ...]:
    """delta [B, H, Sq] in fp32, and by precision (mem_eff_attention/kernel_backward.h, attention_backward.cu
    _efficient_attention_backward): fp32 and V100's wide heads make it as a product of the output's size; half precision
    accumulates dq in fp32 tiles, and beyond the block's 64 or 128 columns dk and dv too."""
    if len(signature.inputs) < 3 or len(signature.inputs[1].shape) != 4:
        return ()
    gradient, q, k, v = (*signature.inputs[:4], signature.inputs[2])[:4]
    b, h, sq, d = q.shape
    sk, dv = k.shape[2], v.shape[-1]
    width = max(d, dv)
    half = item_bytes(q.dtype) <= 2
    sizes = [tensor_bytes(gradient)] if not _bshd_contiguous(gradient) else []
    block = 64 if width <= 64 or environment.capability < (8, 0) else 128
    in_registers = half and width <= block
    sizes.append(4 * b * h * sq)
    if not half or (not in_registers and environment.capability[0] == 7 and environment.capability[1] == 0):
        out = 4 * b * sq * h * dv
        # the product, and fp32 copies of its two factors where they are narrower
        sizes += [out] if not half else [out, out, out]
    if half:
        elements = _up(sq, block) * _up(d, block)
        if not in_registers:
            elements += _up(sk, block) * (_up(d, block) + _up(dv, block))
        sizes.append(4 * b * h * elements)
    return tuple(sizes)


def cudnn_backward(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
    """An estimate: cuDNN does not publish its plan's size; dq in fp32 and the row sums, as every fused backward needs."""
    if len(signature.inputs) < 2 or len(signature.inputs[1].shape) != 4:
        return ()
    b, h, sq, d = signature.inputs[1].shape
    return (4 * b * h * sq * d, 4 * b * h * sq)


RULES: dict[str, Callable[[Signature, KernelEnvironment], tuple[int, ...]]] = {
    "_scaled_dot_product_flash_attention": flash_forward,
    "_scaled_dot_product_flash_attention_backward": flash_backward,
    "_scaled_dot_product_efficient_attention": efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
    "_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
}
