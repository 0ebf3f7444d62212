"""Iteration time of a transformer that serves: one prefill or one decode step on one tensor-parallel group.

    iteration = s sum(kernels) + c sum(collectives) + h_0 + h_1 batch + h_2 layers

Kernels are the forward rows of ``workload.transformer`` for the tokens of the iteration: products read their
weights from memory in the serving format, attention reads the key-value cache at its length. ``s``, ``c``,
``h_0`` (scheduler, sampling), ``h_1`` (a sequence's bookkeeping) and ``h_2`` (gaps between a layer's kernels)
are the engine's (:class:`~gpuwise.serve.engines.costs.EngineCosts`). No queueing: the batch and the lengths are given.

Shapes: T tokens of one iteration on one rank, H hidden, A query heads, K kv heads, D head dim; ``/t`` over
the tensor group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.serve.engines.costs import EngineCosts, engine_costs
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration_kernels import IterationRows, row_times, spans_hosts
from gpuwise.serve.splits import check_device, check_split
from gpuwise.workload.blocks.kinds import KINDS
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.step import OpTable, concatenate
from gpuwise.workload.transformer.tables import head_table, transformer_tables

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Iterations:
    """Columns [R]: ``sequences`` in the batch (all data-parallel groups together), new tokens of each
    (``q_len`` 1 is a decode step) and the length of the cache they see, their own tokens included."""

    sequences: NDArray[np.int64]
    q_len: NDArray[np.int64]
    kv_len: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Seconds [R] on the device of one iteration, by part, before the engine's own costs."""

    kernels_s: F64
    """Kernel seconds, including ``attention_s`` for attention and ``memory_s`` for kernels that only move data."""
    attention_s: F64
    memory_s: F64
    communication_s: F64
    log_sigma: F64
    basis: Basis


def iteration_time(arch: Architecture, system: System, config: EngineConfig, sequences: int, q_len: int, kv_len: int) -> Estimate:
    """Wall time of one iteration: ``q_len`` new tokens of each of ``sequences`` (1: a decode step) that see ``kv_len``
    tokens of cache, their own included.

    Raises InputError for a split the model cannot have, UnpredictableError when the accelerator has no rate
    for a format.
    """
    device, costs = one_iteration(arch, system, config, sequences, q_len, kv_len), engine_costs(config)
    seconds = with_engine(device, costs, sequences / config.attention_dp, arch.n_layers)
    return Estimate.from_log_sigma(float(seconds[0]), float(spread(device, costs)[0]), weakest(device.basis, "fitted"))


@lru_cache(maxsize=8192)
def one_iteration(
    arch: Architecture, system: System, config: EngineConfig, sequences: int, q_len: int, kv_len: int
) -> DeviceTimes:
    """:func:`device_times` of a single iteration: the value that every command prints. Raises as device_times."""
    one = (np.array([value], np.int64) for value in (sequences, q_len, kv_len))
    return device_times(arch, system, config, Iterations(*one))


def with_engine(device: DeviceTimes, costs: EngineCosts, sequences: ArrayLike, n_layers: int) -> F64:
    """Seconds [R] of iterations by themselves, ``sequences`` on each data-parallel group."""
    host = costs.iteration_s + costs.sequence_s * np.asarray(sequences, np.float64) + costs.layer_s * n_layers
    return device.kernels_s * costs.kernel_slowdown + device.communication_s * costs.communication_slowdown + host


def shared_prefill(device: DeviceTimes, costs: EngineCosts) -> F64:
    """Seconds [R] that prompts add to iterations which decode other sequences besides."""
    return device.kernels_s * costs.prefill_slowdown + device.communication_s * costs.communication_slowdown


def spread(device: DeviceTimes, costs: EngineCosts) -> F64:
    """Log standard deviation of each iteration. The engine's residuals were taken on devices whose kernels were
    fitted, so they contain the kernels' own; on others the kernels' spread comes on top."""
    engine = np.full_like(device.log_sigma, costs.log_sigma)
    return engine if device.basis in ("measured", "fitted") else np.hypot(engine, device.log_sigma)


def device_times(
    arch: Architecture,
    system: System,
    config: EngineConfig,
    iterations: Iterations,
    *,
    whole_from: int = 0,
    attention_from: int | None = None,
) -> DeviceTimes:
    """Kernels and collectives of every iteration, evaluated in one pass; before ``whole_from`` of all but attention, from
    ``attention_from`` on of attention alone."""
    check_split(arch, config)
    check_device(arch, system.accelerator, config)
    columns = np.broadcast_arrays(iterations.sequences, iterations.q_len, iterations.kv_len)
    parts = whole_from, len(columns[0]) if attention_from is None else attention_from
    rows = _iteration_rows(arch, config.tp, config.attention_dp, *(tuple(column.tolist()) for column in columns), parts)
    times = row_times(rows, arch, system, config)

    def total(values: F64) -> F64:
        summed: F64 = np.bincount(rows.owner, values * rows.count, len(columns[0])).astype(np.float64)
        return summed

    kernels = total(times.kernel_s)
    sigma = total(times.kernel_s * times.log_sigma) / np.maximum(kernels, 1e-300)
    kind = rows.table.kind
    attention = total(np.where(kind == Kind.ATTENTION, times.kernel_s, 0.0))
    memory = total(np.where(np.isin(kind, (Kind.MEMORY, Kind.EMBEDDING)), times.kernel_s, 0.0))
    communication = total(times.communication_s)
    if spans_hosts(system, config):  # two batches, the exchange of one behind the kernels of the other
        communication = np.maximum(communication - kernels, 0.0)
    return DeviceTimes(kernels, attention, memory, communication, sigma, times.basis)


@lru_cache(maxsize=32)
def _iteration_rows(
    arch: Architecture,
    tp: int,
    groups: int,
    sequences: tuple[int, ...],
    q_len: tuple[int, ...],
    kv_len: tuple[int, ...],
    parts: tuple[int, int],
) -> IterationRows:
    """The rows of these iterations of a rank of one of ``groups`` that attend apart; ``parts`` as ``whole_from`` and
    ``attention_from`` of :func:`device_times`."""
    tables: list[OpTable] = []
    weight: list[float] = []
    owner: list[int] = []
    for i, (batch, q) in enumerate(zip(sequences, q_len, strict=True)):
        tables_of = _rest_tables if i < parts[0] else _forward_tables if i < parts[1] else _attention_tables
        for table, count in tables_of(arch, tp, -(-batch // groups), q):
            tables.append(table)
            weight.append(count)
            owner.append(i)
    rows = concatenate(tables)
    lengths = [len(t) for t in tables]
    own = np.repeat(owner, lengths)
    count = np.repeat(weight, lengths) * rows.count
    return IterationRows(rows, own, count, *(np.array(column, np.int64)[own] for column in (sequences, q_len, kv_len)))


def product_work(arch: Architecture, config: EngineConfig, sequences: int, q_len: int) -> tuple[float, float]:
    """FLOP of the matrix products of one iteration on a rank, and the bytes they read and write once, in 16 bits."""
    flop = moved = 0.0
    for table, layers in _forward_tables(arch, config.tp, -(-sequences // config.attention_dp), q_len):
        products = np.isin(table.kind, (Kind.MATMUL, Kind.GROUPED))
        count = layers * table.count[products]
        flop += float((table.flop[products] * count).sum())
        moved += float(((table.bytes_read + table.bytes_written)[products] * count).sum())
    return flop, moved


@lru_cache(maxsize=2048)
def _forward_tables(arch: Architecture, tp: int, sequences: int, q_len: int) -> tuple[tuple[OpTable, float], ...]:
    """Forward rows of each distinct layer with its count, the embedding, and the head over each sequence's last token; without
    the prediction blocks, which only a drafter runs (:mod:`gpuwise.serve.simulate.drafts`)."""
    arch = replace(arch, prediction_layers=0)
    point = Point(
        micro_batch=sequences,
        seq_len=q_len,
        tp=tp,
        precision="bf16",
        stack=find_stack("megatron-core"),
        fused_loss=True,
    )
    whole, decode = transformer_tables(arch, point), q_len == 1
    parts = [(table, float(whole.layer_counts[kind])) for kind, table in whole.layers.items()]
    last = whole.head if decode else _head_rows(arch, replace(point, seq_len=1))
    return tuple((_engine_rows(table, decode), count) for table, count in [*parts, (whole.embedding, 1.0), (last, 1.0)])


@lru_cache(maxsize=512)
def _attention_tables(arch: Architecture, tp: int, sequences: int, q_len: int) -> tuple[tuple[OpTable, float], ...]:
    """The rows of :func:`_forward_tables` that are attention over the cache."""
    return _selected(_forward_tables(arch, tp, sequences, q_len), attention=True)


@lru_cache(maxsize=512)
def _rest_tables(arch: Architecture, tp: int, sequences: int, q_len: int) -> tuple[tuple[OpTable, float], ...]:
    """The rows of :func:`_forward_tables` that are not."""
    return _selected(_forward_tables(arch, tp, sequences, q_len), attention=False)


def _selected(tables: tuple[tuple[OpTable, float], ...], *, attention: bool) -> tuple[tuple[OpTable, float], ...]:
    masks = ((table, (table.kind == Kind.ATTENTION) == attention, count) for table, count in tables)
    return tuple((table.select(mask), count) for table, mask, count in masks if mask.any())


@lru_cache(maxsize=256)
def _head_rows(arch: Architecture, point: Point) -> OpTable:
    """The head over each sequence's last token."""
    return head_table(arch, point)


def _engine_rows(table: OpTable, decode: bool) -> OpTable:
    """The rows an engine runs: forward, residuals inside the norms, no loss.

    In a fused expert layer the first product's row represents all but the router, and ``moe.unpermute`` stays for its sum. The
    two down-projections of latent attention are one product. In decode shared experts run beside the routed ones on another
    stream, and take no time of their own.
    """
    drop = [n.endswith((".residual", ".bias")) or n.startswith(("head.loss", "ep.")) or n in _IN_ONE_KERNEL for n in table.name]
    if decode:
        drop = [d or n.startswith(_BESIDE) for d, n in zip(drop, table.name, strict=True)]
    joined = {first: table.name.index(other) for first, other in _ONE_PRODUCT if {first, other} <= set(table.name)}
    for other in joined.values():
        drop[other] = True
    rows = table.select((table.phase == Phase.FORWARD) & ~np.array(drop, bool))
    shape, kind, flop = rows.shape.copy(), rows.kind.copy(), rows.flop.copy()
    for i, name in enumerate(rows.name):
        if name in joined:
            shape[i, 2] += table.shape[joined[name], 2]
            flop[i] += table.flop[joined[name]]
        if name == "moe.unpermute":
            kind[i] = int(Kind.COLLECTIVE)
    return replace(rows, shape=shape, kind=kind, flop=flop)


_IN_ONE_KERNEL = frozenset(row for block in KINDS for row in block.in_one_kernel)
_ONE_PRODUCT = tuple(block.one_product for block in KINDS if block.one_product)
_BESIDE = tuple(block.beside_in_decode for block in KINDS if block.beside_in_decode)
