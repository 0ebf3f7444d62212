"""Whole-model time of the NeuSight study from kernel times: the sum of an eager pass's kernels, or the host if it is slower."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.neusight_ops import EagerOp, eager_ops
from gpuwise.facts.accelerators import Accelerator
from gpuwise.predict.fp32 import linear_time
from gpuwise.predict.memory_bound import memory_time

F64 = NDArray[np.float64]
HOST_S_PER_KERNEL = 8e-6
"""Host time to issue one eager kernel (`view` takes 6-9 us, an elementwise operation about as long, in the study's traces
of A100 and MI210 hosts; the V100 host takes twice that)."""


class PassTime(NamedTuple):
    """Seconds of the forward and backward pass."""

    forward_s: float
    backward_s: float


def kernel_seconds(accelerator: Accelerator, ops: list[EagerOp]) -> F64:
    """Device time [R] of one launch of each row."""
    time = np.zeros(len(ops))
    keys = [(o.kind, o.pattern, o.layout, o.batched) for o in ops]
    for key in sorted(set(keys)):
        index = [i for i, k in enumerate(keys) if k == key]
        rows = [ops[i] for i in index]
        if key[0] == "product":
            b, m, n, k = np.array([o.shape for o in rows]).T
            result = linear_time(accelerator, m, n, k, b, layout=rows[0].layout)  # type: ignore[arg-type]
        else:
            read, written, elements, row = (
                np.array([getattr(o, f) for o in rows]) for f in ("read", "written", "elements", "row")
            )
            result = memory_time(
                accelerator, read, written, pattern=rows[0].pattern, elements=elements, row_bytes=4.0 * row  # type: ignore[arg-type]
            )
        time[index] = result.time_s
    return time


def eager_pass(accelerator: Accelerator, model: str, batch: int, seq: int, training: bool) -> PassTime:
    """Forward and backward time of ``model`` in eager fp32.

    Raises UnpredictableError for a model outside the study or an accelerator without fp32 rate.
    """
    ops = eager_ops(model, batch, seq, training)
    device = kernel_seconds(accelerator, ops)
    count = np.array([o.count for o in ops])
    backward = np.array([o.backward for o in ops])
    seconds = [
        max(float((device * count)[mask].sum()), HOST_S_PER_KERNEL * float(count[mask].sum()))
        for mask in (~backward, backward)
    ]
    return PassTime(seconds[0], seconds[1] if training else 0.0)
