"""The nearest batch and the nearest number of devices that have a layout, for a question that has none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gpuwise.facts.hardware.systems import Cluster
from gpuwise.plan.goal import Goal
from gpuwise.plan.space.conditions import Setting
from gpuwise.plan.space.strategies import blocks, default_space, divisors, fixed_space

N_BATCHES, N_SYSTEMS = 24, 16
"""Candidates to try: batches by ratio to the requested one, systems more or fewer."""


def has_layout(goal: Goal) -> bool:
    """Whether any strategy with the goal's fixed values obeys every rule of the layout, fitting or not."""
    base = goal.bases[0]
    setting = Setting.of(goal.arch, goal.cluster, base, goal.seq_len, goal.global_batch)
    return bool(blocks(setting, fixed_space(default_space(setting), goal.wishes.fixed), base))


def nearest_batch(goal: Goal) -> int | None:
    """The batch nearest in ratio to the goal's, in sequences, that has a layout; None if no near one has."""
    return next((b for b in _batches(goal) if has_layout(replace(goal, global_batch=b))), None)


def nearest_clusters(goal: Goal) -> tuple[Cluster, ...]:
    """The next smaller and the next larger cluster of the same systems that have a layout for the goal's batch."""
    found = (next((c for c in _clusters(goal.cluster, step) if has_layout(replace(goal, cluster=c))), None) for step in (-1, 1))
    return tuple(c for c in found if c is not None)


def _batches(goal: Goal) -> list[int]:
    asked = goal.global_batch
    multiples = {r * m for r in divisors(goal.cluster.n_accelerators) for m in (asked // r, asked // r + 1) if m}
    return sorted(multiples - {asked}, key=lambda b: abs(math.log(b / asked)))[:N_BATCHES]


def _clusters(cluster: Cluster, step: int) -> Iterator[Cluster]:
    unit = min(cluster.system.count, cluster.n_accelerators) if cluster.n_systems > 1 else 1
    for i in range(1, N_SYSTEMS + 1):
        n = (cluster.n_accelerators // unit + step * i) * unit
        if n < 1 or (cluster.n_systems == 1 and n > cluster.system.count):
            return
        yield replace(cluster, n_accelerators=n)
