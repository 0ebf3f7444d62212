"""Whole-model time of the NeuSight study from kernel times: the sum of an eager pass's kernels, or the host
where it is slower, and the memory the allocator fetches anew (the study empties its cache before every
pass)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.neusight.ops import MODELS, EagerOp, eager_ops, fused, parameters
from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System, systems
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.comm.collectives import collective_time
from gpuwise.predict.kernels.gemm.fp32 import linear_time
from gpuwise.predict.kernels.memory_bound import memory_time
from gpuwise.units import GIGA

F64 = NDArray[np.float64]
FP32 = 4.0


class PassTime(NamedTuple):
    """Seconds of the forward and backward pass; ``memory_share`` is the estimated memory over the
    device's."""

    forward_s: float
    backward_s: float
    memory_share: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


def kernel_seconds(accelerator: Accelerator, ops: list[EagerOp]) -> F64:
    """Device time [R] of one launch of each row."""
    time = np.zeros(len(ops))
    keys = [(o.kind, o.pattern, o.layout, o.batched) for o in ops]
    for key in sorted(set(keys)):
        index = [i for i, k in enumerate(keys) if k == key]
        rows = [ops[i] for i in index]
        if key[0] == "product":
            b, m, n, k = np.array([o.shape for o in rows]).T
            time[index] = linear_time(accelerator, m, n, k, b, layout=rows[0].layout).time_s
        else:
            time[index] = memory_time(
                accelerator,
                [o.read for o in rows],
                [o.written for o in rows],
                pattern=rows[0].pattern,
                elements=[o.elements for o in rows],
                row_bytes=[FP32 * o.row for o in rows],
            ).time_s
    return time


def eager_pass(
    accelerator: Accelerator,
    model: str,
    batch: int,
    seq: int,
    training: bool,
    *,
    shards: int = 1,
    compiled: bool = False,
) -> PassTime:
    """Forward and backward time of ``model`` in fp32, eager or with pointwise kernels fused by a compiler.

    Raises UnpredictableError for a model outside the study or an accelerator without fp32 rate.
    """
    study = load_json("neusight")["study"]
    ops = eager_ops(model, batch, seq, training, shards=shards)
    written = sum(o.count * (o.written or FP32 * o.shape[0] * o.shape[1] * o.shape[2]) for o in ops if not o.backward)
    if compiled:
        ops = fused(ops)
    device = kernel_seconds(accelerator, ops)
    count = np.array([o.count for o in ops])
    backward = np.array([o.backward for o in ops])
    forward_s, backward_s = (
        max(float((device * count)[mask].sum()), study["host_s_per_kernel"] * float(count[mask].sum()))
        for mask in (~backward, backward)
    )
    held = study["saved_share"] * written + 2.0 * FP32 * parameters(model) / shards if training else 0.0
    share = held / accelerator.memory_bytes
    fetch = study["allocation"].get(accelerator.vendor)
    if training and fetch is not None:
        forward_s += fetch["s_per_gb"] * study["saved_share"] * written / GIGA
        forward_s += fetch["pressure_s"] if share > study["pressure_above"] else 0.0
    return PassTime(forward_s, backward_s if training else 0.0, share)


def parallel_seconds(accelerator: Accelerator, model: str, batch: int, seq: int, option: str) -> float:
    """A training pass on 4 GPUs: ``dp4`` (batch divided, gradients reduced behind the backward pass), ``tp4``
    (heads, feed-forward and vocabulary divided) or ``pp4_1`` (one micro-batch: the stages wait for each
    other).

    Raises UnpredictableError for an option or a machine it does not know.
    """
    kind, size = option[:2], int(option[2:3] or 0)
    system = _machine(accelerator, size)
    tokens_bytes = FP32 * batch * seq * MODELS[model].hidden

    def seconds(operation: str, payload: float) -> float:
        return float(collective_time(system, operation, payload, size, size, element_bytes=2).time_s[0])

    if kind == "dp":
        one = eager_pass(accelerator, model, batch // size, seq, True)
        gradients = FP32 * parameters(model)
        reduce_s = seconds("all_reduce", gradients)
        return one.forward_s + max(one.backward_s, reduce_s) + 0.1 * reduce_s
    if kind == "tp":
        one = eager_pass(accelerator, model, batch, seq, True, shards=size)
        layers = MODELS[model].layers
        return one.total_s + (4 * layers + 2) * seconds("all_reduce", tokens_bytes)
    if kind == "pp":
        one = eager_pass(accelerator, model, batch, seq, True)
        pair = float(collective_time(system, "send_recv", tokens_bytes, 2, 2).time_s[0])
        return one.total_s + 2 * (size - 1) * pair
    raise UnpredictableError("unknown option of the study", f"no model of {option!r}")


def _machine(accelerator: Accelerator, size: int) -> System:
    """A catalogue system with at least ``size`` of the accelerator joined by links."""
    found = [s for s in systems().values() if s.accelerator.id == accelerator.id and s.domain_size >= size > 1]
    if not found:
        raise UnpredictableError("no linked system", f"no system with {size} linked {accelerator.name}")
    return min(found, key=lambda s: s.domain_size)
