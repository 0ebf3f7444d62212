# pyright: basic
"""Bytes an aten call reads and writes, and how many kernels it launches, from shapes alone.

A tensor's bytes are those of its distinct elements: an expanded dimension (stride 0) counts once. Gathers read the rows they
return, not the table. In-place operations read and write unless they only overwrite. Kernel counts are those of PyTorch's CUDA
code for eager calls; each table names its source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.workload.capture.captured import TensorSpec
from gpuwise.workload.capture.operations import operations

Call = Mapping[str, Any]


def extent_bytes(spec: TensorSpec) -> float:
    """Bytes of the distinct elements a tensor refers to; overlapping windows count shared elements once."""
    if 0 in spec.shape:
        return 0.0
    distinct, reach = 1, 1
    for size, stride in zip(spec.shape, spec.stride, strict=True):
        if stride:
            distinct *= size
            reach += (size - 1) * stride
    return float(min(distinct, reach)) * TENSOR_BYTES[spec.dtype]


def _total(specs: Iterable[TensorSpec]) -> float:
    return sum(extent_bytes(s) for s in specs)


# --- bytes ---

_TRAFFIC = operations()["traffic"]
NO_KERNEL = frozenset(_TRAFFIC["no_kernel"])
"""Schema names that touch no element: they allocate, alias or only look at metadata."""

OVERWRITES = frozenset(_TRAFFIC["overwrites"])
"""In-place operations that do not read what they write over."""

SHAPE_ONLY = dict.fromkeys(_TRAFFIC["shape_of_self_only"], ("self",)) | dict.fromkeys(_TRAFFIC["shapes_only"], ())
"""Arguments of which only the shape is looked at (native_functions.yaml signatures, CUDA kernels of the same name)."""


def _gather(call: Call, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[float, float]:
    """Table elements equal in number to the output, and the indices."""
    return _total(outputs) + _total(inputs[1:]), _total(outputs)


def _nll(call: Call, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[float, float]:
    """One value a row and the target of the row."""
    target = call["target"]
    return extent_bytes(target) + math.prod(target.shape) * TENSOR_BYTES[call["self"].dtype], _total(outputs)


def _put(call: Call, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[float, float]:
    """index_put_: the values and indices are read and the same number of elements written (and read, if accumulated)."""
    values = extent_bytes(call["values"])
    rows = max(values, _rows_of(call))
    indices = _total(t for t in call["indices"] if t is not None)
    return values + indices + (rows if call.get("accumulate") else 0.0), rows


def _rows_of(call: Call) -> float:
    """Bytes of the elements ``indices`` picks from ``self``."""
    indices = [t for t in call["indices"] if t is not None]
    if not indices or any(t.dtype in ("bool", "u8") for t in indices):
        return extent_bytes(call["values"])
    dims = len(call["self"].shape) - len(indices)
    row_elements = math.prod(call["self"].shape[-dims:]) if dims else 1
    return math.prod(_broadcast([t.shape for t in indices])) * row_elements * float(TENSOR_BYTES[call["self"].dtype])


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    width = max(len(s) for s in shapes)
    padded = [(1,) * (width - len(s)) + s for s in shapes]
    return tuple(max(column) for column in zip(*padded, strict=True))


def _scatter(call: Call, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[float, float]:
    """scatter, scatter_add, index_add, index_copy: a copy of self unless in place, then ``index`` many elements."""
    source = call.get("src") or call.get("source")
    moved_bytes = (
        extent_bytes(source) if source is not None else math.prod(call["index"].shape) * float(TENSOR_BYTES[call["self"].dtype])
    )
    copied = _total(outputs)
    return copied + extent_bytes(call["index"]) + 2 * moved_bytes, copied + moved_bytes


def _into_zeros(call: Call, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[float, float]:
    """slice_backward and its like: zeros of the whole, then the gradient copied in."""
    grad = _total(inputs)
    return grad, _total(outputs) + grad


def _embedding_backward(call: Call, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[float, float]:
    grad = extent_bytes(call["grad_output"])
    return 2 * grad + extent_bytes(call["indices"]), _total(outputs) + grad


BYTE_RULES: dict[str, Callable[..., tuple[float, float]]] = {
    "embedding": _gather,
    "index_select": _gather,
    "index": _gather,
    "_unsafe_index": _gather,
    "gather": _gather,
    "take": _gather,
    "_embedding_bag": _gather,
    "_embedding_bag_forward_only": _gather,
    "masked_select": _gather,
    "nll_loss_forward": _nll,
    "nll_loss2d_forward": _nll,
    "index_put_": _put,
    "index_put": _put,
    "_index_put_impl_": _put,
    "_unsafe_index_put": _put,
    "scatter": _scatter,
    "scatter_": _scatter,
    "scatter_add": _scatter,
    "scatter_add_": _scatter,
    "scatter_reduce": _scatter,
    "scatter_reduce_": _scatter,
    "index_add": _scatter,
    "index_add_": _scatter,
    "index_copy": _scatter,
    "index_copy_": _scatter,
    "index_fill": _scatter,
    "index_fill_": _scatter,
    "slice_backward": _into_zeros,
    "select_backward": _into_zeros,
    "diagonal_backward": _into_zeros,
    "unfold_backward": _into_zeros,
    "value_selecting_reduction_backward": _into_zeros,
    "embedding_dense_backward": _embedding_backward,
}


def bytes_of(
    name: str,
    call: Call,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    write_specs: Sequence[TensorSpec],
) -> tuple[float, float]:
    """(read, written). ``inputs`` are the distinct tensor arguments, ``outputs`` the new tensors, ``written`` the
    arguments changed in place."""
    if name in NO_KERNEL:
        return 0.0, 0.0
    rule = BYTE_RULES.get(name)
    if rule is not None:
        return rule(call, inputs, outputs)
    ignored = [call.get(a) for a in SHAPE_ONLY.get(name, ())]
    read_bytes = 0.0
    for spec in inputs:
        if any(spec is other for other in ignored):
            continue
        if name in OVERWRITES and any(spec is other for other in write_specs):
            continue
        read_bytes += extent_bytes(spec)
    if "mm" in name and call.get("beta", 1) == 0:
        read_bytes -= extent_bytes(call["self"])
    return read_bytes, _total(outputs) + _total(write_specs)


# --- kernels ---

CHUNK = 65536
BLOCKS = 320
TENSORS_BY_DEPTH = (110, 64, 48, 36, 30)
"""aten/src/ATen/native/cuda/MultiTensorApply.cuh: elements a chunk, chunks a launch, tensors a launch by the number
of tensor lists the functor takes."""
FUSED_LISTS = {"_fused_adam_": 4, "_fused_adamw_": 4, "_fused_sgd_": 2, "_fused_adagrad_": 3}


def launches(sizes: Sequence[int], depth: int) -> int:
    """Launches of multi_tensor_apply over tensors of ``sizes`` elements in ``depth`` lists."""
    limit = TENSORS_BY_DEPTH[min(depth, len(TENSORS_BY_DEPTH)) - 1]
    count, tensors, blocks = 0, 0, 0
    for size in sizes:
        if not size:
            continue
        tensors += 1
        chunks = -(-size // CHUNK)
        while chunks:
            room = min(chunks, BLOCKS - blocks)
            chunks -= room
            blocks += room
            if blocks == BLOCKS or (tensors == limit and not chunks):
                count += 1
                blocks, tensors = 0, (1 if chunks else 0)
    return count + (1 if blocks else 0)


def _foreach_kernels(name: str, call: Call, outputs: Sequence[TensorSpec]) -> int:
    lists = [v for v in call.values() if isinstance(v, (list, tuple)) and v and isinstance(v[0], TensorSpec)]
    if not lists:
        return 0
    first = lists[0]
    if not all(_fast(row) for row in zip(*lists, strict=False)):
        return len(first)
    depth = FUSED_LISTS.get(name, len(lists) + (0 if name.endswith("_") or name == "_foreach_norm" else 1))
    count = launches([math.prod(t.shape) for t in first], depth)
    return count + 2 if name == "_foreach_norm" else count


def _fast(row: Sequence[TensorSpec]) -> bool:
    """ForeachUtils.h can_use_fast_route: same dtype, same strides, non-overlapping and dense."""
    head = row[0]
    return all(t.dtype == head.dtype and (t.stride == head.stride or math.prod(t.shape) <= 1) for t in row[1:])


KERNELS = {name: int(n) for n, names in operations()["kernels"].items() for name in names}
"""Launches of one eager CUDA call, where they are not one."""


def kernels_of(
    name: str, call: Call, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], view: bool, op_name: str = ""
) -> int:
    """Device kernels one eager call launches; 0 where nothing runs on the device."""
    if view or name in NO_KERNEL:
        return 0
    if not any(math.prod(t.shape) for t in (*inputs, *outputs)):
        return 0
    if name.startswith(("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach")):
        return _foreach_kernels(name, call, outputs)
    if name in ("convolution", "_convolution", "cudnn_convolution"):
        return 1 + int(call.get("bias") is not None)
    if name == "convolution_backward":
        return max(1, sum(map(int, call.get("output_mask") or (1, 1, 0))))
    if name in ("_cudnn_rnn", "_cudnn_rnn_backward", "lstm", "gru"):
        return _recurrent_kernels(name, call)
    if name in ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "binary_cross_entropy"):
        return 1 + int(bool(outputs and not outputs[0].shape))
    if name == "addmm" and not _bias_in_epilogue(call):
        return 2
    if name == "cat":
        return max(1, -(-len(call.get("tensors") or ()) // 128))
    if name == "embedding_dense_backward":
        return 2 if math.prod(call["indices"].shape) <= 3072 and call.get("padding_idx", -1) < 0 else KERNELS[name]
    if name in ("index_put_", "_index_put_impl_"):
        return 10 if call.get("accumulate") else 1
    return KERNELS.get(name, 1)


def _bias_in_epilogue(call: Call) -> bool:
    """Blas.cpp addmm: a one-dimensional contiguous bias goes into cuBLASLt's epilogue; else it is copied out first."""
    bias = call["self"]
    one = call.get("beta", 1) == 1
    narrow = len(bias.shape) == 1 or (len(bias.shape) == 2 and bias.stride[0] == 0)
    return one and narrow and call["mat1"].shape[0] > 1 and call["mat1"].shape[1] > 1


def _recurrent_kernels(name: str, call: Call) -> int:
    """cuDNN's standard algorithm: per layer and direction one product over all tokens, then one product and one
    pointwise kernel a time step (estimate: the persistent algorithm needs one); the backward adds weight gradients."""
    shape = call["input"].shape
    steps = shape[1] if call.get("batch_first") and len(shape) == 3 else shape[0]
    layers = int(call.get("num_layers") or 1) * (2 if call.get("bidirectional") else 1)
    forward = layers * (1 + 2 * int(steps))
    return 2 * forward if name.endswith("backward") else forward
