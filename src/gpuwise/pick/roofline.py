"""Rooflines: attainable rate of an accelerator at an arithmetic intensity, by data sheet and in a long run.

    attainable(I) = min(peak, I x bandwidth)        I in FLOP per byte moved (Williams et al., CACM 52(4), 2009)

``specified`` takes the catalogue's peak and bandwidth; ``reached`` the predicted rate of a large matrix product and a long
stream; ``cache`` the reached arithmetic with the last-level cache's rate. Points are a model's operations at the values of its
op table and the kernel predictor. Their intensity counts the bytes an operation must move, so an operation with operands in
cache may be above the memory slope.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import default_system, with_count
from gpuwise.facts.models.architecture import Architecture
from gpuwise.pick.compare.facts import streamed
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.predict.kernels.memory_bound import cache_rate
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.kernels.single import reached
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration import one_iteration, product_work
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.step import OpTable, concatenate
from gpuwise.workload.transformer.tables import transformer_tables

F64 = NDArray[np.float64]
FAMILIES = {
    "attention projections": ("attention.qkv", "attention.q", "attention.kv", "attention.out", "attention.k", "attention.v"),
    "attention": ("attention.core",),
    "MLP": ("mlp.up", "mlp.down", "mlp.gate"),
    "experts": ("moe.up", "moe.down", "moe.gate"),
    "logits": ("head.logits",),
}
"""Op families by the names their rows begin with."""
DECODE_BATCHES = (1, 16, 128)
"""Sequences decoded at once, as points: the products of a step move from the slope of memory towards the roof."""


@dataclass(frozen=True, slots=True)
class Roof:
    """One ceiling: arithmetic over a slope of memory."""

    flop_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP per byte from which arithmetic is the limit."""
        return self.flop_per_s / self.bytes_per_s

    def attainable(self, intensity: ArrayLike) -> F64:
        """FLOP/s at each intensity (FLOP per byte). Raises InputError unless all are finite and not negative."""
        i = np.asarray(intensity, dtype=np.float64)
        if not (np.isfinite(i).all() and (i >= 0).all()):
            raise InputError("an intensity must be a finite number of FLOP per byte", hint="for example 100")
        return np.minimum(self.flop_per_s, i * self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class OpPoint:
    """An op family of a model in one phase: FLOP over bytes, FLOP/s predicted, and its share of the kernels' seconds."""

    name: str
    phase: str
    intensity: float
    flop_per_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """``reached`` None where no kernel can be predicted; ``cache`` None where the cache's rate is unknown."""

    accelerator: str
    dtype: str
    specified: Roof
    reached: Roof | None
    cache: Roof | None
    points: tuple[OpPoint, ...] = ()
    points_of: str = ""
    """Description of the points."""


def roofline(accelerator: Accelerator, dtype: str = "bf16") -> Roofline:
    """The ceilings of one accelerator. Raises UnpredictableError when it has no rate for ``dtype``."""
    peak = accelerator.peak(dtype)
    specified = Roof(peak, accelerator.memory_bandwidth_bytes_per_s)
    product, stream, cached = reached(accelerator, dtype), streamed(accelerator), cache_rate(accelerator)
    if product is None:
        return Roofline(accelerator.name, dtype, specified, None, None)
    in_run = Roof(product.expected, stream.expected)
    cache = Roof(product.expected, cached) if cached is not None and cached > stream.expected else None
    return Roofline(accelerator.name, dtype, specified, in_run, cache)


def with_points(line: Roofline, accelerator: Accelerator, arch: Architecture, *, micro_batch: int = 1, seq_len: int) -> Roofline:
    """``line`` with the op families of one training micro-batch of ``arch`` on it.

    Without points where the op table or a kernel cannot be had in the line's format. Raises InputError for sizes below 1.
    """
    if micro_batch < 1 or seq_len < 1:
        raise InputError("a micro-batch and a sequence have at least one element", hint="for example micro-batch 1")
    precision = line.dtype
    point = Point(
        micro_batch=micro_batch,
        seq_len=seq_len,
        precision=precision,
        stack=find_stack("compiled-fsdp"),
    )
    try:
        points = op_points(accelerator, arch, point)
        # experts: which ones a step reads depends on its tokens, which the op table's bytes do not say
        if arch.kind == "decoder" and arch.moe is None and precision == "bf16":
            points += decode_points(accelerator, arch, seq_len)
    except (UnpredictableError, LookupError):
        return line
    words = f"{arch.name}, micro-batch {micro_batch} of {seq_len:,} tokens"
    return Roofline(line.accelerator, line.dtype, line.specified, line.reached, line.cache, points, words)


def op_points(accelerator: Accelerator, arch: Architecture, point: Point) -> tuple[OpPoint, ...]:
    """Op families that do arithmetic, forward and backward, largest share of the seconds first."""
    rows, weight = _whole_model(arch, point)
    seconds = (
        kernel_times(rows, accelerator, Conditions(implementation={"attention": point.stack.attention_kernel})).time_s * weight
    )
    whole = float(seconds.sum())
    return tuple(sorted(_points(rows, weight, seconds, whole), key=lambda p: -p.share))


def _whole_model(arch: Architecture, point: Point) -> tuple[OpTable, F64]:
    """Rows of every kind of layer and of the head, and how often each runs in the model."""
    tables = transformer_tables(arch, point)
    parts = [(t, float(tables.layer_counts[k])) for k, t in tables.layers.items()] + [(tables.head, 1.0)]
    weight = np.repeat([w for _, w in parts], [len(t) for t, _ in parts])
    rows = concatenate([t for t, _ in parts])
    return rows, weight * rows.count


def _points(rows: OpTable, weight: F64, seconds: F64, whole: float) -> Iterable[OpPoint]:
    names = np.array(rows.name, dtype=object)
    arithmetic = np.isin(rows.kind, (Kind.MATMUL, Kind.GROUPED, Kind.ATTENTION)) & (seconds > 0)
    for family, begins in FAMILIES.items():
        in_group = np.array([any(n == b or n.startswith(b + ".") for b in begins) for n in names], bool) & arithmetic
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            at = in_group & (rows.phase == phase)
            moved_bytes = float(((rows.bytes_read + rows.bytes_written) * weight)[at].sum())
            flop, time = float((rows.flop * weight)[at].sum()), float(seconds[at].sum())
            if flop > 0 and moved_bytes > 0 and time > 0:
                yield OpPoint(family, phase.name.lower(), flop / moved_bytes, flop / time, time / whole)


def decode_points(accelerator: Accelerator, arch: Architecture, context: int) -> tuple[OpPoint, ...]:
    """The matrix products of one decode step in bf16, all layers together, for each of :data:`DECODE_BATCHES`."""
    system, config = with_count(default_system(accelerator), 1), EngineConfig()
    points: list[OpPoint] = []
    for batch in DECODE_BATCHES:
        times = one_iteration(arch, system, config, batch, 1, context)
        kernels = float(times.kernels_s[0])
        products = kernels - float(times.attention_s[0]) - float(times.memory_s[0])
        flop, moved_bytes = product_work(arch, config, batch, 1)
        name = f"products, {batch} sequences" if batch > 1 else "products, 1 sequence"
        points.append(OpPoint(name, "decode", flop / moved_bytes, flop / products, products / kernels))
    return tuple(points)
