"""Operations of a trace beside its matrix products, as the op table has them, so that the same model times both.

Convolutions, attention, normalisation, softmax, elementwise kernels and copies. A trace has an operation's inputs; its outputs
follow from them: the positions of a convolution from its stride and padding, otherwise the broadcast shape of its inputs. For
nested operations the outermost known one counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.train.profile.products import DTYPES
from gpuwise.train.profile.trace import NONE, Detail, Floats, Ints, Trace
from gpuwise.workload.capture.captured import Signature, TensorSpec
from gpuwise.workload.capture.ops.flop import flop_of
from gpuwise.workload.capture.record.families import elements
from gpuwise.workload.row_codes import Kind

if TYPE_CHECKING:
    from gpuwise.train.profile.profile_data import ProfileData

_DTYPES = {
    **DTYPES,
    "long int": "i64",
    "long": "i64",
    "int": "i32",
    "short int": "i16",
    "signed char": "i8",
    "unsigned char": "u8",
    "bool": "bool",
    "c10::complex<float>": "c64",
    "c10::complex<double>": "c128",
}
_ATTENTION = tuple(
    f"aten::_scaled_dot_product_{kernel}_attention{device}{backward}"
    for kernel, devices in (("flash", ("", "_for_cpu")), ("efficient", ("",)), ("cudnn", ("",)))
    for device in devices
    for backward in ("", "_backward")
)
_IS_CAUSAL = {
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_backward": 11,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_efficient_attention_backward": 11,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14,
}
_BIAS = {
    "aten::_scaled_dot_product_efficient_attention": 3,
    "aten::_scaled_dot_product_efficient_attention_backward": 4,
    "aten::_scaled_dot_product_cudnn_attention": 3,
    "aten::_scaled_dot_product_cudnn_attention_backward": 8,
}
"""Places of ``is_causal`` and ``attn_bias`` among the inputs (native_functions.yaml)."""
BACKWARD_ATTENTION = 2.5
"""FLOP of the backward pass of attention that computes the scores again, over those of the forward pass: five products for
two (Dao, arXiv 2307.08691)."""
_NORMS = (
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "_fused_rms_norm",
)
_ROWS = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
_EACH = (
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "abs",
    "pow",
    "sqrt",
    "rsqrt",
    "exp",
    "log",
    "tanh",
    "sigmoid",
    "relu",
    "gelu",
    "silu",
    "mish",
    "leaky_relu",
    "elu",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "softplus",
    "clamp",
    "clamp_min",
    "clamp_max",
    "where",
    "masked_fill",
    "maximum",
    "minimum",
    "lerp",
    "addcmul",
    "addcdiv",
    "native_dropout",
    "threshold",
)
_WRITES = ("copy_", "zero_", "fill_")
"""Their first input is only written."""
_MEMORY = frozenset(
    f"aten::{name}"
    for name in (
        *_NORMS,
        *(f"{n}_backward" for n in _NORMS),
        *_ROWS,
        *_EACH,
        *(f"{n}_" for n in _EACH),
        *(f"{n}_backward" for n in _EACH),
        *_WRITES,
        "clone",
    )
)
_CONVOLUTION, _CONVOLUTION_BACKWARD = "aten::convolution", "aten::convolution_backward"
KNOWN_OPS = _MEMORY | frozenset((_CONVOLUTION, _CONVOLUTION_BACKWARD, *_ATTENTION))


@dataclass(slots=True)
class TraceOp:
    """All calls of one operation on inputs of one shape."""

    signature: Signature
    words: str
    """``64x3x224x224, 64x3x7x7``."""
    count: float = 0.0
    """Calls a step."""
    seconds: float = 0.0
    """A step, all calls; of kernels on a GPU."""


def trace_ops_of(data: ProfileData) -> list[TraceOp]:
    """The operations of a step that are no matrix products; empty where shapes were not recorded."""
    trace = data.trace
    if trace is None:
        return []
    is_op = trace.named(KNOWN_OPS.__contains__)
    rows = _outermost(trace, data.host_ops[is_op[data.host_ops]])
    seconds = op_seconds(data, trace, rows)
    keys = list(zip(trace.name[rows].tolist(), trace.detail[rows].tolist(), strict=True))
    ops: dict[tuple[int, int], TraceOp | None] = {}
    for row, key in zip(rows.tolist(), keys, strict=True):
        if key not in ops:
            ops[key] = _trace_op(trace.text(row), trace.inputs(row))
        op = ops[key]
        if op is not None:
            op.count += 1.0 / data.n_steps
    for key, spent in data.steady_s(rows, keys, seconds.tolist()).items():
        op = ops[key]
        if op is not None:
            op.seconds = spent * data.factor
    return [w for w in ops.values() if w is not None and w.seconds > 0]


def _outermost(trace: Trace, rows: Ints) -> Ints:
    """Those of ``rows`` that no other of them contains, on the same thread."""
    kept: list[int] = []
    ends: dict[int, float] = {}
    order = np.lexsort((-trace.duration_s[rows], trace.start_s[rows]))
    for row in rows[order].tolist():
        lane = int(trace.lane[row])
        if float(trace.start_s[row]) >= ends.get(lane, -math.inf):
            kept.append(row)
            ends[lane] = float(trace.end_s[row])
    return np.array(kept, dtype=np.int64)


def op_seconds(data: ProfileData, trace: Trace, rows: Ints) -> Floats:
    """[rows], which begin one after the other: their own seconds on a processor, those of their kernels on a GPU."""
    return _kernel_seconds(data, trace, rows) if data.on_gpu else data.own_s(rows)


def _kernel_seconds(data: ProfileData, trace: Trace, rows: Ints) -> np.ndarray:
    """[rows] of the kernels that were launched inside each."""
    out = np.zeros(len(rows))
    owners = data.kernel_owner
    owned = owners != NONE
    owners, long_s = owners[owned], trace.duration_s[data.kernels[owned]]
    for lane in np.unique(trace.lane[rows]).tolist():
        here = np.flatnonzero(trace.lane[rows] == lane)
        mine = trace.lane[owners] == lane
        began = trace.start_s[owners[mine]]
        at = np.searchsorted(trace.start_s[rows[here]], began, side="right") - 1
        inside = (at >= 0) & (began < trace.end_s[rows[here]][np.maximum(at, 0)])
        np.add.at(out, here[at[inside]], long_s[mine][inside])
    return out


def _trace_op(name: str, detail: Detail) -> TraceOp | None:
    signature = signature_of(name, detail)
    if signature is None:
        return None
    return TraceOp(signature, ", ".join("x".join(map(str, t.shape)) for t in signature.inputs[:3]))


def signature_of(name: str, detail: Detail) -> Signature | None:
    """The op table's signature of an operation; None if it is not one of :data:`KNOWN_OPS`, or its inputs were not recorded."""
    tensors = list(_tensors(detail))
    if not tensors or name not in KNOWN_OPS:
        return None
    op = name.replace("::", ".") + ".default"
    if name in (_CONVOLUTION, _CONVOLUTION_BACKWARD):
        return _convolution(op, tensors, detail, backward=name == _CONVOLUTION_BACKWARD)
    if name in _ATTENTION:
        return _attention(op, tensors, detail.given, name)
    return _memory(op, [t for _, t in tensors], name.removeprefix("aten::"))


def _tensors(detail: Detail) -> Iterator[tuple[int, TensorSpec]]:
    """Inputs that are tensors, with their places."""
    for at, (shape, dtype) in enumerate(zip(detail.shapes, detail.dtypes, strict=False)):
        spec = _DTYPES.get(dtype)
        # numbers are tensors without dimensions
        if spec is None or not shape:
            continue
        stride = detail.strides[at] if at < len(detail.strides) and len(detail.strides[at]) == len(shape) else _dense(shape)
        yield at, TensorSpec(shape, stride, spec)


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))


def _bytes(tensors: Sequence[TensorSpec]) -> float:
    return float(sum(elements(t) * TENSOR_BYTES.get(t.dtype, 4) for t in tensors))


def _numbers(text: str) -> tuple[int, ...]:
    """``[2, 2]``."""
    words = text.strip("[] ").split(",")
    return tuple(int(w) for w in words if w.strip().lstrip("-").isdigit())


def _truths(text: str) -> tuple[bool, ...]:
    return tuple(w.strip() == "True" for w in text.strip("[] ").split(",")) if text else ()


def _convolution(op: str, tensors: list[tuple[int, TensorSpec]], detail: Detail, *, backward: bool) -> Signature | None:
    first = 4 if backward else 3
    scalars = detail.given
    places = dict(tensors)
    image, weight = (places.get(1), places.get(2)) if backward else (places.get(0), places.get(1))
    if image is None or weight is None or len(scalars) < first + 6 or len(image.shape) != len(weight.shape):
        return None
    stride, padding, dilation = (_numbers(scalars[first + n]) for n in range(3))
    transposed, extra, groups = scalars[first + 3] == "True", _numbers(scalars[first + 4]), _numbers(scalars[first + 5])
    n = len(image.shape) - 2
    if n < 1 or not groups or min(map(len, (stride, padding, dilation))) < 1:
        return None
    stride, padding, dilation, extra = (v * n if len(v) == 1 else v for v in (stride, padding, dilation, extra or (0,)))
    kernel = weight.shape[2:]
    if transposed:
        sizes = [
            (i - 1) * s - 2 * p + d * (k - 1) + 1 + e
            for i, s, p, d, k, e in zip(image.shape[2:], stride, padding, dilation, kernel, extra, strict=True)
        ]
        c_out = weight.shape[1] * groups[0]
    else:
        sizes = [
            (i + 2 * p - d * (k - 1) - 1) // s + 1
            for i, s, p, d, k in zip(image.shape[2:], stride, padding, dilation, kernel, strict=True)
        ]
        c_out = weight.shape[0]
    shape = (image.shape[0], c_out, *sizes)
    result = TensorSpec(shape, _dense(shape), image.dtype)
    if min(shape) < 1:
        return None
    call = {"input": image, "weight": weight, "transposed": transposed}
    attributes: list[tuple[str, object]] = [("transposed", transposed), ("groups", groups[0])]
    if not backward:
        flop = flop_of("convolution", call, (result,))
        return Signature(
            op,
            Kind.CONVOLUTION,
            (image, weight),
            (result,),
            tuple(attributes),
            flop,
            _bytes((image, weight)),
            _bytes((result,)),
            1,
        )
    wants = _truths(scalars[-1]) if len(_truths(scalars[-1])) == 3 else (True, True, False)
    outputs = tuple(t for t, w in zip((image, weight), wants, strict=False) if w)
    return Signature(
        op,
        Kind.CONVOLUTION,
        (places.get(0, result), image, weight),
        outputs,
        (*attributes, ("output_mask", wants)),
        flop_of("convolution_backward", {**call, "grad_output": result, "output_mask": wants}, outputs),
        _bytes((result, image, weight)),
        _bytes(outputs),
        max(sum(wants[:2]), 1),
    )


def _attention(op: str, tensors: list[tuple[int, TensorSpec]], scalars: tuple[str, ...], name: str) -> Signature | None:
    """Batch first, then heads: [B, H, L, D]."""
    backward = name.endswith("_backward")
    inputs = [t for _, t in tensors]
    rows = inputs[1:4] if backward else inputs[:3]
    if len(rows) < 3 or any(len(t.shape) != 4 for t in rows):
        return None
    q, k, v = rows
    at = _IS_CAUSAL[name]
    causal = at < len(scalars) and scalars[at] == "True"
    b, heads, q_len, _ = q.shape
    forward = name.removeprefix("aten::").removesuffix("_backward")
    flop = flop_of(forward, {"query": q, "key": k, "value": v, "is_causal": causal}, ())
    outputs = (q, k, v) if backward else (TensorSpec((b, heads, q_len, v.shape[3]), q.stride, q.dtype),)
    bias = dict(tensors).get(_BIAS.get(name, NONE))
    seen = (*inputs[: 4 if backward else 3], *((bias,) if bias is not None else ()))
    return Signature(
        op,
        Kind.ATTENTION,
        seen,
        outputs,
        (("is_causal", causal),),
        flop * (BACKWARD_ATTENTION if backward else 1.0),
        _bytes(inputs),
        _bytes(outputs),
        1,
    )


def _memory(op: str, tensors: list[TensorSpec], name: str) -> Signature | None:
    written_only = name in _WRITES
    read = tensors[1:] if written_only else tensors
    in_place = name.endswith("_")
    largest = max(tensors, key=elements)
    result = tensors[0] if in_place else largest
    return Signature(op, Kind.MEMORY, tuple(tensors), (result,), (), 0.0, _bytes(read), _bytes((result,)), 1)
