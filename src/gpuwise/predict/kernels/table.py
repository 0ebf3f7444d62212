"""Device time of every row of an op table: hands each kind to its kernel family. Launch cost is not included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.attention.fused import attention_backward_time, attention_forward_time, attention_unfused_time
from gpuwise.predict.kernels.experts.grouped import grouped_time
from gpuwise.predict.kernels.gemm.alignment import alignment_slowdown, misaligned_time
from gpuwise.predict.kernels.gemm.product import gemm_time
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import embedding_time, memory_time
from gpuwise.workload.step import CAUSAL, FUSED_ATTENTION, Kind, OpTable, Phase

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TableTimes:
    """``time_s`` [R] per launch; ``log_sigma`` [R]; ``basis`` of the weakest part. Collectives, copies and host rows are 0."""

    time_s: F64
    log_sigma: F64
    basis: Basis


def concatenate(tables: list[OpTable]) -> OpTable:
    """One table from several, in order."""
    return OpTable(
        name=tuple(n for t in tables for n in t.name),
        dtype=tuple(d for t in tables for d in t.dtype),
        **{
            f: np.concatenate([getattr(t, f) for t in tables])
            for f in (
                "kind",
                "phase",
                "shape",
                "count",
                "flop",
                "bytes_read",
                "bytes_written",
                "saved_bytes",
                "flag",
                "window",
                "n_kernels",
            )
        },
    )


def _distinct(table: OpTable) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of one row of each distinct kernel call, and for every row which of them it is.

    Rows are compared by a 64-bit hash of what their time depends on; a table of many strategies repeats most calls.
    """
    code = {d: i for i, d in enumerate(sorted(set(table.dtype)))}
    columns: NDArray[np.uint64] = np.column_stack(
        [
            table.kind,
            table.phase == Phase.BACKWARD,
            [code[d] for d in table.dtype],
            table.flag,
            table.window,
            table.shape,
            table.bytes_read.astype(np.int64),
            table.bytes_written.astype(np.int64),
        ]
    ).astype(np.uint64)
    random: Any = np.random.default_rng(20261121)
    odd: Any = random.integers(1, 2**63, columns.shape[1], dtype=np.uint64) | np.uint64(1)
    mixed: Any = columns * odd
    mixed ^= mixed >> np.uint64(29)
    keys: Any = np.sum(mixed * odd[::-1], axis=1, dtype=np.uint64)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse


def kernel_times(table: OpTable, accelerator: Accelerator, kernels: dict[str, str] | None = None) -> TableTimes:
    """Time of each row's kernel(s) on ``accelerator``; equal calls are evaluated once.

    ``kernels`` names the implementation of a family where the stack chooses one (``{"attention": "fa3"}``).
    Raises UnpredictableError when the accelerator has no rate for a dtype in the table.
    """
    first, inverse = _distinct(table)
    few = _evaluate(table.take(first), accelerator, kernels or {})
    return TableTimes(few.time_s[inverse], few.log_sigma[inverse], few.basis)


def _evaluate(table: OpTable, accelerator: Accelerator, kernels: dict[str, str]) -> TableTimes:
    """One call per family and dtype. Kinds that are no kernel stay 0."""
    n = len(table)
    time_s, sigma = np.zeros(n), np.zeros(n)
    bases: list[Basis] = []
    dtypes = np.array(table.dtype, dtype=object)
    if "tf32" not in accelerator.peak_flop_per_s:
        dtypes[dtypes == "tf32"] = "fp32"  # what the library falls back to

    def put(mask: Mask, result: KernelTime) -> None:
        time_s[mask], sigma[mask] = result.time_s, result.log_sigma
        bases.append(result.basis)

    for kind in (Kind.MATMUL, Kind.GROUPED):
        for dtype in sorted(set(dtypes[table.kind == kind])):
            mask = (table.kind == kind) & (dtypes == dtype)
            put(mask, _matmul(kind, accelerator, dtype, table.shape[mask]))
    for dtype in sorted(set(dtypes[table.kind == Kind.ATTENTION])):
        _attention(table, accelerator, dtype, (table.kind == Kind.ATTENTION) & (dtypes == dtype), put, kernels)
    mask = (table.kind == Kind.MEMORY) | (table.kind == Kind.OPTIMIZER)
    if mask.any():
        put(mask, memory_time(accelerator, table.bytes_read[mask], table.bytes_written[mask]))
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        mask = (table.kind == Kind.EMBEDDING) & (table.phase == phase)
        if mask.any():
            row_bytes = table.bytes_read[mask] / np.maximum(table.shape[mask, 0], 1)
            put(mask, embedding_time(accelerator, table.shape[mask, 0], row_bytes, phase is Phase.BACKWARD))
    return TableTimes(time_s, sigma, weakest(*bases) if bases else "specified")


def _matmul(kind: Kind, accelerator: Accelerator, dtype: str, shape: NDArray[np.int64]) -> KernelTime:
    if kind is Kind.GROUPED:
        return grouped_time(accelerator, dtype, shape[:, 0], shape[:, 1], shape[:, 2], shape[:, 3])
    # the casts of 8-bit products are rows of the op table, so the products are taken bare
    bare = "fp8_gemm" if dtype in ("fp8", "mxfp8") else None
    result = gemm_time(
        accelerator, dtype, shape[:, 1], shape[:, 2], shape[:, 3], shape[:, 0], implementation=bare, sustained=True
    )
    b, m, n, k = (shape[:, i].astype(np.float64) for i in range(4))
    return result._replace(time_s=misaligned_time(accelerator, dtype, result.time_s, m, n, k, b))


def _attention(table: OpTable, accelerator: Accelerator, dtype: str, mask: Mask, put: object, kernels: dict[str, str]) -> None:
    for causal in (0, CAUSAL):
        for fused in (0, FUSED_ATTENTION):
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                part = mask & ((table.flag & CAUSAL) == causal) & ((table.flag & FUSED_ATTENTION) == fused)
                part &= (table.phase == Phase.BACKWARD) if phase is Phase.BACKWARD else (table.phase != Phase.BACKWARD)
                if not part.any():
                    continue
                b, q, kv, a, k, d, dv = (table.shape[part, i] for i in range(7))
                if not fused:
                    name = "backward" if phase is Phase.BACKWARD else "forward"
                    result = attention_unfused_time(
                        accelerator, dtype, b, q, kv, a, k, d, causal=bool(causal), phase=name, fused_softmax=True
                    )
                    slow = alignment_slowdown(dtype, "attention", d)
                    result = result._replace(time_s=result.time_s * slow)
                else:
                    time = attention_backward_time if phase is Phase.BACKWARD else attention_forward_time
                    result = time(
                        accelerator,
                        dtype,
                        b,
                        q,
                        kv,
                        a,
                        k,
                        d,
                        dv,
                        causal=bool(causal),
                        window=table.window[part],
                        kernel=kernels.get("attention"),
                    )
                put(part, result)  # type: ignore[operator]
