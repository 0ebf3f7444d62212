"""One training step: time, rates, utilisation, time by part and memory by part.

The numbers are those of :mod:`evaluate` and :mod:`memory`; nothing is computed in a second way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import USUAL, find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.models.stored import check_trainable
from gpuwise.predict.columns import Columns
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.predict.memory.device import host_limit_bytes, usable_bytes
from gpuwise.predict.memory.host import host_bytes
from gpuwise.predict.memory.strategies import MemoryColumns, memory_columns
from gpuwise.predict.stack_costs import StackCosts, find_stack_costs, kernel_share
from gpuwise.predict.step.costs import FAMILIES, PartCosts, PointCosts
from gpuwise.predict.step.evaluate import StepEvaluation, evaluate
from gpuwise.shown import Shown
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.optimizer import PAGED
from gpuwise.workload.strategy import RECOMPUTES, Strategy
from gpuwise.workload.transformer.tables import model_flop_per_token

F64 = NDArray[np.float64]
KERNELS = ("matmul", "attention", "other kernels")
TIME_PARTS = (
    *KERNELS,
    "recompute",
    "communication",
    "host launch",
    "pipeline bubble",
    "data parallel",
    "optimizer",
    "offload",
    "framework",
)
IN_PRACTICE = "lost in practice"
"""The part of a step's time by which published runs are slower than the tuned level."""


@dataclass(frozen=True, slots=True, repr=False)
class TrainingEstimate(Shown):
    """One strategy on one cluster.

    ``mfu`` is model FLOP (recompute not counted, causal attention by its visible half) over the dense peak
    of the matmul format; ``hfu`` counts recomputed FLOP as well. ``breakdown_s`` sums to the expected step
    time; ``memory_parts`` are bytes on the fullest rank and sum to the expected ``memory_bytes``.
    """

    model: str
    cluster: str
    strategy: Strategy
    seq_len: int
    step_time_s: Estimate
    tokens_per_s: Estimate
    tokens_per_s_per_gpu: Estimate
    mfu: Estimate
    hfu: Estimate
    breakdown_s: Mapping[str, float]
    memory_bytes: Estimate
    """With the allocator's usual slack, if the device had that much memory."""
    needed_bytes: Estimate
    """With minimum slack: the memory torch needs when it is scarce."""
    allocated_bytes: Estimate
    """torch's max_memory_allocated: without context, communicators and the allocator's slack. Many publish this one."""
    memory_parts: Mapping[str, float]
    device_bytes: float
    """Device memory available to a process: total less the driver's share."""
    host_bytes: float
    """Pinned memory of one host for what is offloaded to it."""
    host_limit_bytes: float
    fits: bool
    """Whether it is expected to, on the device and on the host."""
    fit_probability: float
    """Probability that it fits on the device, from the spread of the prediction."""

    @property
    def fits_at_ease(self) -> bool:
        """It is expected to fit, and torch never has to give cached memory back to the driver."""
        return self.fits and self.memory_bytes.expected <= self.device_bytes

    @property
    def held_bytes(self) -> Estimate:
        """Device bytes used: with the usual slack, or the minimum if it fits only with that."""
        only_so = self.needed_bytes.expected <= self.device_bytes <= self.memory_bytes.expected
        return self.needed_bytes if only_so else self.memory_bytes

    @property
    def headroom_bytes(self) -> float:
        """Device bytes left beside :attr:`held_bytes`; negative if it does not fit."""
        return self.device_bytes - self.held_bytes.expected

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all ranks in one optimizer step."""
        return self.strategy.global_batch * self.seq_len

    def seconds_for(self, tokens: float) -> Estimate:
        """Wall time to train on ``tokens``, without evaluation, checkpoints or failures."""
        return self.step_time_s.scaled(tokens / self.tokens_per_step)

    def bottleneck(self) -> tuple[str, float]:
        """The largest part of the step that the strategy makes, and its share."""
        name = max((k for k in self.breakdown_s if k != IN_PRACTICE), key=lambda k: self.breakdown_s[k])
        return name, self.breakdown_s[name] / self.step_time_s.expected


def estimate(
    model: str | Architecture,
    on: str | Cluster,
    strategy: Strategy,
    *,
    seq_len: int,
    packed_document_len: int | None = None,
) -> TrainingEstimate:
    """Step time, rates, utilisation and memory of ``strategy``.

    ``model`` and ``on`` are catalogue names (``"llama-3.1-8b"``, ``"8xH100-SXM"``) or values. Layout rules
    are not checked here: see :func:`gpuwise.plan.space.rules.check_strategy`. Raises UnknownNameError,
    AmbiguousNameError, and UnpredictableError when the accelerator lacks a needed rate.
    """
    arch = find_model(model) if isinstance(model, str) else model
    check_trainable(arch, base_in_4_bits=strategy.quantized_base)
    cluster = find_cluster(on, prefer=USUAL) if isinstance(on, str) else on
    if strategy.n_accelerators != cluster.n_accelerators:
        raise InputError(
            f"the strategy is for {strategy.n_accelerators} accelerators, the cluster has {cluster.n_accelerators}",
            hint="dp x tp x pp x cp must be the number of accelerators",
        )
    return estimates(arch, cluster, [strategy], seq_len, packed_document_len=packed_document_len)[0]


def estimates(
    arch: Architecture,
    cluster: Cluster,
    strategies: Sequence[Strategy],
    seq_len: int,
    *,
    packed_document_len: int | None = None,
) -> list[TrainingEstimate]:
    """:func:`estimate` for strategies that share everything but the fields of :class:`Columns`, in one
    pass."""
    c = Columns.from_strategies(strategies)
    done = evaluate(arch, cluster.system, c, seq_len, packed_document_len=packed_document_len)
    memory = memory_columns(arch, cluster.system, done.costs.saved, c, done.point_index)
    on_host = host_bytes(arch, cluster, done.costs.saved, done.costs.n_layers, c, done.point_index)
    return [_one(arch, cluster, s, seq_len, done, memory, on_host, i, packed_document_len) for i, s in enumerate(strategies)]


def _one(
    arch: Architecture,
    cluster: Cluster,
    strategy: Strategy,
    seq_len: int,
    done: StepEvaluation,
    memory: MemoryColumns,
    on_host: F64,
    i: int,
    packed_document_len: int | None,
) -> TrainingEstimate:
    costs, at = done.costs, int(done.point_index[i])
    sc = find_stack_costs(strategy.stack, arch.moe is not None).on(cluster.system, strategy, strategy.n_accelerators)
    sc = sc.as_timed() if costs.own_host else sc
    sigma, basis = spread(sc, costs, at, cluster.n_systems)
    tokens = strategy.global_batch * seq_len
    per_token = model_flop_per_token(
        arch,
        seq_len,
        lora_rank=strategy.lora_rank,
        lora_targets=strategy.lora_targets,
        packed_document_len=packed_document_len,
    )
    model_flop = per_token * tokens
    run = model_flop * (1 + _recomputed_flop(strategy, costs, at)) if not costs.own_host else _flop_run(strategy, costs, at)
    peak = cluster.accelerator.peak(strategy.precision) * cluster.n_accelerators
    seconds = float(done.times.step_s[i])
    sigma = math.hypot(sigma, OFFLOAD_LOG_SIGMA * float(done.times.offload_s[i]) / seconds)
    step = Estimate.from_log_sigma(seconds, sigma, basis).bounded_below(run / peak)
    rate = step.inverse(tokens)
    footprint = _memory(arch, cluster, strategy, costs.points[at], memory, i)
    host, limit = float(np.broadcast_to(on_host, memory.device_total.shape).flat[i]), host_limit_bytes(cluster)
    return TrainingEstimate(
        model=arch.name,
        cluster=cluster.label,
        strategy=strategy,
        seq_len=seq_len,
        step_time_s=step,
        tokens_per_s=rate,
        tokens_per_s_per_gpu=rate.scaled(1 / cluster.n_accelerators),
        mfu=step.inverse(model_flop / peak),
        hfu=step.inverse(run / peak),
        breakdown_s=_breakdown(done, sc, i, at),
        memory_bytes=footprint.total,
        needed_bytes=footprint.needed,
        allocated_bytes=footprint.allocated,
        memory_parts=footprint.parts,
        device_bytes=usable_bytes(cluster.accelerator),
        host_bytes=host,
        host_limit_bytes=limit,
        fits=footprint.fits and host <= limit,
        fit_probability=footprint.fit_probability,
    )


@dataclass(frozen=True, slots=True)
class _Memory:
    """Device memory of one strategy."""

    total: Estimate
    needed: Estimate
    allocated: Estimate
    parts: dict[str, float]
    fits: bool
    fit_probability: float

    def with_states(self, paged_bytes: float) -> _Memory:
        """The same with this many bytes of optimizer states in unified memory, which are on the device as long as there is
        room."""
        total = self.total.scaled((self.total.expected + paged_bytes) / self.total.expected)
        return replace(self, total=total, parts=self.parts | {"optimizer": self.parts["optimizer"] + paged_bytes})


def _memory(arch: Architecture, cluster: Cluster, strategy: Strategy, point: Point, memory: MemoryColumns, i: int) -> _Memory:
    """Bytes, parts and whether they fit: replayed where the step can be written operation by operation, else as columns."""
    replayed = _replayed(arch, cluster, strategy, point)
    if replayed is not None and strategy.optimizer in PAGED and not strategy.offload_optimizer:
        return replayed.with_states(float(memory.optimizer.flat[i]))
    if replayed is None:
        parts = {name: part.expected for name, part in memory.parts(i).items()}
        fits = bool(np.broadcast_to(memory.fits(), memory.device_total.shape).flat[i])
        total, needed, allocated = (memory.estimate(i, m) for m in ("device", "needed", "allocated"))
        return _Memory(total, needed, allocated, parts, fits, memory.fit_probability(i))
    return replayed


def _replayed(arch: Architecture, cluster: Cluster, strategy: Strategy, point: Point) -> _Memory | None:
    """None where the step cannot be written operation by operation, or takes more than the address space that replays have."""
    if not point.stack.per_op or strategy.n_accelerators > 1:
        return None
    # not at import: other stacks need no captures
    from gpuwise.predict.memory.modules import memory_parts, modules_memory, replays

    if not replays(arch, point, strategy):
        return None
    one = modules_memory(arch, point, strategy, cluster.accelerator)
    if one.run.oom is not None:
        return None
    return _Memory(one.process, one.needed, one.allocated, memory_parts(one, arch, point), one.fits, one.fit_probability)


OFFLOAD_LOG_SIGMA = 0.9
"""Spread of log(measured / predicted) of what an offload adds to a step, by its share of the step: updates on the host took 1, 1,
1, 1.5, 1.9 and some 9 times what is predicted (ml-engineering, torchtune, prime-rl 3210; README of torchao's optimizers,
DeepSpeed issue 6834, gist chenyaofo/d4cd6a20; the first three were fitted)."""


def spread(sc: StackCosts, costs: PointCosts, at: int, n_systems: float) -> tuple[float, Basis]:
    """Standard deviation of log(measured / predicted) of a step, and its basis: the stack's and, on top, the kernels'."""
    return math.hypot(sc.spread(n_systems), kernel_spread(costs, at)), weakest(sc.basis, costs.basis)


def kernel_spread(costs: PointCosts, at: int) -> float:
    """Spread that the kernels of point ``at`` add to that of a stack: for a device like those of its runs, the spread of a
    whole step; the full kernel spread if no run showed the errors of such kernels."""
    return runs_spread(costs, at) * (kernel_share() if costs.basis == "derived" else 1.0)


def runs_spread(costs: PointCosts, at: int) -> float:
    """Spread of the kernels of point ``at``; 0 on a device whose kernels were fitted, for the stack's runs showed their errors
    with its own."""
    return 0.0 if costs.basis in ("measured", "fitted") else float(costs.log_sigma[at])


def _flop_run(strategy: Strategy, costs: PointCosts, at: int) -> float:
    """FLOP of a step as its kernels run them, masks computed and thrown away included, on all accelerators."""
    once = _micro_batch_flop(costs, at)
    micro_batches = strategy.accumulation * strategy.n_accelerators / (strategy.tp * strategy.pp * strategy.cp)
    return micro_batches * once * (1 + _recomputed_flop(strategy, costs, at))


def _micro_batch_flop(costs: PointCosts, at: int) -> float:
    """FLOP of the forward and backward of one micro-batch."""
    parts = ((costs.n_layers - costs.n_lead, costs.layer), (costs.n_lead, costs.lead), (1.0, costs.embedding), (1.0, costs.head))
    return sum(n * float(p.forward_flop[at] + p.backward_flop[at]) for n, p in parts)


def _recomputed_flop(strategy: Strategy, costs: PointCosts, at: int) -> float:
    """FLOP run again as a share of the model's forward and backward."""
    layer = costs.layer
    ends = sum(float(p.forward_flop[at] + p.backward_flop[at]) for p in (costs.embedding, costs.head))
    total = costs.n_layers * float(layer.forward_flop[at] + layer.backward_flop[at]) + ends
    if strategy.recompute == RECOMPUTES[0]:
        return 0.0
    if strategy.recompute == "selective":
        return costs.n_layers * float(layer.selective_flop[at]) / total
    layers = math.ceil(costs.n_layers / max(strategy.recompute_every, 1))
    return layers * float(layer.full_flop[at]) / total


def _breakdown(done: StepEvaluation, sc: StackCosts, i: int, at: int) -> dict[str, float]:
    """Seconds of the step by part; kernels are split by the families' share of their seconds."""
    t, costs = done.times, done.costs
    slowdown = dict(zip(FAMILIES, (sc.matmul_slowdown, sc.attention_slowdown, sc.memory_slowdown), strict=True))
    weight = {f: slowdown[f] * _family_seconds(costs, f, at) for f in FAMILIES}
    whole = sum(weight.values()) or 1.0
    compute = float(t.compute_s[i])
    parts = [compute * weight[f] / whole for f in FAMILIES]
    rest = (
        t.recompute_s,
        t.communication_s,
        t.launch_s,
        t.bubble_s,
        t.data_parallel_s,
        t.optimizer_s,
        t.offload_s,
        t.framework_s,
    )
    return dict(zip(TIME_PARTS, [*parts, *(float(x[i]) for x in rest)], strict=True))


def _family_seconds(costs: PointCosts, family: str, at: int) -> float:
    def one(part: PartCosts) -> float:
        return float(part.forward_s[family][at] + part.backward_s[family][at])

    return (
        (costs.n_layers - costs.n_lead) * one(costs.layer)
        + costs.n_lead * one(costs.lead)
        + one(costs.embedding)
        + one(costs.head)
    )
