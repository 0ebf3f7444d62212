"""Errors of the matrix-product fit on rows it did not see, and the intervals that follow from them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.gemm.rows import FIT, GemmRows, accelerator_of, predict_rows, settled
from gpuwise.predict.kernels.gemm.coefficients import DURATION_EDGES_S, build, duration_class
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
Document = dict[str, Any]
Arrays = Mapping[str, NDArray[Any]]
Refit = Callable[[GemmRows, Sequence[str]], tuple[Document, Arrays]]

SIBLINGS = ("b200_sxm", "gb200")
"""Two devices of one family: each predicted from the other says how far a sibling is off."""
LONG_S = 2e-5


def errors_of(document: Document, arrays: Arrays, key: str, gpu: str, rows: GemmRows) -> dict[str, Any]:
    """Row count, MAPE, median, the MAPE of rows over 20 us, bias and interval widths by class of duration."""
    accelerator = accelerator_of(gpu)
    assert accelerator is not None
    predicted = predict_rows(accelerator, key, document, arrays, rows)
    relative = predicted / rows.time_s - 1
    long = rows.time_s > LONG_S
    classes = duration_class(predicted)
    widths = [_width(rows.time_s[classes == c], predicted[classes == c]) for c in range(len(DURATION_EDGES_S) + 1)]
    return {
        "rows": len(rows),
        "mape": _rounded(np.abs(relative).mean()),
        "median_ape": _rounded(np.median(np.abs(relative))),
        "mape_over_20us": _rounded(np.abs(relative[long]).mean()) if long.any() else None,
        "bias": _rounded(relative.mean()),
        "log_sigma": widths,
    }


def _width(measured: F64, predicted: F64) -> float | None:
    return _rounded(log_sigma_of(measured, predicted)) if measured.size >= 100 else None


def _rounded(x: Any) -> float:
    return float(f"{float(x):.4g}")


def device_only(document: Document, key: str, gpu: str, rows: GemmRows) -> list[float | None]:
    """Interval widths of the physics without correction, on rows that the host's launch does not hide."""
    accelerator = accelerator_of(gpu)
    assert accelerator is not None
    floor = build(accelerator, key, document, {}).host_floor_s
    clear = rows.take(rows.time_s > 2.0 * floor)
    predicted = predict_rows(accelerator, key, document, {}, clear)
    classes = duration_class(predicted)
    return [_width(clear.time_s[classes == c], predicted[classes == c]) for c in range(len(DURATION_EDGES_S) + 1)]


def device_only_widths(document: Document, rows: GemmRows) -> dict[str, list[float]]:
    """:func:`device_only` by ``implementation/family`` where timing loops were not graph-captured."""
    many: dict[str, list[list[float]]] = {}
    for key, floors in document["host_floor_s"].items():
        part = rows.take(rows.implementation == key)
        for gpu in part.gpu.distinct():
            accelerator = accelerator_of(gpu)
            if accelerator is not None and any(f["accelerator"] == accelerator.id for f in floors):
                widths = device_only(document, key, gpu, part.take(part.gpu == gpu))
                if any(w is not None for w in widths):
                    many.setdefault(f"{key}/{accelerator.family}", []).append(filled(widths))
    return {k: [_rounded(x) for x in np.mean(v, axis=0)] for k, v in many.items()}


def check_report(document: Document, arrays: Arrays, rows: GemmRows) -> dict[str, Any]:
    """Errors on ``rows`` by ``implementation/accelerator``."""
    out: dict[str, Any] = {}
    for key in sorted(document["physics"]):
        part = rows.take(rows.implementation == key)
        for gpu in part.gpu.distinct():
            accelerator = accelerator_of(gpu)
            if accelerator is not None and accelerator.id in document["measured"][key]:
                out[f"{key}/{accelerator.id}"] = errors_of(document, arrays, key, gpu, part.take(part.gpu == gpu))
    return out


def transfer_report(rows: GemmRows, document: Document, refit: Refit) -> dict[str, Any]:
    """Errors on devices left out whole: from a sibling of their family (the host's launch cost known,
    GB200's power dip left out), and from other families."""
    out: dict[str, Any] = {"sibling": {}, "family": {}}
    both = rows.take((rows.gpu == SIBLINGS[0]) | (rows.gpu == SIBLINGS[1]))
    for gpu_out in SIBLINGS:
        trial, arrays = refit(both.take(both.part == FIT), (gpu_out,))
        trial["host_floor_s"] = document["host_floor_s"]
        for key in sorted(trial["physics"]):
            part = both.take((both.gpu == gpu_out) & (both.implementation == key))
            if len(part) and trial["physics"][key]:
                out["sibling"][f"{key}/{gpu_out}"] = errors_of(trial, arrays, key, gpu_out, settled(gpu_out, part))
    for key in sorted(document["physics"]):
        part = rows.take(rows.implementation == key)
        for gpu in part.gpu.distinct():
            accelerator = accelerator_of(gpu)
            others = {f: v for f, v in document["physics"][key].items() if accelerator and f != accelerator.family}
            if accelerator is None or not others or accelerator.id not in document["measured"][key]:
                continue
            if accelerator.family.startswith("Xe"):
                continue
            trial = document | {"physics": document["physics"] | {key: others}}
            out["family"][f"{key}/{accelerator.id}"] = errors_of(trial, {}, key, gpu, part.take(part.gpu == gpu))
    return out


def intervals(errors: Mapping[str, Any], transfer: Mapping[str, Any]) -> dict[str, Any]:
    """Interval widths by provenance; a class with too few rows takes its neighbour's."""
    fitted = {key: filled(e["log_sigma"]) for key, e in errors.items()}
    derived: dict[str, list[float]] = {}
    for key in sorted({k.split("/")[0] for k in transfer["sibling"]}):
        many = [filled(e["log_sigma"]) for k, e in transfer["sibling"].items() if k.split("/")[0] == key]
        derived[key] = [_rounded(x) for x in np.mean(many, axis=0)]
    specified = [filled(e["log_sigma"]) for k, e in transfer["family"].items() if k.startswith("bf16/")]
    wide = [_rounded(x) for x in np.mean(specified, axis=0)]
    return {
        "fitted": fitted,
        "derived": derived,
        "specified": wide,
        "unknown": [_rounded(1.5 * x) for x in wide],
    }


def filled(widths: Sequence[float | None]) -> list[float]:
    """``widths`` with the nearest measured class's where a class has none."""
    measured = [(i, w) for i, w in enumerate(widths) if w is not None]
    return [min(measured, key=lambda pair: abs(pair[0] - i))[1] for i in range(len(widths))]


def provenance(rows: GemmRows, errors: Mapping[str, Any], transfer: Mapping[str, Any]) -> dict[str, Any]:
    """The ``provenance`` block of gemm.json: sources, rows, date, split and the errors of the fit."""
    return {
        "sources": [
            "NVIDIA/ai-dynamo aiconfigurator, measured kernel tables (Apache-2.0): matmul by CUDA graph",
            "stas00/ml-engineering, maximum achievable matmul FLOPS (CC BY-SA 4.0): CDNA3, CDNA4, Gaudi",
        ],
        "rows": len(rows),
        "date": datetime.date.today().isoformat(),
        "split": "of ten (n, k) sites eight fit, one sets the intervals, one only checks",
        "check": dict(errors),
        "left_out": dict(transfer),
    }
