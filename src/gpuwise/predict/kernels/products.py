"""Device time of the products of a capture: matrix products, grouped products, attention and recurrent layers.

The format a product runs in is the device's, not the tensor's: fp32 in TF32 where the step allows it and the device has
it, bf16 in fp32 on devices without it, complex as four real products.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.attention.fused import attention_backward_time, attention_forward_time
from gpuwise.predict.kernels.experts.grouped import grouped_time
from gpuwise.predict.kernels.families import BYTES, elements, short_name
from gpuwise.predict.kernels.gemm.alignment import misaligned_time
from gpuwise.predict.kernels.gemm.fp32 import Layout, linear_time
from gpuwise.predict.kernels.gemm.product import gemm_time
from gpuwise.predict.kernels.image_network import has_matrix_units
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import cache_rate, dram_rate, memory_time
from gpuwise.workload.capture.record.capture import Settings, Signature
from gpuwise.workload.capture.record.table import row_dtype, row_shape
from gpuwise.workload.step import CAUSAL, Kind

F64 = NDArray[np.float64]
_SPECIFIED_SHARE = 0.5
"""Judgement, not fit: share of the peak that products reach in a format no kernel of which was measured."""
_SPECIFIED_SIGMA = 0.4


def matrix_units(accelerator: Accelerator) -> bool:
    """Whether products of 16-bit numbers summed in fp32 run faster than fp32 ones: not on Pascal, whose packed arithmetic
    sums in 16 bits."""
    capability = accelerator.compute_capability
    old = accelerator.vendor == "NVIDIA" and capability is not None and float(capability) < 7.0
    return has_matrix_units(accelerator) and not old


def run_format(accelerator: Accelerator, dtype: str, tf32: bool) -> str:
    """The format ``dtype`` is computed in on the device."""
    rates = accelerator.peak_flop_per_s
    if dtype == "fp32":
        return "tf32" if tf32 and "tf32" in rates else "fp32"
    if dtype in ("fp16", "bf16"):
        return dtype if dtype in rates and matrix_units(accelerator) else "fp32"
    if dtype in ("c64", "c32"):
        return "fp32"
    if dtype == "c128":
        return "fp64"
    if dtype in ("i8", "u8"):
        return "int8" if "int8" in rates else "fp32"
    return dtype if dtype in rates else "fp32"


def _layout(s: Signature) -> Layout:
    """How the operands of a product lie: a linear layer's forward, its input gradient or its weight gradient."""
    pair = [t for t in s.inputs if len(t.shape) >= 2][-2:]
    if len(pair) < 2:
        return "tn"
    a_rows, b_rows = (t.stride[-1] == 1 or t.shape[-1] == 1 for t in pair)
    return "nn" if a_rows and b_rows else "tn" if a_rows else "nt"


def matmul_time(accelerator: Accelerator, signatures: Sequence[Signature], settings: Settings) -> KernelTime:
    """[R] device seconds of matrix products. Raises UnpredictableError when the device has no fp32 rate."""
    made = [row_shape(s) for s in signatures]
    shape = np.array([m[1] if m[0] is Kind.MATMUL else (1, 1, 1, 1) for m in made], dtype=np.float64).reshape(-1, 4)
    formats = [run_format(accelerator, row_dtype(s), settings.matmul_tf32) for s in signatures]
    complexes = np.array([4.0 if row_dtype(s).startswith("c") else 1.0 for s in signatures])
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, (s, f) in enumerate(zip(signatures, formats, strict=True)):
        groups[f, _layout(s) if f == "fp32" else ""].append(i)
    time, sigma, bases = np.zeros(len(signatures)), np.zeros(len(signatures)), list[Basis]()
    for (dtype, layout), found in groups.items():
        rows = np.array(found)
        one = _products(accelerator, dtype, layout, np.maximum(shape[rows], 1.0))
        time[rows], sigma[rows] = one.time_s * complexes[rows], one.log_sigma
        bases.append(one.basis)
    extra = np.array([max(s.n_kernels - 1, 0) * sum(elements(t) * BYTES.get(t.dtype, 4) for t in s.outputs) for s in signatures])
    if extra.any():  # a bias that does not fit the library's epilogue is copied out first
        time += np.where(extra > 0, memory_time(accelerator, 0.0, extra).time_s, 0.0)
    none = np.array([s.flop == 0 for s in signatures])
    time = np.where(none, load_json("memory_bound")["latency_s"], time)
    return KernelTime(time, sigma, weakest(*bases) if bases else "derived")


def _products(accelerator: Accelerator, dtype: str, layout: str, shape: F64) -> KernelTime:
    b, m, n, k = shape.T
    if dtype == "fp32":
        return linear_time(accelerator, m, n, k, b, layout=layout or "tn")  # type: ignore[arg-type]
    try:
        made = gemm_time(accelerator, dtype, m, n, k, b, implementation="fp8_gemm" if dtype == "fp8" else None, sustained=True)
        return made._replace(time_s=misaligned_time(accelerator, dtype, made.time_s, m, n, k, b))
    except UnpredictableError:
        return _specified(accelerator, dtype, 2.0 * b * m * n * k, b * (m * k + n * k + m * n) * BYTES.get(dtype, 1))


def _specified(accelerator: Accelerator, dtype: str, flop: F64, moved: F64) -> KernelTime:
    rate = accelerator.peak_flop_per_s.get(dtype) or accelerator.peak("fp32")
    time = np.maximum(flop / (_SPECIFIED_SHARE * rate), moved / dram_rate(accelerator)) + load_json("memory_bound")["latency_s"]
    return KernelTime(time, np.full(time.shape, _SPECIFIED_SIGMA), "specified")


def grouped_products_time(accelerator: Accelerator, signatures: Sequence[Signature]) -> KernelTime:
    """[R] device seconds of grouped (expert) products, tokens spread evenly."""
    time, sigma, basis = np.zeros(len(signatures)), np.zeros(len(signatures)), list[Basis]()
    for i, s in enumerate(signatures):
        kind, shape, _ = row_shape(s)
        dtype = run_format(accelerator, row_dtype(s), False)
        if kind is not Kind.GROUPED:
            one = _specified(accelerator, dtype, np.array([s.flop]), np.array([s.bytes_read + s.bytes_written]))
        else:
            try:
                one = grouped_time(accelerator, dtype, *(np.array([float(max(x, 1))]) for x in shape))
            except UnpredictableError:
                one = _specified(accelerator, dtype, np.array([s.flop]), np.array([s.bytes_read + s.bytes_written]))
        time[i], sigma[i] = one.time_s[0], one.log_sigma[0]
        basis.append(one.basis)
    return KernelTime(time, sigma, weakest(*basis) if basis else "derived")


def attention_kernel(s: Signature) -> str:
    """``flash``, ``efficient`` or ``cudnn``: the kernel the operation names, or the one a composite would choose."""
    name = short_name(s.op)
    for kernel in ("flash", "efficient", "cudnn"):
        if kernel in name:
            return kernel
    masked = any(len(t.shape) == 4 for t in s.inputs[3:4])
    return "flash" if row_dtype(s) in ("fp16", "bf16") and not masked else "efficient"


def attention_time(accelerator: Accelerator, signatures: Sequence[Signature]) -> KernelTime:
    """[R] device seconds of fused attention. A bias or mask of the scores is read once more (bytes of the capture)."""
    model: dict[str, Any] = load_json("captured_time")
    groups: dict[tuple[str, bool, bool, str], list[int]] = defaultdict(list)
    shapes: list[tuple[int, ...]] = []
    for i, s in enumerate(signatures):
        kind, shape, flag = row_shape(s)
        shapes.append(shape if kind is Kind.ATTENTION and len(shape) == 7 else ())
        groups[row_dtype(s), "backward" in s.op, bool(flag & CAUSAL), attention_kernel(s)].append(i)
    time, sigma, bases = np.zeros(len(signatures)), np.zeros(len(signatures)), list[Basis]()
    for (dtype, backward, causal, kernel), found in groups.items():
        rows = np.array([i for i in found if shapes[i] and min(shapes[i]) > 0], dtype=int)
        if rows.size:
            part = _attention(accelerator, dtype, np.array([shapes[int(i)] for i in rows]), backward, causal, kernel, model)
            time[rows], sigma[rows] = part.time_s, part.log_sigma
            bases.append(part.basis)
        odd = [i for i in found if not shapes[i] or min(shapes[i]) <= 0]
        if odd:
            flop, moved = np.array([signatures[i].flop for i in odd]), np.array([signatures[i].bytes_read for i in odd])
            part = _specified(accelerator, run_format(accelerator, dtype, False), flop, moved)
            time[odd], sigma[odd] = part.time_s, part.log_sigma
            bases.append(part.basis)
    mask = np.array([_mask_bytes(s) for s in signatures])
    time += mask / dram_rate(accelerator)
    return KernelTime(time, sigma, weakest(*bases) if bases else "derived")


def _mask_bytes(s: Signature) -> float:
    """Bytes of a bias on the scores, read for every head and sequence it is spread over."""
    start = 4 if "backward" in s.op else 3
    biases = [t for t in s.inputs[start : start + 1] if len(t.shape) == 4 and len(s.inputs) > 3 and "flash" not in s.op]
    return float(sum(elements(t) * BYTES.get(t.dtype, 4) for t in biases))


def _attention(
    accelerator: Accelerator,
    dtype: str,
    shape: NDArray[np.int64],
    backward: bool,
    causal: bool,
    kernel: str,
    model: dict[str, Any],
) -> KernelTime:
    columns: F64 = shape.T.astype(np.float64)
    b, q, kv, a, given, d, dv = (columns[i] for i in range(7))
    k = cast("F64", np.where(np.fmod(a, np.maximum(given, 1.0)) == 0, given, a))
    if dtype in ("fp16", "bf16") and matrix_units(accelerator) and dtype in accelerator.peak_flop_per_s:
        time = attention_backward_time if backward else attention_forward_time
        made = time(accelerator, dtype, b, q, kv, a, k, d, dv, causal=causal)
        slow = float(model["efficient_attention_slowdown"]) if kernel == "efficient" else 1.0
        return made._replace(time_s=made.time_s * slow)
    seen = np.minimum(q, kv) * (np.minimum(q, kv) + 1.0) / 2.0 + np.maximum(q - kv, 0) * kv
    pairs = seen if causal else q * kv
    flop = 2.0 * b * a * pairs * (d + dv) * (2.5 if backward else 1.0)
    rate = accelerator.peak("fp32")
    if "tf32" in accelerator.peak_flop_per_s:  # three TF32 products stand for one of fp32
        rate = max(rate, accelerator.peak("tf32") / 3.0)
    moved = 4.0 * b * (q * a * (d + dv) + kv * k * (d + dv)) * (3.0 if backward else 1.0)
    share = float(model["fp32_attention_share"])
    time_s = np.maximum(flop / (share * rate), moved / dram_rate(accelerator)) + load_json("memory_bound")["latency_s"]
    return KernelTime(time_s, np.full(time_s.shape, _SPECIFIED_SIGMA), "specified")


def recurrent_time(accelerator: Accelerator, signatures: Sequence[Signature], settings: Settings) -> KernelTime:
    """[R] device seconds of recurrent layers.

    The input's products of all time steps are one product a layer. The state's are a chain of T products [B, H] x [H, G H]:
    a step takes the longer of its product and the weights' way from the cache (or memory, if they do not fit), and never
    less than ``step_s``, kernel to kernel. Layers run staggered, each one step behind the one below (cuDNN, Appleyard et
    al., arXiv 1604.01946), so that L layers of T steps need T + L - 1 shortest steps. The backward adds the same chain and
    the weights' gradients as one product.
    """
    model: dict[str, Any] = load_json("captured_time")["recurrent"]
    time = np.zeros(len(signatures))
    basis: list[Basis] = []
    for i, s in enumerate(signatures):
        dtype = run_format(accelerator, row_dtype(s), settings.cudnn_tf32)
        time[i], one = _one_recurrent(accelerator, s, dtype, model)
        basis.append(one)
    return KernelTime(time, np.full(time.shape, float(model["log_sigma"])), weakest(*basis) if basis else "derived")


def _one_recurrent(accelerator: Accelerator, s: Signature, dtype: str, model: dict[str, Any]) -> tuple[float, Basis]:
    matrices = [t.shape for t in s.inputs[1:] if len(t.shape) == 2]
    given = s.inputs[0].shape
    steps, batch = (
        (given[1], given[0]) if s.attribute("batch_first") and len(given) == 3 else (given[0], given[1] if len(given) == 3 else 1)
    )
    hidden = int(s.attribute("hidden_size", 0) or 0) or min((m[-1] for m in matrices), default=1)  # type: ignore[call-overload]
    inner = [m for m in matrices if m[1] == hidden and m[0] % hidden == 0]
    layers = max(1, len(matrices) // 2)
    gates = max((m[0] for m in inner), default=hidden)
    bulk = max(s.flop / 2.0 - 2.0 * steps * batch * layers * gates * hidden * (2.0 if "backward" in s.op else 1.0), 0.0)
    tokens = float(max(steps * batch, 1))
    wide = max(bulk / 2.0 / tokens / max(gates, 1), 1.0)
    one = _products(
        accelerator,
        dtype,
        "tn",
        np.array([[1.0, tokens, float(gates), wide], [1.0, float(max(batch, 1)), float(gates), float(hidden)]]),
    )
    weights = float(gates) * hidden * BYTES.get(dtype, 4)
    near = cache_rate(accelerator) if weights * layers <= 0.7 * (accelerator.l2_bytes or 0.0) else None
    chain = max(float(one.time_s[1]), weights / (near or dram_rate(accelerator)), float(model["step_s"]))
    passes = 2.0 if "backward" in s.op else 1.0
    per_direction = layers / (2.0 if s.attribute("bidirectional") else 1.0)
    shortest = (steps + per_direction - 1.0) * chain
    work = steps * layers * (2.0 * batch * gates * hidden) / (accelerator.peak_flop_per_s.get(dtype) or accelerator.peak("fp32"))
    return float(one.time_s[0]) + passes * max(shortest, work), one.basis


Evaluate = Callable[[Accelerator, Sequence[Signature], Settings], KernelTime]
PRODUCTS: dict[str, Evaluate] = {
    "matmul": matmul_time,
    "grouped": lambda a, s, _: grouped_products_time(a, s),
    "attention": lambda a, s, _: attention_time(a, s),
    "recurrent": recurrent_time,
}


def steps_of(s: Signature) -> int:
    """Time steps of a recurrent signature: one captured call is a chain of so many."""
    given = s.inputs[0].shape
    return int(given[1] if s.attribute("batch_first") and len(given) == 3 else given[0]) if given else 1


def flop_rate(s: Signature, time_s: float) -> float:
    """Achieved FLOP/s; 0 for no time."""
    return s.flop / time_s if time_s > 0 and math.isfinite(time_s) else 0.0
