"""What is read from the time of a captured step: utilisation, and modules that repeat taken together."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.step.capture_time import CapturedTime
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.record.table import row_dtype
from gpuwise.workload.row_codes import Kind, Phase

F64 = NDArray[np.float64]
OUTSIDE = "(outside any module)"
HOST_BOUND = 0.5
"""Share of a step in which the device waits from which the host is called what bounds it."""


def is_host_bound(time: CapturedTime) -> bool:
    """Whether the device is idle, waiting for the host, during most of the step."""
    return time.launch_bound_share > HOST_BOUND


def by_module(time: CapturedTime, n: int = 8) -> dict[str, float]:
    """Device seconds by module, entries of a list together and two names deep; the ``n`` largest, largest first."""
    sums: dict[str, float] = {}
    for path, seconds in time.module_s.items():
        name = general_path(path) or OUTSIDE
        sums[name] = sums.get(name, 0.0) + seconds
    return dict(list(largest_first(sums).items())[:n])


def op_seconds(capture: Capture, time: CapturedTime) -> tuple[F64, F64] | None:
    """[ops] seconds of the device and of the host for every operation of the capture, zero outside the steady step; None
    where the time is of other operations than the captured ones (compiled)."""
    span = capture.steady
    if time.device_s.size != span.end_op - span.first_op or time.host_s.size != time.device_s.size:
        return None
    device, host = np.zeros(capture.op_phase.size), np.zeros(capture.op_phase.size)
    device[span.first_op : span.end_op], host[span.first_op : span.end_op] = time.device_s, time.host_s
    return device, host


def largest_first(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts above zero in order of size."""
    return dict(sorted(((k, v) for k, v in parts.items() if v > 0), key=lambda item: -item[1]))


def general_path(path: str) -> str:
    """``blocks.3.mlp.up`` as ``blocks.*.mlp``: indices within a list alike, two names deep; an index at the root is a name."""
    names = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path).split(".")
    kept: list[str] = []
    for name in names:
        if sum(n != "*" for n in kept) == 2 and name != "*":
            break
        kept.append(name)
    return ".".join(kept)


def mfu(capture: Capture, time: CapturedTime, accelerator: Accelerator) -> tuple[float | None, str]:
    """(FLOP of the steady step without recomputation over what the card could do in its time, the format of that rate);
    None where the catalogue has no such rate."""
    dtype = main_dtype(capture)
    peak = accelerator.peak_flop_per_s.get(dtype)
    span = capture.steady
    flop = np.array([s.flop for s in capture.signatures])[capture.op_signature[span.first_op : span.end_op]]
    once = capture.op_phase[span.first_op : span.end_op] != Phase.RECOMPUTE
    step_s = time.step_time_s.expected
    return (None if not peak or step_s <= 0 else float(flop[once].sum()) / step_s / peak), dtype


def main_dtype(capture: Capture) -> str:
    """The format in which most of the step's arithmetic is done, TF32 where it is allowed."""
    flop: dict[str, float] = {}
    span = capture.steady
    counts = np.bincount(capture.op_signature[span.first_op : span.end_op], minlength=len(capture.signatures))
    for s, n in zip(capture.signatures, counts.tolist(), strict=True):
        if s.flop and n:
            dtype = row_dtype(s)
            allowed = capture.settings.cudnn_tf32 if s.kind is Kind.CONVOLUTION else capture.settings.matmul_tf32
            if dtype == "fp32" and allowed and capture.settings.capability >= (8, 0):
                dtype = "tf32"
            flop[dtype] = flop.get(dtype, 0.0) + n * s.flop
    return max(flop, key=lambda d: flop[d], default="fp32")
