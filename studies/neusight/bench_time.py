"""What the study's benchmark shows for a kernel: its own clock, launches and the governor that reacts late."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels import convolution
from gpuwise.predict.kernels.gemm import fp32
from studies.neusight.tables import OpRows

F64 = NDArray[np.float64]
SHORTEST_S = 1.5e-4
"""Shorter rows of the table are host time."""


def bench_time(accelerator: Accelerator, shapes: fp32.Shapes, document: dict[str, Any], batched: bool) -> F64:
    """What the study's benchmark shows for a product: best 5 of 25 launches, each between two events."""
    bench = document["bench"]
    return fp32.product_time(accelerator, shapes, document, batched, burst_s=_burst_s(accelerator, bench)) + bench["event_s"]


def _burst_s(accelerator: Accelerator, bench: dict[str, Any]) -> float:
    """How long a launch of the benchmark may take to end before the governor reacts."""
    keys = (f"sm_{(accelerator.compute_capability or '').replace('.', '')}", accelerator.family)
    return max((bench["burst_s"].get(k, 0.0) for k in keys), default=0.0)


def convolutions_of(rows: OpRows) -> convolution.Convolutions:
    """The study's convolutions: 3 x 3, stride 1, padding 1, square images."""
    b, c_in, c_out, side = rows.shape.T
    one = np.ones_like(b)
    return convolution.Convolutions(b, c_in, c_out, side, side, 9.0 * one, one, one)


def convolution_bench_time(accelerator: Accelerator, conv: convolution.Convolutions, document: dict[str, Any]) -> F64:
    """Device seconds of the study's convolutions, launched one at a time: at boost where the governor is slow to react."""
    return convolution.vector_time(accelerator, conv, document, _burst_s(accelerator, load_json("fp32")["bench"]))
