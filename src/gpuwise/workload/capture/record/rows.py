"""Signatures of a capture as rows of the step table: what the time of their kernels depends on, one row for each.

The bytes are those of the capture (each tensor once); a family's kernels read some of them again. ``passes`` below is
bytes really moved over bytes of the tensors: a training batch norm reads its input for the moments and again to
normalise. Counts are those of PyTorch's CUDA kernels (aten/src/ATen/native/cuda).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.workload.capture.captured import Settings, Signature
from gpuwise.workload.capture.record.families import (
    broadcasts,
    changes_layout,
    channels_last,
    converts,
    dense_order,
    elements,
    family_of,
    joins,
    largest,
    mixes,
    normalised_row,
    short_name,
    sums_columns,
    turns,
    whole_numbers,
)
from gpuwise.workload.capture.record.table import row_dtype, row_shape
from gpuwise.workload.row_codes import (
    BIAS_GRADIENT,
    CHANNELS_LAST,
    FILTER_GRADIENT,
    IMAGE_GRADIENT,
    TO_HOST,
    TRANSPOSED,
    Kind,
    Phase,
)
from gpuwise.workload.step import OpTable, OpTableBuilder

RADIX_BITS = 8.0
"""Digits of cub's one-sweep radix sort (Adinets and Merrill, arXiv 2206.01784)."""
FFT_POINTS_IN_ONE_PASS = 4096.0
"""Points a block transforms in shared memory; longer transforms make more passes (cuFFT documentation, 2.1)."""
NLL_THREADS = 1024.0
"""Threads of the one block that sums the losses (NLL_LOSS_THREADS, native/cuda/Loss.cu)."""
_PLAIN_BROADCAST = ("slice_backward", "select_backward", "cat", "stack")


class KernelRow(NamedTuple):
    """Inputs of a family's kernel beside the signature's own FLOP and bytes."""

    shape: tuple[int, ...] = ()
    flag: int = 0
    kernel: str = ""
    detail: tuple[float, ...] = ()


def rows_of(signatures: Sequence[Signature], settings: Settings) -> OpTable:
    """[R] one row per signature, in order, in the phase of its name.

    fp32 products and convolutions that the step's settings run in TF32 have the format ``tf32``.
    """
    table = OpTableBuilder()
    for s in signatures:
        _add(table, short_name(s.op), s, settings, Phase.BACKWARD if "backward" in s.op else Phase.FORWARD)
    return table.build()


def _add(table: OpTableBuilder, name: str, s: Signature, settings: Settings, phase: Phase, count: float = 1.0) -> None:
    """The row of ``s`` for its family's kernels."""
    family = family_of(s)
    row = _ROWS.get(family, _memory_bound)(s, family)
    dtype = row_dtype(s)
    tf32 = settings.cudnn_tf32 if family in ("convolution", "recurrent") else settings.matmul_tf32
    if dtype == "fp32" and tf32 and family in ("matmul", "convolution", "recurrent"):
        dtype = "tf32"
    table.add(
        name,
        s.kind,
        phase,
        dtype,
        row.shape or (row_shape(s)[1] if s.kind in _SIZED else ()),
        count=count,
        flop=s.flop,
        read_bytes=s.bytes_read,
        written_bytes=s.bytes_written,
        flag=row.flag,
        n_kernels=float(s.n_kernels),
        family=family,
        kernel=row.kernel,
        detail=row.detail,
    )


def _product(s: Signature, family: str) -> KernelRow:
    kind, shape, _ = row_shape(s)
    copied = max(s.n_kernels - 1, 0) * sum(elements(t) * TENSOR_BYTES.get(t.dtype, 4) for t in s.outputs)
    real = 4.0 if row_dtype(s).startswith("c") else 1.0
    return KernelRow(shape if kind is Kind.MATMUL and s.flop else (), 0, _layout(s), (copied, real))


def _layout(s: Signature) -> str:
    """Operand layout of a product: a linear layer's forward, its input gradient or its weight gradient."""
    pair = [t for t in s.inputs if len(t.shape) >= 2][-2:]
    if len(pair) < 2:
        return "tn"
    a_rows, b_rows = (t.stride[-1] == 1 or t.shape[-1] == 1 for t in pair)
    return "nn" if a_rows and b_rows else "tn" if a_rows else "nt"


def _grouped(s: Signature, family: str) -> KernelRow:
    kind, shape, _ = row_shape(s)
    return KernelRow(shape if kind is Kind.GROUPED else ())


def _attention(s: Signature, family: str) -> KernelRow:
    kind, shape, flag = row_shape(s)
    has_shape = kind is Kind.ATTENTION and len(shape) == 7 and min(shape) > 0
    return KernelRow(shape if has_shape else (), flag, attention_kernel(s), (_mask_bytes(s),))


def attention_kernel(s: Signature) -> str:
    """``fa2``, ``efficient`` or ``cudnn``: the kernel the operation names, or the one a composite would choose.

    PyTorch's flash kernel is FlashAttention-2 (aten/src/ATen/native/transformers/cuda/flash_attn).
    """
    name = short_name(s.op)
    if "flash" in name:
        return "fa2"
    for kernel in ("efficient", "cudnn"):
        if kernel in name:
            return kernel
    masked = any(len(t.shape) == 4 for t in s.inputs[3:4])
    return "fa2" if row_dtype(s) in ("fp16", "bf16") and not masked else "efficient"


def _mask_bytes(s: Signature) -> float:
    """Bytes of a bias on the scores, [.., q or 1, kv]; the backward has the result beside it, [.., q, head size]."""
    backward = "backward" in s.op
    if "flash" in s.op or len(s.inputs) < 4:
        return 0.0
    query, key = s.inputs[backward : 2 + backward]
    if len(query.shape) != 4 or len(key.shape) != 4:
        return 0.0
    rest = [t for t in s.inputs[3 + backward :] if len(t.shape) == 4]
    biases = [t for t in rest if t.shape[-1] == key.shape[-2] and t.shape[-2] in (1, query.shape[-2])]
    if backward and len(biases) < 2 and key.shape[-2] == s.inputs[3].shape[-1]:
        return 0.0  # the result, whose head is as wide as the keys are many
    return float(sum(elements(t) * TENSOR_BYTES.get(t.dtype, 4) for t in biases[:1]))


def _places(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width: three dimensions fold the first two, one has width 1."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (shape[0] if shape else 1, 1)


def convolution_row(s: Signature, family: str = "convolution") -> KernelRow:
    """The sizes of a convolution as the forward sees it (of the mirrored one if transposed); no shape where it is not
    written as one."""
    backward = "backward" in short_name(s.op)
    specs = s.inputs[1:3] if backward else s.inputs[:2]
    if len(specs) < 2 or len(specs[1].shape) < 3 or not (s.outputs or backward):
        return KernelRow()
    image, weight = specs
    result = s.inputs[0] if backward else s.outputs[0]
    if len(image.shape) != len(weight.shape) or 0 in image.shape or 0 in result.shape:
        return KernelRow()
    transposed = bool(s.attribute("transposed", False))
    groups = s.attribute("groups", 1)
    count = groups if isinstance(groups, int) else 1
    small, large = (image, result) if transposed else (result, image)
    ratio = math.prod(large.shape[2:]) / max(math.prod(small.shape[2:]), 1)
    flag = CHANNELS_LAST if image.stride[1] == 1 and image.shape[1] > 1 else 0
    flag |= TRANSPOSED if transposed else 0
    if backward:
        mask = whole_numbers(s.attribute("output_mask", (True, True, False)))
        wants = mask if len(mask) == 3 else (1, 1, 0)
        flag |= sum(
            bit for bit, is_output in zip((IMAGE_GRADIENT, FILTER_GRADIENT, BIAS_GRADIENT), wants, strict=True) if is_output
        )
    shape = (image.shape[0], large.shape[1], small.shape[1], *_places(small.shape[2:]), math.prod(weight.shape[2:]), count)
    stride = max(1.0, math.sqrt(ratio)) if ratio > 1.5 else 1.0
    height, width = _places(large.shape[2:])
    return KernelRow(shape, flag, "", (float(height), float(width), stride))


def _recurrent(s: Signature, family: str) -> KernelRow:
    matrices = [t.shape for t in s.inputs[1:] if len(t.shape) == 2]
    input_shape = s.inputs[0].shape
    batch = input_shape[0 if s.attribute("batch_first") else 1] if len(input_shape) == 3 else 1
    hidden = int(s.attribute("hidden_size", 0) or 0) or min((m[-1] for m in matrices), default=1)  # type: ignore[call-overload]
    inner = [m for m in matrices if m[1] == hidden and m[0] % hidden == 0]
    layers = max(1, len(matrices) // 2)
    gates = max((m[0] for m in inner), default=hidden)
    return KernelRow((steps_of(s), batch, gates, hidden, layers, 2 if s.attribute("bidirectional") else 1))


def steps_of(s: Signature) -> int:
    """Time steps of a recurrent signature: one captured call is a chain of that many."""
    input_shape = s.inputs[0].shape
    return int(input_shape[1] if s.attribute("batch_first") and len(input_shape) == 3 else input_shape[0]) if input_shape else 1


def _transfer(s: Signature, family: str) -> KernelRow:
    return KernelRow((), TO_HOST if s.attribute("direction") == "device-to-host" else 0)


def _gather(s: Signature, family: str) -> KernelRow:
    """Whole rows of a table: how many, their elements, and the table's rows; single elements are timed by their bytes."""
    row = _memory_bound(s, family)
    if len(s.inputs) < 2 or not s.outputs or len(s.inputs[0].shape) < 2:
        return row
    table, index, result = s.inputs[0], s.inputs[1], s.outputs[0]
    name, width = short_name(s.op), math.prod(table.shape[1:])
    at_front = s.attribute("dim", 0) in (0, -len(table.shape))
    by_row = name in ("index", "_unsafe_index", "index_select") and result.shape == (*index.shape, *table.shape[1:])
    spread = name == "gather" and len(index.shape) == 2 and index.stride[-1] == 0 and index.shape[1] == width
    dense = dense_order(table) == tuple(sorted(dense_order(table)))
    if index.dtype not in ("i64", "i32") or not at_front or not dense or not (by_row or spread) or not width:
        return row
    return row._replace(shape=(elements(result) // width, width, table.shape[0]))


def _nothing(s: Signature, family: str) -> KernelRow:
    return KernelRow()


def _memory_bound(s: Signature, family: str) -> KernelRow:
    kernel = memory_kernel(s, family)
    along = "rows" if "layer_norm" in s.op or "rms_norm" in s.op else kernel or family
    sizes = _SIZES.get(along)
    shape, flag = sizes(s) if sizes is not None else ((), 0)
    return KernelRow(shape, flag, kernel, (passes(s, family), visits(s, family), normalised_row(s), _serial(s, family)))


def _image_sizes(s: Signature) -> tuple[tuple[int, ...], int]:
    """Images, channels, positions, bytes per element and layout of a batch norm's input."""
    image = s.inputs[1 if "backward" in s.op else 0]
    flag = CHANNELS_LAST if channels_last(image) or len(image.shape) == 2 else 0
    return (image.shape[0], image.shape[1], math.prod(image.shape[2:]), int(TENSOR_BYTES.get(image.dtype, 4))), flag


def _column_sizes(s: Signature) -> tuple[tuple[int, ...], int]:
    """Rows that are added up, results, and the bytes of an element."""
    results = max(1, elements(s.outputs[0]))
    return (elements(s.inputs[0]) // results, results, int(TENSOR_BYTES.get(s.inputs[0].dtype, 4))), 0


def _reduced_sizes(s: Signature) -> tuple[tuple[int, ...], int]:
    """Elements of a result and results of a reduction along neighbours, and the bytes of an element; nothing where results are
    neighbours."""
    if short_name(s.op) not in _REDUCTIONS or not s.inputs or not s.outputs:
        return (), 0
    order, dims = dense_order(s.inputs[0]), whole_numbers(s.attribute("dim"))
    if dims and order and order[-1] not in {d % len(s.inputs[0].shape) for d in dims}:
        return (), 0
    results = max(1, elements(s.outputs[0]))
    return (elements(s.inputs[0]) // results, results, int(TENSOR_BYTES.get(s.inputs[0].dtype, 4))), 0


def _joined_sizes(s: Signature) -> tuple[tuple[int, ...], int]:
    """Pieces of a ``cat``, elements of the largest and of all."""
    pieces = [elements(t) for t in s.inputs if elements(t)]
    return (len(pieces), max(pieces), sum(pieces)), 0


def _scanned_sizes(s: Signature) -> tuple[tuple[int, ...], int]:
    """Scans, elements per scan, and the distance of its neighbours in a dense tensor (1: adjacent)."""
    dim = s.attribute("dim")
    shape = s.inputs[0].shape if s.inputs else ()
    if not isinstance(dim, int) or not shape or not -len(shape) <= dim < len(shape) or "cum" not in short_name(s.op):
        return (), 0
    at = dim % len(shape)
    return (elements(s.inputs[0]) // max(shape[at], 1), shape[at], math.prod(shape[at + 1 :])), 0


def _turned_sizes(s: Signature) -> tuple[tuple[int, ...], int]:
    """Elements that a norm over rows copies first because its rows are not contiguous, and their size in bytes."""
    inputs = s.inputs[: 2 if "backward" in s.op else 1]
    apart = [t for t in inputs if dense_order(t) != tuple(sorted(dense_order(t)))]
    return (sum(map(elements, apart)), int(TENSOR_BYTES.get(s.inputs[0].dtype, 4))) if apart else (), 0


_REDUCTIONS = ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std", "var_mean", "all", "any", "prod")
_SIZES = {
    "own_batch_norm": _image_sizes,
    "columns": _column_sizes,
    "reduction": _reduced_sizes,
    "pairs": _reduced_sizes,
    "pieces": _joined_sizes,
    "scan": _scanned_sizes,
    "rows": _turned_sizes,
}
"""Kernels whose time follows from how blocks share their tensor."""


_ROWS = {
    "matmul": _product,
    "grouped": _grouped,
    "attention": _attention,
    "convolution": convolution_row,
    "recurrent": _recurrent,
    "gather": _gather,
    "transfer": _transfer,
    "collective": _nothing,
    "host": _nothing,
}


_SIZED = (Kind.COPY, Kind.COLLECTIVE, Kind.EMBEDDING, Kind.OPTIMIZER)
"""Kinds whose sizes are in the table although their time follows from the bytes."""


def memory_kernel(s: Signature, family: str) -> str:
    """How a signature's kernel goes through memory, where its family alone does not say."""
    name = short_name(s.op)
    if family == "norm":
        if "batch_norm" in name:
            return "own_batch_norm" if _own_batch_norm(name, s) else "batch_norm"
        return next((kernel for kernel in ("layer_norm", "rms_norm") if kernel in name), "")
    if family == "reduction":
        pairs = name in ("argmax", "argmin") or (name in ("max", "min") and len(s.outputs) == 2)
        return "columns" if sums_columns(s) else "pairs" if pairs else ""
    if family not in ("elementwise", "copy"):
        return ""
    if name in ("cat", "stack"):
        return joins(s)
    if name in ("roll", "flip"):
        return "join"
    if changes_layout(s):
        return "transpose" if turns(s) else "broadcast"
    if broadcasts(s) and name not in _PLAIN_BROADCAST and not mixes(s):
        return "broadcast"
    return converts(s)


_OWN_BATCH_NORM = ("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit")
"""PyTorch's kernels, which it takes where cuDNN's do not serve (``_select_batch_norm_backend``)."""


def _own_batch_norm(name: str, s: Signature) -> bool:
    """Moments of a batch of images, or their gradients, by PyTorch's own kernels."""
    trains = s.attribute("training", s.attribute("train")) is not False
    return name in _OWN_BATCH_NORM and trains and len(s.inputs[0].shape) >= 2 and elements(s.inputs[0]) > 0


def passes(s: Signature, family: str) -> float:
    """Bytes really moved over bytes of the tensors."""
    name = short_name(s.op)
    if family == "norm":
        return _norm_passes(name, s)
    if family == "softmax":
        return _softmax_passes(name, s)
    if family == "sort":
        return _sort_passes(name, s)
    if family == "scan":
        return 1.5  # decoupled look-back reads once; the multi-dimensional kernels read the carry back
    if family == "fourier":
        whole = largest(s)
        points = float(whole.shape[-1]) if whole is not None and whole.shape else 1.0
        count = len(whole_numbers(s.attribute("dim"))) or 1
        return count * max(1.0, math.ceil(math.log2(max(points, 2.0)) / math.log2(FFT_POINTS_IN_ONE_PASS)))
    if family == "scatter":
        return 1.5 if s.attribute("accumulate") or "add" in name or "reduce" in name else 1.0
    return 1.0


ROW_NORM_PASSES = {"forward": 1.0, "backward": 7.0 / 3.0}
"""LayerNorm and RMSNorm keep their row forward; the backward reads it twice, and again for the weights
(native/cuda/layer_norm_kernel.cu)."""
FROZEN_NORM_PASSES = 5.0 / 3.0
"""Passes of a backward without weight gradients."""


def _norm_passes(name: str, s: Signature) -> float:
    """Moments, then values: 3 passes over the tensor instead of 2 forward, 5 instead of 3 backward."""
    if "layer_norm" in name or "rms_norm" in name:
        if "backward" in name and not any(whole_numbers(s.attribute("output_mask", (True, True)))[1:]):
            return FROZEN_NORM_PASSES
        return ROW_NORM_PASSES["backward" if "backward" in name else "forward"]
    if "backward" in name:
        return 5.0 / 3.0
    evaluates = s.attribute("training") is False or name in ("_native_batch_norm_legit_no_training", "batch_norm_elemt")
    return 1.0 if evaluates or name == "batch_norm_stats" else 1.5


def _softmax_passes(name: str, s: Signature) -> float:
    """The gradient of a softmax is first multiplied by its result (3 tensors, as the kernel behind it); a safe softmax looks for
    rows of nothing but minus infinity and zeroes them (SoftMax.cu, transformers/attention.cpp)."""
    if name == "_softmax_backward_data":
        return 2.0
    width = TENSOR_BYTES.get(s.inputs[0].dtype, 4) if s.inputs else 4
    return (4.0 * width + width + 3.0) / (2.0 * width) if name == "_safe_softmax" else 1.0


def _sort_passes(name: str, s: Signature) -> float:
    """Key and 8-byte index once a digit; top-k reads the keys once a 2-bit digit and gathers."""
    whole = largest(s)
    width = TENSOR_BYTES.get(whole.dtype, 4) if whole is not None else 4
    if name in ("topk", "kthvalue", "median"):
        return width * 8.0 / 2.0 / 2.0
    row = whole.shape[-1] if whole is not None and whole.shape else 1
    return 1.5 if row <= 4096 else 2.0 * width * 8.0 / RADIX_BITS / 2.0


_MEANS = {"avg_pool2d": (0.6, 1.25), "avg_pool2d_backward": (0.6, 0.95)}
"""Elements visited for each place of a window of means, by whether channels come last (single operations on an H100)."""
_NEAREST = (0.33, 0.62)
"""Elements visited for each place of an image enlarged by the nearest, by whether channels come last (the same)."""


def visits(s: Signature, family: str) -> float:
    """Elements a kernel computes an index for; a pooling window counts each of its places."""
    out = max((elements(t) for t in s.outputs), default=0) or max((elements(t) for t in s.inputs), default=0)
    if family == "pooling":
        window = math.prod(whole_numbers(s.attribute("kernel_size")))
        last = bool(s.inputs) and channels_last(s.inputs[0])
        if short_name(s.op) in _MEANS:
            return float(out) * window * _MEANS[short_name(s.op)][last]
        return float(out) * (max(1.0, window / 4.0) if not last else max(1.0, window / 8.0))
    if family == "resampling":
        corners = 16.0 if "bicubic" in s.op else 8.0 if "3d" in s.op else 4.0 if "linear" in s.op or "sampler" in s.op else 1.0
        if "nearest2d" in s.op and "backward" not in s.op and s.inputs:
            return float(out) * _NEAREST[channels_last(s.inputs[0])]
        return float(out) * max(1.0, corners / 2.0)
    if family == "scatter" and s.inputs:
        return min(float(out), s.bytes_written / TENSOR_BYTES.get(s.inputs[0].dtype, 4))
    return float(out)


def _serial(s: Signature, family: str) -> float:
    """Steps of what one block does alone: the sum of the losses of a batch."""
    if family == "loss" and "forward" in s.op and s.inputs:
        rows = elements(s.inputs[1]) if len(s.inputs) > 1 else 1
        return float(math.ceil(rows / NLL_THREADS))
    return 0.0
