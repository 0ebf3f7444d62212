"""How far captured operations are from single kernels that were measured, by family and card.

NeuSight's per-operation tables (fp32 without TF32; Lee et al., ASPLOS 2025, MIT) as signatures of a capture: pointwise, softmax,
LayerNorm, matrix products and 3 x 3 convolutions on Pascal to Ampere. The kernels' constants were fitted on one half of the
shapes (``studies.neusight.fit``); this looks at the other half, at rows long enough that the host is not what was measured.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.step.capture_time import signature_times
from gpuwise.workload.capture.captured import Capture, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.row_codes import Kind
from studies.neusight.bench_time import SHORTEST_S, convolution_bench_time, convolutions_of
from studies.neusight.host import launch_growth_s
from studies.neusight.tables import BINARY, UNARY, OpRows, accelerator_of, read_ops

F64 = NDArray[np.float64]
ROWS_PER_GROUP = 400


class FamilyError(NamedTuple):
    """Of the rows of one family on one card."""

    family: str
    gpu: str
    rows: int
    mape: float
    median_ape: float
    bias: float
    """Median of predicted over measured."""


def check(folder: Path) -> list[FamilyError]:
    """Errors on the half of the shapes that nothing was fitted on; empty when the tables are not in ``folder``."""
    rows = read_ops(folder)
    if rows is None:
        return []
    event_s = float(load_json("neusight")["bench"]["event_s"])
    picker = np.random.default_rng(7)
    out: list[FamilyError] = []
    for gpu in sorted(set(rows.gpu.tolist())):
        accelerator = accelerator_of(gpu)
        if accelerator is None:
            continue
        for family, ops in _FAMILIES.items():
            here = rows.select((rows.gpu == gpu) & np.isin(rows.op, ops))
            index = np.flatnonzero((here.site == 1) & (here.measured_s > SHORTEST_S))
            if not index.size:
                continue
            picked = np.sort(picker.permutation(index)[:ROWS_PER_GROUP])
            part = here.select(picked)
            extra = _launch_s(here, accelerator)[picked] if family == "convolution" else event_s
            ratio = (device_seconds(part, accelerator) + extra) / part.measured_s
            error = np.abs(ratio - 1.0)
            out.append(
                FamilyError(
                    family, accelerator.id, len(part), float(np.mean(error)), float(np.median(error)), float(np.median(ratio))
                )
            )
    return out


def _launch_s(rows: OpRows, accelerator: Accelerator) -> F64:
    """[R] what launching each of a GPU's convolutions took on its machine."""
    device_s = convolution_bench_time(accelerator, convolutions_of(rows), load_json("convolution"))
    return launch_growth_s(rows, device_s)


def device_seconds(rows: OpRows, accelerator: Accelerator) -> F64:
    """[R] device seconds of the rows, as operations of a captured step."""
    signatures = [signature_of(op, shape) for op, shape in zip(rows.op.tolist(), rows.shape.tolist(), strict=True)]
    distinct = list(dict.fromkeys(signatures))
    times = signature_times(_capture(distinct), accelerator).time_s
    where = {s: i for i, s in enumerate(distinct)}
    return times[[where[s] for s in signatures]]


_FAMILIES = {
    "elementwise": tuple(o for o in (*UNARY, *BINARY) if not o.startswith("pow")),
    "softmax": ("softmax",),
    "norm": ("ln",),
    "matmul": ("linear", "bmm"),
    "convolution": ("conv",),
}


def signature_of(op: str, shape: list[float]) -> Signature:
    """A row of the tables (``OpRows.shape``) as PyTorch dispatches it."""
    a, b, c, d = (int(x) for x in shape)
    if op == "linear":  # y[M, N] = x[M, K] w[N, K]^T
        return _signature("mm", [_spec(b, d), TensorSpec((d, c), (1, d), "fp32")], _spec(b, c), Kind.MATMUL, 2.0 * b * c * d)
    if op == "bmm":
        return _signature("bmm", [_spec(a, b, d), _spec(a, d, c)], _spec(a, b, c), Kind.MATMUL, 2.0 * a * b * c * d)
    if op == "conv":
        flop = 2.0 * a * d * d * b * c * 9
        attributes = (("stride", (1, 1)), ("padding", (1, 1)), ("transposed", False), ("groups", 1))
        inputs = [_spec(a, b, d, d), _spec(c, b, 3, 3)]
        return _signature("convolution", inputs, _spec(a, c, d, d), Kind.CONVOLUTION, flop, attributes)
    one = _spec(a, b)
    if op == "ln":
        return _signature("native_layer_norm", [one], one, Kind.MEMORY, 0.0, (("normalized_shape", (b,)),))
    if op == "softmax":
        return _signature("_softmax", [one], one, Kind.MEMORY, 0.0, (("dim", 1),))
    return _signature({"powu": "pow"}.get(op, op), [one, one] if op in BINARY else [one], one, Kind.MEMORY, 0.0)


def _spec(*shape: int) -> TensorSpec:
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return TensorSpec(shape, stride, "fp32")


def _signature(
    name: str,
    inputs: list[TensorSpec],
    output: TensorSpec,
    kind: Kind,
    flop: float,
    attributes: tuple[tuple[str, object], ...] = (),
) -> Signature:
    read_bytes, written_bytes = (4.0 * sum(math.prod(t.shape) for t in group) for group in (inputs, [output]))
    return Signature(f"aten.{name}.default", kind, tuple(inputs), (output,), attributes, flop, read_bytes, written_bytes, 1)


def _capture(signatures: list[Signature]) -> Capture:
    n, nothing = len(signatures), np.zeros(0, np.int64)
    zeros = np.zeros(n, np.int64)
    return Capture(
        signatures=tuple(signatures),
        modules=("",),
        module_types=("",),
        lines=("",),
        op_signature=np.arange(n),
        op_phase=zeros,
        op_module=zeros,
        op_line=zeros,
        op_stream=zeros,
        op_flags=zeros,
        storage_bytes=nothing,
        storage_category=nothing,
        storage_op=nothing,
        storage_module=nothing,
        storage_dtype=(),
        storage_stream=nothing,
        event_storage=nothing,
        event_sign=np.zeros(0, np.int8),
        event_op=nothing,
        steps=(StepSpan(0, n, 0, 0),),
        settings=Settings("2.1.0", (8, 0), matmul_tf32=False, cudnn_tf32=False),
    )
