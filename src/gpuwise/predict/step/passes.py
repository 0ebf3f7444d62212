"""Seconds of the forward, recompute and backward passes of one layer and of the model's ends, per point.

A pass takes ``max(device + exposed communication, host)``: kernels run no faster than the host issues them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.stack_costs import StackCosts
from gpuwise.predict.step.costs import COMM_GROUPS, PartCosts, PointCosts

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pass:
    """Arrays [P]: device kernels, exposed collectives, host issue time, all in seconds."""

    device_s: F64
    communication_s: F64
    host_s: F64

    @property
    def time_s(self) -> F64:
        """Seconds of one layer's pass: the device with its exposed transfers, or the host where it launches more slowly."""
        return np.maximum(self.device_s + self.communication_s, self.host_s)

    @property
    def starved_s(self) -> F64:
        """Device idle because the host is late."""
        return np.maximum(self.host_s - self.device_s - self.communication_s, 0.0)

    def after_s(self, before: Pass, at: NDArray[np.int64], share: F64 | float = 1.0) -> F64:
        """Seconds that ``share`` of a pass ``before`` each of these adds: a host that is ahead in one pass makes up for the
        other."""
        device = self.device_s[at] + self.communication_s[at] + share * (before.device_s[at] + before.communication_s[at])
        return np.maximum(device, self.host_s[at] + share * before.host_s[at]) - self.time_s[at]


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of the mean layer, and the seconds of the embedding and the head (forward and backward together)."""

    forward: Pass
    selective: Pass
    full: Pass
    """Part that full recompute repeats."""
    backward: Pass
    wgrad_s: F64
    lead_extra_s: F64
    """Time of all leading layers beyond the same number of mean layers, forward and backward (negative when cheaper)."""
    embedding_s: F64
    head_s: F64
    ends_starved_s: F64
    """Device idle time of the embedding and head because the host is late."""


def passes(costs: PointCosts, sc: StackCosts) -> Passes:
    """Apply a stack's slowdowns, gaps, launches and overlaps to the kernel and collective seconds of ``costs``."""
    layer = costs.layer
    nothing = {g: np.zeros_like(layer.wgrad_s) for g in COMM_GROUPS}
    still = np.zeros_like(layer.wgrad_s)
    forward, backward = _both(layer, sc)
    selective = _one(layer.selective_s, layer.selective_kernels, nothing, still, layer.selective_host_s, sc, overhead=False)
    full = _one(layer.full_s, layer.full_kernels, layer.full_comm_s, layer.full_syncs, layer.full_host_s, sc)
    lead_extra = still
    if np.any(costs.n_lead):
        lead_extra = costs.n_lead * (_end(costs.lead, sc) - forward.time_s - backward.time_s)
    return Passes(
        forward,
        selective,
        full,
        backward,
        layer.wgrad_s * sc.matmul_slowdown,
        lead_extra,
        _end(costs.embedding, sc),
        _end(costs.head, sc),
        sum((p.starved_s for part in (costs.embedding, costs.head) for p in _both(part, sc)), still),
    )


def _end(part: PartCosts, sc: StackCosts) -> F64:
    forward, backward = _both(part, sc)
    return forward.time_s + backward.time_s


def _both(part: PartCosts, sc: StackCosts) -> tuple[Pass, Pass]:
    forward = _one(part.forward_s, part.forward_kernels, part.forward_comm_s, part.forward_syncs, part.forward_host_s, sc)
    backward = _one(part.backward_s, part.backward_kernels, part.backward_comm_s, part.backward_syncs, part.backward_host_s, sc)
    return forward, backward


def _one(
    seconds: dict[str, F64],
    kernels: F64,
    comm: dict[str, F64],
    syncs: F64,
    host_s: F64,
    sc: StackCosts,
    *,
    overhead: bool = True,
) -> Pass:
    device = (
        seconds["matmul"] * sc.matmul_slowdown
        + seconds["attention"] * sc.attention_slowdown
        + seconds["memory"] * sc.memory_slowdown
        + kernels * sc.kernel_gap_s
        + (sc.stall_s if overhead else 0.0)
    )
    waits = syncs * sc.sync_s
    exposed = waits
    for group, overlap in (("tp", sc.tp_overlap), ("cp", sc.cp_overlap), ("ep", sc.ep_overlap)):
        transfer = comm[group] * sc.communication_slowdown
        hidden = np.minimum(transfer * overlap, device)
        exposed = exposed + transfer - hidden * (1 - sc.contention)
    issue = kernels * sc.launch_s + host_s + waits + (sc.layer_overhead_s if overhead else 0.0)
    return Pass(device, exposed, issue)
