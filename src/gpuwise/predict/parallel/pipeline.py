"""Pipeline schedules: time of m micro-batches through p stages.

With F, B, W the forward, backward and weight-gradient seconds of a stage (B includes W), v chunks a stage:

============  ===========================================================  ======================
schedule      bubble                                                       source
============  ===========================================================  ======================
gpipe, 1f1b   (p - 1)(F + B)                                               arXiv 1811.06965, 2104.04473 section 2.2
interleaved   (p - 1)(F + B) / v                                           arXiv 2104.04473 section 2.2
zero-bubble   (p - 1)(F + B - 2W), at least 0 (ZB-H1)                      arXiv 2401.10241 table 2
============  ===========================================================  ======================

Unequal stages: the slowest sets the rate, the ramp is the sum over the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuwise.workload.strategy import SCHEDULES

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def pipeline_time(
    slowest_s: F64, ramp_s: F64, wgrad_s: F64, micro_batches: I64, pp: I64, virtual_stages: I64, schedule: I64
) -> tuple[F64, F64]:
    """Total seconds and the bubble's share of them in seconds.

    ``slowest_s`` is F + B of the slowest stage for one micro-batch, ``ramp_s`` the sum of F + B over the other stages,
    ``wgrad_s`` the weight-gradient part of one stage. All arrays [N].
    """
    divisor = np.where(schedule == SCHEDULES.index("interleaved"), np.maximum(virtual_stages, 1), 1)
    bubble = ramp_s / divisor
    zero = schedule == SCHEDULES.index("zero-bubble")
    bubble = np.where(zero, np.maximum(bubble - 2 * (pp - 1) * wgrad_s, 0.0), bubble)
    bubble = np.where(pp > 1, bubble, 0.0)
    return micro_batches * slowest_s + bubble, bubble


def in_flight(stage_from_first: I64, micro_batches: I64, pp: I64, virtual_stages: I64, schedule: I64) -> F64:
    """Micro-batches whose activations a stage holds at its worst moment, in units of the whole stage's layers.

    gpipe keeps all m; 1F1B and ZB-H1 keep p - i on stage i; interleaving keeps p (1 + (p - 1) / (p v)) on stage 0
    (arXiv 2205.05198, section 4.3.2), one less per two later stages.
    """
    depth = np.minimum(pp - stage_from_first, micro_batches).astype(np.float64)
    v = np.maximum(virtual_stages, 1)
    chunks = np.minimum((v - 1) * pp + 2 * (pp - stage_from_first - 1) + 1, micro_batches * v)
    interleaved = np.where(v > 1, chunks / v, depth)
    out = np.where(schedule == SCHEDULES.index("interleaved"), interleaved, depth)
    return np.where(schedule == SCHEDULES.index("gpipe"), micro_batches.astype(np.float64), out)
