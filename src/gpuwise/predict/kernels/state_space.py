"""Kernels of state-space mixers: causal convolution, Mamba-2's recurrence in chunks, Mamba's channel by channel.

    t = n t_latency + max(bytes / B, work / (R units clock))

``B`` bytes/s a long stream reaches, ``R`` work that one unit does a clock: elements of the convolution, FLOP of the
recurrences, whose products are too small to fill the matrix units (written in Triton, with exponentials between them).
Constants: ``coefficients/state_space.json``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import dram_rate
from gpuwise.workload.step import KERNEL_CODE, OpTable

F64 = NDArray[np.float64]


def state_space_time(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """Seconds of each row of family ``state_space``; the same cold and warm, as nothing of it stays in a cache."""
    model = load_json("state_space")
    stream = (rows.bytes_read + rows.bytes_written) / dram_rate(accelerator)
    conv = rows.kernel == KERNEL_CODE["causal_conv"]
    operations = np.where(conv, rows.shape[:, 0] * rows.shape[:, 1] * rows.n_kernels, rows.flop)
    rate: F64 = np.zeros(len(rows))
    sigma: F64 = np.zeros(len(rows))
    for name in ("causal_conv", "chunk_scan", "channel_scan"):
        rows_of_kernel = rows.kernel == KERNEL_CODE[name]
        rate[rows_of_kernel] = model["work_per_clock_per_unit"][name]
        sigma[rows_of_kernel] = model["log_sigma"][name]
    latency = float(load_json("memory_bound")["latency_s"]) * rows.n_kernels
    clocks = (accelerator.compute_units or 0) * (accelerator.boost_hz or 0.0)
    busy = operations / (rate * clocks) if clocks else np.zeros(len(rows))
    basis: Basis = "fitted" if accelerator.family in model["families"] and clocks else "derived"
    return KernelTime(latency + np.maximum(stream, busy), sigma, basis)
