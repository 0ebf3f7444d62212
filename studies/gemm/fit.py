"""Fits the matrix-product coefficients: ``fit(folder)`` rewrites ``predict/coefficients/kernels/gemm.*``.

Needs scipy (``pip install 'gpuwise[calibrate]'``). Three stages, all on the fit sites only: physics per
implementation and family (least squares on log time with priors that keep each coefficient physical), the
family's correction (boosted trees on what is left, all its devices together), a device's own correction
where a family has several. Then errors on the check sites, and with one device or family left out, become
the intervals. Deterministic; about 10 minutes on 2 cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.gemm.rows import CHECK, FIT, INTERVAL, GemmRows, accelerator_of, predict_rows, read_gemm, settled
from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels import boosted
from gpuwise.predict.kernels.gemm.coefficients import DURATION_EDGES_S, SCALE_ROWS, build, features, host_floor_of
from gpuwise.predict.kernels.gemm.formats import IMPLEMENTATIONS, math_dtype, rate_share
from gpuwise.predict.kernels.gemm.physics import FIELDS, PhysicalCoefficients, device_of, physical_time
from gpuwise.predict.kernels.gemm.product import evaluate_as_measured, joined_with_host
from studies import boosting, coefficient_files
from studies.gemm.report import (
    check_report,
    device_only_widths,
    intervals,
    provenance,
    transfer_report,
)
from studies.optimizers import least_squares

F64 = NDArray[np.float64]
Document = dict[str, Any]
Arrays = dict[str, NDArray[Any]]

PRIOR: dict[str, tuple[float, float]] = {
    "latency_clocks": (4800, 0.3),
    "math_efficiency": (0.93, 0.015),
    "load_bytes_per_clock": (64, 1.0),
    "wave_rounding": (0.5, 0.6),
    "wave_clocks": (150, 1.0),
    "bandwidth_efficiency": (0.85, 0.15),
    "p": (4, 0.3),
    "split_clocks": (4500, 0.4),
    "hot_weights": (6, 0.4),
    "l2_bytes_per_clock": (15, 0.6),
    "hot_sharpness": (5, 0.4),
    "hot_activations": (1, 0.4),
    "joules_per_flop": (0.6e-12, 0.7),
    "joules_per_byte": (30e-12, 0.5),
    "burst_s": (5e-5, 1.2),
    "swizzle_tiles": (5, 0.5),
    "l2_retained": (0.6, 0.4),
    "step_clocks": (180, 0.5),
    "epilogue_clocks": (4000, 0.9),
    "output_weight": (1.0, 0.4),
    "reduction_bytes_per_clock": (20, 0.7),
    "quantise_clocks": (4000, 0.5),
    "quantise_efficiency": (0.6, 0.5),
}
"""Centre and standard deviation (of the log) of each coefficient; a family's data moves it from there. The
centres are what the first fits of four families had in common; efficiency is held near the best burst over
peak (H100, 92 %)."""
NARROW = {"fp8": 0.5, "fp8_block": 0.5, "sq": 0.5, "int8_wo_sglang": 0.5, "nvfp4": 0.25}
"""Energy of a narrow product over that of a 16-bit one, as a prior."""
TIMED_BY_EVENTS = {
    key: {"latency_clocks": (13000.0, 0.3), "split_clocks": (13000.0, 0.4), "hot_weights": (8.0, 0.6)}
    for key in ("sq", "int8_wo", "int4_wo")
}
"""Kernels whose launches were timed one by one, in steps of 1 us: what the engine does between them is in the latency."""
QUANTISED_BY_TRITON = {
    "latency_clocks": (12000, 0.3),
    "quantise_clocks": (24000, 0.5),
    "quantise_efficiency": (0.1, 0.5),
    "step_clocks": (60, 0.7),
}
PRIOR_OF: dict[str, dict[str, tuple[float, float]]] = TIMED_BY_EVENTS | {
    "int8_wo_sglang": QUANTISED_BY_TRITON,
    # what the host's launch hides is not to be found: near the other fp8 kernels'
    "fp8_block": {"quantise_clocks": (6000.0, 0.3), "step_clocks": (250.0, 0.7)},
}
"""Centres that differ by implementation."""
LOOSE = ("fp8_block", "int8_wo", "int8_wo_sglang", "int4_wo", "sq", "nvfp4", "fp8")
"""Kernels whose best rate is not known to be near peak."""
NOT_CAPTURED = {"fp8_block": ("Hopper", "Blackwell", "Ada"), "bf16": ("Xe2-HPG",), "fp8": ("Xe2-HPG",)}
"""Implementation and families whose timing loop was not graph-captured: the host's launch shows in short
kernels."""
SPLIT_FIELDS = ("split_clocks", "reduction_bytes_per_clock")
"""Left at zero for kernels that never share a reduction."""
ROWS_FOR_PHYSICS = 2500
LIBRARY_BEST = {
    "CDNA3": ("mi300x", 668.4e12),
    "CDNA4": ("mi355x", 1565.0e12),
    "Gaudi2": ("gaudi2", 418.7e12),
    "Gaudi3": ("gaudi3", 1243.0e12),
}
"""Best sustained bf16 FLOP/s measured on families without rows (stas00/ml-engineering, MAMF, 2025): sets
the share of peak that the library reaches."""


def fit(folder: Path) -> None:
    """Refit from ``folder/ops/gemm.parquet`` and write the coefficient files. Raises DataError without the
    table."""
    rows = read_gemm(folder)
    if rows is None:
        raise DataError(f"no ops/gemm.parquet in {folder}")
    part = rows.part
    document, arrays = fit_rows(rows.take(part == FIT))
    widths = check_report(document, arrays, rows.take(part == INTERVAL))
    errors = check_report(document, arrays, rows.take(part == CHECK))
    document["host_floor_log_sigma"] = host_spread(document)
    transfer = transfer_report(rows, document, fit_rows)
    hidden = device_only_widths(document, rows.take(part == INTERVAL))
    document["log_sigma"] = intervals(widths, transfer) | {"device_only": hidden}
    document["provenance"] = provenance(rows, errors, transfer)
    coefficient_files.write("gemm", document, arrays)


def fit_rows(rows: GemmRows, leave_out: Sequence[str] = ()) -> tuple[Document, Arrays]:
    """Coefficients from ``rows`` without the devices in ``leave_out``; intervals still empty."""
    document: Document = {
        "physics": {},
        "measured": {},
        "host_floor_s": {},
        "reference_units": {},
        "library_efficiency": {},
        "log_sigma": _no_sigma(),
        "roofline_share": {},
        "host_floor_log_sigma": 0.0,
    }
    arrays: Arrays = {}
    for key in sorted({i.coefficients for i in IMPLEMENTATIONS.values()}):
        part = rows.take(rows.implementation == key)
        gpus = [g for g in part.gpu.distinct() if g not in leave_out and can_do(g, key)]
        by_gpu = {g: _accelerator(g) for g in gpus}
        document["physics"][key], document["measured"][key], document["roofline_share"][key] = {}, {}, {}
        for family in sorted({a.family for a in by_gpu.values()}):
            members = [g for g in gpus if by_gpu[g].family == family]
            data = {g: settled(g, part.take(part.gpu == g)) for g in members}
            _fit_family(key, family, members, data, {g: part.take(part.gpu == g) for g in members}, document, arrays)
    for family, (accelerator_id, flop_per_s) in LIBRARY_BEST.items() if document["physics"]["bf16"] else ():
        document["library_efficiency"][family] = _library_efficiency(document, accelerator_id, flop_per_s)
    return document, arrays


def can_do(gpu: str, key: str) -> bool:
    """Whether the catalogue has the device behind the table's name, with a rate for this implementation."""
    accelerator = accelerator_of(gpu)
    return accelerator is not None and any(d in accelerator.peak_flop_per_s for d in IMPLEMENTATIONS[key].math)


def _accelerator(gpu: str) -> Accelerator:
    """The catalogue's accelerator of a table's name ``gpu``."""
    accelerator = accelerator_of(gpu)
    assert accelerator is not None
    return accelerator


def _fit_family(
    key: str,
    family: str,
    members: list[str],
    data: dict[str, GemmRows],
    everything: dict[str, GemmRows],
    document: Document,
    arrays: Arrays,
) -> None:
    for gpu in members:
        accelerator = _accelerator(gpu)
        document["measured"][key][accelerator.id] = family
        document["roofline_share"][key][accelerator.id] = {
            "share": roofline_share(accelerator, key, everything[gpu]),
            "family": family,
        }
        if family in NOT_CAPTURED.get(key, ()):
            document["host_floor_s"].setdefault(key, []).extend(host_floors(accelerator, key, data[gpu]))
    units = float(_accelerator(members[0]).compute_units or 1)
    document["reference_units"].setdefault(family, units)
    document["physics"][key][family] = fit_physics(key, family, data, document)
    tree_features: list[F64] = []
    log_ratios: list[F64] = []
    for gpu in members:
        s = build(_accelerator(gpu), key, document, {})
        r = data[gpu]
        tree_features.append(features(r.m, r.n, r.k, np.ones(len(r)), s.reference_units))
        log_ratios.append(np.log(r.time_s / predict_rows(_accelerator(gpu), key, document, {}, r)))
    trees = boosting.fit(
        np.concatenate(tree_features, axis=1), np.concatenate(log_ratios), settings=_settings(sum(map(len, log_ratios)))
    )
    arrays.update(boosted.pack(f"{key}/{family}", trees))
    if len(members) > 1:
        for gpu in members:
            r = everything[gpu]
            s = build(_accelerator(gpu), key, document, arrays)
            remainder = np.log(r.time_s / predict_rows(_accelerator(gpu), key, document, arrays, r))
            device_trees = boosting.fit(
                features(r.m, r.n, r.k, np.ones(len(r)), s.reference_units),
                remainder,
                settings=_settings(len(r), own=True),
            )
            arrays.update(boosted.pack(f"{key}/{_accelerator(gpu).id}", device_trees))


def host_floors(accelerator: Accelerator, key: str, rows: GemmRows) -> list[dict[str, Any]]:
    """What each kernel's launch took this device's host: the median of products whose arithmetic and traffic would take
    less than 3 us, apart where the rows of A are no multiple of :data:`SCALE_ROWS`."""
    device = device_of(accelerator, math_dtype(accelerator, key))
    bytes_moved = 2.0 * (rows.m * rows.k + rows.n * rows.k + rows.m * rows.n)
    ideal = 2.0 * rows.m * rows.n * rows.k / device.rate_flop_per_s + bytes_moved / device.bandwidth_bytes_per_s
    unpadded = np.mod(rows.m, SCALE_ROWS) != 0
    out: list[dict[str, Any]] = []
    for kernel in rows.kernel.distinct():
        short = (rows.kernel == kernel) & (ideal < 3e-6)
        if short.any():
            seconds = [rows.time_s[short & part] for part in (~unpadded, unpadded)]
            padded_s, unpadded_s = (np.median(part) if part.size else np.median(rows.time_s[short]) for part in seconds)
            out.append(
                {
                    "accelerator": accelerator.id,
                    "family": accelerator.family,
                    "vendor": accelerator.vendor,
                    "form": accelerator.form,
                    "kernel": kernel,
                    "s": float(f"{padded_s:.4g}"),
                    "unpadded_s": float(f"{unpadded_s:.4g}"),
                }
            )
    return out


def host_spread(document: Document) -> float:
    """Standard deviation of the log of a kernel's host floor between measured hosts: for a host nobody
    measured."""
    by_kernel: dict[str, list[float]] = {}
    for floor in (f for floors in document["host_floor_s"].values() for f in floors if f["vendor"] == "NVIDIA"):
        by_kernel.setdefault(floor["kernel"], []).append(np.log(floor["s"]))
    apart = [x - np.mean(logs) for logs in by_kernel.values() if len(logs) > 1 for x in logs]
    return float(f"{np.sqrt(np.mean(np.square(apart)) * 1.5):.3g}") if apart else 0.0


def roofline_share(accelerator: Accelerator, key: str, rows: GemmRows) -> float:
    """Median of roofline time over measured time: the simple rule that scores are compared with."""
    device, form = device_of(accelerator, math_dtype(accelerator, key)), IMPLEMENTATIONS[key].form
    bytes_moved = rows.m * rows.k * form.a + rows.n * rows.k * form.b + rows.m * rows.n * form.c
    math = 2.0 * rows.m * rows.n * rows.k / device.rate_flop_per_s
    roofline = np.maximum(math, bytes_moved / device.bandwidth_bytes_per_s)
    return float(f"{np.median(roofline / rows.time_s):.4g}")


def _settings(rows: int, *, own: bool = False) -> boosting.Settings:
    """Fewer trees for small tables and for a device's own correction."""
    base = boosting.Settings()
    if own:
        return replace(base, trees=96, depth=6)
    return base if rows > 20_000 else replace(base, trees=160, depth=6)


def fit_physics(key: str, family: str, data: dict[str, GemmRows], document: Document) -> dict[str, float]:
    """Coefficients of one implementation on one family from the rows of its devices."""
    form = IMPLEMENTATIONS[key].form
    active = [f for f in FIELDS if not (f.startswith("quantise") and form.a_before_quantising == 0)]
    active = [f for f in active if form.splits_k or f not in SPLIT_FIELDS]
    centre = np.log([_prior(key, f)[0] for f in active])
    spread = np.array([_prior(key, f)[1] for f in active])
    residuals = _residuals(key, data, document, active)

    def objective(z: F64) -> F64:
        return np.concatenate([residuals(centre + spread * z), _PRIOR_WEIGHT * z])

    def slope(z: F64) -> F64:
        here = objective(z)
        return np.stack([(objective(z + _STEP * e) - here) / _STEP for e in np.eye(len(z))], axis=1)

    result = least_squares(
        objective,
        np.zeros(len(active)),
        jac=slope,  # pyright: ignore[reportArgumentType]
        bounds=(-_WIDEST, _WIDEST),
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=60,
    )
    return _coefficients(active, centre + spread * result.x)


_PRIOR_WEIGHT, _WIDEST, _STEP = 0.2, 4.0, 0.02
"""Of one prior against one row; standard deviations a coefficient may stray; step of the finite
differences."""


def _prior(key: str, field: str) -> tuple[float, float]:
    centre, spread = PRIOR_OF.get(key, {}).get(field) or PRIOR[field]
    if field == "joules_per_flop":
        centre *= NARROW.get(key, 1.0)
    if field == "math_efficiency" and key in LOOSE:
        centre, spread = 0.85, 0.05
    return centre, spread


def _coefficients(active: list[str], x: F64) -> dict[str, float]:
    values = dict.fromkeys(FIELDS, 0.0) | {f: float(f"{np.exp(v):.6g}") for f, v in zip(active, x, strict=True)}
    for share in ("wave_rounding", "math_efficiency"):
        values[share] = min(values[share], 1.0)
    return values


def floors_of_rows(accelerator: Accelerator, floors: Sequence[dict[str, Any]], rows: GemmRows) -> F64:
    """Seconds [R] the host took per launch of each row's kernel; 0 where it was captured."""
    out = np.zeros(len(rows))
    for kernel in rows.kernel.distinct() if floors else ():
        for field, part in (("s", np.mod(rows.m, SCALE_ROWS) == 0), ("unpadded_s", np.mod(rows.m, SCALE_ROWS) != 0)):
            out[(rows.kernel == kernel) & part] = host_floor_of(floors, accelerator, kernel, field)
    return out


def _residuals(key: str, data: dict[str, GemmRows], document: Document, active: list[str]) -> Callable[[F64], F64]:
    """log(predicted / measured) on a fixed sample of each device, as a function of the log coefficients."""
    parts: list[tuple[Any, GemmRows, F64]] = []
    for gpu, r in data.items():
        accelerator = _accelerator(gpu)
        picked = np.random.default_rng(1).permutation(len(r))[:ROWS_FOR_PHYSICS]
        floor = floors_of_rows(accelerator, document["host_floor_s"].get(key, []), r.take(picked))
        clear = r.time_s[picked] > 1.3 * floor
        device = device_of(accelerator, math_dtype(accelerator, key), rate_share(accelerator, key))
        parts.append((device, r.take(picked[clear]), floor[clear]))
    form = IMPLEMENTATIONS[key].form

    def residuals(x: F64) -> F64:
        c = PhysicalCoefficients(**_coefficients(active, x))
        out: list[F64] = []
        for device, r, floor in parts:
            time = physical_time(c, device, form, r.m, r.n, r.k, np.ones(len(r)))
            out.append(np.log((joined_with_host(time, floor) if floor.any() else time) / r.time_s))
        return np.concatenate(out)

    return residuals


def _library_efficiency(document: Document, accelerator_id: str, flop_per_s: float) -> float:
    """Share of peak to take for a family known only by its best product, 1 when the accelerator is not in
    the catalogue."""
    from gpuwise.facts.hardware.accelerators import accelerators

    accelerator = accelerators().get(accelerator_id)
    if accelerator is None:
        return 1.0
    side = np.array([8192.0])
    scale = 1.0
    for _ in range(20):
        document["library_efficiency"][accelerator.family] = scale
        s = build(accelerator, "bf16", document, {})
        rate = 2.0 * 8192.0**3 / float(evaluate_as_measured(s, side, side, side, np.ones(1))[0])
        scale = min(scale * flop_per_s / rate, 4.0)
    return float(f"{scale:.4g}")


def _no_sigma() -> Document:
    n = len(DURATION_EDGES_S) + 1
    return {
        "fitted": {},
        "device_only": {},
        "derived": {"bf16": [0.1] * n},
        "specified": [0.2] * n,
        "unknown": [0.4] * n,
    }
