"""A captured step on several GPUs: the whole model on each (DDP), or parameters, gradients and states sharded (FSDP)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.plan.step.estimates import StepEstimate
from gpuwise.plan.step.time_parts import op_seconds
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.parallel.sharding import ShardedCapture, Sharding, sharded
from gpuwise.predict.step.sharding_time import gradient_bytes, replicas_exposed_s, sharded_step_time
from gpuwise.workload.capture.captured import Capture

COUNTS = (1, 2, 4, 8)
ONE, DDP, FSDP, OWN = "one", "DDP", "FSDP", "as written"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Data parallelism over ``n`` GPUs, each with the step's batch."""

    n: int
    step_time_s: Estimate
    samples_per_s: float
    exposed_s: float | None
    """Collective time that is not overlapped with compute; None where the program itself is on several GPUs."""
    efficiency: float | None
    """Samples a second over ``n`` times those of one GPU; None as before."""
    how: str = DDP
    """``one``, ``DDP``, ``FSDP`` (parameters gathered for each block: ``fully_shard``) or ``as written``: the program's own."""
    memory_bytes: float | None = None
    """Process memory of one GPU; None where it was not worked out."""
    fits: bool | None = None


def scaling_of(cluster: Cluster, capture: Capture, estimate: StepEstimate, one: Estimate, batch: int) -> tuple[Scaling, ...]:
    """One GPU, then DDP and FSDP on powers of two of them up to the cluster's own number; these ranks alone where the program was
    captured as one of several."""
    ranks = capture.settings.world_size
    if ranks > 1:
        samples_per_s = ranks * batch / one.expected
        return (Scaling(ranks, one, samples_per_s, None, None, OWN, estimate.memory_bytes.expected, estimate.fits),)
    rows: list[Scaling] = []
    for n in _counts(cluster):
        rows.append(scaled(cluster, capture, estimate, one, batch, n))
        row = fully_sharded(cluster, capture, estimate, one, batch, n) if n > 1 else None
        if row is not None:
            rows.append(row)
    return tuple(rows)


def _counts(cluster: Cluster) -> list[int]:
    """GPU counts shown: powers of two up to the cluster's own, and that."""
    n = cluster.n_accelerators
    return sorted({k for k in COUNTS if k <= n} | {n}) if n > 1 else [1]


def scaled(cluster: Cluster, capture: Capture, estimate: StepEstimate, one: Estimate, batch: int, n: int) -> Scaling:
    """Data parallelism over ``n`` GPUs of ``cluster``: gradients in the format of the parameters, summed once a step."""
    if n == 1:
        return Scaling(1, one, batch / one.expected, 0.0, 1.0, ONE, estimate.memory_bytes.expected, estimate.fits)
    try:
        memory = _memory(capture, estimate, sharded(capture, Sharding("none", n)))
    except GpuwiseError:
        memory = None
    fits = None if memory is None else memory <= estimate.memory.capacity_bytes
    phases: Mapping[str, float] = {} if estimate.time is None else estimate.time.phase_s
    passes = (phases.get(name, 0.0) for name in ("forward", "backward"))
    exposed = replicas_exposed_s(cluster.system, n, gradient_bytes(capture), *passes)
    time = Estimate(one.low + exposed, one.expected + exposed, one.high + exposed, "derived")
    return Scaling(n, time, n * batch / time.expected, exposed, one.expected / time.expected, DDP, memory, fits)


def fully_sharded(
    cluster: Cluster, capture: Capture, estimate: StepEstimate, one: Estimate, batch: int, n: int
) -> Scaling | None:
    """FSDP over ``n`` GPUs: the captured rank run with its gathers and reductions, against the step of one GPU run the
    same way. None where the step cannot be sharded or has no time."""
    times = None if estimate.time is None else op_seconds(capture, estimate.time)
    if times is None:
        return None
    sharding = Sharding("zero3", n)
    try:
        rank = sharded(capture, sharding)
        plain = sharded_step_time(sharded(capture, Sharding("none", 1)), cluster.system, *times)
        step_time = sharded_step_time(rank, cluster.system, *times)
    except GpuwiseError:
        return None
    ratio = step_time.step_s / plain.step_s
    time = Estimate(one.low * ratio, one.expected * ratio, one.high * ratio, "derived")
    memory = _memory(capture, estimate, rank)
    fits = memory <= estimate.memory.capacity_bytes
    return Scaling(n, time, n * batch / time.expected, step_time.exposed_s, one.expected / time.expected, FSDP, memory, fits)


def _memory(capture: Capture, estimate: StepEstimate, rank: ShardedCapture) -> float:
    """Process memory of one rank: that of one GPU and what the tensors at the peak differ by."""
    return estimate.memory_bytes.expected + rank.capture.peak_bytes() - capture.peak_bytes()
