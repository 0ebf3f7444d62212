"""What family of kernels an operation of a capture belongs to, and the sizes its time depends on.

Families are coarse (``matmul``, ``convolution``, ``attention``, ``norm`` ...); the name of the aten operation decides,
then its kind. Shape legend: [B, C, H, W] images, N elements.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.workload.step import Kind

if TYPE_CHECKING:
    from gpuwise.workload.capture.record.capture import Signature, TensorSpec

_FAMILY_OF_NAME: dict[str, tuple[str, ...]] = {
    "recurrent": (
        "_cudnn_rnn",
        "_cudnn_rnn_backward",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "miopen_rnn",
        "miopen_rnn_backward",
    ),
    "norm": (
        "native_layer_norm",
        "layer_norm",
        "native_layer_norm_backward",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
        "rms_norm",
        "native_group_norm",
        "native_group_norm_backward",
        "group_norm",
        "instance_norm",
        "native_batch_norm",
        "native_batch_norm_backward",
        "batch_norm",
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
        "miopen_batch_norm",
        "miopen_batch_norm_backward",
        "batch_norm_backward",
        "_batch_norm_with_update",
        "_batch_norm_no_update",
        "batch_norm_stats",
        "batch_norm_elemt",
        "batch_norm_backward_reduce",
        "batch_norm_backward_elemt",
    ),
    "softmax": (
        "_softmax",
        "_log_softmax",
        "softmax",
        "log_softmax",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
        "_safe_softmax",
        "_masked_softmax",
        "_masked_softmax_backward",
        "logsumexp",
    ),
    "dropout": (
        "native_dropout",
        "dropout",
        "bernoulli",
        "bernoulli_",
        "normal_",
        "uniform_",
        "randn",
        "rand",
        "randint",
        "randn_like",
        "rand_like",
        "randint_like",
        "random_",
        "exponential_",
        "log_normal_",
        "multinomial",
    ),
    "pooling": (
        "max_pool2d_with_indices",
        "max_pool2d",
        "max_pool2d_with_indices_backward",
        "avg_pool2d",
        "avg_pool2d_backward",
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward",
        "avg_pool3d",
        "avg_pool3d_backward",
        "avg_pool1d",
        "max_pool1d",
        "_adaptive_avg_pool2d",
        "adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d",
        "_adaptive_avg_pool3d_backward",
        "adaptive_avg_pool3d",
        "adaptive_max_pool2d",
        "adaptive_max_pool2d_backward",
        "adaptive_avg_pool1d",
    ),
    "gather": (
        "index",
        "_unsafe_index",
        "index_select",
        "gather",
        "take",
        "masked_select",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "roi_align",
        "take_along_dim",
        "nonzero",
        "repeat_interleave",
    ),
    "scatter": (
        "index_put",
        "index_put_",
        "_index_put_impl_",
        "_unsafe_index_put",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "scatter_reduce",
        "scatter_reduce_",
        "index_add",
        "index_add_",
        "index_copy",
        "index_copy_",
        "index_fill",
        "index_fill_",
        "masked_scatter",
        "_roi_align_backward",
        "bincount",
        "histc",
        "col2im",
    ),
    "sort": (
        "sort",
        "argsort",
        "topk",
        "kthvalue",
        "median",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "randperm",
        "nms",
        "searchsorted",
        "bucketize",
    ),
    "scan": ("cumsum", "cumprod", "cumsum_", "logcumsumexp", "cummax", "cummin", "_ctc_loss", "_ctc_loss_backward"),
    "copy": (
        "_to_copy",
        "copy_",
        "clone",
        "contiguous",
        "cat",
        "stack",
        "constant_pad_nd",
        "slice_backward",
        "select_backward",
        "pixel_shuffle",
        "pixel_unshuffle",
        "roll",
        "flip",
        "repeat",
        "im2col",
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad2d",
        "reflection_pad2d_backward",
        "slice_scatter",
        "select_scatter",
        "unfold_backward",
        "triu",
        "tril",
        "channel_shuffle",
        "diagonal_backward",
        "as_strided_scatter",
        "tile",
    ),
    "loss": (
        "nll_loss_forward",
        "nll_loss_backward",
        "nll_loss2d_forward",
        "nll_loss2d_backward",
        "cross_entropy_loss",
        "multi_margin_loss",
        "multilabel_margin_loss_forward",
    ),
    "reduction": (
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "argmax",
        "argmin",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "linalg_vector_norm",
        "norm",
        "all",
        "any",
        "prod",
        "aminmax",
        "count_nonzero",
        "nansum",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy",
        "trace",
        "equal",
        "binary_cross_entropy_with_logits",
        "_weight_norm_interface",
        "_weight_norm_interface_backward",
        "frobenius_norm",
        "dist",
        "cdist",
        "_cdist_forward",
        "_foreach_norm",
    ),
}
_RESAMPLING = ("upsample", "_upsample", "grid_sampler", "cudnn_grid_sampler", "affine_grid", "interpolate")
_OPTIMIZER = ("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach")
_BY_NAME = {name: family for family, names in _FAMILY_OF_NAME.items() for name in names}


@cache
def short_name(op: str) -> str:
    """``aten.addmm.default`` as ``addmm``."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


def family_of(s: Signature) -> str:
    """One of :data:`gpuwise.workload.step.FAMILIES`."""
    name = short_name(s.op)
    if s.kind is Kind.COLLECTIVE:
        return "collective"
    if s.attribute("direction"):
        return "transfer"
    if name == "dropout" and s.attribute("train") is False:
        return "host"
    if name in _BY_NAME and (s.n_kernels or s.kind is not Kind.HOST):
        return _BY_NAME[name]
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
    """Dimensions from slowest to fastest, those of one element left out."""
    real = [d for d, n in enumerate(spec.shape) if n > 1]
    return tuple(sorted(real, key=lambda d: -spec.stride[d]))


def changes_layout(s: Signature) -> bool:
    """The large tensors among inputs and outputs do not lie in memory in the same order."""
    whole = largest(s)
    if whole is None:
        return False
    same = [t for t in (*s.inputs, *s.outputs) if t.shape == whole.shape and 0 not in t.stride]
    return len({dense_order(t) for t in same}) > 1


def turns(s: Signature) -> bool:
    """Of tensors that lie in different orders: neighbours of one are no neighbours of another, so that each element read is a
    sector of memory of its own. Where the fastest dimension of the result is short, a block finds them again in its cache."""
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
"""What a GPU's memory moves at least (CUDA C++ Best Practices Guide, coalesced access)."""
BLOCK_ELEMENTS = 512
"""Elements of a block of PyTorch's elementwise kernels (128 threads, 4 each: native/cuda/CUDALoops.cuh)."""
VECTOR_BYTES = 16
"""What a thread loads at once; ``cat`` copies so where every piece begins on such a boundary (native/cuda/Shape.cu)."""


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
    """A 4- or 5-dimensional tensor whose channels lie together."""
    if len(spec.shape) < 4 or spec.shape[1] == 1:
        return False
    return spec.stride[1] == 1 and any(n > 1 for n in spec.shape[2:])
