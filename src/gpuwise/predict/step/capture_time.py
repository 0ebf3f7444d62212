"""Time of a captured step on an accelerator nobody needs to have: every operation of it, and the step as a whole.

Each distinct signature is timed once, family by family (``captured_products``, ``captured_convolution``,
``captured_memory_bound``); the host's part of each operation (``host_time``) and the order of things (``captured_timeline``)
make the step. What ``torch.compile`` changes is in ``compiled``.

    step = distance between the ends of two steps; its spread: errors within a family fall together, families apart
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.comm.capture import collective_seconds
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.predict.kernels.convolution_ops import captured_convolution_time, conv_of, laid_out
from gpuwise.predict.kernels.families import FAMILIES, family_of, short_name
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.measured_networks import compiled_device_seconds, network_log_sigma, network_seconds
from gpuwise.predict.kernels.memory_bound import dram_rate
from gpuwise.predict.kernels.memory_bound_ops import memory_bound_time
from gpuwise.predict.kernels.products import PRODUCTS, matrix_units, run_format
from gpuwise.predict.kernels.transfer import transfer_time
from gpuwise.predict.step.bounds import Bound, CostlyOp, costly_ops
from gpuwise.predict.step.host_time import HostSpeed, host_seconds
from gpuwise.predict.step.timeline import BLOCKING, SYNC, WAIT, timeline
from gpuwise.workload.capture.record.capture import Capture, OpFlag, Settings, Signature
from gpuwise.workload.capture.record.table import row_dtype
from gpuwise.workload.step import Kind, Phase

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


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
    """Index into :data:`gpuwise.predict.kernels.families.FAMILIES`."""
    bound: I64
    basis: Basis
    whole: NDArray[np.bool_]
    """Timed as in whole measured networks (:mod:`gpuwise.predict.kernels.measured_networks`)."""


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
    device_total_s: float
    host_total_s: float
    flop: float
    compiled: bool
    kernels: int
    """Launched in the step."""
    basis: Basis

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
) -> CapturedTime:
    """Time of one captured step on ``accelerator``.

    ``compiled``: as if ``torch.compile`` had been asked for (None: as captured). ``channels_last``: as if the images lay so
    (None: as captured). ``host``: speed of the processor that issues the work. ``system`` joins the ranks of a
    distributed step (left out: the largest host of the catalogue with this accelerator).

    Raises InputError for a step that is not in the capture, UnpredictableError when the catalogue lacks a rate.
    """
    if not -len(capture.steps) <= step < len(capture.steps):
        raise InputError(f"the capture has no step {step}", hint=f"it has {len(capture.steps)}")
    span = capture.steps[step]
    part = slice(span.first_op, span.end_op)
    factors = calibration or Calibration()
    wanted = capture.settings.compiled if compiled is None else compiled
    last = True if wanted and channels_last is None else channels_last  # the compiler lays images out for the library
    times = signature_times(capture, accelerator, step, channels_last=last, calibration=factors, system=system)
    signature = capture.op_signature[part]
    device_s, bound, family = times.time_s[signature], times.bound[signature], times.family[signature]
    host_s = host_seconds(capture, step, host) * factors.host * float(load_json("captured_time")["calibration"]["host"])
    kernels = np.array([s.n_kernels for s in capture.signatures])[signature]
    if wanted:
        from gpuwise.predict.step.compiled import compile_step

        fused = compile_step(capture, accelerator, step, device_s, host_s, family, everything=compiled is True)
        device_s, host_s, kernels = fused.device_s, fused.host_s, fused.kernels
        measured_s = compiled_device_seconds(capture, accelerator, step) if compiled is True else None
        if measured_s is not None and device_s.any():
            device_s = device_s * (measured_s / float(device_s.sum()))
        bound = np.where(device_s > 0, np.where(fused.fused, int(Bound.BANDWIDTH), bound), int(Bound.NOTHING))
    line = timeline(device_s, host_s, _waits(capture, part, family), family == FAMILIES.index("collective"))
    bound = np.where((line.waited_s > device_s) & (device_s > 0), int(Bound.HOST), bound)
    whole = network_log_sigma(accelerator, compiled=compiled is True)
    single = ~times.whole[signature] if whole is not None else np.ones(len(signature), dtype=bool)
    sigma = _step_sigma(device_s, times.log_sigma[signature], family, single, line.step_s, times.basis, factors, whole or 0.0)
    total = float(device_s.sum())
    waited = float(line.waited_s.sum())
    return CapturedTime(
        step_time_s=Estimate.from_log_sigma(line.step_s, sigma, times.basis),
        device_s=device_s,
        host_s=host_s,
        start_s=line.start_s,
        bound=bound,
        family=family,
        first_op=span.first_op,
        family_s=_sums([FAMILIES[i] for i in family.tolist()], device_s),
        phase_s=_sums([Phase(i).name.lower() for i in capture.op_phase[part].tolist()], device_s),
        module_s=_sums([capture.modules[i] for i in capture.op_module[part].tolist()], device_s),
        bound_s=_sums([Bound(i).name.lower() for i in bound.tolist()], device_s),
        top=costly_ops(capture, signature, capture.op_module[part], device_s, bound, family),
        gpu_busy_share=min(1.0, line.busy_s / line.step_s) if line.step_s else 0.0,
        launch_bound_share=min(1.0, waited / line.step_s) if line.step_s else 0.0,
        device_total_s=total,
        host_total_s=float(host_s.sum()),
        flop=capture.flop(step),
        compiled=bool(wanted),
        kernels=int(kernels.sum()),
        basis=times.basis,
    )


def signature_times(
    capture: Capture,
    accelerator: Accelerator,
    step: int = -1,
    *,
    channels_last: bool | None = None,
    calibration: Calibration | None = None,
    system: System | None = None,
) -> SignatureTimes:
    """Device time of every signature the step uses, each family in one call."""
    span = capture.steps[step]
    used = np.unique(capture.op_signature[span.first_op : span.end_op])
    n = len(capture.signatures)
    part = times_of(
        [capture.signatures[int(i)] for i in used.tolist()],
        capture.settings,
        accelerator,
        channels_last=channels_last,
        calibration=calibration,
        system=system,
    )
    time, sigma, whole = np.zeros(n), np.zeros(n), np.zeros(n, dtype=bool)
    family, bound = np.full(n, FAMILIES.index("host")), np.zeros(n, dtype=np.int64)
    time[used], sigma[used], whole[used] = part.time_s, part.log_sigma, part.whole
    family[used], bound[used] = part.family, part.bound
    return SignatureTimes(time, sigma, family, bound, part.basis, whole)


def times_of(
    signatures: Sequence[Signature],
    settings: Settings,
    accelerator: Accelerator,
    *,
    channels_last: bool | None = None,
    calibration: Calibration | None = None,
    system: System | None = None,
) -> SignatureTimes:
    """Device time of these signatures [S], each family in one call. Raises InputError for sizes that give no time."""
    n = len(signatures)
    time, sigma, whole = np.zeros(n), np.zeros(n), np.zeros(n, dtype=bool)
    family, bound = np.full(n, FAMILIES.index("host")), np.zeros(n, dtype=np.int64)
    groups: dict[str, list[int]] = {}
    for i, signature in enumerate(signatures):
        name = family_of(signature)
        family[i] = FAMILIES.index(name)
        groups.setdefault(name, []).append(i)
    bases: list[Basis] = []
    factors = calibration or Calibration()
    shipped: Mapping[str, float] = load_json("captured_time")["calibration"]["family"]
    for name, rows in groups.items():
        if name == "host":
            continue
        few = [signatures[i] for i in rows]
        if name == "convolution" and channels_last is not None:
            few = [laid_out(s, channels_last) for s in few]
        made = _family_time(name, few, settings, accelerator, system)
        index = np.array(rows)
        if name not in _OF_THEIR_OWN:
            made, whole[index] = _as_in_whole_networks(made, few, settings, accelerator)
        time[index] = made.time_s * shipped.get(name, 1.0) * factors.family.get(name, 1.0) * factors.device
        sigma[index] = made.log_sigma
        bound[index] = [_bound(name, s, t, accelerator, settings) for s, t in zip(few, made.time_s.tolist(), strict=True)]
        bases.append(made.basis)
    if not np.isfinite(time).all():
        raise InputError("there is an operation whose sizes give no time", hint="report the model with its shapes")
    return SignatureTimes(time, sigma, family, bound, weakest(*bases) if bases else "specified", whole)


_OF_THEIR_OWN = ("collective", "transfer", "recurrent", "sort", "scan", "fourier", "grouped")
"""Families that no measured network of ``captured_kernels`` has."""


def _as_in_whole_networks(
    made: KernelTime, few: list[Signature], settings: Settings, accelerator: Accelerator
) -> tuple[KernelTime, NDArray[np.bool_]]:
    """``made`` with the times of whole measured networks where those are the better ones to believe, and where that is.

    Those networks ran under autocast on cards with matrix units: what the device computes in fp32 or fp64 keeps its own
    time, and so do transposed convolutions, which they do not have.
    """
    if not matrix_units(accelerator):
        return made, np.zeros(len(few), dtype=bool)
    seconds, believed = network_seconds(few, accelerator, settings)
    formats = [
        run_format(accelerator, row_dtype(s), settings.cudnn_tf32 if s.kind is Kind.CONVOLUTION else settings.matmul_tf32)
        for s in few
    ]
    alike = np.array([not s.flop or f in ("fp16", "bf16", "tf32") for s, f in zip(few, formats, strict=True)])
    alike &= believed & np.array([not s.attribute("transposed", False) for s in few])
    return made._replace(time_s=np.where(alike, seconds, made.time_s)), alike


def _family_time(
    name: str, few: list[Signature], settings: Settings, accelerator: Accelerator, system: System | None
) -> KernelTime:
    if name in PRODUCTS:
        return PRODUCTS[name](accelerator, few, settings)
    if name == "convolution":
        return _convolutions(few, settings, accelerator)
    if name == "collective":
        return collective_seconds(accelerator, few, settings, system)
    if name == "transfer":
        one = [transfer_time(accelerator, max(s.bytes_read, s.bytes_written), _direction(s), pinned=False) for s in few]
        latency = float(load_json("memory_bound")["latency_s"])
        return KernelTime(np.array([o.time_s[0] for o in one]) + latency, np.array([o.log_sigma[0] for o in one]), "derived")
    return memory_bound_time(accelerator, few, [name] * len(few))


def _direction(s: Signature) -> str:
    return "d2h" if s.attribute("direction") == "device-to-host" else "h2d"


def _convolutions(few: list[Signature], settings: Settings, accelerator: Accelerator) -> KernelTime:
    made = [conv_of(s) for s in few]
    time, sigma, bases = np.zeros(len(few)), np.full(len(few), 0.4), list[Basis]()
    odd = [i for i, c in enumerate(made) if c is None]
    if odd:
        plain = memory_bound_time(accelerator, [few[i] for i in odd], ["elementwise"] * len(odd))
        time[odd] = plain.time_s
        bases.append(plain.basis)
    formats = [run_format(accelerator, row_dtype(s), settings.cudnn_tf32) for s in few]
    for dtype in sorted(set(formats)):
        rows = [i for i, (c, f) in enumerate(zip(made, formats, strict=True)) if c is not None and f == dtype]
        if not rows:
            continue
        convs = [c for i in rows if (c := made[i]) is not None]
        vector = dtype not in ("fp16", "bf16", "tf32")
        one = captured_convolution_time(accelerator, dtype, convs, vector=vector)
        slow = accelerator.peak("fp32") / accelerator.peak("fp64") if dtype == "fp64" else 1.0
        time[rows], sigma[rows] = one.time_s * max(slow, 1.0), one.log_sigma
        bases.append(one.basis)
    return KernelTime(time, sigma, weakest(*bases) if bases else "derived")


def _bound(family: str, s: Signature, time_s: float, accelerator: Accelerator, settings: Settings) -> int:
    if family in ("collective", "transfer"):
        return int(Bound.COMMUNICATION)
    latency = float(load_json("memory_bound")["latency_s"]) * max(s.n_kernels, 1)
    stream = (s.bytes_read + s.bytes_written) / dram_rate(accelerator)
    if not s.flop:
        return int(Bound.LAUNCH if latency > 0.5 * time_s else Bound.BANDWIDTH)
    dtype = run_format(accelerator, row_dtype(s), settings.cudnn_tf32 if s.kind is Kind.CONVOLUTION else settings.matmul_tf32)
    rate = accelerator.peak_flop_per_s.get(dtype) or accelerator.peak("fp32")
    work = s.flop / rate
    if max(work, stream) < 0.1 * time_s and time_s < 2e-5:
        return int(Bound.LAUNCH)
    if stream > work:
        return int(Bound.BANDWIDTH)
    return int(Bound.CUDA_CORE if dtype in ("fp32", "fp64") else Bound.TENSOR_CORE)


def _waits(capture: Capture, part: slice, family: NDArray[np.int64]) -> I64:
    flags, phase = capture.op_flags[part], capture.op_phase[part]
    out = np.where(flags & OpFlag.SYNC, SYNC, 0).astype(np.int64)
    collective = family == FAMILIES.index("collective")
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


def _sums(keys: list[str], seconds: F64) -> dict[str, float]:
    names, inverse = np.unique(np.array(keys, dtype=object).astype(str), return_inverse=True)
    sums = np.bincount(inverse, weights=seconds, minlength=len(names)) if len(names) else np.zeros(0)
    return {str(n): float(x) for n, x in sorted(zip(names, sums, strict=True), key=lambda p: -p[1]) if x > 0}


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
    """Spread of log(measured / predicted) of the step.

    Kernels that are timed one by one (``single`` [N]) miss together within a family, families and the host apart; what is
    timed as in whole networks has the spread ``whole`` that such networks had.
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
    late = max(0.0, 1.0 - total / step_s) * float(load_json("host_time")["log_sigma"])
    return math.sqrt(((1.0 - alone) * whole + alone * float(model[basis])) ** 2 + 0.25 * parts**2 + late**2)
