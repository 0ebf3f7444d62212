"""Device time of rows that wait for memory, by family: how their kernels go through it, how often, in how many launches.

What a row says of itself (``OpTable.detail``: passes, elements visited, bytes of a normalised row, serial steps) is of its
kernel's source; what stands beside it here is fitted (``memory_bound.json``, ``captured_time.json``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import Pattern, memory_time
from gpuwise.workload.step import KERNEL_CODE, OpTable, Phase

F64 = NDArray[np.float64]
_PATTERN: dict[str, Pattern] = {
    "norm": "norm",
    "softmax": "softmax",
    "elementwise": "elementwise",
    "reduction": "reduction",
    "dropout": "dropout",
    "gather": "gather",
    "scatter": "gather",
    "embedding": "gather",
    "copy": "elementwise",
    "pooling": "broadcast",
    "resampling": "gather",
    "sort": "elementwise",
    "scan": "reduction",
    "fourier": "transpose",
    "loss": "elementwise",
    "optimizer": "elementwise",
}
_OF_KERNEL: tuple[Pattern, ...] = ("transpose", "broadcast")


def memory_bound_time(accelerator: Accelerator, rows: OpTable, family: str) -> KernelTime:
    """[R] device time of rows of one family, the kernels of a row together."""
    model: dict[str, Any] = load_json("captured_time")
    latency = float(load_json("memory_bound")["latency_s"])
    again, visited, row, serial = rows.detail.T
    again = np.where(again > 0, again, 1.0)
    input_bytes, output_bytes = rows.bytes_read * again, rows.bytes_written * np.maximum(again, 1.0)
    visited = np.where(visited > 0, visited, np.where(output_bytes > 0, output_bytes, input_bytes) / 4.0)
    blocks = _blocks(rows, family)
    time, sigma, basis = np.zeros(len(rows)), np.zeros(len(rows)), _BASIS
    for pattern, part in _patterns(rows, family):
        one = memory_time(
            accelerator,
            input_bytes[part],
            output_bytes[part],
            pattern=pattern,
            elements=visited[part],
            row_bytes=row[part],
            blocks=blocks[part],
        )
        time[part], sigma[part], basis = one.time_s, one.log_sigma, one.basis
    fused = rows.kernel == KERNEL_CODE["fused"]
    slow = np.where(
        fused, float(load_json("host_time")["compiled"]["memory_slowdown"]), float(model["memory_slowdown"].get(family, 1.0))
    )
    body = (time - latency) * slow
    launches = latency * np.maximum(rows.n_kernels, 1.0)
    spread = np.hypot(sigma, float(model["family_log_sigma"]))
    return KernelTime(body + launches + serial * float(model["serial_step_s"]), spread, basis)


def _blocks(rows: OpTable, family: str) -> F64:
    """[R] rows of a norm that a block of threads each takes; kernels that a compiler wrote take several, batch norm has none."""
    row = rows.detail[:, 2]
    apart = (row > 0) & (rows.kernel != KERNEL_CODE["fused"]) & (rows.kernel != KERNEL_CODE["batch_norm"])
    tensors = np.where(rows.phase == Phase.BACKWARD, 2.0, 1.0)
    return np.where(apart & (family == "norm"), rows.bytes_read / tensors / np.maximum(row, 1.0), 0.0)


_BASIS: Basis = "derived"


def _patterns(rows: OpTable, family: str) -> list[tuple[Pattern, NDArray[np.intp]]]:
    """Rows by how they go through memory: the family's way unless their kernel has another."""
    others: dict[Pattern, NDArray[np.intp]] = {p: np.flatnonzero(rows.kernel == KERNEL_CODE[p]) for p in _OF_KERNEL}
    plain = np.flatnonzero(~np.isin(rows.kernel, [KERNEL_CODE[p] for p in _OF_KERNEL]))
    every: list[tuple[Pattern, NDArray[np.intp]]] = [(_PATTERN[family], plain), *others.items()]
    return [(pattern, part) for pattern, part in every if part.size]
