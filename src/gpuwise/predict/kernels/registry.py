"""The one registry of kernels: family -> time(accelerator, rows, conditions). Launch cost is not included.

To time a kernel, write it as a row of the step table (:mod:`gpuwise.workload.step`) and call this module. Equal rows take
equal seconds, to the last digit, in every command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.accelerator_factors import factor_key, family_factor
from gpuwise.predict.kernels.conditions import STEP, Conditions
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.lookup.tables import UNSORTED_KERNELS, gather_time, table_gradient_time
from gpuwise.predict.kernels.memory_bound_ops import memory_bound_time
from gpuwise.predict.kernels.norms.rows import of_row_norms, row_norm_gradient_seconds
from gpuwise.predict.kernels.products import attention_time, grouped_products_time, matmul_time, recurrent_time
from gpuwise.predict.kernels.run_formats import matrix_units
from gpuwise.predict.kernels.state_space import state_space_time
from gpuwise.predict.kernels.transfer import transfer_time
from gpuwise.workload.row_codes import TO_HOST, Phase
from gpuwise.workload.step import FAMILIES, KERNEL_CODE, OpTable

F64 = NDArray[np.float64]
Evaluate = Callable[[Accelerator, OpTable, Conditions], KernelTime]


def _memory_bound(family: str) -> Evaluate:
    """Memory-bound rows of ``family``, with the card's factor from whole networks."""

    def time(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
        times = memory_bound_time(accelerator, rows, family)
        if factor_key(accelerator) is None:
            return times
        fused = rows.kernel == KERNEL_CODE["fused"]
        factor = np.where(fused, family_factor(accelerator, "fused"), family_factor(accelerator, family))
        if conditions.before_torch_2:
            factor = factor * float(load_json("captured_kernels")["before_torch_2"]["memory"])
        return times._replace(time_s=times.time_s * factor)

    return time


def _norm(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """Row norms by their bytes, their gradients kernel by kernel; batch norm as measured networks have it on devices with matrix
    units, and PyTorch's own by how its blocks share the images."""
    times = _memory_bound("norm")(accelerator, rows, conditions)
    own = rows.kernel == KERNEL_CODE["own_batch_norm"]
    if own.any() and accelerator.compute_units and accelerator.boost_hz:
        from gpuwise.predict.kernels.norms.images import own_batch_norm_seconds

        times = times._replace(time_s=np.where(own, own_batch_norm_seconds(accelerator, rows, conditions), times.time_s))
    gradients = of_row_norms(rows)
    if gradients.any() and accelerator.compute_units and accelerator.boost_hz and not conditions.older_row_norms:
        factor = 1.0 if factor_key(accelerator) is None else family_factor(accelerator, "norm")
        times = times._replace(time_s=np.where(gradients, row_norm_gradient_seconds(accelerator, rows) * factor, times.time_s))
    batch = rows.kernel == KERNEL_CODE["batch_norm"]
    if not batch.any() or not matrix_units(accelerator):
        return times
    from gpuwise.predict.kernels.measured_networks import batch_norm_seconds  # a transformer has none

    seconds = batch_norm_seconds(accelerator, rows, conditions)
    return times._replace(time_s=np.where(batch, seconds, times.time_s))


def _convolution(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """Convolutions; their module is read when the first of them comes, as a transformer has none."""
    from gpuwise.predict.kernels.convolution_ops import convolution_rows_time

    return convolution_rows_time(accelerator, rows, conditions)


def _embedding(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """Gathered rows of a table, and its dense gradient; if the table's rows are unknown, by bytes."""
    times = _gather(accelerator, rows, conditions)
    part = np.flatnonzero((rows.shape[:, 0] > 0) & (rows.phase == Phase.BACKWARD))
    if part.size:
        n, width, entries = rows.shape[part, :3].T
        element = np.array([TENSOR_BYTES.get(rows.dtype[i], 4) for i in part.tolist()])
        one = table_gradient_time(accelerator, n, width, element, entries, sorts=rows.n_kernels[part] > UNSORTED_KERNELS)
        times.time_s[part], times.log_sigma[part] = one.time_s * family_factor(accelerator, "embedding"), one.log_sigma
    return times


def _gather(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """Whole rows of a table by their lengths; single elements by their bytes."""
    family = FAMILIES[int(rows.family[0])]
    times = _memory_bound(family)(accelerator, rows, conditions)
    part = np.flatnonzero((rows.shape[:, 0] > 0) & (rows.phase != Phase.BACKWARD))
    if part.size:
        n, width, entries = rows.shape[part, :3].T
        element = np.array([TENSOR_BYTES.get(rows.dtype[i], 4) for i in part.tolist()])
        one = gather_time(accelerator, n, width * element, entries)
        times.time_s[part], times.log_sigma[part] = one.time_s * family_factor(accelerator, family), one.log_sigma
    return times


def _transfer(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """Copies between host and device from pageable memory, one after the other."""
    time, sigma = np.zeros(len(rows)), np.zeros(len(rows))
    latency = float(load_json("memory_bound")["latency_s"])
    for i in range(len(rows)):
        direction = "d2h" if rows.flag[i] & TO_HOST else "h2d"
        one = transfer_time(accelerator, max(rows.bytes_read[i], rows.bytes_written[i]), direction, pinned=False)
        time[i], sigma[i] = one.time_s[0] + latency, one.log_sigma[0]
    return KernelTime(time, sigma, "derived")


REGISTRY: dict[str, Evaluate] = {
    "matmul": matmul_time,
    "grouped": grouped_products_time,
    "attention": attention_time,
    "convolution": _convolution,
    "recurrent": recurrent_time,
    "norm": _norm,
    "softmax": _memory_bound("softmax"),
    "elementwise": _memory_bound("elementwise"),
    "reduction": _memory_bound("reduction"),
    "copy": _memory_bound("copy"),
    "dropout": _memory_bound("dropout"),
    "pooling": _memory_bound("pooling"),
    "resampling": _memory_bound("resampling"),
    "gather": _gather,
    "scatter": _memory_bound("scatter"),
    "sort": _memory_bound("sort"),
    "scan": _memory_bound("scan"),
    "fourier": _memory_bound("fourier"),
    "embedding": _embedding,
    "optimizer": _memory_bound("optimizer"),
    "loss": _memory_bound("loss"),
    "transfer": _transfer,
    "state_space": state_space_time,
}
"""Collectives are timed with the cluster they cross (``predict.comm``); host rows launch nothing."""


@dataclass(frozen=True, slots=True)
class TableTimes:
    """``time_s`` [R] per launch; ``log_sigma`` [R]; ``basis`` of the weakest part. Collectives and host rows are 0."""

    time_s: F64
    log_sigma: F64
    basis: Basis


@dataclass(frozen=True, slots=True)
class DistinctCalls:
    """A table's distinct kernel calls, and for each of its rows which of them it is: the same on every device."""

    table: OpTable
    which: NDArray[np.intp]

    @classmethod
    def of(cls, rows: OpTable) -> DistinctCalls:
        """Those of ``rows``."""
        first, inverse = _distinct(rows)
        return cls(rows.take(first), inverse)

    def times(self, accelerator: Accelerator, conditions: Conditions = STEP) -> TableTimes:
        """:func:`kernel_times` of all rows."""
        few = _evaluate(self.table, accelerator, conditions)
        return TableTimes(few.time_s[self.which], few.log_sigma[self.which], few.basis)


def kernel_times(rows: OpTable, accelerator: Accelerator, conditions: Conditions = STEP) -> TableTimes:
    """Time of each row's kernel(s) on ``accelerator``; equal calls are evaluated once.

    Raises UnpredictableError when the accelerator has no rate for a format in the table (unless a substitute is allowed).
    """
    return DistinctCalls.of(rows).times(accelerator, conditions)


def _distinct(table: OpTable) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of one row of each distinct kernel call, and for every row which of them it is.

    Rows are compared by a 64-bit hash of what their time depends on; a table of many strategies repeats most calls.
    """
    code = {d: i for i, d in enumerate(sorted(set(table.dtype)))}
    columns: NDArray[np.uint64] = np.column_stack(
        [
            table.family,
            table.kernel,
            table.phase == Phase.BACKWARD,
            [code[d] for d in table.dtype],
            table.flag,
            table.window,
            table.shape,
            table.bytes_read.astype(np.int64),
            table.bytes_written.astype(np.int64),
            table.n_kernels.astype(np.int64),
            np.rint(table.detail * 1024.0).astype(np.int64),
        ]
    ).astype(np.uint64)
    odd = _odd_factors(columns.shape[1])
    mixed: Any = columns * odd
    mixed ^= mixed >> np.uint64(29)
    keys: Any = np.sum(mixed * odd[::-1], axis=1, dtype=np.uint64)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse


def _odd_factors(n: int) -> Any:
    """``n`` well-mixed odd numbers of 64 bits: the finaliser of MurmurHash3 over multiples of the golden ratio, as in SplitMix64
    (Steele, Lea and Flood, OOPSLA 2014)."""
    z: Any = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    z = (z ^ (z >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return (z ^ (z >> np.uint64(33))) | np.uint64(1)


def _evaluate(table: OpTable, accelerator: Accelerator, conditions: Conditions) -> TableTimes:
    """One call per family. Families that are no kernel stay 0."""
    n = len(table)
    time_s, sigma = np.zeros(n), np.zeros(n)
    bases: list[Basis] = []
    codes: list[int] = sorted(set(table.family.tolist()))
    for code in codes:
        evaluate = REGISTRY.get(FAMILIES[code])
        if evaluate is None:
            continue
        part = np.flatnonzero(table.family == code)
        times = evaluate(accelerator, table.take(part), conditions)
        time_s[part], sigma[part] = times.time_s, times.log_sigma
        bases.append(times.basis)
    return TableTimes(time_s, sigma, weakest(*bases) if bases else "specified")
