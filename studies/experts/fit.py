"""Fits the expert-layer coefficients: ``fit(folder)`` rewrites ``predict/coefficients/kernels/moe.*``.

Needs scipy. As for matrix products: physics per kernel, format and family on the fit shapes (least squares
on log time with priors), boosted trees on what is left, errors on layer shapes kept out and on devices left
out. Deterministic; a few minutes on 2 cores.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.experts.rows import MoeRows, loads_of_rows, predict_rows, read_moe, roofline_of_rows
from gpuwise.calibrate.gemm.rows import CHECK, FIT, INTERVAL, accelerator_of
from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels import boosted
from gpuwise.predict.kernels.experts.coefficients import (
    DURATION_EDGES_S,
    FORMATS,
    build,
    duration_class,
    features,
    format_on,
)
from gpuwise.predict.kernels.experts.loads import Distribution, Loads
from gpuwise.predict.kernels.experts.physics import FIELDS, Format, PhysicalCoefficients, layer_physical_time
from gpuwise.predict.kernels.gemm.physics import Device
from studies import boosting, coefficient_files
from studies.optimizers import least_squares
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
Document = dict[str, Any]
Arrays = dict[str, NDArray[Any]]

PRIOR: dict[str, tuple[float, float]] = {
    "latency_clocks": (25000, 0.5),
    "row_clocks": (100, 1.0),
    "expert_clocks": (5, 1.0),
    "math_efficiency": (0.75, 0.1),
    "load_bytes_per_clock": (64, 0.8),
    "wave_rounding": (0.5, 0.5),
    "wave_clocks": (300, 1.0),
    "step_clocks": (150, 0.7),
    "epilogue_clocks": (3000, 0.7),
    "bandwidth_efficiency": (0.85, 0.04),
    "bandwidth_when_many": (0.9, 0.15),
    "row_bytes_weight": (0.6, 0.7),
    "foreign_bytes_weight": (0.2, 1.0),
    "hot_copies": (1.0, 0.5),
    "l2_bytes_per_clock": (15, 0.6),
    "p": (4, 0.3),
    "joules_per_flop": (0.4e-12, 0.6),
}
"""Centre and standard deviation (of the log); a kernel's data moves it from there."""
ROWS_FOR_PHYSICS, ROWS_FOR_TREES = 2500, 20_000
_PRIOR_WEIGHT, _WIDEST, _STEP = 0.2, 4.0, 0.02
SIBLINGS = {"b200_sxm": "gb200", "gb200": "b200_sxm"}


def fit(folder: Path) -> None:
    """Refit from ``folder/ops/moe.parquet`` and write the coefficient files. Raises DataError without the
    table."""
    rows = read_moe(folder)
    if rows is None:
        raise DataError(f"no ops/moe.parquet in {folder}")
    part = rows.part
    document, arrays = fit_rows(rows.take(part == FIT))
    widths = check_report(document, arrays, rows.take(part == INTERVAL))
    errors = check_report(document, arrays, rows.take(part == CHECK))
    transfer = transfer_report(rows, document)
    document["log_sigma"] = intervals(widths, transfer)
    document["provenance"] = {
        "sources": ["NVIDIA/ai-dynamo aiconfigurator, measured kernel tables (Apache-2.0): fused expert layers"],
        "rows": len(rows),
        "date": datetime.date.today().isoformat(),
        "split": "four layer shapes in five fit, of the rest half set the intervals and half only check",
        "check": errors,
        "left_out": transfer,
    }
    coefficient_files.write("moe", document, arrays)


def groups(rows: MoeRows) -> list[tuple[str, str, str, MoeRows]]:
    """(dtype, kernel, family, rows) for every combination that the catalogue can compute."""
    out: list[tuple[str, str, str, MoeRows]] = []
    for dtype in rows.dtype.distinct():
        of_dtype = rows.take(rows.dtype == dtype)
        for kernel in of_dtype.kernel.distinct():
            part = of_dtype.take(of_dtype.kernel == kernel)
            members: dict[str, list[str]] = {}
            for gpu in part.gpu.distinct():
                if can_do(gpu, dtype):
                    members.setdefault(accelerator_named(gpu).family, []).append(gpu)
            for family, gpus in members.items():
                keep = np.isin(part.gpu.text().astype(str), gpus)
                out.append((dtype, kernel, family, part.take(keep)))
    return out


def can_do(gpu: str, dtype: str) -> bool:
    """Whether the catalogue has the device behind the table's name, with a rate for ``dtype``."""
    accelerator = accelerator_of(gpu)
    if accelerator is None or dtype not in FORMATS:
        return False
    return any(d in accelerator.peak_flop_per_s for d in FORMATS[dtype][0])


def accelerator_named(gpu: str) -> Accelerator:
    """The catalogue's accelerator of a table's name ``gpu``; the tables read name no other."""
    accelerator = accelerator_of(gpu)
    assert accelerator is not None
    return accelerator


def fit_rows(rows: MoeRows) -> tuple[Document, Arrays]:
    """Coefficients from ``rows``; intervals still empty."""
    n = len(DURATION_EDGES_S) + 1
    document: Document = {
        "physics": {},
        "reference_units": {},
        "roofline_share": {},
        "log_sigma": {"fitted": {}, "unseen_shape": [0.1] * n, "derived": [0.1] * n, "specified": [0.2] * n},
    }
    arrays: Arrays = {}
    for dtype, kernel, family, part in groups(rows):
        gpus = part.gpu.distinct()
        document["reference_units"].setdefault(family, float(accelerator_named(gpus[0]).compute_units or 1))
        values: dict[str, Any] = dict(fit_physics(dtype, part))
        values["rows"] = len(part)
        values["devices"] = sorted(accelerator_named(g).id for g in gpus)
        document["physics"].setdefault(dtype, {}).setdefault(kernel, {})[family] = values
        _fit_trees(dtype, kernel, family, part, document, arrays)
        for gpu in gpus:
            share = np.median(roofline(dtype, part.take(part.gpu == gpu)) / part.take(part.gpu == gpu).time_s)
            document["roofline_share"].setdefault(dtype, {}).setdefault(accelerator_named(gpu).id, {})[kernel] = float(
                f"{share:.4g}"
            )
    return document, arrays


def _fit_trees(dtype: str, kernel: str, family: str, part: MoeRows, document: Document, arrays: Arrays) -> None:
    picked = np.random.default_rng(2).permutation(len(part))[:ROWS_FOR_TREES]
    sample = part.take(picked)
    tree_features: list[F64] = []
    log_ratios: list[F64] = []
    for gpu, distribution, r in by_device(sample):
        s = build(accelerator_named(gpu), dtype, kernel, document, {})
        tree_features.append(
            features(
                r.tokens,
                r.top_k,
                r.experts,
                r.ep,
                r.hidden,
                r.ffn / r.tp,
                r.wide,
                loads_of_rows(distribution, r),
                s.reference_units,
            )
        )
        log_ratios.append(np.log(r.time_s / predict_rows(s, distribution, r)))
    shapes = len({tuple(x) for x in np.stack([part.hidden, part.ffn, part.top_k, part.experts], axis=1)[::50]})
    trees = boosting.fit(np.concatenate(tree_features, axis=1), np.concatenate(log_ratios), settings=settings(len(part), shapes))
    arrays.update(boosted.pack(f"{dtype}/{kernel}/{family}", trees))


def settings(rows: int, shapes: int) -> boosting.Settings:
    """Few layer shapes leave little to learn about shapes: shallower, stiffer trees than for products."""
    if shapes < 3 or rows < 3000:
        return boosting.Settings(trees=60, depth=4, learning_rate=0.15, leaf_penalty=20.0)
    return boosting.Settings(trees=256, depth=6, learning_rate=0.15, leaf_penalty=30.0, feature_share=0.4)


def by_device(rows: MoeRows) -> list[tuple[str, Distribution, MoeRows]]:
    """Rows of each device and distribution."""
    out: list[tuple[str, Distribution, MoeRows]] = []
    for gpu in rows.gpu.distinct():
        for distribution in rows.distribution.distinct():
            part = rows.take((rows.gpu == gpu) & (rows.distribution == distribution))
            if len(part):
                out.append((gpu, cast(Distribution, distribution), part))
    return out


def roofline(dtype: str, rows: MoeRows) -> F64:
    """Seconds [R] at peak rate or full bandwidth of the routed products, whichever is longer, for rows of
    one device."""
    out = np.empty(len(rows))
    device, form = format_on(accelerator_named(rows.gpu.distinct()[0]), dtype)
    for distribution in rows.distribution.distinct():
        index = np.flatnonzero(rows.distribution == distribution)
        r = rows.take(index)
        out[index] = roofline_of_rows(device, form, loads_of_rows(cast(Distribution, distribution), r), r)
    return out


def fit_physics(dtype: str, rows: MoeRows) -> dict[str, float]:
    """Coefficients of one kernel and format on one family."""
    picked = np.random.default_rng(1).permutation(len(rows))[:ROWS_FOR_PHYSICS]
    parts: list[tuple[Device, Format, Loads, MoeRows]] = []
    for gpu, distribution, r in by_device(rows.take(picked)):
        device, form = format_on(accelerator_named(gpu), dtype)
        parts.append((device, form, loads_of_rows(distribution, r), r))
    centre, spread = np.log([PRIOR[f][0] for f in FIELDS]), np.array([PRIOR[f][1] for f in FIELDS])

    def coefficients(z: F64) -> dict[str, float]:
        values = {f: float(f"{np.exp(v):.6g}") for f, v in zip(FIELDS, centre + spread * z, strict=True)}
        return values | {
            "wave_rounding": min(values["wave_rounding"], 1.0),
            "math_efficiency": min(values["math_efficiency"], 1.0),
        }

    def objective(z: F64) -> F64:
        c = PhysicalCoefficients(**coefficients(z))
        out: list[F64] = []
        for device, form, load, r in parts:
            time = layer_physical_time(
                c,
                device,
                form,
                load,
                r.tokens,
                r.tokens * r.top_k,
                r.hidden,
                r.ffn / r.tp,
                r.experts / r.ep,
                r.wide,
            )
            out.append(np.log(time / r.time_s))
        return np.concatenate([*out, _PRIOR_WEIGHT * z])

    def slope(z: F64) -> F64:
        here = objective(z)
        return np.stack([(objective(z + _STEP * e) - here) / _STEP for e in np.eye(len(z))], axis=1)

    result = least_squares(
        objective,
        np.zeros(len(FIELDS)),
        jac=slope,  # pyright: ignore[reportArgumentType]
        bounds=(-_WIDEST, _WIDEST),
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=30,
    )
    return coefficients(result.x)


def errors_of(document: Document, arrays: Arrays, dtype: str, kernel: str, gpu: str, rows: MoeRows) -> dict[str, Any]:
    """Row count, MAPE, median, bias and interval widths by class of duration."""
    s = build(accelerator_named(gpu), dtype, kernel, document, arrays)
    predicted = np.empty(len(rows))
    for distribution in rows.distribution.distinct():
        index = np.flatnonzero(rows.distribution == distribution)
        predicted[index] = predict_rows(s, cast(Distribution, distribution), rows.take(index))
    relative = predicted / rows.time_s - 1
    classes = duration_class(predicted)
    widths: list[float | None] = []
    for c in range(len(DURATION_EDGES_S) + 1):
        part = classes == c
        widths.append(_r(log_sigma_of(rows.time_s[part], predicted[part])) if part.sum() >= 50 else None)
    return {
        "rows": len(rows),
        "mape": _r(np.abs(relative).mean()),
        "median_ape": _r(np.median(np.abs(relative))),
        "bias": _r(relative.mean()),
        "log_sigma": widths,
    }


def _r(x: Any) -> float:
    return float(f"{float(x):.4g}")


def check_report(document: Document, arrays: Arrays, rows: MoeRows) -> dict[str, Any]:
    """Errors on ``rows`` by ``dtype/kernel/accelerator``."""
    out: dict[str, Any] = {}
    for dtype, kernel, family, part in groups(rows):
        if family not in document["physics"].get(dtype, {}).get(kernel, {}):
            continue
        for gpu in part.gpu.distinct():
            r = part.take(part.gpu == gpu)
            out[f"{dtype}/{kernel}/{accelerator_named(gpu).id}"] = errors_of(document, arrays, dtype, kernel, gpu, r)
    return out


def transfer_report(rows: MoeRows, document: Document) -> dict[str, Any]:
    """Errors on devices left out whole: a sibling's coefficients, and another family's."""
    out: dict[str, Any] = {"sibling": {}, "family": {}}
    fit_side = rows.take(rows.part == FIT)
    for device, sibling in SIBLINGS.items():
        trial, arrays = fit_rows(fit_side.take(fit_side.gpu == sibling))
        target = rows.take(rows.gpu == device)
        for dtype, kernel, family, part in groups(target):
            if family in trial["physics"].get(dtype, {}).get(kernel, {}):
                out["sibling"][f"{dtype}/{kernel}/{accelerator_named(device).id}"] = errors_of(
                    trial, arrays, dtype, kernel, device, part
                )
    for dtype, kernel, family, part in groups(rows):
        others = {f: v for f, v in document["physics"].get(dtype, {}).get(kernel, {}).items() if f != family}
        if not others or len(part) < 2000:
            continue
        trial = document | {"physics": {dtype: {kernel: others}}}
        for gpu in part.gpu.distinct():
            r = part.take(part.gpu == gpu)
            out["family"][f"{dtype}/{kernel}/{accelerator_named(gpu).id}"] = errors_of(trial, {}, dtype, kernel, gpu, r)
    return out


def intervals(errors: dict[str, Any], transfer: dict[str, Any]) -> dict[str, Any]:
    """Interval widths by provenance; a class with too few rows takes what all kernels have."""
    unseen = _pooled(errors)
    return {
        "fitted": {
            k: [w if w is not None else u for w, u in zip(e["log_sigma"], unseen, strict=True)] for k, e in errors.items()
        },
        "unseen_shape": unseen,
        "derived": _pooled(transfer["sibling"]),
        "specified": _pooled(transfer["family"]),
    }


def _pooled(errors: dict[str, Any]) -> list[float]:
    """Median of the widths, each kernel counting by its rows."""
    out: list[float] = []
    for c in range(len(DURATION_EDGES_S) + 1):
        pairs = sorted((e["log_sigma"][c], e["rows"]) for e in errors.values() if e["log_sigma"][c] is not None)
        below = np.cumsum(np.array([rows for _, rows in pairs], np.int64))
        half = float(below[-1]) / 2 if pairs else 0.0
        out.append(pairs[int(np.searchsorted(below, half))][0] if pairs else 0.2)
    return out
