"""Strategies of a captured step on a cluster: data parallelism, sharding, offload, checkpointing and pipelines together.

Every candidate is a transformation of the capture whose memory is read from the transformed step and whose time is run
through :mod:`gpuwise.predict.parallel.sharding_time`; those that another beats in both time and memory are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.plan.checkpointing.selection import checkpoint_choices
from gpuwise.plan.checkpointing.solve import smallest_target, solve
from gpuwise.plan.step.pipeline_cut import PipelineCut, cut_pipeline, cut_units
from gpuwise.predict.parallel.sharding import Sharding, sharded
from gpuwise.predict.parallel.sharding_time import sharded_step_time
from gpuwise.workload.capture.record.capture import Capture
from gpuwise.workload.capture.record.recompute import recomputed_with_source

F64 = NDArray[np.float64]
N_SELECTIONS = 4
"""Checkpoint selections tried beside none: equal steps of memory from the plain step's to the least."""


@dataclass(frozen=True, slots=True)
class CapturedStrategy:
    """One way to run a captured step on a cluster. The captured batch is each rank's micro-batch."""

    sharding: Sharding
    checkpoints: tuple[str, ...]
    pipeline: PipelineCut | None
    step_s: float
    samples_per_s: float | None
    """None if the capture does not know its batch."""
    peak_bytes: int
    """Most tensor bytes alive on the fullest rank: no rounding, workspaces or context."""
    host_bytes: int
    exposed_s: float
    fits: bool

    @property
    def label(self) -> str:
        """``zero3 over 8, 12 modules checkpointed``."""
        parts = [f"{self.sharding.kind} over {self.sharding.ranks}" if self.sharding.ranks > 1 else "one device"]
        if self.pipeline is not None:
            parts.append(f"{len(self.pipeline.stages)} pipeline stages")
        if self.checkpoints:
            parts.append(f"{len(self.checkpoints)} modules checkpointed")
        if self.sharding.offload_parameters:
            parts.append("parameters and optimizer on the host")
        elif self.sharding.offload_optimizer:
            parts.append("optimizer on the host")
        return ", ".join(parts)


def captured_strategies(
    capture: Capture,
    cluster: Cluster,
    device_s: F64,
    host_s: F64,
    *,
    memory_bytes: float | None = None,
    micro_batches: int = 8,
    offload: bool = True,
) -> tuple[CapturedStrategy, ...]:
    """The Pareto front of (seconds per sample, memory), fastest first; those that do not fit stay, marked.

    ``device_s`` and ``host_s`` [ops] are the captured operations' times on the cluster's accelerator. ``memory_bytes`` is
    what tensors may take (default: the accelerator's memory); a pipeline runs ``micro_batches`` of the captured batch.
    """
    if device_s.shape != capture.op_phase.shape or host_s.shape != capture.op_phase.shape:
        raise InputError(f"{device_s.size} times for {capture.op_phase.size} operations", hint="one per captured operation")
    if micro_batches < 1:
        raise InputError(f"{micro_batches} micro-batches", hint="at least 1")
    limit = float(cluster.accelerator.memory_bytes if memory_bytes is None else memory_bytes)
    found = list[CapturedStrategy]()
    for paths in _selections(capture, device_s):
        again, source = recomputed_with_source(capture, paths)
        for sharding in shardings(cluster, offload):
            rank = sharded(again, sharding)
            time = sharded_step_time(rank, cluster.system, device_s[source], host_s[source])
            rate = None if capture.batch is None else capture.batch * sharding.ranks / time.step_s
            peak = rank.capture.peak_bytes()
            found.append(
                CapturedStrategy(sharding, paths, None, time.step_s, rate, peak, rank.host_bytes, time.exposed_s, peak <= limit)
            )
        found.extend(_pipelines(again, cluster, device_s[source], paths, limit, micro_batches))
    return _front(found, micro_batches)


def shardings(cluster: Cluster, offload: bool = True) -> tuple[Sharding, ...]:
    """Every sharding of a cluster's data-parallel ranks; on one device only what offload changes."""
    n, local = cluster.n_accelerators, min(cluster.system.count, cluster.n_accelerators)
    found = [Sharding("none", n)]
    if n > 1:
        found += [Sharding(kind, n) for kind in ("zero1", "zero2", "zero3")]
        found.append(Sharding("zero3", n, reshard_after_forward=False))
        if 1 < local < n and n % local == 0:
            found.append(Sharding("hybrid", n, local))
    if offload:
        found.append(Sharding("none" if n == 1 else "zero2", n, offload_optimizer=True))
        if n > 1:
            found.append(Sharding("zero3", n, offload_parameters=True))
    return tuple(found)


def _selections(capture: Capture, op_s: F64) -> tuple[tuple[str, ...], ...]:
    """No checkpointing, and the cheapest selections at falling memory targets."""
    items = checkpoint_choices(capture, op_s)
    least, most = smallest_target(items), capture.peak_bytes()
    targets = np.linspace(least, most, N_SELECTIONS, endpoint=False).astype(np.int64).tolist()
    solved = [solve(items, int(t)) for t in targets]
    return tuple(dict.fromkeys([(), *(s.paths for s in solved if s is not None)]))


def _pipelines(
    capture: Capture, cluster: Cluster, op_s: F64, paths: tuple[str, ...], limit: float, micro_batches: int
) -> list[CapturedStrategy]:
    """A pipeline over all accelerators of the cluster, where their number allows one."""
    network = cut_units(capture, op_s)
    found = list[CapturedStrategy]()
    for stages in (2, 4, 8, 16):
        if cluster.n_accelerators != stages or len(network) < stages:
            continue
        try:
            cut = cut_pipeline(
                network, stages, micro_batches=micro_batches, memory_bytes=max(limit, 1.0), system=cluster.system, ranks_apart=1
            )
        except GpuwiseError:
            continue
        rate = None if capture.batch is None else capture.batch * micro_batches / cut.step_s
        exposed = cut.bubble_s
        found.append(
            CapturedStrategy(
                Sharding("none", 1), paths, cut, cut.step_s, rate, cut.peak_bytes, 0, exposed, cut.peak_bytes <= limit
            )
        )
    return found


def _front(found: list[CapturedStrategy], micro_batches: int) -> tuple[CapturedStrategy, ...]:
    """Those that no other beats in both seconds per micro-batch and memory, fastest first."""

    def per_batch(s: CapturedStrategy) -> float:
        return s.step_s / (micro_batches if s.pipeline is not None else s.sharding.ranks)

    kept = list[CapturedStrategy]()
    for one in sorted(found, key=lambda s: (per_batch(s), s.peak_bytes)):
        if not kept or one.peak_bytes < kept[-1].peak_bytes:
            kept.append(one)
    return tuple(kept)
