"""Cost of one operation on a GPU or processor: work, time, rate, share of peak, bottleneck.

Each function here takes sizes and devices and returns an :class:`Answer`. Times are device times of a long run: operands come
from memory, or from the cache that a row names, and clocks are those the power limit allows. No rate is above the data sheet,
intervals included. Launch time of the host is excluded; if it exceeds the device time, the row says ``launch``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.hardware.systems import Cluster, default_system
from gpuwise.facts.hardware.targets import Target
from gpuwise.predict import cpu as processor
from gpuwise.predict.comm.collectives import collective_time
from gpuwise.predict.comm.groups import neighbours
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.predict.kernels import single
from gpuwise.predict.kernels.attention.fused import attention_flop
from gpuwise.predict.kernels.gemm.formats import ALIASES, IMPLEMENTATIONS, math_dtype
from gpuwise.predict.kernels.gemm.fp32 import peak_rate
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import rate_without_ecc
from gpuwise.predict.kernels.roofs import byte_roof
from gpuwise.predict.kernels.transfer import host_link_peak_bytes_per_s, transfer_time
from gpuwise.predict.stack_costs import find_stack_costs
from gpuwise.units import format_rate

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8")
"""Formats accepted for a product; a device may lack some of them."""
ATTENTION_DTYPES = ("fp16", "bf16", "fp8")
LARGEST = 1e15
"""Elements or bytes: beyond it a size is a slip of the keyboard."""
_LATENCY_SHARE = 0.35
"""Judgement: a kernel that takes three times what arithmetic and traffic need is waiting."""


@dataclass(frozen=True, slots=True)
class OperationWork:
    """The operation itself: ``flop`` (OP for integers) and the ``bytes`` that must be read and written once."""

    kind: str
    text: str
    dtype: str
    flop: float
    bytes: float

    @property
    def intensity(self) -> float | None:
        """FLOP per byte; None without traffic or arithmetic."""
        return self.flop / self.bytes if self.flop and self.bytes else None


@dataclass(frozen=True, slots=True)
class OperationTime:
    """The operation on one device, or over one path of it."""

    device: str
    id: str
    kind: str
    """``gpu`` or ``cpu``."""
    path: str
    """Data path (``device memory``, ``PCIe``, ``NVLink``); empty if there is only one."""
    time_s: Estimate
    flop_per_s: float | None
    bytes_per_s: float | None
    """Bytes of the work over its time: for a link one direction, for memory reading and writing together."""
    peak: float
    """Peak that the rate is compared with: FLOP/s or bytes/s."""
    bound: str
    """``compute``, ``memory``, ``cache``, ``link``, ``latency`` or ``launch``."""
    notes: tuple[str, ...] = ()
    speedup: Estimate | None = None
    """Over the processor it was compared with."""
    cache: str = ""
    """The cache that holds what is moved, where it may move faster than memory delivers."""

    @property
    def share_of_peak(self) -> float:
        """Rate over the specified peak of what bounds it: FLOP/s where the operation has a rate in FLOP, else bytes/s."""
        return (self.flop_per_s if self.flop_per_s is not None else self.bytes_per_s or 0.0) / self.peak


@dataclass(frozen=True, slots=True)
class Answer:
    """Work and time of one operation on each target; ``against`` is the one the others are compared with."""

    work: OperationWork
    rows: tuple[OperationTime, ...]
    against: OperationTime | None


# --- the operations ---


def matmul(m: int, n: int, k: int, dtype: str, on: Sequence[Target], against: Cpu | None = None, *, batch: int = 1) -> Answer:
    """``batch`` products of m x k by k x n: 2 m n k FLOP each.

    Raises InputError for invalid sizes, UnknownNameError for an unknown format, UnpredictableError for one a device of ``on``
    lacks.
    """
    name = known_dtype(dtype, DTYPES)
    _check_sizes(m=m, n=n, k=k, batch=batch)
    kernel = "fp8_gemm" if name == "fp8" else name
    form = IMPLEMENTATIONS[kernel].form
    moved = float(batch) * (float(m) * k * form.a + float(k) * n * form.b + float(m) * n * form.c)
    work = OperationWork("matmul", f"{_times(batch)}{m:,} x {k:,} by {k:,} x {n:,}", name, 2.0 * batch * m * n * k, moved)

    def gpu(a: Accelerator) -> tuple[KernelTime, float]:
        peak = peak_rate(a) if name == "fp32" else a.peak(math_dtype(a, kernel))
        return single.matmul(a, name, m, n, k, batch), peak

    def cpu(c: Cpu) -> processor.CpuTime:
        return processor.matmul_time(c, name, m, n, k, batch)

    return _answer(work, on, against, gpu, cpu)


def attention(
    batch: int,
    heads: int,
    seq: int,
    head_dim: int,
    dtype: str,
    on: Sequence[Target],
    against: Cpu | None = None,
    *,
    kv_heads: int | None = None,
    causal: bool = True,
) -> Answer:
    """Fused attention, forward, over ``seq`` tokens. Raises as :func:`matmul`."""
    name = known_dtype(dtype, ATTENTION_DTYPES)
    shared = kv_heads or heads
    _check_sizes(batch=batch, heads=heads, seq=seq, head_dim=head_dim, kv_heads=shared)
    if heads % shared:
        raise InputError(f"{heads} heads do not divide over {shared} key-value heads", hint="choose a divisor")
    if head_dim > 1024:
        raise InputError(f"a head of {head_dim:,} has no kernel", hint="heads are up to 1,024 wide")
    flop = float(attention_flop(batch, seq, seq, heads, head_dim, causal=causal))
    moved = 2.0 * batch * seq * (heads + shared) * head_dim * IMPLEMENTATIONS[name].form.a
    text = f"{batch:,} x {heads:,} heads of {head_dim:,}, {seq:,} tokens{', causal' if causal else ''}"

    def gpu(a: Accelerator) -> tuple[KernelTime, float]:
        return single.attention(a, name, batch, seq, seq, heads, shared, head_dim, causal=causal), a.peak(name)

    def cpu(c: Cpu) -> processor.CpuTime:
        return processor.attention_time(c, name, batch, heads, seq, head_dim, causal=causal)

    return _answer(OperationWork("attention", text, name, flop, moved), on, against, gpu, cpu)


def stream(size: float, on: Sequence[Target], against: Cpu | None = None) -> Answer:
    """Read ``size`` bytes from a device's own memory and write the same number. Raises as :func:`matmul`."""
    _check_sizes(size=size)
    work = OperationWork("stream", "read and write", "bytes", 0.0, 2.0 * size)

    def gpu(a: Accelerator) -> tuple[KernelTime, float]:
        return single.stream(a, size, size), a.memory_bandwidth_bytes_per_s

    def cpu(c: Cpu) -> processor.CpuTime:
        return processor.stream_time(c, size, size)

    return _answer(work, on, against, gpu, cpu)


def copy(size: float, on: Sequence[Target], against: Cpu | None = None) -> Answer:
    """``size`` bytes over every path of a device: its own memory, from and to the host, to the next device.

    Rates of links are one direction. Raises as :func:`matmul`.
    """
    _check_sizes(size=size)
    singles = [Cluster(t.system, 1) if isinstance(t, Cluster) else t for t in on]
    inside = stream(size, singles, against)
    rows: list[OperationTime] = []
    for target, row in zip(on, inside.rows, strict=True):
        rows.append(replace(row, path="own memory"))
        if isinstance(target, Cluster):
            rows += _links(target, size)
    against_row = inside.against and replace(inside.against, path="own memory")
    return Answer(OperationWork("copy", "copy", "bytes", 0.0, size), tuple(rows), against_row)


def allreduce(size: float, on: Sequence[Target]) -> Answer:
    """Sum of ``size`` bytes over every device of a cluster, each left with the whole. Bytes/s are bus
    bandwidth, 2 (n - 1) / n x size / time, which compares with one direction of the link.

    Raises InputError for a single device or a processor, and as :func:`matmul`.
    """
    _check_sizes(size=size)
    rows: list[OperationTime] = []
    for target in on:
        if isinstance(target, Cpu) or target.n_accelerators < 2:
            name = target.name if isinstance(target, Cpu) else target.accelerator.name
            raise InputError(f"an all-reduce needs several devices, not one {name}", hint="write --on 8xH100-SXM")
        n, system = target.n_accelerators, target.system
        import numpy as np

        local, concurrent = (int(column[0]) for column in neighbours(system, np.array([n]))[1:])
        time = collective_time(system, "all_reduce", size, n, local, concurrent=concurrent)
        peak, path = system.link_bytes_per_s, system.link_kind
        hosts = target.n_systems
        if hosts > 1 and n > max(system.domain_size, local):
            crossed = system.network_bytes_per_s * local * ((n - 1) / n) / ((hosts - 1) / hosts)
            peak, path = min(peak, crossed), f"{system.network_kind}, {hosts} hosts"
        said = (target.assumption,) if target.assumption else ()
        sends = 2.0 * (n - 1) / n
        estimate = _estimate(time)
        if system.topology == "switch" and n <= system.domain_size and sends * size > peak * estimate.low:
            sends = 1.0
            said = (*said, "the switch adds: a link carries the data once, and bus bandwidth may exceed that of the link")
        estimate = estimate.at_least(sends * size / peak)
        bus = 2.0 * (n - 1) / n * size / estimate.expected
        bound = "latency" if bus < _LATENCY_SHARE * peak else "link"
        rows.append(OperationTime(target.label, target.accelerator.id, "gpu", path, estimate, None, bus, peak, bound, said))
    return Answer(OperationWork("allreduce", "all-reduce", "bytes", 0.0, size), tuple(rows), None)


# --- from times to rows ---


def _answer(
    work: OperationWork,
    on: Sequence[Target],
    against: Cpu | None,
    gpu: Callable[[Accelerator], tuple[KernelTime, float]],
    cpu: Callable[[Cpu], processor.CpuTime],
) -> Answer:
    base = None if against is None else _cpu_row(work, against, cpu(against))
    rows: list[OperationTime] = []
    for target in on:
        if isinstance(target, Cpu):
            row = _cpu_row(work, target, cpu(target))
        elif target.n_accelerators > 1:
            raise InputError(
                f"one {work.kind} runs on one device, not on {target.n_accelerators}",
                hint=f"write --on {target.accelerator.id}, or `gpuwise op allreduce` for what joins them",
            )
        else:
            time, peak = gpu(target.accelerator)
            row = _gpu_row(work, target.accelerator, _estimate(time), peak)
            row = replace(row, notes=(target.assumption, *row.notes)) if target.assumption else row
        rows.append(row if base is None else replace(row, speedup=ratio(base.time_s, row.time_s)))
    return Answer(work, tuple(rows), base)


def _gpu_row(work: OperationWork, a: Accelerator, time: Estimate, peak: float) -> OperationTime:
    roof = byte_roof(a, work.bytes, time.low)
    memory = work.bytes / roof.bytes_per_s
    compute = work.flop / peak if work.flop else 0.0
    time = time.at_least(max(memory, compute))
    bound = "compute" if compute >= memory else "cache" if roof.cache else "memory"
    notes: list[str] = []
    if roof.cache:
        delivers = f"{format_rate(roof.bytes_per_s, 'B/s')}, memory {format_rate(a.memory_bandwidth_bytes_per_s, 'B/s')}"
        notes.append(f"what it moves fits in the {roof.cache}, which delivers {delivers}")
        peak = peak if work.flop else roof.bytes_per_s
    launch = find_stack_costs("eager").launch_s
    if time.expected < launch:
        bound = "launch"
        notes.append(f"the host needs about {launch * 1e6:.0f} us to issue it, unless a CUDA graph does")
    elif max(compute, memory) < _LATENCY_SHARE * time.expected:
        bound = "latency"
    without = None if work.flop or bound != "memory" else rate_without_ecc(a)
    if without is not None:
        notes.append(f"with error correction (ECC) on, as it is delivered; without it about {100 * without / peak:.0f} % of peak")
    flop_rate = work.flop / time.expected if work.flop else None
    return OperationTime(
        a.name, a.id, "gpu", "", time, flop_rate, work.bytes / time.expected, peak, bound, tuple(notes), cache=roof.cache
    )


def _cpu_row(work: OperationWork, c: Cpu, time: processor.CpuTime) -> OperationTime:
    notes = [c.assumption] if c.assumption else []
    if work.flop and time.dtype != work.dtype:
        notes.append(f"no {work.dtype} instructions: computed in {time.dtype}")
    seconds = time.time_s.expected
    if work.flop:
        return OperationTime(
            c.name,
            c.id,
            "cpu",
            "",
            time.time_s,
            work.flop / seconds,
            work.bytes / seconds,
            c.peak(time.dtype),
            time.bound,
            tuple(notes),
        )
    rate, peak = work.bytes / seconds, c.memory_bandwidth_bytes_per_s
    return OperationTime(c.name, c.id, "cpu", "", time.time_s, None, rate, peak, time.bound, tuple(notes))


def _links(target: Cluster, size: float) -> list[OperationTime]:
    """Host to device, device to host, device to device, as far as the catalogue knows them."""
    a = target.accelerator
    rows: list[OperationTime] = []

    def add(path: str, time: KernelTime, peak: float) -> None:
        estimate = _estimate(time).at_least(size / peak)
        rate = size / estimate.expected
        bound = "latency" if rate < _LATENCY_SHARE * peak else "link"
        rows.append(OperationTime(a.name, a.id, "gpu", path, estimate, None, rate, peak, bound))

    host_link = host_link_peak_bytes_per_s(a)
    if host_link is not None and not a.unified_memory:
        for path, direction in (("host to GPU", "h2d"), ("GPU to host", "d2h")):
            add(path, transfer_time(a, size, direction), host_link)
    system = target.system if target.system.count > 1 else default_system(a)
    if system.count > 1 and system.domain_size > 1:
        time = collective_time(system, "send_recv", size, 2, 2)
        add(f"GPU to GPU, {system.link_kind}", time, system.link_bytes_per_s)
    return rows


def ratio(slow: Estimate, fast: Estimate) -> Estimate:
    """``slow / fast`` with the widths of both, taken as independent and log-normal."""
    sigma = math.hypot(slow.log_sigma, fast.log_sigma)
    basis: Basis = weakest(slow.basis, fast.basis)
    return Estimate.from_log_sigma(slow.expected / fast.expected, sigma, basis)


def _estimate(time: KernelTime) -> Estimate:
    return Estimate.from_log_sigma(float(time.time_s[0]), float(time.log_sigma[0]), time.basis)


def known_dtype(dtype: str, allowed: Sequence[str]) -> str:
    """``dtype`` by its usual name. Raises UnknownNameError."""
    name = ALIASES.get(dtype.lower(), dtype.lower())
    if name not in allowed:
        raise UnknownNameError("format", dtype, allowed, hint="it is one of " + ", ".join(allowed))
    return name


def _times(batch: int) -> str:
    return "" if batch == 1 else f"{batch:,} products, "


def _check_sizes(**sizes: float) -> None:
    for name, size in sizes.items():
        if not 1 <= size <= LARGEST:
            raise InputError(f"{name} is {size:g}", hint=f"a size is from 1 to {LARGEST:.0e}")
    total = math.prod(sizes.values())
    if total > 1e24:
        raise InputError("the operation is larger than anything a device could finish", hint="give smaller sizes")


__all__ = [
    "ATTENTION_DTYPES",
    "DTYPES",
    "Answer",
    "OperationTime",
    "OperationWork",
    "Target",
    "allreduce",
    "attention",
    "copy",
    "matmul",
    "ratio",
    "stream",
]
