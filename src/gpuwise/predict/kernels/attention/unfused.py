"""Attention that writes its scores: batched products, and a pass over the scores for each operation between them.

Eager PyTorch launches every operation; Megatron's fused softmax does scale, mask and softmax in one pass. Causal masks skip
nothing here: all ``q_len * kv_len`` scores are computed, written and read. Grouped key-value heads are expanded first, so
products run per query head. Dropout is off by default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.attention.features import Shape
from gpuwise.predict.kernels.attention.implementations import dtype_bytes
from gpuwise.predict.kernels.kernel_time import KernelTime

F64 = NDArray[np.float64]


class ScorePass(NamedTuple):
    """One kernel over the scores: bytes read and written for each score, as multiples of the format's width,
    plus bytes that do not depend on the format (fp32 copies, dropout's byte mask)."""

    read: float
    read_fixed: float
    written: float
    written_fixed: float
    row_by_row: bool = False
    """Whether the kernel reduces along the keys (softmax): long rows are read again."""


_EAGER_FORWARD = {
    "scale": ScorePass(1, 0, 1, 0),
    "mask": ScorePass(1, 0, 1, 0),
    "softmax in fp32": ScorePass(1, 0, 0, 4, row_by_row=True),
    "cast": ScorePass(0, 4, 1, 0),
}
_EAGER_BACKWARD = {
    "cast": ScorePass(1, 0, 0, 4),
    "softmax in fp32": ScorePass(0, 8, 0, 4, row_by_row=True),
    "cast to scores": ScorePass(0, 4, 1, 0),
    "scale": ScorePass(1, 0, 1, 0),
}
_FUSED_FORWARD = {"scale, mask, softmax": ScorePass(1, 0, 1, 0, row_by_row=True)}
_FUSED_BACKWARD = {"scale, mask, softmax": ScorePass(2, 0, 1, 0, row_by_row=True)}
_DROPOUT = {"forward": ScorePass(1, 0, 1, 1), "backward": ScorePass(1, 1, 1, 0)}
PASSES = {
    ("forward", False): _EAGER_FORWARD,
    ("backward", False): _EAGER_BACKWARD,
    ("forward", True): _FUSED_FORWARD,
    ("backward", True): _FUSED_BACKWARD,
}
"""Passes over the scores by (phase, fused softmax). Eager: transformers' ``eager_attention_forward`` (scores * scale, + mask,
softmax in fp32, cast back). Fused: Megatron-LM ``scaled_upper_triang_masked_softmax``, forward and backward, in the format of
the scores."""


def products(shape: Shape, phase: str) -> list[tuple[F64, F64, F64]]:
    """(m, n, k) of each batched product of a head: scores and output; backward, the gradients of all four
    factors."""
    q, kv, d, dv = shape.q_len, shape.kv_len, shape.head_dim, shape.v_head_dim
    if phase == "forward":
        return [(q, kv, d), (q, dv, kv)]
    return [(q, kv, dv), (kv, dv, q), (q, d, kv), (kv, d, q)]


def score_bytes(shape: Shape, one: ScorePass, width: float) -> tuple[F64, F64]:
    """[R] bytes read and written by one pass over all scores."""
    scores = shape.batch * shape.heads * shape.q_len * shape.kv_len
    return scores * (one.read * width + one.read_fixed), scores * (one.written * width + one.written_fixed)


def unfused_time(
    accelerator: Accelerator,
    dtype: str,
    shape: Shape,
    *,
    causal: bool,
    phase: str,
    fused_softmax: bool,
    dropout: bool = False,
    multiply: Callable[[F64, F64, F64, F64], KernelTime] | None = None,
) -> KernelTime:
    """[R] sum over kernels. ``phase`` is ``forward`` or ``backward``. An unmasked call has no mask pass.

    ``multiply`` times products (m, n, k, batch); default: burst. Raises InputError for another phase, UnpredictableError when
    the accelerator has no rate for ``dtype``.
    """
    from gpuwise.predict.kernels.gemm.product import gemm_time
    from gpuwise.predict.kernels.memory_bound import memory_time

    if phase not in ("forward", "backward"):
        raise InputError(f"attention phase {phase!r} is not forward or backward")
    heads = shape.batch * shape.heads
    times = multiply or partial(gemm_time, accelerator, dtype)
    parts: list[KernelTime] = [times(m, n, k, heads) for m, n, k in products(shape, phase)]
    passes = [p for name, p in PASSES[phase, fused_softmax].items() if causal or name != "mask"]
    if dropout:
        passes.append(_DROPOUT[phase])
    width = dtype_bytes(dtype)
    scores = shape.batch * shape.heads * shape.q_len * shape.kv_len
    for one in passes:
        read_bytes, written_bytes = score_bytes(shape, one, width)
        row = shape.kv_len * (one.read * width + one.read_fixed)
        pattern = "softmax" if one.row_by_row else "elementwise"
        parts.append(memory_time(accelerator, read_bytes, written_bytes, pattern=pattern, elements=scores, row_bytes=row))
    time_s = np.sum([p.time_s for p in parts], axis=0)
    spread = np.sqrt(np.sum([(p.time_s * p.log_sigma) ** 2 for p in parts], axis=0)) / time_s
    bases: list[Basis] = [p.basis for p in parts]
    return KernelTime(time_s, spread, weakest(*bases))
