"""Hidden storages of torch's own kernels: copies that make an input contiguous, sorting, partial sums.

Sources are files of pytorch's ``aten/src/ATen/native``; each function names its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.errors import InputError
from gpuwise.predict.memory.library_workspaces import Version
from gpuwise.workload.capture.captured import Signature, TensorSpec


@dataclass(frozen=True, slots=True)
class KernelEnvironment:
    """GPU, torch version and library settings that decide which kernel an operation runs and the storages it allocates."""

    capability: tuple[int, int]
    compute_units: int
    torch: Version
    cudnn_tf32: bool = True
    cudnn_benchmark: bool = False
    deterministic: bool = False


def item_bytes(dtype: str) -> int:
    """Bytes of one element. Raises InputError for an unknown format."""
    try:
        return TENSOR_BYTES[dtype]
    except KeyError:
        raise InputError(f"unknown number format {dtype!r}", hint="known: " + ", ".join(TENSOR_BYTES)) from None


def tensor_bytes(spec: TensorSpec) -> int:
    """Bytes of a dense copy of ``spec``."""
    return math.prod(spec.shape) * item_bytes(spec.dtype)


def is_contiguous(spec: TensorSpec) -> bool:
    """Row-major without gaps (dimensions of one element have any stride)."""
    expected = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.stride), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_channels_last(spec: TensorSpec) -> bool:
    """[N, C, *spatial] with channels innermost and no gaps."""
    if len(spec.shape) not in (4, 5):
        return False
    order = (0, *range(2, len(spec.shape)), 1)
    return is_contiguous(TensorSpec(tuple(spec.shape[i] for i in order), tuple(spec.stride[i] for i in order), spec.dtype))


def is_dense(spec: TensorSpec) -> bool:
    """One of the two layouts that kernels take as they are."""
    return is_contiguous(spec) or is_channels_last(spec)


def _copies(*positions: int) -> Callable[[Signature, KernelEnvironment], tuple[int, ...]]:
    """Inputs at ``positions`` are made dense first (``.contiguous()`` in the kernel's C++)."""

    def rule(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
        inputs = signature.inputs
        return tuple(tensor_bytes(inputs[p]) for p in positions if p < len(inputs) and not is_dense(inputs[p]))

    return rule


def _matrix_needs_copy(spec: TensorSpec) -> bool:
    """Neither row- nor column-major in its last two dimensions (Blas.cpp prepare_matrix_for_cublas)."""
    if len(spec.shape) < 2:
        return False
    (rows, columns), (down, across) = spec.shape[-2:], spec.stride[-2:]
    row_major = across == 1 and down >= max(1, columns)
    column_major = down == 1 and across >= max(1, rows)
    return not (row_major or column_major)


def product(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
    """Operands that cuBLAS cannot read in place are copied (cuda/Blas.cpp prepare_matrix_for_cublas,
    prepare_batch_matrix_for_cublas); the product's two operands are the last two inputs."""
    operands = signature.inputs[-2:]
    return tuple(tensor_bytes(o) for o in operands if _matrix_needs_copy(o))


def group_norm(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
    """Scale and shift of each channel, a and b [N, C] (cuda/group_norm_kernel.cu GroupNormKernelImplInternal)."""
    x = signature.inputs[0]
    n, c = x.shape[0], x.shape[1] if len(x.shape) > 1 else 1
    copy = () if is_dense(x) else (tensor_bytes(x),)
    return (*copy, 4 * n * c, 4 * n * c)


def group_norm_backward(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
    """ds, db and c1 [N, C], c2 and c3 [N, groups] (cuda/group_norm_kernel.cu GroupNormBackwardKernelImplInternal)."""
    x = signature.inputs[:2][-1]
    n, c = x.shape[0], x.shape[1] if len(x.shape) > 1 else 1
    groups = signature.attribute("group", signature.attribute("G", 1))
    g = groups if isinstance(groups, int) else 1
    copies = tuple(tensor_bytes(t) for t in signature.inputs[:2] if not is_dense(t))
    return (*copies, 4 * n * c, 4 * n * c, 4 * n * c, 4 * n * g, 4 * n * g)


SORT_FREE_INDICES = 3072
ROWS_PER_THREAD = 10


def embedding_backward(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
    """Sorted and original indices, the sort's second buffers, and partial sums of up to
    ``n / 10 + min(n, rows)`` segments in fp32 (cuda/EmbeddingBackwardKernel.cu; up to 3072 indices none are made)."""
    if len(signature.inputs) < 2:
        return ()
    gradient, indices = signature.inputs[0], signature.inputs[1]
    n = math.prod(indices.shape)
    if n <= SORT_FREE_INDICES:
        return ()
    rows = signature.attribute("num_weights", n)
    segments = min(n, rows) if isinstance(rows, int) else n
    index = item_bytes(indices.dtype)
    partial = n // ROWS_PER_THREAD + segments
    copy = () if is_contiguous(gradient) else (tensor_bytes(gradient),)
    width = gradient.shape[-1]
    return (
        *copy,
        n * index,
        n * index,
        2 * n * index,
        segments * index,
        segments * index,
        segments * index,
        partial * index,
        4 * partial * width,
    )


def index_put(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
    """Accumulating writes sort the linear index: it, its sorted form and the order of the rows, with the sort's buffers
    (cuda/Indexing.cu index_put_with_sort_kernel)."""
    if signature.attribute("accumulate") is not True or len(signature.inputs) < 2:
        return ()
    indices = [t for t in signature.inputs[1:] if t.dtype in ("i64", "i32", "bool", "u8")]
    n = max((math.prod(t.shape) for t in indices), default=0)
    return (8 * n, 8 * n, 8 * n, 16 * n)


def sort(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
    """Keys and 8-byte positions twice (cuda/Sort.cpp sort_cuda_kernel: radix sort with double buffers)."""
    n = math.prod(signature.inputs[0].shape)
    return (n * item_bytes(signature.inputs[0].dtype), 8 * n)


def top_k(signature: Signature, _: KernelEnvironment) -> tuple[int, ...]:
    """Workspace of sorting the k results only (cuda/TensorTopK.cpp)."""
    if not signature.outputs:
        return ()
    k = math.prod(signature.outputs[0].shape)
    return (k * item_bytes(signature.inputs[0].dtype), 8 * k) if signature.attribute("sorted", True) else ()


RULES: dict[str, Callable[[Signature, KernelEnvironment], tuple[int, ...]]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), product),
    "native_group_norm": group_norm,
    "native_group_norm_backward": group_norm_backward,
    "embedding_dense_backward": embedding_backward,
    "index_put": index_put,
    "index_put_": index_put,
    "_index_put_impl_": index_put,
    "_unsafe_index_put": index_put,
    "sort": sort,
    "topk": top_k,
    # layer_norm.cpp, layer_norm_kernel.cu: X and dY become contiguous
    "native_layer_norm": _copies(0),
    "native_layer_norm_backward": _copies(0, 1),
    "_fused_rms_norm": _copies(0),
    "_fused_rms_norm_backward": _copies(0, 1),
    # cudnn/BatchNorm.cpp, cuda/Normalization.cu: input and gradient in one layout
    "cudnn_batch_norm": _copies(0),
    "cudnn_batch_norm_backward": _copies(0, 1),
    "_softmax": _copies(0),
    "_log_softmax": _copies(0),
    "_softmax_backward_data": _copies(0, 1),
    "_log_softmax_backward_data": _copies(0, 1),
    "max_pool2d_with_indices": _copies(0),
    "max_pool2d_with_indices_backward": _copies(0, 1),
    "avg_pool2d": _copies(0),
    "avg_pool2d_backward": _copies(0, 1),
    "upsample_bilinear2d": _copies(0),
    "upsample_bilinear2d_backward": _copies(0),
    "upsample_bicubic2d_backward": _copies(0),
}
