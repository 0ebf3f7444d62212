"""The NeuSight family of validation: single fp32 kernels (Lee et al., ASPLOS 2025).

Sources: ``neusight ops: <kind>``, told into fit and check by whole shape. The baseline is the roofline (FLOP over peak or
bytes over bandwidth, the larger) times one constant a source. Whole models of the study are captured
(``calibrate.capture_time``).

Short rows show what issues them, not the kernel: the study ran each GPU in another machine. What an operation of a machine
takes at least, and what launching a convolution takes, is read from the table itself (:mod:`studies.neusight.host`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores
from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.gemm import fp32
from gpuwise.predict.kernels.memory_bound import Pattern, memory_time
from studies.neusight.bench_time import bench_time, convolution_bench_time, convolutions_of
from studies.neusight.host import host_floor_s, launch_growth_s
from studies.neusight.tables import BINARY, UNARY, OpRows, accelerator_of, read_ops

F64 = NDArray[np.float64]
FP32 = 4.0
KINDS = {
    **{name: name for name in ("linear", "bmm", "conv", "ln", "softmax")},
    **dict.fromkeys(BINARY + UNARY, "elementwise"),
}


class ScoreColumns(NamedTuple):
    """Columns of :class:`Scores` still without split."""

    source: list[str]
    gpu: list[str]
    check: list[bool]
    measured: list[float]
    predicted: list[float]
    roofline: list[float]
    situation: list[str]
    reason: list[str]


def score(folder: Path, all_check: bool) -> Scores | None:
    """Score the tables of the study in ``folder``; None when there is none."""
    rows = read_ops(folder)
    return None if rows is None else _scores(collect(rows), all_check, load_json("neusight"))


def _scores(scored: ScoreColumns, all_check: bool, document: dict[str, Any]) -> Scores:
    baseline = np.array([document["baseline"].get(s) or np.nan for s in scored.source])
    sigma = np.array([_sigma(document, name) for name in scored.situation])
    return Scores(
        source=scored.source,
        gpu=scored.gpu,
        split=["check" if all_check or c else "fit" for c in scored.check],
        measured=np.array(scored.measured),
        predicted=np.array(scored.predicted),
        log_sigma=sigma,
        baseline=baseline * np.array(scored.roofline),
        reason=scored.reason,
    )


def _sigma(document: dict[str, Any], situation: str) -> float:
    """Interval width of a situation; on a GPU whose kernels were never measured, that of the measured ones
    and the spread between GPUs in quadrature."""
    table: dict[str, float] = document["log_sigma"]
    kind, card = situation.rsplit(" | ", 1)
    if not card.startswith("new"):
        return table.get(situation, table.get(f"{kind} | known", 0.2))
    like = table.get(f"{kind} | limited") if card == "new limited" else None
    like = like or table.get(f"{kind} | known", table.get(f"{kind.split()[0]} | known", 0.2))
    return float(np.hypot(like, document["new_gpu_log_sigma"][kind.split()[0]]))


def _card(accelerator: Accelerator | None) -> str:
    """What kind of GPU an interval hangs on: ``known``; ``limited`` by a power limit of 80 W or less;
    ``sm_61`` (its library switches between kernels far apart in speed); ``new`` ones no kernel was measured
    on."""
    if accelerator is None:
        return "known"
    limited = (accelerator.tdp_w or np.inf) <= 80.0
    if accelerator.id not in load_json("fp32")["measured"]:
        return "new limited" if limited else "new"
    if accelerator.compute_capability == "6.1":
        return "sm_61"
    return "limited" if limited else "known"


def collect(rows: OpRows) -> ScoreColumns:
    """Measured and predicted times of every operation of ``rows``."""
    scored = ScoreColumns([], [], [], [], [], [], [], [])
    _score_ops(rows, scored)
    return scored


def _score_ops(rows: OpRows, scored: ScoreColumns) -> None:
    document = load_json("neusight")
    check = rows.site == 1
    for name in sorted(set(rows.gpu)):
        accelerator = accelerator_of(name)
        for op in sorted(set(rows.op[rows.gpu == name])):
            index = np.flatnonzero((rows.gpu == name) & (rows.op == op))
            part = rows.select(index)
            n, kind = len(part), KINDS[op]
            reason, predicted, roofline = "", np.full(n, np.nan), np.full(n, np.nan)
            try:
                if accelerator is None:
                    raise UnpredictableError("accelerator not in the catalogue")
                device_s, roofline = _predict_ops(accelerator, op, part, document)
                predicted = _beside_host(op, part, device_s, document["bench"]["event_s"])
            except UnpredictableError as error:
                reason = error.reason
            scored.source.extend([f"neusight ops: {kind}"] * n)
            scored.gpu.extend([name] * n)
            scored.check.extend(check[index].tolist())
            scored.measured.extend(part.measured_s.tolist())
            scored.predicted.extend(predicted.tolist())
            scored.roofline.extend(roofline.tolist())
            scored.reason.extend([reason] * n)
            scored.situation.extend(_op_situations(_card(accelerator), kind, predicted))


def _beside_host(op: str, rows: OpRows, device_s: F64, event_s: float) -> F64:
    """Seconds as the study's events show them, given those of the device [R]."""
    if op == "conv":
        return device_s + launch_growth_s(rows, device_s)
    floor_s = host_floor_s(rows, device_s - event_s)
    return (device_s**OVERLAP + floor_s**OVERLAP) ** (1.0 / OVERLAP)


def _op_situations(card: str, kind: str, predicted: F64) -> list[str]:
    """``<kind> short|long | <card>``: short rows are the host's."""
    return [f"{kind} {'short' if p < 2e-4 else 'long'} | {card}" for p in predicted]


OVERLAP = 3.0
"""How the host's time and the device's add up: as the power 3 of both, best on the rows of every GPU alike."""


def _predict_ops(accelerator: Accelerator, op: str, rows: OpRows, document: dict[str, Any]) -> tuple[F64, F64]:
    """Seconds on the device, with the events around them, and by the roofline."""
    bench = document["bench"]
    peak, bandwidth = accelerator.peak("fp32"), accelerator.memory_bandwidth_bytes_per_s
    if op in ("linear", "bmm"):
        shapes = fp32.Shapes(*rows.shape.T)
        time = bench_time(accelerator, shapes, load_json("fp32"), op == "bmm")
        return time, np.maximum(shapes.flop / peak, shapes.bytes / bandwidth)
    if op == "conv":
        conv = convolutions_of(rows)
        time = convolution_bench_time(accelerator, conv, load_json("convolution"))
        return time, np.maximum(conv.flop / peak, conv.bytes(FP32) / bandwidth)
    elements = rows.shape[:, 0] * rows.shape[:, 1]
    reads = 2.0 if op in BINARY else 1.0
    pattern: Pattern = "norm" if op == "ln" else "softmax" if op == "softmax" else "elementwise"
    time = memory_time(
        accelerator,
        reads * FP32 * elements,
        FP32 * elements,
        pattern=pattern,
        elements=elements,
        row_bytes=FP32 * rows.shape[:, 1],
        blocks=rows.shape[:, 0] if op == "ln" else None,
    ).time_s
    return time + bench["event_s"], (reads + 1.0) * FP32 * elements / bandwidth
