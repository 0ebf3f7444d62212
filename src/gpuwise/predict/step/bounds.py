"""What the operations of a step are bound by, and which of them take the most."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gpuwise.workload.capture.captured import Capture, Signature
from gpuwise.workload.capture.record.families import short_name
from gpuwise.workload.step import FAMILIES

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class Bound(IntEnum):
    """Parts of an operation's time."""

    NOTHING = 0
    """Host-only: a view."""
    TENSOR_CORE = 1
    CUDA_CORE = 2
    BANDWIDTH = 3
    LAUNCH = 4
    """A kernel too short for its work to show: start and drain."""
    HOST = 5
    """The device waited for the host longer than the operation takes."""
    COMMUNICATION = 6


def follows_clock(bound: I64, family: I64) -> NDArray[np.bool_]:
    """[N] kernels that are bound by arithmetic and timed at boost: convolutions have the clock under the power limit in their
    time (``predict.kernels.convolution_ops``)."""
    return ((bound == Bound.TENSOR_CORE) | (bound == Bound.CUDA_CORE)) & _IS_AT_BOOST[family]


AT_BOOST = ("matmul", "attention", "grouped")
_IS_AT_BOOST = np.array([f in AT_BOOST for f in FAMILIES])


@dataclass(frozen=True, slots=True)
class CostlyOp:
    """All calls of one signature in the step."""

    op: str
    family: str
    count: int
    time_s: float
    """Together."""
    share: float
    """Share of the device's time."""
    bound: Bound
    flop_per_s: float
    intensity: float
    """FLOP per byte of its tensors."""
    module: str
    """Module with most of its time, layer numbers as ``*``."""
    shapes: str


def costly_ops(
    capture: Capture, signature: I64, module: I64, device_s: F64, bound: I64, family: NDArray[np.int64], count: int = 10
) -> tuple[CostlyOp, ...]:
    """The signatures on which the device spends most, costliest first; equal shapes are one entry."""
    total = float(device_s.sum())
    if not total:
        return ()
    sums = np.bincount(signature, weights=device_s, minlength=len(capture.signatures))
    out: list[CostlyOp] = []
    for i in np.argsort(-sums)[:count].tolist():
        if sums[i] <= 0:
            break
        s = capture.signatures[int(i)]
        rows = np.flatnonzero(signature == i)
        moved = s.bytes_read + s.bytes_written
        bounds = np.bincount(bound[rows], weights=device_s[rows])
        modules = np.bincount(module[rows], weights=device_s[rows])
        out.append(
            CostlyOp(
                short_name(s.op),
                FAMILIES[int(family[rows[0]])],
                len(rows),
                float(sums[i]),
                float(sums[i]) / total,
                Bound(int(np.argmax(bounds))),
                s.flop * len(rows) / float(sums[i]),
                s.flop / moved if moved else 0.0,
                pattern_of_path(capture.modules[int(np.argmax(modules))]),
                shapes_of(s),
            )
        )
    return tuple(out)


def pattern_of_path(path: str) -> str:
    """``layers.3.mlp`` as ``layers.*.mlp``."""
    return ".".join("*" if p.isdigit() else p for p in path.split("."))


def shapes_of(s: Signature) -> str:
    """``8x64x56x56 64x64x3x3``: the first two large tensors."""
    shapes = [t.shape for t in s.inputs if len(t.shape) > 1][:2] or [t.shape for t in (*s.inputs, *s.outputs)][:1]
    return " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
