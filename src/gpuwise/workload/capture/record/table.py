"""Sizes and format of a captured operation in the form of the step table. No torch here.

Shapes follow :mod:`gpuwise.workload.step`; a batched product [B, M, K] x [B, K, N] is ``matmul`` (B, M, N, K), an attention is
described by its query, key and value for every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.workload.capture.captured import Signature, TensorSpec
from gpuwise.workload.row_codes import CAUSAL, DROPOUT, FUSED_ATTENTION, Kind


def short_name(op: str) -> str:
    """``aten.addmm.default`` as ``addmm``."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


def row_dtype(s: Signature) -> str:
    """The arithmetic format: that of the widest floating-point input (or output); an embedding's table or result."""
    dtypes = [t.dtype for t in (*s.inputs, *s.outputs) if t.dtype[0] in ("f", "b") and t.dtype != "bool"]
    if s.kind is Kind.ATTENTION and dtypes:
        return dtypes[0]  # later inputs are fp32 sums and the state of the random numbers
    if s.kind in (Kind.MATMUL, Kind.CONVOLUTION, Kind.GROUPED) and len(s.inputs) > 1:
        products = [t for t in s.inputs if len(t.shape) >= 2 and t.dtype in TENSOR_BYTES and t.dtype[0] in ("f", "b", "i", "c")]
        if products:
            return products[-1].dtype
    return dtypes[0] if dtypes else (s.outputs[0].dtype if s.outputs else "u8")


def row_shape(s: Signature) -> tuple[Kind, tuple[int, ...], int]:
    """(kind, shape columns, flags) of a signature's row; what has no shape of its kind becomes ``memory``."""
    maker = _SHAPES.get(s.kind)
    shape = maker(s) if maker is not None else None
    if shape is None:
        return (s.kind if s.kind in (Kind.MEMORY, Kind.HOST) else Kind.MEMORY), (), 0
    return s.kind, shape, _flag(s)


def _flag(s: Signature) -> int:
    if s.kind is not Kind.ATTENTION:
        return 0
    flag = FUSED_ATTENTION
    if s.attribute("is_causal") or s.attribute("custom_mask_type"):
        flag |= CAUSAL
    return flag | (DROPOUT if s.attribute("dropout_p", 0.0) else 0)


def _matmul(s: Signature) -> tuple[int, ...] | None:
    """(B, M, N, K): M x N is the output, K what is left of the FLOP."""
    if not s.outputs or not s.outputs[0].shape or not s.flop:
        return None
    out = s.outputs[0].shape
    if len(out) == 1:
        return (1, out[0], 1, max(1, round(s.flop / 2 / max(1, out[0]))))
    batch, m, n = (math.prod(out[:-2]), out[-2], out[-1])
    elements = batch * m * n
    k = round(s.flop / 2 / elements) if elements else 0
    weight = s.inputs[1] if short_name(s.op) in ("linear", "matmul") and len(s.inputs) > 1 else None
    if weight is not None and len(weight.shape) == 2:
        return (1, batch * m, n, k)
    return (batch, m, n, k)


def _grouped(s: Signature) -> tuple[int, ...] | None:
    if len(s.inputs) < 2 or not s.outputs:
        return None
    a, b = s.inputs[0].shape, s.inputs[1].shape
    if len(b) == 3:
        return (b[0], math.prod(a[:-1]), b[-1], a[-1])
    out = s.outputs[0].shape
    return (out[0], a[-1], out[-1], out[-2]) if len(out) == 3 else None


def _attention(s: Signature) -> tuple[int, ...] | None:
    """(B, Sq, Skv, heads, kv heads, D, Dv) from query, key and value; under a block mask, Skv is what a query sees on average."""
    wide = [t for t in s.inputs if len(t.shape) == 4]
    if "backward" in s.op:
        wide = wide[1:]
    if len(wide) < 3:
        return None
    q, k, v = (t.shape for t in wide[:3])
    if isinstance(visible := s.attribute("visible"), float):
        dim = 2 if "_scaled" in s.op else 1
        keys = max(1, round(k[dim] * visible))
        return (q[0], q[dim], keys, q[3 - dim], k[3 - dim], q[3], v[3])
    if "_scaled_dot_product" in s.op or "cudnn" in s.op or s.op.startswith("aten.scaled_dot"):
        return (q[0], q[2], k[2], q[1], k[1], q[3], v[3])
    return (q[0], q[1], k[1], q[2], k[2], q[3], v[3])


def _convolution(s: Signature) -> tuple[int, ...] | None:
    """(B, C_in, C_out, H_out, W_out, kernel area, groups); one spatial dimension has W_out 1, three fold the first
    two; a transposed convolution is the input gradient of the mirrored one."""
    if len(s.inputs) < 2:
        return None
    if "backward" in s.op:
        grad, image, weight = s.inputs[0], s.inputs[1], s.inputs[2]
    else:
        image, weight = s.inputs[0], s.inputs[1]
        grad = s.outputs[0]
    places = grad.shape[2:]
    if s.attribute("transposed"):
        image, grad, places = grad, image, image.shape[2:]
    places = (*places, 1) if len(places) == 1 else (math.prod(places[:-1]), places[-1])
    groups = s.attribute("groups", 1)
    return (image.shape[0], image.shape[1], grad.shape[1], *places, math.prod(weight.shape[2:]), int(str(groups)))


def _embedding(s: Signature) -> tuple[int, ...] | None:
    indices = next((t for t in s.inputs if t.dtype in ("i64", "i32")), None)
    values = next((t for t in (*s.outputs, *s.inputs) if t.dtype not in ("i64", "i32") and t.shape), None)
    if indices is None or values is None:
        return None
    table = s.outputs[0] if "backward" in s.op and s.outputs else s.inputs[0]
    return (math.prod(indices.shape), values.shape[-1], table.shape[0] if len(table.shape) == 2 and table is not indices else 0)


def _collective(s: Signature) -> tuple[int, ...] | None:
    """The payload: the larger of what goes in and what comes out."""
    return (int(max(_sum_bytes(s.inputs), _sum_bytes(s.outputs))),)


def _copy(s: Signature) -> tuple[int, ...] | None:
    return (int(_sum_bytes(s.outputs) or _sum_bytes(s.inputs[:1])),)


def _optimizer(s: Signature) -> tuple[int, ...] | None:
    """Parameters updated: the first of the equally long lists of tensors."""
    lists = 4 if "adam" in s.op else 3 if "adagrad" in s.op else 2
    tensors = [t for t in s.inputs if t.shape]
    return (sum(math.prod(t.shape) for t in tensors[: max(1, len(tensors) // lists)]),)


def _sum_bytes(specs: Sequence[TensorSpec]) -> float:
    return float(sum(math.prod(t.shape) * TENSOR_BYTES[t.dtype] for t in specs))


_SHAPES: dict[Kind, Callable[[Signature], tuple[int, ...] | None]] = {
    Kind.MATMUL: _matmul,
    Kind.GROUPED: _grouped,
    Kind.ATTENTION: _attention,
    Kind.CONVOLUTION: _convolution,
    Kind.EMBEDDING: _embedding,
    Kind.COLLECTIVE: _collective,
    Kind.COPY: _copy,
    Kind.OPTIMIZER: _optimizer,
}
