"""Iteration time of a transformer that serves: one prefill or one decode step on one tensor-parallel group.

    iteration = s sum(kernels) + c sum(collectives) + h_0 + h_1 batch + h_2 layers

Kernels are the forward rows of ``workload.transformer`` for the tokens of the iteration: products read their
weights from memory in the serving format, attention reads the key-value cache at its length. ``s``, ``c``,
``h_0`` (scheduler, sampling), ``h_1`` (a sequence's bookkeeping) and ``h_2`` (gaps between a layer's kernels)
are fitted per engine (``coefficients/inference.json``). No queueing: the batch and the lengths are given.

Shapes: T tokens of one iteration on one rank, H hidden, A query heads, K kv heads, D head dim; ``/t`` over
the tensor group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.inference_kernels import row_times
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.table import concatenate
from gpuwise.workload.stack import find_stack
from gpuwise.workload.step import Kind, OpTable, Phase
from gpuwise.workload.transformer.point import Point
from gpuwise.workload.transformer.tables import transformer_tables

F64 = NDArray[np.float64]
ENGINES = ("vllm", "sglang", "trtllm")
WEIGHTS = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8_wo", "int4_wo")
WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
    "int8_wo": 1.0,
    "int4_wo": 0.515625,
}
"""Bytes of one weight with its scales: NVFP4 one E4M3 per 16, MXFP4 one E8M0 per 32, int4 one fp16 per
128."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How an engine holds and splits a model.

    Dense weights are split over ``tp``; ``attention_dp`` groups of ``tp`` ranks each hold all of the
    attention and serve their share of the sequences. Experts are split ``moe_tp`` ways inside and ``moe_ep``
    ways among ranks; ``moe_tp * moe_ep`` is ``tp * attention_dp``.
    """

    engine: str = "vllm"
    weights: str = "bf16"
    expert_weights: str | None = None
    """None: as ``weights``."""
    kv_dtype: str = "bf16"
    tp: int = 1
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    tuned: bool = True
    """Started with the flags of a performance recipe (kernel choice, graphs, scheduling); False: as
    installed."""
    attention: str | None = None
    """Kernel of the prompt's attention (``fa2``, ``fa3``, ``cudnn``); None: the one the engine picks."""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UnknownNameError("serving engine", self.engine, ENGINES)
        for name in (self.weights, self.expert_weights or self.weights):
            if name not in WEIGHTS:
                raise UnknownNameError("weight format", name, WEIGHTS)


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
    """Of which ``attention_s`` attention and ``memory_s`` kernels that only move data."""
    attention_s: F64
    memory_s: F64
    communication_s: F64
    log_sigma: F64
    basis: Basis


def iteration_time(arch: Architecture, system: System, serving: Serving, iterations: Iterations) -> KernelTime:
    """Wall time [R] of iterations of ``arch`` on ``system``.

    Raises InputError for a split the model cannot have, UnpredictableError when the accelerator has no rate
    for a format.
    """
    device = device_times(arch, system, serving, iterations)
    costs = engine_costs(serving)
    time = with_engine(device, costs, iterations.sequences / serving.attention_dp, arch.n_layers)
    sigma = np.full(len(time), costs["log_sigma"])
    return KernelTime(time, sigma, weakest(device.basis, "fitted"))


def engine_costs(serving: Serving) -> dict[str, Any]:
    """Fitted costs of the engine as it was started; those of the tuned engine where no other was measured."""
    known = load_json("inference")["engines"]
    return known.get(engine_key(serving)) or known[serving.engine]


def engine_key(serving: Serving) -> str:
    """Name of the engine's costs."""
    return serving.engine if serving.tuned else f"{serving.engine}-default"


def with_engine(device: DeviceTimes, costs: dict[str, Any], sequences: F64, n_layers: int) -> F64:
    """Seconds [R] with the engine's costs added."""
    host = costs["iteration_s"] + costs["sequence_s"] * sequences + costs["layer_s"] * n_layers
    kernels = device.kernels_s * costs["kernel_slowdown"]
    return kernels + device.communication_s * costs["communication_slowdown"] + host


def spread(device: DeviceTimes, costs: dict[str, Any]) -> F64:
    """Log standard deviation of each iteration. The engine's residuals were taken on devices whose kernels were fitted, so
    they contain the kernels' own; on others the kernels' spread comes on top."""
    engine = np.full_like(device.log_sigma, float(costs["log_sigma"]))
    return engine if device.basis in ("measured", "fitted") else np.hypot(engine, device.log_sigma)


def device_times(arch: Architecture, system: System, serving: Serving, iterations: Iterations) -> DeviceTimes:
    """Kernels and collectives of every iteration, evaluated in one pass."""
    _check(arch, serving)
    tables: list[OpTable] = []
    weight: list[float] = []
    owner: list[int] = []
    columns = np.broadcast_arrays(iterations.sequences, iterations.q_len, iterations.kv_len)
    for i, (sequences, q_len, _) in enumerate(zip(*columns, strict=True)):
        mine = -(-int(sequences) // serving.attention_dp)
        for table, count in _forward_tables(arch, serving, mine, int(q_len)):
            tables.append(table)
            weight.append(count)
            owner.append(i)
    rows = concatenate(tables)
    lengths = [len(t) for t in tables]
    row_owner, row_weight = np.repeat(owner, lengths), np.repeat(weight, lengths)
    times = row_times(rows, arch, system, serving, *(columns[i][row_owner] for i in (0, 2, 1)))
    n = len(columns[0])

    def total(values: F64) -> F64:
        summed: F64 = np.bincount(row_owner, values * row_weight * rows.count, n).astype(np.float64)
        return summed

    kernels = total(times.kernel_s)
    sigma = total(times.kernel_s * times.log_sigma) / np.maximum(kernels, 1e-300)
    attention = total(np.where(rows.kind == Kind.ATTENTION, times.kernel_s, 0.0))
    memory = total(np.where(np.isin(rows.kind, (Kind.MEMORY, Kind.EMBEDDING)), times.kernel_s, 0.0))
    return DeviceTimes(kernels, attention, memory, total(times.communication_s), sigma, times.basis)


def _check(arch: Architecture, serving: Serving) -> None:
    if arch.heads % serving.tp:
        raise InputError(f"{arch.heads} heads do not divide over {serving.tp} ranks", hint="choose a divisor")
    if arch.moe is not None and arch.moe.n_experts % serving.moe_ep:
        raise InputError(f"{arch.moe.n_experts} experts do not divide over {serving.moe_ep} ranks", hint="choose a divisor")


def _forward_tables(arch: Architecture, serving: Serving, sequences: int, q_len: int) -> list[tuple[OpTable, float]]:
    """Forward rows of each distinct layer with its count, the embedding, and the head over each sequence's
    last token."""
    point = Point(
        micro_batch=sequences,
        seq_len=q_len,
        tp=serving.tp,
        cp=1,
        ep=1,
        sequence_parallel=False,
        context_parallel="ring",
        precision="bf16",
        stack=find_stack("megatron-core"),
        fused_attention=True,
        fused_loss=True,
    )
    whole = transformer_tables(arch, point)
    last = transformer_tables(arch, replace(point, seq_len=1)) if q_len > 1 else whole
    parts = [(table, float(whole.layer_counts[kind])) for kind, table in whole.layers.items()]
    parts += [(whole.embedding, 1.0), (last.head, 1.0)]
    return [(_served(table, q_len == 1), count) for table, count in parts]


def _served(table: OpTable, decode: bool) -> OpTable:
    """The rows an engine runs: forward, residuals inside the norms, no loss.

    Of a fused expert layer the first product's row stands for all but the router, and ``moe.unpermute`` stays
    to carry its sum. The two down-projections of latent attention are one product. In decode shared experts
    run beside the routed ones on another stream, and take no time of their own.
    """
    drop = [n.endswith((".residual", ".bias")) or n.startswith(("head.loss", "ep.")) or n in _IN_FUSED_LAYER for n in table.name]
    if decode:
        drop = [d or n.startswith("moe.shared") for d, n in zip(drop, table.name, strict=True)]
    names = list(table.name)
    if "attention.q_down" in names and "attention.kv_down" in names:
        drop[names.index("attention.kv_down")] = True
    rows = table.select((table.phase == Phase.FORWARD) & ~np.array(drop, bool))
    shape, kind = rows.shape.copy(), rows.kind.copy()
    for i, name in enumerate(rows.name):
        if name == "attention.q_down" and "attention.kv_down" in names:
            shape[i, 2] += table.shape[names.index("attention.kv_down"), 2]
        if name == "moe.unpermute":
            kind[i] = int(Kind.COLLECTIVE)
    return replace(rows, shape=shape, kind=kind)


_IN_FUSED_LAYER = ("moe.top_k", "moe.permute", "moe.activation", "moe.down")

__all__ = [
    "ENGINES",
    "WEIGHTS",
    "WEIGHT_BYTES",
    "DeviceTimes",
    "Iterations",
    "Serving",
    "device_times",
    "engine_costs",
    "iteration_time",
]
