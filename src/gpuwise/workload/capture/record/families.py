"""What family of kernels an operation of a capture belongs to, and the sizes its time depends on.

Families are coarse (``matmul``, ``convolution``, ``attention``, ``norm`` ...); the name of the aten operation decides,
then its kind. Shape legend: [B, C, H, W] images, N elements.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.workload.capture.operations import operations
from gpuwise.workload.row_codes import Kind

if TYPE_CHECKING:
    from gpuwise.workload.capture.captured import Signature, TensorSpec

_RESAMPLING = ("upsample", "_upsample", "grid_sampler", "cudnn_grid_sampler", "affine_grid", "interpolate")
_OPTIMIZER = ("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach")


@cache
def short_name(op: str) -> str:
    """``aten.addmm.default`` as ``addmm``."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


@cache
def _families() -> dict[str, str]:
    """Family by the name of the operation."""
    return {name: family for family, names in operations()["families"].items() for name in names}


def family_of(s: Signature) -> str:
    """One of :data:`gpuwise.workload.step.FAMILIES`."""
    name = short_name(s.op)
    if s.kind is Kind.COLLECTIVE:
        return "collective"
    if s.attribute("direction"):
        return "transfer"
    if name == "dropout" and s.attribute("train") is False:
        return "host"
    named = _families().get(name)
    if named is not None and (s.n_kernels or s.kind is not Kind.HOST):
        return named
    if s.kind in _BY_KIND:
        return "fourier" if name.startswith("_fft") else _BY_KIND[s.kind]
    if not s.n_kernels:
        return "host"
    if name.startswith("_fft"):
        return "fourier"
    if name.startswith(_OPTIMIZER):
        return "optimizer"
    return "resampling" if name.startswith(_RESAMPLING) else "elementwise"


_BY_KIND = {
    Kind.MATMUL: "matmul",
    Kind.GROUPED: "grouped",
    Kind.ATTENTION: "attention",
    Kind.CONVOLUTION: "convolution",
    Kind.EMBEDDING: "embedding",
    Kind.OPTIMIZER: "optimizer",
}


def whole_numbers(value: object) -> tuple[int, ...]:
    """An attribute as whole numbers: one, several or none."""
    if isinstance(value, int):
        return (int(value),)
    if not isinstance(value, tuple):
        return ()
    values: tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
    return tuple(int(v) for v in values if isinstance(v, int))


def elements(spec: TensorSpec) -> int:
    """How many elements ``spec`` has."""
    return math.prod(spec.shape)


def largest(s: Signature) -> TensorSpec | None:
    """The tensor with most elements among inputs and outputs."""
    return max((*s.inputs, *s.outputs), key=elements, default=None)


def normalised_row(s: Signature) -> float:
    """Bytes of one row that a norm or a softmax reduces over; 0 where it has none."""
    first = s.inputs[0] if s.inputs else None
    if first is None or not first.shape:
        return 0.0
    width = TENSOR_BYTES.get(first.dtype, 4)
    groups = s.attribute("group") if "group_norm" in s.op else None
    if isinstance(groups, int) and groups > 0:
        return float(elements(first) * width / (first.shape[0] * groups))
    shape = s.attribute("normalized_shape")
    if isinstance(shape, tuple):
        return float(math.prod(whole_numbers(s.attribute("normalized_shape"))) * width)
    dim = s.attribute("dim")
    if isinstance(dim, int) and -len(first.shape) <= dim < len(first.shape):
        return float(first.shape[dim] * width)
    return float(first.shape[-1] * width)


def dense_order(spec: TensorSpec) -> tuple[int, ...]:
    """Dimensions from slowest to fastest, without those of one element."""
    real = [d for d, n in enumerate(spec.shape) if n > 1]
    return tuple(sorted(real, key=lambda d: -spec.stride[d]))


def changes_layout(s: Signature) -> bool:
    """Whether the large inputs and outputs differ in memory layout."""
    whole = largest(s)
    if whole is None:
        return False
    same = [t for t in (*s.inputs, *s.outputs) if t.shape == whole.shape and 0 not in t.stride]
    return len({dense_order(t) for t in same}) > 1


def turns(s: Signature) -> bool:
    """Whether tensors of different layouts are read with one memory sector per element, since neighbours in one are not
    neighbours in another. If the fastest dimension of the result is short, a block hits them in its cache."""
    whole = largest(s)
    if whole is None:
        return False
    same = [t for t in (*s.outputs, *s.inputs) if t.shape == whole.shape and 0 not in t.stride]
    orders = [dense_order(t) for t in same]
    fastest = {order[-1] for order in orders if order}
    if len(fastest) < 2:
        return False
    result = orders[0]
    run = max((_common_run(result, order, whole.shape) for order in orders[1:] if order and order[-1] != result[-1]), default=1)
    return run * SECTOR_BYTES > BLOCK_ELEMENTS * TENSOR_BYTES.get(whole.dtype, 4)


def _common_run(result: tuple[int, ...], other: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Elements of the fastest dimensions of ``result`` that follow one another in ``other`` as well."""
    run, place = shape[result[-1]], other.index(result[-1])
    for back in range(2, len(result) + 1):
        place -= 1
        if place < 0 or other[place] != result[-back]:
            break
        run *= shape[result[-back]]
    return run


SECTOR_BYTES = 32
"""Minimum transaction of a GPU's memory (CUDA C++ Best Practices Guide, coalesced access)."""
BLOCK_ELEMENTS = 512
"""Elements of a block of PyTorch's elementwise kernels (128 threads, 4 each: native/cuda/CUDALoops.cuh)."""
VECTOR_BYTES = 16
"""Bytes a thread loads at once; ``cat`` copies in such units if every piece starts on that boundary (native/cuda/Shape.cu)."""


def _floats(s: Signature) -> list[TensorSpec]:
    """The larger floating-point inputs."""
    whole = largest(s)
    least = 0 if whole is None else elements(whole) // 2
    return [t for t in s.inputs if t.dtype[0] in ("f", "b") and t.dtype != "bool" and elements(t) > max(1, least)]


def mixes(s: Signature) -> bool:
    """Large inputs of several floating-point formats."""
    return len({t.dtype for t in _floats(s)}) > 1


def converts(s: Signature) -> str:
    """``mixed`` or ``cast`` where elements change format one by one, as kernels with types known at run time do
    (``unrolled_elementwise_kernel``): not from fp32 to 16 bits, which has vectors (native/cuda/Copy.cu)."""
    if mixes(s):
        return "mixed"
    copies = short_name(s.op) in ("_to_copy", "copy_") and s.inputs
    if not copies:
        return ""
    source = s.inputs[-1]
    into = s.inputs[0] if short_name(s.op) == "copy_" else s.outputs[0] if s.outputs else source
    if source.dtype == into.dtype or (source.dtype == "fp32" and into.dtype in ("fp16", "bf16")):
        return ""
    return "cast"


def joins(s: Signature) -> str:
    """How ``cat`` and ``stack`` copy: whole vectors of dense pieces (of images channels last by blocks of their own for
    each), element by element, or by the strides of each piece."""
    pieces = [t for t in s.inputs if elements(t)]
    if not pieces or not s.outputs:
        return ""
    dim = s.attribute("dim", 0)
    at = dim if isinstance(dim, int) else 0
    at = at + len(s.outputs[0].shape) if at < 0 else at
    stacked = len(s.outputs[0].shape) > len(pieces[0].shape)
    order = dense_order(s.outputs[0])
    if stacked:
        order = tuple(d - (d > at) for d in order if d != at)
    for t in pieces:
        span = 1 + sum((n - 1) * st for n, st in zip(t.shape, t.stride, strict=True))
        if span != elements(t) or dense_order(t) != tuple(d for d in order if t.shape[d] > 1):
            return "join"
    if len({t.dtype for t in pieces}) > 1:
        return "mixed"
    for t in pieces:
        run = math.prod(t.shape[at:]) if stacked else t.shape[at] * max(t.stride[at], 1)
        if run * TENSOR_BYTES.get(t.dtype, 4) % VECTOR_BYTES:
            return "broadcast"
    return "pieces" if channels_last(s.outputs[0]) and len(pieces) > 1 else ""


def sums_columns(s: Signature) -> bool:
    """A sum over the slow dimensions of a dense tensor: neighbours belong to different results."""
    if short_name(s.op) not in ("sum", "mean") or not s.inputs or not s.outputs:
        return False
    whole, results = s.inputs[0], elements(s.outputs[0])
    dims = {d % max(1, len(whole.shape)) for d in whole_numbers(s.attribute("dim"))}
    order = dense_order(whole)
    if not dims or not order or results < 2 or 0 in whole.stride:
        return False
    slow = [d for d in order if d in dims]
    return bool(slow) and order[: len(slow)] == tuple(slow)


def broadcasts(s: Signature) -> bool:
    """An elementwise kernel that needs index arithmetic: inputs of other shapes, or gaps between elements."""
    whole = largest(s)
    if whole is None:
        return False
    for t in s.inputs:
        count = elements(t)
        if count > 1 and (t.shape != whole.shape or 0 in t.stride):
            return True
        span = 1 + sum((n - 1) * st for n, st in zip(t.shape, t.stride, strict=True))
        if count > 1 and span != count:
            return True
    return False


def channels_last(spec: TensorSpec) -> bool:
    """Whether a 4- or 5-dimensional tensor is channels-last."""
    if len(spec.shape) < 4 or spec.shape[1] == 1:
        return False
    return spec.stride[1] == 1 and any(n > 1 for n in spec.shape[2:])
