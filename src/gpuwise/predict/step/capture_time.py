"""Time of a captured step on any accelerator of the catalogue: each operation and the whole step.

Each distinct signature is one row of the step table (``workload.capture.record.rows``), timed by the one registry
(``predict.kernels.registry``); the host's part of each operation (``host_time``) and their order (``timeline``) give the step.
The effects of ``torch.compile`` are in ``compiled``.

    step = distance between the ends of two steps; its spread: errors within a family fall together, families apart
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System
from gpuwise.interval import Z80
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.comm.capture import collective_seconds
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.predict.kernels.accelerator_factors import UNMEASURED, factor_key, step_log_sigma
from gpuwise.predict.kernels.clock import mean_power_w, power_budget_w, step_clock, work_energy_j
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.predict.kernels.memory_bound import dram_rate
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.kernels.run_formats import run_format
from gpuwise.predict.kernels.single import matmul
from gpuwise.predict.memory.library_workspaces import version_of
from gpuwise.predict.step.bounds import Bound, CostlyOp, costly_ops, follows_clock
from gpuwise.predict.step.host_time import HostSpeed, gap_seconds, host_log_sigma, host_scale, host_seconds
from gpuwise.predict.step.timeline import BLOCKING, SYNC, WAIT, timeline
from gpuwise.workload.capture.captured import Capture, OpFlag, Settings, Signature
from gpuwise.workload.capture.record.families import short_name
from gpuwise.workload.capture.record.rows import rows_of
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.step import FAMILIES, FAMILY_CODE, OpTable

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
ROW_NORMS = (2, 8)
"""torch whose gradients of row norms are those of :mod:`gpuwise.predict.kernels.norms.rows`."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors on the predicted times from measured steps: ``family`` by family, ``device`` on all, ``host`` on the host's part.

    ``log_sigma`` replaces the spread of the whole step where it is given.
    """

    family: Mapping[str, float] = field(default_factory=dict[str, float])
    device: float = 1.0
    host: float = 1.0
    log_sigma: float | None = None

    def __post_init__(self) -> None:
        for what, value in (("device", self.device), ("host", self.host), *self.family.items()):
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"calibration factor {what} is {value!r}", hint="factors are above zero")
        for name in self.family:
            if name not in FAMILIES:
                raise InputError(f"unknown family {name!r}", hint="one of " + ", ".join(FAMILIES))


@dataclass(frozen=True, slots=True)
class SignatureTimes:
    """Device time of each signature of a capture [S]; those the step does not use are 0."""

    time_s: F64
    log_sigma: F64
    family: NDArray[np.int64]
    """Index into :data:`gpuwise.workload.step.FAMILIES`."""
    bound: I64
    basis: Basis
    whole: NDArray[np.bool_]
    """[S] whether the time is scaled by a factor of whole measured networks (``predict.kernels.accelerator_factors``)."""
    work_j: F64 | None = None
    """[S] joules that the kernels add to the device's static draw (``predict.kernels.clock``); None if no such device was
    metered."""


@dataclass(frozen=True, slots=True)
class CapturedTime:
    """Arrays are [N], one entry per operation of the step in program order; dictionaries hold device seconds."""

    step_time_s: Estimate
    device_s: F64
    host_s: F64
    start_s: F64
    bound: I64
    """:class:`Bound`."""
    family: NDArray[np.int64]
    first_op: int
    """Position of the first entry in the capture's operations."""
    family_s: Mapping[str, float]
    phase_s: Mapping[str, float]
    module_s: Mapping[str, float]
    bound_s: Mapping[str, float]
    top: tuple[CostlyOp, ...]
    gpu_busy_share: float
    launch_bound_share: float
    """Share of the step in which the device waits for the host."""
    waited_s: Mapping[str, float]
    """Seconds by phase in which the device waits for the host."""
    device_total_s: float
    host_total_s: float
    flop: float
    compiled: bool
    kernels: int
    """Launched in the step."""
    basis: Basis
    gaps_s: float = 0.0
    """Part of ``device_total_s`` between kernels, independent of their size."""
    power_w: Estimate | None = None
    """Mean watts of the device over the step; None if no such device was metered."""

    @property
    def step_time(self) -> Estimate:
        """The same as ``step_time_s``."""
        return self.step_time_s


def captured_time(
    capture: Capture,
    accelerator: Accelerator,
    *,
    step: int = -1,
    compiled: bool | None = None,
    channels_last: bool | None = None,
    host: HostSpeed | None = None,
    calibration: Calibration | None = None,
    system: System | None = None,
    rows: OpTable | None = None,
) -> CapturedTime:
    """Time of one captured step on ``accelerator``.

    ``compiled``: with ``torch.compile`` (None: as captured). ``channels_last``: with images in that layout (None: as captured).
    ``host``: speed of the processor that issues the work. ``system`` joins the ranks of a distributed step (default: the largest
    host of the catalogue with this accelerator). ``rows``: :func:`step_rows` of the step, where they are there already.

    Raises InputError for a step that is not in the capture, UnpredictableError when the catalogue lacks a rate.
    """
    if not -len(capture.steps) <= step < len(capture.steps):
        raise InputError(f"the capture has no step {step}", hint=f"it has {len(capture.steps)}")
    span = capture.steps[step]
    part = slice(span.first_op, span.end_op)
    factors = calibration or Calibration()
    compiles = capture.settings.compiled if compiled is None else compiled
    last = True if compiles and channels_last is None else channels_last  # the compiler lays images out for the library
    times = signature_times(
        capture, accelerator, step, channels_last=last, compiled=compiles, calibration=factors, system=system, rows=rows
    )
    signature = capture.op_signature[part]
    device_s, bound, family = times.time_s[signature], times.bound[signature], times.family[signature]
    host_s = host_seconds(capture, step, host) * factors.host * host_scale(accelerator)
    kernels = np.array([s.n_kernels for s in capture.signatures])[signature]
    work_j = None if times.work_j is None else times.work_j[signature]
    if compiles:
        from gpuwise.predict.step.compiled import compile_step

        fused = compile_step(capture, accelerator, step, device_s, host_s, family, everything=compiled is True)
        device_s, host_s, kernels = fused.device_s, fused.host_s, fused.kernels
        streams = work_energy_j(accelerator, ["fp32"] * len(device_s), np.zeros_like(device_s), np.inf, device_s)
        if work_j is not None and streams is not None:  # a fused kernel is traffic
            work_j = np.asarray(np.where(fused.fused, streams, work_j), np.float64)
        bound = np.where(device_s > 0, np.where(fused.fused, int(Bound.BANDWIDTH), bound), int(Bound.NOTHING))
    alone = (device_s > 0) & ~np.isin(family, [FAMILY_CODE[f] for f in ("collective", "transfer", "recurrent")])
    gaps_s = np.where(alone, gap_seconds(accelerator, kernels.astype(np.float64)), 0.0)
    device_s = device_s + gaps_s
    waits, beside = _waits(capture, part, family), family == FAMILY_CODE["collective"]
    line = timeline(device_s, host_s, waits, beside)
    if work_j is not None:
        follows = follows_clock(bound, family)
        at = step_clock(accelerator, follows, device_s, work_j, line.step_s)
        if at.clock < 1.0:
            device_s = np.where(follows, device_s / at.clock, device_s)
            work_j = np.where(follows, work_j * at.joules, work_j)
            line = timeline(device_s, host_s, waits, beside)
    bound = np.where((line.waited_s > device_s) & (device_s > 0), int(Bound.HOST), bound)
    whole = step_log_sigma(accelerator, compiled=compiled is True)
    single = ~times.whole[signature] if whole is not None else np.ones(len(signature), dtype=bool)
    sigma = _step_sigma(device_s, times.log_sigma[signature], family, single, line.step_s, times.basis, factors, whole or 0.0)
    late = 0.0 if factors.log_sigma is not None else Z80 * host_log_sigma(accelerator)
    fast_s, slow_s = (timeline(device_s, host_s * math.exp(late * way), waits, beside).step_s for way in (-1.0, 1.0))
    total = float(device_s.sum())
    waited = float(line.waited_s.sum())
    return CapturedTime(
        step_time_s=_interval(line.step_s, fast_s, slow_s, sigma, times.basis),
        device_s=device_s,
        host_s=host_s,
        start_s=line.start_s,
        bound=bound,
        family=family,
        first_op=span.first_op,
        family_s=_sums(family, FAMILIES, device_s),
        phase_s=_sums(capture.op_phase[part], _PHASES, device_s),
        module_s=_sums(capture.op_module[part], capture.modules, device_s),
        bound_s=_sums(bound, _BOUNDS, device_s),
        top=costly_ops(capture, signature, capture.op_module[part], device_s, bound, family),
        gpu_busy_share=min(1.0, line.busy_s / line.step_s) if line.step_s else 0.0,
        launch_bound_share=min(1.0, waited / line.step_s) if line.step_s else 0.0,
        waited_s=_sums(capture.op_phase[part], _PHASES, line.waited_s),
        device_total_s=total,
        host_total_s=float(host_s.sum()),
        flop=capture.flop(step),
        compiled=bool(compiles),
        kernels=int(kernels.sum()),
        basis=times.basis,
        gaps_s=float(gaps_s.sum()),
        power_w=None if work_j is None else mean_power_w(accelerator, float(work_j.sum()), line.step_s),
    )


def signature_times(
    capture: Capture,
    accelerator: Accelerator,
    step: int = -1,
    *,
    channels_last: bool | None = None,
    compiled: bool = False,
    calibration: Calibration | None = None,
    system: System | None = None,
    rows: OpTable | None = None,
) -> SignatureTimes:
    """Device time of every signature the step uses, each family in one call."""
    used, signatures = _used(capture, step)
    n = len(capture.signatures)
    part = times_of(
        signatures,
        capture.settings,
        accelerator,
        channels_last=channels_last,
        compiled=compiled,
        calibration=calibration,
        system=system,
        rows=rows,
    )
    time, sigma, whole = np.zeros(n), np.zeros(n), np.zeros(n, dtype=bool)
    family, bound = np.full(n, FAMILY_CODE["host"]), np.zeros(n, dtype=np.int64)
    time[used], sigma[used], whole[used] = part.time_s, part.log_sigma, part.whole
    family[used], bound[used] = part.family, part.bound
    work_j = None
    if part.work_j is not None:
        work_j = np.zeros(n)
        work_j[used] = part.work_j
    return SignatureTimes(time, sigma, family, bound, part.basis, whole, work_j)


def step_rows(capture: Capture, step: int = -1) -> OpTable:
    """[U] one row of every signature the step uses: the same on every accelerator."""
    return rows_of(_used(capture, step)[1], capture.settings)


def _used(capture: Capture, step: int) -> tuple[I64, list[Signature]]:
    """Signatures the step uses: their positions, and they themselves."""
    span = capture.steps[step]
    used = np.flatnonzero(np.bincount(capture.op_signature[span.first_op : span.end_op]))
    return used, [capture.signatures[int(i)] for i in used.tolist()]


def times_of(
    signatures: Sequence[Signature],
    settings: Settings,
    accelerator: Accelerator,
    *,
    channels_last: bool | None = None,
    compiled: bool = False,
    calibration: Calibration | None = None,
    system: System | None = None,
    rows: OpTable | None = None,
) -> SignatureTimes:
    """Device time of these signatures [S], each family in one call; ``rows``: theirs, where they are there already. Raises
    InputError for sizes that give no time."""
    rows = rows_of(signatures, settings) if rows is None else rows
    old = settings.torch_version.startswith("1.")
    norms = bool(settings.torch_version) and version_of(settings.torch_version) < ROW_NORMS  # a trace names no version
    conditions = Conditions(
        emulated=True, compiled=compiled, before_torch_2=old, older_row_norms=norms, channels_last=channels_last
    )
    times = kernel_times(rows, accelerator, conditions)
    kernel_s, sigma, basis = times.time_s.copy(), times.log_sigma.copy(), times.basis
    crossing = np.flatnonzero(rows.family == FAMILY_CODE["collective"])
    if crossing.size:
        one = collective_seconds(accelerator, [signatures[i] for i in crossing.tolist()], system)
        kernel_s[crossing], sigma[crossing] = one.time_s, one.log_sigma
        basis = weakest(basis, one.basis) if len(crossing) < len(signatures) else one.basis
    if not np.isfinite(kernel_s).all():
        raise InputError("there is an operation whose sizes give no time", hint="report the model with its shapes")
    formats = [run_format(accelerator, d) for d in rows.dtype]
    factors = calibration or Calibration()
    shipped: Mapping[str, float] = load_json("captured_time")["calibration"]["family"]
    factor = np.array([shipped.get(f, 1.0) * factors.family.get(f, 1.0) for f in FAMILIES])[rows.family] * factors.device
    return SignatureTimes(
        kernel_s * factor,
        sigma,
        rows.family,
        _bounds(rows, kernel_s, formats, accelerator),
        basis,
        _whole(rows, formats, accelerator),
        work_energy_j(
            accelerator,
            formats,
            rows.flop,
            rows.bytes_read + rows.bytes_written,
            kernel_s,
            {f: _joules_at_limit(accelerator, f) for f in LIMITED if f in formats},
        ),
    )


LIMITED = ("fp16", "bf16", "tf32", "fp8")
"""Formats of products that draw the design power."""


@lru_cache(maxsize=256)
def _joules_at_limit(accelerator: Accelerator, form: str) -> float:
    """Joules of one FLOP in ``form`` at which a long run of products that fill any accelerator draws the design power: their time
    has the limit in it, so they draw no more."""
    budget_w = power_budget_w(accelerator)
    if budget_w is None or form not in accelerator.peak_flop_per_s:
        return math.inf
    return budget_w * float(matmul(accelerator, form, 8192, 8192, 8192).time_s[0]) / (2.0 * 8192**3)


def _whole(rows: OpTable, formats: Sequence[str], accelerator: Accelerator) -> NDArray[np.bool_]:
    """[S] whether whole measured networks stand behind the row's time; they computed in 16 bits or TF32."""
    if factor_key(accelerator) is None:
        return np.zeros(len(rows), dtype=bool)
    measured = np.array([f not in UNMEASURED or f == "convolution" for f in FAMILIES])[rows.family]
    alike = np.array([f in ("fp16", "bf16", "tf32") for f in formats], dtype=bool)
    return measured & ((rows.flop == 0) | alike)


def _bounds(rows: OpTable, time_s: F64, formats: Sequence[str], accelerator: Accelerator) -> I64:
    """[S] :class:`Bound` of each row."""
    latency = float(load_json("memory_bound")["latency_s"]) * np.maximum(rows.n_kernels, 1.0)
    stream = (rows.bytes_read + rows.bytes_written) / dram_rate(accelerator)
    rates = {f: accelerator.peak_flop_per_s.get(f) or accelerator.peak("fp32") for f in dict.fromkeys(formats)}
    arithmetic = rows.flop / np.array([rates[f] for f in formats])
    vector = np.array([f in ("fp32", "fp64") for f in formats], dtype=bool)
    computes = np.where(vector, int(Bound.CUDA_CORE), int(Bound.TENSOR_CORE))
    out = np.where(stream > arithmetic, int(Bound.BANDWIDTH), computes)
    out = np.where((np.maximum(arithmetic, stream) < 0.1 * time_s) & (time_s < 2e-5), int(Bound.LAUNCH), out)
    waits = np.where(latency > 0.5 * time_s, int(Bound.LAUNCH), int(Bound.BANDWIDTH))
    out = np.where(rows.flop == 0, waits, out)
    # a recurrent layer is a chain of short kernels: its steps follow one another faster than they can work
    chained = (rows.family == FAMILY_CODE["recurrent"]) & (np.maximum(arithmetic, stream) < 0.5 * time_s)
    out = np.where(chained, int(Bound.LAUNCH), out)
    crossing = (rows.family == FAMILY_CODE["collective"]) | (rows.family == FAMILY_CODE["transfer"])
    out = np.where(crossing, int(Bound.COMMUNICATION), out)
    return np.where(rows.family == FAMILY_CODE["host"], int(Bound.NOTHING), out)


def _waits(capture: Capture, part: slice, family: NDArray[np.int64]) -> I64:
    flags, phase = capture.op_flags[part], capture.op_phase[part]
    out = np.where(flags & OpFlag.SYNC, SYNC, 0).astype(np.int64)
    collective = family == FAMILY_CODE["collective"]
    if not collective.any():
        return out
    names = [capture.signatures[int(i)].op for i in capture.op_signature[part].tolist()]
    functional = np.array([n.startswith(("_c10d", "c10d_f")) for n in names])
    out |= np.where(collective & ~functional & (phase == Phase.FORWARD), BLOCKING, 0)
    out |= np.where(np.array([short_name(n) == "wait_tensor" for n in names]), WAIT, 0)
    update = np.flatnonzero(phase == Phase.OPTIMIZER)
    if update.size:
        out[update[0]] |= WAIT
    return out


_PHASES, _BOUNDS = ([kind.name.lower() for kind in sorted(kinds)] for kinds in (Phase, Bound))
"""Names in the order of the codes, which count from 0."""


def _sums(codes: NDArray[np.integer[Any]], names: Sequence[str], seconds: F64) -> dict[str, float]:
    """Seconds of each name, the most first; ``codes`` [N] are places in ``names``, which has some several times."""
    sums = dict.fromkeys(sorted(names), 0.0)
    for name, x in zip(names, np.bincount(codes, weights=seconds, minlength=len(names)).tolist(), strict=True):
        sums[name] += x
    return {name: x for name, x in sorted(sums.items(), key=lambda pair: -pair[1]) if x > 0}


def _step_sigma(
    device_s: F64,
    log_sigma: F64,
    family: NDArray[np.int64],
    single: NDArray[np.bool_],
    step_s: float,
    basis: Basis,
    calibration: Calibration,
    whole: float,
) -> float:
    """Spread of log(measured / predicted) of the step, the host aside.

    Kernels that are timed one by one (``single`` [N]) miss together within a family, families apart; what is timed as in whole
    networks has the spread ``whole`` that such networks had.
    """
    if calibration.log_sigma is not None:
        return calibration.log_sigma
    model: dict[str, Any] = load_json("captured_time")["calibration"]["log_sigma"]
    if step_s <= 0:
        return float(model[basis])
    by_family = np.bincount(family, weights=device_s * log_sigma * single, minlength=len(FAMILIES))
    parts = float(np.sqrt(np.sum(by_family**2))) / step_s
    total = float(device_s.sum())
    alone = float(device_s[single].sum()) / total if total else 1.0
    return math.sqrt(((1.0 - alone) * whole + alone * float(model[basis])) ** 2 + 0.25 * parts**2)


def _interval(step_s: float, fast_s: float, slow_s: float, log_sigma: float, basis: Basis) -> Estimate:
    """The step with the spread of its kernels, and what it takes at both ends of the host's interval."""
    if step_s <= 0:
        return Estimate.from_log_sigma(step_s, log_sigma, basis)
    low, high = (math.hypot(Z80 * log_sigma, math.log(s / step_s)) for s in (fast_s, slow_s))
    return Estimate(step_s * math.exp(-low), step_s, step_s * math.exp(high), basis)
