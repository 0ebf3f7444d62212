"""What ``torch.compile`` (Inductor) makes of a captured step: fused kernels, fewer launches, tensors never written.

Pointwise operations, reductions and norms that follow one another without a library call in between become one kernel when
they go over the same elements, or read the same tensor. A fused kernel reads each tensor from outside once and writes only
what others read. What the backward needs of a fused forward is computed again from the kernel's own inputs where those are
no more bytes than the tensor itself (the partitioner's minimum cut; He and Yu, functorch min-cut partitioner). Matrix
products, convolutions and attention stay library calls; convolutions get channels-last images. The host enters each
compiled graph once for the forward and once for the backward and launches each kernel from generated code, or the whole as
one CUDA graph. The optimizer stays eager. Costs: ``host_time.json``, ``compiled``.

Where the capture knows no data flow (an edited step), neighbours over the same elements are taken as producer and consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.step.host_time import host_scale
from gpuwise.workload.capture.captured import Capture, OpFlag, Signature, TensorSpec
from gpuwise.workload.capture.record.families import elements, largest, normalised_row, short_name, whole_numbers
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.step import FAMILIES, OpTableBuilder

F64 = NDArray[np.float64]
FUSIBLE = ("elementwise", "norm", "softmax", "reduction", "dropout", "copy", "loss")
_ROWS = ("norm", "softmax")
GRAPH_MODES = ("reduce-overhead", "max-autotune")


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """[N] device and host seconds and launches of the step as compiled; a fused kernel is listed at its last operation."""

    device_s: F64
    host_s: F64
    kernels: NDArray[np.int64]
    fused: NDArray[np.bool_]
    """Operations that are part of a fused kernel."""
    groups: int
    """Fused kernels."""


@dataclass(slots=True)
class FusionGroup:
    """One fused kernel."""

    level: int
    phase: int
    count: int
    """Elements it goes over."""
    ops: list[int] = field(default_factory=list[int])
    read_bytes: dict[int, float] = field(default_factory=dict[int, float])
    """Bytes of each tensor (storage) that comes from outside."""
    written_bytes: dict[int, float] = field(default_factory=dict[int, float])
    reduced: set[int] = field(default_factory=set[int])
    """Results of reductions over more than a row: complete only when the kernel ends."""
    moments: float = 0.0
    """Bytes read once more for moments over the whole batch, in a kernel of their own."""
    row_bytes: float = 0.0
    rows: bool = False
    visits: float = 0.0


def compile_step(
    capture: Capture,
    accelerator: Accelerator,
    step: int,
    device_s: F64,
    host_s: F64,
    family: NDArray[np.int64],
    *,
    everything: bool,
) -> CompiledStep:
    """The step with its compiled part fused. ``device_s``, ``host_s`` and ``family`` [N] are those of the eager step.

    ``everything`` compiles forward and backward whole; otherwise the regions the capture marks (all, if it marks none).
    """
    span = capture.steps[step]
    part = slice(span.first_op, span.end_op)
    phase, flags = capture.op_phase[part], capture.op_flags[part]
    inside = phase != Phase.OPTIMIZER
    marked = (flags & OpFlag.COMPILED) != 0
    if not everything and marked.any():
        inside &= marked
    groups = _fuse(capture, part, inside, family)
    _cut(groups, _readers(capture, part, groups))
    device, kernels = device_s.copy(), np.array([s.n_kernels for s in capture.signatures])[capture.op_signature[part]]
    fused = np.zeros(len(device), dtype=bool)
    times = _times(accelerator, groups, capture.settings.torch_version.startswith("1."))
    for group, seconds in zip(groups, times.tolist(), strict=True):
        fused[group.ops], device[group.ops], kernels[group.ops] = True, 0.0, 0
        device[group.ops[-1]] = seconds
        kernels[group.ops[-1]] = 1 + (group.moments > 0)
    issued = inside & ((flags & OpFlag.REPLAYED) == 0)
    host = np.where(issued, 0.0, host_s)
    launched = issued & (kernels > 0)
    model: dict[str, Any] = load_json("host_time")["compiled"]
    if capture.settings.compile_mode.startswith(GRAPH_MODES):
        each, entry = 0.0, float(model["graph_entry_s"])
    else:
        each, entry = float(model["kernel_s"]), float(model["entry_s"])
    scale = host_scale(accelerator)
    host = np.where(launched, np.maximum(each * np.minimum(kernels, 4), 0.0) * scale, host)
    entered = issued & ((flags & OpFlag.ENTRY) != 0)
    if everything or not entered.any():
        firsts = [np.flatnonzero(issued & (phase == one))[:1] for one in (Phase.FORWARD, Phase.BACKWARD)]
        entered = np.isin(np.arange(len(issued)), np.concatenate(firsts))
    host[entered] += entry * scale
    return CompiledStep(device, host, kernels, fused, len(groups))


def _fuse(capture: Capture, part: slice, inside: NDArray[np.bool_], family: NDArray[np.int64]) -> list[FusionGroup]:
    """Greedy, in program order: an operation joins the newest kernel it may."""
    fusible = {FAMILIES.index(f) for f in FUSIBLE}
    signature, phase = capture.op_signature[part].tolist(), capture.op_phase[part].tolist()
    flow = _Flow(capture, part)
    groups: list[FusionGroup] = []
    owner: dict[int, int] = {}
    level: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for i, at in enumerate(signature):
        s = capture.signatures[int(at)]
        if not s.n_kernels:
            continue
        ins, outs = flow.of(i, s)
        depth = max((level.get(t, 0) for t, _ in ins), default=0)
        if not inside[i] or int(family[i]) not in fusible:
            for t, _ in outs:
                level[t] = depth + 1
                owner.pop(t, None)
            continue
        whole = largest(s)
        count = elements(whole) if whole is not None else 0
        candidates = [owner[t] for t, _ in ins if t in owner] + [g for t, _ in ins for g in readers.get(t, ())[-2:]]
        chosen = next((g for g in sorted(set(candidates), reverse=True) if _may_join(groups[g], depth, phase[i], count, ins)), -1)
        if chosen < 0:
            groups.append(FusionGroup(depth, phase[i], count))
            chosen = len(groups) - 1
        _join(groups[chosen], i, s, FAMILIES[int(family[i])], ins, outs)
        for t, _ in ins:
            readers.setdefault(t, []).append(chosen)
        later = depth + (1 if _reduces_all(s, FAMILIES[int(family[i])]) else 0)
        for t, _ in outs:
            owner[t], level[t] = chosen, later
    return groups


class _Flow:
    """(storage, bytes) of what an operation reads and writes."""

    def __init__(self, capture: Capture, part: slice) -> None:
        self.has_flow = capture.has_flow
        if self.has_flow:
            self.inputs, self.outputs = capture.op_inputs.tolist(), capture.op_outputs.tolist()
            self.input_end = [0, *capture.op_input_end.tolist()]
            self.output_end = [0, *capture.op_output_end.tolist()]
        self.first = part.start
        self.last = -1
        self.last_shape: tuple[int, ...] = ()

    def of(self, i: int, s: Signature) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        if not self.has_flow:
            return self._neighbours(i, s)
        at = self.first + i
        ins = self.inputs[self.input_end[at] : self.input_end[at + 1]]
        outs = self.outputs[self.output_end[at] : self.output_end[at + 1]]
        return _sized(ins, s.inputs, s.bytes_read), _sized(outs, s.outputs, s.bytes_written)

    def _neighbours(self, i: int, s: Signature) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Stand-in storages: the previous result feeds the first input of its shape; other inputs come from outside."""
        ins: list[tuple[int, float]] = []
        linked = False
        for k, t in enumerate(s.inputs):
            if not linked and t.shape == self.last_shape and self.last >= 0:
                ins.append((self.last, _bytes(t)))
                linked = True
            else:
                ins.append((-(i * 64 + k) - 2, _bytes(t)))
        self.last, self.last_shape = i, s.outputs[0].shape if s.outputs else (s.inputs[0].shape if s.inputs else ())
        return ins, [(i, sum(_bytes(t) for t in s.outputs) or s.bytes_written)]


def _bytes(t: TensorSpec) -> float:
    distinct = 1
    for n, stride in zip(t.shape, t.stride, strict=True):
        distinct *= n if stride else 1
    return float(distinct * TENSOR_BYTES.get(t.dtype, 4))


def _sized(storages: list[int], specs: tuple[TensorSpec, ...], total: float) -> list[tuple[int, float]]:
    if len(storages) == len(specs):
        return [(t, _bytes(spec)) for t, spec in zip(storages, specs, strict=True) if t >= 0]
    return [(t, total / max(len(storages), 1)) for t in storages if t >= 0]


def _reduces_all(s: Signature, family: str) -> bool:
    """A result that is complete only when every block has run: sums over rows, moments over a batch."""
    if family == "loss":
        return True
    if family == "reduction":
        first = s.inputs[0].shape if s.inputs else ()
        dims = whole_numbers(s.attribute("dim")) or tuple(range(len(first)))
        return len(first) - 1 not in {d % max(len(first), 1) for d in dims} or len(dims) >= len(first) > 1
    return False


def _may_join(group: FusionGroup, depth: int, phase: int, count: int, ins: list[tuple[int, float]]) -> bool:
    if group.level != depth or group.phase != phase or any(t in group.reduced for t, _ in ins):
        return False
    return count == group.count or (group.count % max(count, 1) == 0 and count * 64 >= group.count)


def _join(
    group: FusionGroup, i: int, s: Signature, family: str, ins: list[tuple[int, float]], outs: list[tuple[int, float]]
) -> None:
    group.ops.append(i)
    for t, size in ins:
        if t not in group.written_bytes:
            group.read_bytes[t] = max(size, group.read_bytes.get(t, 0.0))
    for t, size in outs:
        group.written_bytes[t] = max(size, group.written_bytes.get(t, 0.0))
        if _reduces_all(s, family):
            group.reduced.add(t)
    whole = largest(s)
    group.visits = max(group.visits, float(elements(whole)) if whole is not None else 0.0)
    if family in _ROWS:
        name = short_name(s.op)
        if "batch_norm" in name or "group_norm" in name:
            if s.attribute("training") is not False:
                group.moments += _bytes(s.inputs[0]) * (2.0 if "backward" in name else 1.0)
        else:
            group.rows, group.row_bytes = True, max(group.row_bytes, normalised_row(s))
            if "layer_norm_backward" in name or "rms_norm_backward" in name:
                group.moments += 2.0 * _bytes(s.inputs[0])


def _readers(capture: Capture, part: slice, groups: list[FusionGroup]) -> dict[int, set[int]]:
    """Who reads each tensor a group makes: groups by number, -1 for everything else (and what outlives the step)."""
    flow = _Flow(capture, part)
    where = {i: g for g, group in enumerate(groups) for i in group.ops}
    out: dict[int, set[int]] = {}
    for i, at in enumerate(capture.op_signature[part].tolist()):
        s = capture.signatures[int(at)]
        if s.n_kernels:
            for t, _ in flow.of(i, s)[0]:
                out.setdefault(t, set()).add(where.get(i, -1))
    if not flow.has_flow:  # what comes last out of a kernel is taken to be read
        for group in groups:
            out.setdefault(group.ops[-1], set()).add(-1)
    else:
        span = next(s for s in capture.steps if s.first_op == part.start)
        events = slice(span.first_event, span.end_event)
        freed = set(capture.event_storage[events][capture.event_sign[events] < 0].tolist())
        for group in groups:
            for t in group.written_bytes:
                if t not in freed:
                    out.setdefault(t, set()).add(-1)
    return out


def _cut(groups: list[FusionGroup], readers: dict[int, set[int]]) -> None:
    """Drop writes that no outside operation reads, and those that the backward recomputes at lower cost."""
    for number, group in enumerate(groups):
        for t in list(group.written_bytes):
            outside = readers.get(t, set()) - {number}
            if not outside:
                del group.written_bytes[t]
                continue
            if -1 in outside or group.phase == Phase.BACKWARD or t in group.reduced:
                continue
            if all(groups[g].phase == Phase.BACKWARD for g in outside):
                extra = [{k: v for k, v in group.read_bytes.items() if k not in groups[g].read_bytes} for g in outside]
                if sum(sum(e.values()) for e in extra) <= group.written_bytes[t] * (1.0 + len(outside)):
                    for g, more in zip(outside, extra, strict=True):
                        groups[g].read_bytes.pop(t, None)
                        groups[g].read_bytes.update(more)
                    del group.written_bytes[t]


def _times(accelerator: Accelerator, groups: list[FusionGroup], before_torch_2: bool) -> F64:
    """[G] device seconds."""
    rows = OpTableBuilder()
    for g in groups:
        rows.add(
            "fused",
            Kind.MEMORY,
            Phase(g.phase),
            "fp32",
            read_bytes=sum(g.read_bytes.values()) + g.moments,
            written_bytes=sum(g.written_bytes.values()),
            n_kernels=1.0 + (g.moments > 0),
            family="norm" if g.rows else "elementwise",
            kernel="fused",
            detail=(1.0, g.visits, g.row_bytes),
        )
    if not groups:
        return np.zeros(0)
    return kernel_times(rows.build(), accelerator, Conditions(compiled=True, before_torch_2=before_torch_2)).time_s
