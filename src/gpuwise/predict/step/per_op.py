"""Costs of a plain PyTorch step: every operation of the modules timed as in own code.

The transformer writer hands over the operations of one micro-batch as a captured step; they go through the same kernel
times, the same host model and the same fusion as a capture, and are summed by layer and phase, so that the strategies of a
sweep are algebra on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.clock import step_clock
from gpuwise.predict.step.bounds import follows_clock
from gpuwise.predict.step.capture_time import step_rows, times_of
from gpuwise.predict.step.compiled import compile_step
from gpuwise.predict.step.host_time import gap_seconds, host_scale, host_seconds
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.capture.captured import Settings, Signature, TensorSpec
from gpuwise.workload.optimizer import update_traffic_bytes
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.step import OpTable, concatenate
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.eager_step import EMBEDDING, FIRST_KIND, HEAD, EagerStep, eager_step

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
LAYER, LEAD = "layer", "lead"
_PRODUCTS = (Kind.MATMUL, Kind.GROUPED, Kind.CONVOLUTION)
_FAMILY = np.array([0 if k in _PRODUCTS else 1 if k is Kind.ATTENTION else 2 for k in Kind], np.int64)
"""Family of cost by kind of row: products, attention, the rest."""


class Sums(NamedTuple):
    """One pass over one part: device seconds by family (products, attention, the rest), host seconds, kernels, FLOP."""

    device_s: tuple[float, float, float]
    host_s: float
    kernels: float
    flop: float


@dataclass(frozen=True, slots=True)
class PartSums:
    """One part of the step. ``full`` is what a checkpoint of the layer runs again, ``selective`` what is no product."""

    forward: Sums
    selective: Sums
    full: Sums
    backward: Sums


@dataclass(frozen=True, slots=True)
class PointSums:
    """One point: the mean layer, the mean leading layer, and the two ends."""

    layer: PartSums
    lead: PartSums
    embedding: PartSums
    head: PartSums
    log_sigma: float
    basis: Basis
    update_host_s: float
    """Host seconds of the optimizer's calls."""


_NAN = Sums((math.nan, math.nan, math.nan), math.nan, math.nan, math.nan)
_NAN_PART = PartSums(_NAN, _NAN, _NAN, _NAN)
UNTIMED = PointSums(_NAN_PART, _NAN_PART, _NAN_PART, _NAN_PART, math.nan, "measured", math.nan)
"""Placeholder for a point whose times are not needed."""
REMEMBERED = 1024
_sums: dict[tuple[Architecture, Point, Accelerator], PointSums] = {}
"""The latest points' sums: a search, its answer and the changes to it ask for the same ones."""


def point_sums(arch: Architecture, points: Sequence[Point], accelerator: Accelerator, n_lead: int) -> list[PointSums]:
    """Seconds of one micro-batch of each of ``points``, whose kernels are timed together; the latest are remembered. Raises
    UnpredictableError when the accelerator lacks a needed rate."""
    known = {p: _sums.get((arch, p, accelerator)) for p in points}
    missing = [p for p, sums in known.items() if sums is None]
    new = dict(zip(missing, _timed(arch, missing, accelerator, n_lead), strict=True))
    if len(_sums) + len(new) > REMEMBERED:
        _sums.clear()
    _sums.update({(arch, p, accelerator): sums for p, sums in new.items()})
    return [known[p] or new[p] for p in points]


def _timed(arch: Architecture, points: Sequence[Point], accelerator: Accelerator, n_lead: int) -> list[PointSums]:
    out: dict[int, PointSums] = {}
    scale = host_scale(accelerator)
    for whole in sorted({p.stack.compiled for p in points}):
        part = [i for i, p in enumerate(points) if p.stack.compiled == whole]
        steps = [eager_step(arch, points[i]) for i in part]
        on_any = [_on_any_device(arch, points[i]) for i in part]
        times = times_of(
            [s for step in steps for s in step.capture.signatures],
            steps[0].capture.settings,
            accelerator,
            channels_last=True if whole else None,
            compiled=whole,
            rows=concatenate([rows for rows, _ in on_any]),
        )
        ends = np.cumsum([len(rows) for rows, _ in on_any]).tolist()
        for i, step, (rows, classes_s), end in zip(part, steps, on_any, ends, strict=True):
            own = slice(end - len(rows), end)
            signature = step.capture.op_signature
            columns = _columns(step, accelerator, times.time_s[own], times.family[own], classes_s * scale)
            if times.work_j is not None:
                follows = follows_clock(times.bound[own], times.family[own])[signature]
                columns = _held(step, accelerator, columns, times.work_j[own][signature], follows)
            out[i] = _point_sums(step, points[i], columns, times.log_sigma[own][signature], times.basis, n_lead, scale)
    return [out[i] for i in range(len(points))]


def _columns(step: EagerStep, accelerator: Accelerator, time_s: F64, families: I64, host: F64) -> _Columns:
    """Cost columns of each operation of ``step``; ``time_s`` and ``families`` are those of its signatures, ``host`` [N] its
    host seconds."""
    capture = step.capture
    signature = capture.op_signature
    device: F64 = time_s[signature]
    kernels: F64 = np.array([s.n_kernels for s in capture.signatures], np.float64)[signature]
    flop: F64 = np.array([s.flop for s in capture.signatures], np.float64)[signature]
    kind: I64 = np.array([int(s.kind) for s in capture.signatures], np.int64)[signature]
    if capture.settings.compiled:
        fused = compile_step(capture, accelerator, -1, device, host, families[signature], everything=True)
        device, host, kernels = fused.device_s, fused.host_s, fused.kernels.astype(np.float64)
    device = device + np.where(device > 0, gap_seconds(accelerator, kernels), 0.0)
    return _Columns(device, host, kernels, flop, _FAMILY[kind], capture.op_phase)


def _held(step: EagerStep, accelerator: Accelerator, columns: _Columns, work_j: F64, follows: Bool) -> _Columns:
    """``columns`` at the clock at which forward and backward of all layers keep the design power."""
    runs = np.zeros(len(work_j))
    for part, count in {EMBEDDING: 1, HEAD: 1, **{FIRST_KIND + i: n for i, n in enumerate(step.counts.values())}}.items():
        runs[step.part == part] = count
    device_s = columns.device_s * runs
    step_s = max(float(device_s.sum()), float((columns.host_s * runs).sum()))
    at = step_clock(accelerator, follows, device_s, np.where(columns.device_s > 0, work_j, 0.0) * runs, step_s)
    return columns._replace(device_s=np.where(follows, columns.device_s / at.clock, columns.device_s))


def _point_sums(
    step: EagerStep, point: Point, columns: _Columns, sigma: F64, basis: Basis, n_lead: int, scale: float
) -> PointSums:
    weights: dict[str, dict[int, float]] = {LAYER: {}, LEAD: {}}
    n_layers = sum(step.counts.values())
    for i, (name, count) in enumerate(step.counts.items()):
        lead = n_lead > 0 and name == "dense"
        weights[LEAD if lead else LAYER][FIRST_KIND + i] = count / (n_lead if lead else n_layers - n_lead)
    device = columns.device_s
    return PointSums(
        _part(step, columns, weights[LAYER], scale),
        _part(step, columns, weights[LEAD], scale),
        _part(step, columns, {EMBEDDING: 1.0}, scale),
        _part(step, columns, {HEAD: 1.0}, scale),
        float((device * sigma).sum() / max(float(device.sum()), 1e-300)),
        basis,
        _update_host_seconds(step.weights, point, scale),
    )


@lru_cache(maxsize=256)
def _on_any_device(arch: Architecture, point: Point) -> tuple[OpTable, F64]:
    """Rows of the step's signatures and [N] host seconds of its operations without :func:`host_scale`; shared by a search over
    devices."""
    capture = eager_step(arch, point).capture
    return step_rows(capture), host_seconds(capture)


def _update_host_seconds(tensors: int, point: Point, scale: float) -> float:
    """Host seconds of the update. ``foreach`` AdamW: every pass reads each list of tensors. Fused: one list of all operands.
    Python loop: every operation on every tensor is a call and a launch."""
    model = load_json("host_time")
    call = float(model["dispatch_s"]) + float(model["python_s"])
    if point.stack.loops(point.precision):
        return scale * tensors * len(LOOP) * (call + float(model["launch_s"]))
    if point.stack.fused_optimizer:
        return scale * (float(model["tensor_s"]) * FUSED_OPERANDS * tensors + call)
    lists = sum(reads for _, reads, _ in ADAMW)
    return scale * (float(model["tensor_s"]) * lists * tensors + len(ADAMW) * call)


class _Columns(NamedTuple):
    """[N] of each operation; ``family`` 0 products, 1 attention, 2 the rest."""

    device_s: F64
    host_s: F64
    kernels: F64
    flop: F64
    family: I64
    phase: I64


def _part(step: EagerStep, columns: _Columns, weights: dict[int, float], scale: float) -> PartSums:
    device, host, kernels, flop, family, phase = columns
    weight = np.zeros(len(device))
    for part, share in weights.items():
        weight[step.part == part] = share
    forward, backward = phase == Phase.FORWARD, phase == Phase.BACKWARD

    def sums(mask: Bool) -> Sums:
        w = np.where(mask, weight, 0.0)
        by_family = np.bincount(family, weights=device * w, minlength=3)
        return Sums(
            (float(by_family[0]), float(by_family[1]), float(by_family[2])),
            float((host * w).sum()),
            float((kernels * w).sum()),
            float((flop * w).sum()),
        )

    full = sums(forward & step.again)
    saved_tensors = 0.0 if step.capture.settings.compiled else sum(n * step.saved.get(part, 0) for part, n in weights.items())
    saving_s = _handing_out_s(saved_tensors, scale)
    return PartSums(sums(forward), sums(forward & (family == 2)), full._replace(host_s=full.host_s + saving_s), sums(backward))


DETACHES = 1.5
"""Views that a checkpoint makes of each saved tensor in the backward: 90 of 60 in two layers of BERT, 126 of 80 of Llama
(captured; ``torch.utils.checkpoint`` without reentrant autograd)."""


def _handing_out_s(saved: float, scale: float) -> float:
    """Host seconds of a checkpoint's backward beside the operations it runs again."""
    model = load_json("host_time")
    return scale * DETACHES * saved * (float(model["view_s"]) + 0.5 * float(model["node_s"]))


ADAMW = (
    ("mul_", 1, 1),
    ("lerp_", 2, 1),
    ("mul_", 1, 1),
    ("addcmul_", 2, 1),
    ("sqrt", 1, 1),
    ("div_", 1, 1),
    ("add_", 1, 1),
    ("addcdiv_", 3, 1),
)
"""Passes of ``foreach`` AdamW with the tensors each reads and writes (torch/optim/adamw.py _multi_tensor_adamw)."""
LOOP = (
    ("mul", 1, 1),
    ("div", 1, 1),
    ("mul_", 1, 1),
    ("add_", 2, 1),
    ("mul_", 1, 1),
    ("addcmul_", 2, 1),
    ("sqrt", 1, 1),
    ("add", 1, 1),
    ("div", 2, 1),
    ("mul", 1, 1),
    ("add_", 2, 1),
    ("mul", 1, 1),
    ("neg", 1, 1),
    ("add_", 2, 1),
)
"""The same of NVIDIA's BertAdam on each parameter (DeepLearningExamples PyTorch/LanguageModeling/BERT optimization.py)."""
FUSED_OPERANDS = 4
"""Tensors of a parameter that a fused update takes: weight, gradient and two moments."""
_MANY = 1 << 26


def update_seconds(accelerator: Accelerator, strategy: Strategy) -> float:
    """Seconds a parameter of the optimizer's update, as ``foreach`` kernels over large tensors."""
    width = 4.0 if strategy.master_weights else 2.0
    form = "fp32" if strategy.master_weights else strategy.precision
    tensor = TensorSpec((_MANY,), (1,), form)
    stack = find_stack(strategy.stack)
    if stack.loops(strategy.precision) and strategy.optimizer == "adamw":
        signatures = [_pass(name, tensor, reads * width, writes * width) for name, reads, writes in LOOP]
    elif stack.fused_optimizer:
        traffic = update_traffic_bytes(strategy, fused=True)
        signatures = [_pass("add_", tensor, 0.6 * traffic, 0.4 * traffic)]
    elif strategy.optimizer == "adamw":
        signatures = [_pass(name, tensor, reads * width, writes * width) for name, reads, writes in ADAMW]
    else:
        traffic = update_traffic_bytes(strategy, fused=False)
        signatures = [_pass("add_", tensor, 0.6 * traffic, 0.4 * traffic)]
    return _per_parameter(accelerator, tuple(signatures))


def accumulation_seconds(accelerator: Accelerator, strategy: Strategy) -> float:
    """Seconds a parameter that adding a micro-batch's gradient to those before it takes: two are read, one is written."""
    width = 4.0 if strategy.master_weights else 2.0
    tensor = TensorSpec((_MANY,), (1,), "fp32" if strategy.master_weights else strategy.precision)
    return _per_parameter(accelerator, (_pass("add_", tensor, 2 * width, width),))


@lru_cache(maxsize=256)
def _per_parameter(accelerator: Accelerator, passes: tuple[Signature, ...]) -> float:
    """Seconds a parameter of ``passes`` over large tensors: many strategies have the same."""
    return float(times_of(passes, Settings("2.13.0", (8, 0)), accelerator).time_s.sum()) / _MANY


def _pass(name: str, tensor: TensorSpec, read_bytes: float, written: float) -> Signature:
    return Signature(f"aten._foreach_{name}.Scalar", Kind.MEMORY, (tensor,), (), (), 0.0, read_bytes * _MANY, written * _MANY, 1)


def described(arch: Architecture, points: Sequence[Point]) -> bool:
    """Whether all ``points`` are plain PyTorch steps of modules that are written operation by operation."""
    from gpuwise.workload.transformer.eager import describes

    return all(p.stack.per_op and describes(arch, p) for p in points)
