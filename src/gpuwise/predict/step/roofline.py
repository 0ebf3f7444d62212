"""The roofline of a captured step: each kind of operation as a point under the roofs of the device.

    attainable(I) = min(peak, I x bandwidth)        I in FLOP per byte moved (Williams et al., CACM 52(4), 2009)

A point is one signature: its intensity (FLOP over the bytes of its tensors), the FLOP/s it reaches, its share of the device's
time and what bounds it. Operations without products (norms, copies, updates) have no place on such a diagram; their share is
told beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.families import FAMILIES, short_name
from gpuwise.predict.kernels.memory_bound import dram_rate
from gpuwise.predict.kernels.products import run_format
from gpuwise.predict.step.bounds import Bound, pattern_of_path, shapes_of
from gpuwise.predict.step.capture_time import CapturedTime
from gpuwise.workload.capture.record.capture import Capture
from gpuwise.workload.capture.record.table import row_dtype
from gpuwise.workload.step import Kind


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One signature with products, all its calls."""

    op: str
    family: str
    module: str
    shapes: str
    dtype: str
    """What it is computed in."""
    count: int
    intensity: float
    flop_per_s: float
    attainable_flop_per_s: float
    """Under the roof of ``dtype`` at this intensity."""
    share: float
    """Of the device's time."""
    bound: Bound

    @property
    def reached(self) -> float:
        """Share of the roof; an operation whose operands stay in cache may pass 1."""
        return self.flop_per_s / self.attainable_flop_per_s


@dataclass(frozen=True, slots=True)
class StepRoofline:
    """Points, costliest first, under the roofs they run against."""

    accelerator: str
    peak_flop_per_s: dict[str, float]
    """The roofs of the formats the step computes in."""
    bytes_per_s: float
    """What a long stream reaches: the slope."""
    points: tuple[StepPoint, ...]
    without_flop_share: float
    """Share of the device's time in operations without products."""


def step_roofline(capture: Capture, time: CapturedTime, accelerator: Accelerator) -> StepRoofline:
    """The points of the step that ``time`` (of the same capture and accelerator) describes."""
    n = len(time.device_s)
    signature = capture.op_signature[time.first_op : time.first_op + n]
    total = float(time.device_s.sum())
    seconds = np.bincount(signature, weights=time.device_s, minlength=len(capture.signatures))
    counts = np.bincount(signature, minlength=len(capture.signatures))
    slope = dram_rate(accelerator)
    points: list[StepPoint] = []
    peaks: dict[str, float] = {}
    placed = 0.0
    for i in np.argsort(-seconds).tolist():
        s = capture.signatures[int(i)]
        moved = s.bytes_read + s.bytes_written
        if seconds[i] <= 0 or not s.flop or not moved:
            continue
        settings = capture.settings
        tf32 = settings.cudnn_tf32 if s.kind is Kind.CONVOLUTION else settings.matmul_tf32
        dtype = run_format(accelerator, row_dtype(s), tf32)
        peak = peaks.setdefault(dtype, accelerator.peak_flop_per_s.get(dtype) or accelerator.peak("fp32"))
        rows = np.flatnonzero(signature == i)
        weights = time.device_s[rows]
        module = int(np.argmax(np.bincount(capture.op_module[time.first_op + rows], weights=weights)))
        intensity = s.flop / moved
        points.append(
            StepPoint(
                short_name(s.op),
                FAMILIES[int(time.family[rows[0]])],
                pattern_of_path(capture.modules[module]),
                shapes_of(s),
                dtype,
                int(counts[i]),
                intensity,
                s.flop * float(counts[i]) / float(seconds[i]),
                min(peak, intensity * slope),
                float(seconds[i]) / total,
                Bound(int(np.argmax(np.bincount(time.bound[rows], weights=weights)))),
            )
        )
        placed += float(seconds[i])
    return StepRoofline(accelerator.name, peaks, slope, tuple(points), 1.0 - placed / total if total else 0.0)
