"""Fits the sustained clock, memory-bound kernels, fp32 products and convolutions to the NeuSight tables.

Rows whose shape falls in half 0 are fitted (``OpRows.site``); the other half gives the errors. Deterministic.
Constants the tables cannot give stay as they are in the coefficient files, whose provenance names their
source.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.coefficients import forget_files, load_json
from gpuwise.predict.kernels import clock, convolution
from gpuwise.predict.kernels.gemm import fp32
from studies import coefficient_files
from studies.neusight.bench_time import SHORTEST_S, bench_time, convolution_bench_time, convolutions_of
from studies.neusight.host import launch_growth_s
from studies.neusight.tables import BINARY, UNARY, OpRows, accelerator_of, read_ops
from studies.optimizers import least_squares

F64 = NDArray[np.float64]
ROWS_PER_GROUP = 700
LONG_STREAM_BYTES = 2.0**29
ALIGNED_SHARE = 0.965
"""Median over large aligned products of (rate / rate of the best tile), as the model has it on the fitted
GPUs."""


class ProductGroup(NamedTuple):
    """Products of one GPU: ``shapes`` and measured seconds [R]."""

    accelerator: Accelerator
    batched: bool
    shapes: fp32.Shapes
    seconds: F64


def fit(folder: Path) -> None:
    """Refit ``clock``, ``memory_bound``, ``fp32`` and ``convolution`` from the tables in ``folder``.

    Raises DataError when the per-operation table is missing.
    """
    rows = read_ops(folder)
    if rows is None:
        raise DataError(f"no NeuSight per-operation table in {folder}")
    memory = copy.deepcopy(load_json("memory_bound"))
    _fit_streams(rows, memory)
    _write("memory_bound", memory)
    products = copy.deepcopy(load_json("fp32"))
    _restart(products)
    _write("fp32", products)
    for _ in range(2):  # the clock needs the kernels' efficiency, the kernels the clock
        power = copy.deepcopy(load_json("clock"))
        _fit_clock(power)
        _write("clock", power)
        products = copy.deepcopy(load_json("fp32"))
        _fit_products(rows, products)
        _write("fp32", products)
    conv = copy.deepcopy(load_json("convolution"))
    _fit_convolutions(rows, conv)
    _write("convolution", conv)


def _write(family: str, document: dict[str, Any]) -> None:
    """Store a family rounded to four digits and forget what was loaded."""
    _round(document)
    coefficient_files.write(family, document)
    forget_files()


def _round(node: dict[str, Any]) -> None:
    for key, value in node.items():
        if isinstance(value, dict):
            _round(value)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, float):
            node[key] = float(f"{value:.4g}")


def _fit_streams(rows: OpRows, document: dict[str, Any]) -> None:
    """Share of the specified bandwidth long elementwise kernels reach, by family: median over rows and
    GPUs."""
    passes = np.select([np.isin(rows.op, BINARY), np.isin(rows.op, UNARY)], [3.0, 2.0], 0.0)
    moved = 4.0 * passes * rows.shape[:, 0] * rows.shape[:, 1]
    long = (moved > LONG_STREAM_BYTES) & (rows.site == 0) & ~np.isin(rows.op, ("pow", "powu"))
    shares: dict[str, list[float]] = {}
    for name in sorted(set(rows.gpu[long])):
        accelerator = accelerator_of(name)
        if accelerator is None:
            continue
        mask = long & (rows.gpu == name)
        rate = moved[mask] / (rows.measured_s[mask] - load_json("neusight")["bench"]["event_s"])
        share = float(np.median(rate)) / accelerator.memory_bandwidth_bytes_per_s
        shares.setdefault(accelerator.family, []).append(share)
    document["family_efficiency"].update({family: float(np.mean(s)) for family, s in shares.items()})


def _fit_clock(document: dict[str, Any]) -> None:
    """Energy per FLOP of each family that a card was seen to be held back in: the power balance at the
    sustained share of peak in large products."""
    provenance = document["provenance"]
    kernels = load_json("fp32")
    for key, card in provenance["energy_from"].items():
        accelerator = find_accelerator(card)
        reach = ALIGNED_SHARE * fp32.kernel_constants(accelerator, kernels)["linear"]
        x = np.minimum(provenance["sustained_share_of_peak"][card] / reach, 1.0)
        v = clock.relative_voltage(np.asarray(x), document["voltage_slope"], document["voltage_floor"])
        budget_w = accelerator.tdp_w * (1.0 - document["static_per_tdp"]) - document["static_w"]  # type: ignore[operator]
        joules = budget_w / (float(x * v**2) * reach * fp32.peak_rate(accelerator))
        document["energy"]["vector"][key]["pj_per_flop"] = joules * 1e12


_FREE_FORM = (
    "small_tile",
    "quantization",
    "lone_block",
    "lone_block_exponent",
    "prologue",
    "split_cost",
    "split_traffic",
    "overlap",
    "latency_s",
)
_FREE_KERNELS = ("linear", "batched", "misaligned_linear", "misaligned_batched", "long_k")
_BOUNDS = {
    "quantization": (0.02, 1.0),
    "overlap": (1.5, 8.0),
    "split_cost": (1e-3, 0.5),
    "prologue": (1.0, 128.0),
    "lone_block_exponent": (0.05, 1.0),
    "latency_s": (2e-6, 6e-6),
    "misaligned_linear": (0.1, 1.0),
    "misaligned_batched": (0.3, 1.0),
    "long_k": (5e3, 2e6),
}


def product_groups(rows: OpRows, site: int) -> list[ProductGroup]:
    """A sample of the products of each GPU whose shape falls in half ``site``."""
    picker = np.random.default_rng(7)
    out: list[ProductGroup] = []
    usable = (rows.measured_s > SHORTEST_S) & (rows.site == site)
    for name in sorted(set(rows.gpu)):
        accelerator = accelerator_of(name)
        for op in ("linear", "bmm"):
            index = np.flatnonzero(usable & (rows.gpu == name) & (rows.op == op))
            if accelerator is None or not index.size:
                continue
            index = np.sort(picker.permutation(index)[:ROWS_PER_GROUP])
            shapes = fp32.Shapes(*rows.shape[index].T)
            out.append(ProductGroup(accelerator, op == "bmm", shapes, rows.measured_s[index]))
    return out


def _restart(document: dict[str, Any]) -> None:
    """Every fit starts from the same place, not from the last result."""
    for part in ("form", "kernels"):
        for key, values in document["start"][part].items():
            document[part][key].update(values)


def refit_kernels(folder: Path, key: str) -> None:
    """Refit the constants of one family's kernels (``key`` of ``fp32.json``), the rest as it is shipped.

    Raises DataError when the per-operation table is missing.
    """
    rows = read_ops(folder)
    if rows is None:
        raise DataError(f"no NeuSight per-operation table in {folder}")
    document = copy.deepcopy(load_json("fp32"))
    kernels = document["kernels"][key]
    free = [(kernels, name) for name in (*_FREE_KERNELS, "misaligned_growth") if name in kernels]
    groups = [g for g in product_groups(rows, 0) if fp32.kernel_constants(g.accelerator, document) is kernels]
    _solve_products(groups, free, document)
    document["provenance"]["errors"] |= product_errors(rows, document)
    _write("fp32", document)


def _fit_products(rows: OpRows, document: dict[str, Any]) -> None:
    """Least squares of log times over the form of both vendors and the kernels of each measured family."""
    groups = product_groups(rows, 0)
    _restart(document)
    free = [(document["form"][vendor], name) for vendor in ("NVIDIA", "AMD") for name in _FREE_FORM]
    for key in document["fitted_kernels"]:
        tied = key in document["tied_linear"]
        free += [(document["kernels"][key], n) for n in _FREE_KERNELS if not (tied and n == "linear")]
        free += [(document["kernels"][key], n) for n in ("misaligned_growth",) if n in document["kernels"][key]]
    _solve_products(groups, free, document)
    document["provenance"]["errors"] = product_errors(rows, document)


def _solve_products(groups: list[ProductGroup], free: list[tuple[dict[str, Any], str]], document: dict[str, Any]) -> None:
    """Put into the ``free`` entries of ``document`` what makes the times of ``groups``."""
    bounds = np.log([_BOUNDS.get(name, (1e-6, 10.0)) for _, name in free])
    start = np.clip(np.log([float(t[n]) for t, n in free]), bounds[:, 0] + 1e-6, bounds[:, 1] - 1e-6)
    # Aligned shapes, which is what models have, count four times the study's random sizes.
    weights = [np.where((g.shapes.k % 4 == 0) & (g.shapes.n % 4 == 0), 1.0, 0.25) for g in groups]

    def put(values: F64) -> None:
        for (table, name), value in zip(free, values, strict=True):
            table[name] = float(np.exp(value))
        for key, like in document["tied_linear"].items():
            document["kernels"][key]["linear"] = document["kernels"][like]["linear"]

    def residuals(values: F64) -> F64:
        put(values)
        return np.concatenate(
            [
                w * np.log(bench_time(g.accelerator, g.shapes, document, g.batched) / g.seconds)
                for g, w in zip(groups, weights, strict=True)
            ]
        )

    solution = least_squares(
        residuals,
        start,
        bounds=(bounds[:, 0], bounds[:, 1]),
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=18,
        diff_step=2e-2,
    )
    put(solution.x)


def product_errors(rows: OpRows, document: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Errors by card and kind of product on the half of the shapes that nothing is fitted on."""
    return {
        f"{g.accelerator.id} {'batched' if g.batched else 'linear'}": _error(
            bench_time(g.accelerator, g.shapes, document, g.batched), g.seconds
        )
        for g in product_groups(rows, 1)
    }


def _error(predicted: F64, measured: F64) -> dict[str, float]:
    """Median and mean absolute relative error on rows kept from the fit."""
    error = np.abs(predicted / measured - 1)
    return {"rows": len(error), "median_ape": float(np.median(error)), "mape": float(np.mean(error))}


ALGORITHMS = ("winograd_fused", "winograd", "implicit")
_CONVOLUTION_BOUNDS = {
    "efficiency": (0.4, 1.1),
    "quantization": (0.02, 1.0),
    "lone_block": (0.5, 4.0),
    "overlap": (1.0, 8.0),
    "power_share": (0.2, 1.0),
}


class ConvolutionGroup(NamedTuple):
    """Convolutions of one GPU in the table's order, and which of them are fitted on."""

    accelerator: Accelerator
    rows: OpRows
    shapes: convolution.Convolutions
    fits: NDArray[np.bool_]


def convolution_groups(rows: OpRows) -> list[ConvolutionGroup]:
    """Every GPU's convolutions of the table."""
    out: list[ConvolutionGroup] = []
    conv = rows.op == "conv"
    for name in sorted(set(rows.gpu[conv])):
        accelerator, part = accelerator_of(name), rows.select(conv & (rows.gpu == name))
        if accelerator is not None:
            out.append(ConvolutionGroup(accelerator, part, convolutions_of(part), part.site == 0))
    return out


def _fit_convolutions(rows: OpRows, document: dict[str, Any]) -> None:
    """Least squares over the fastest algorithm's time and the launch that the table shows; each left-out GPU beside."""
    groups = convolution_groups(rows)
    document["provenance"]["left_out"] = {}
    for out in groups:
        trial = copy.deepcopy(document)
        fit_algorithms([g for g in groups if g is not out], trial)
        trial["relative_rate"].pop(out.accelerator.id, None)
        document["provenance"]["left_out"][out.accelerator.id] = _convolution_error(out, trial)
    fit_algorithms(groups, document)
    document["provenance"]["errors"] = {g.accelerator.id: _convolution_error(g, document) for g in groups}


def _convolution_error(group: ConvolutionGroup, document: dict[str, Any]) -> dict[str, float]:
    """Errors on the half of the shapes that nothing is fitted on."""
    device_s = convolution_bench_time(group.accelerator, group.shapes, document)
    shown_s = device_s + launch_growth_s(group.rows, device_s)
    return _error(shown_s[~group.fits], group.rows.measured_s[~group.fits])


def fit_algorithms(groups: list[ConvolutionGroup], document: dict[str, Any]) -> None:
    """The algorithms' constants in ``document`` by robust least squares on ``groups``, drawn a little to where they start."""
    start = document["start"]
    for name in (*ALGORITHMS, "relative_rate"):
        document[name] = dict(start[name])
    document["power_share"] = start["power_share"]
    free = [(document[a], name) for a in ALGORITHMS for name in start[a]] + [(document, "power_share")]
    accelerator_ids = {g.accelerator.id for g in groups}
    free += [(document["relative_rate"], key) for key in sorted(accelerator_ids)]
    wide = dict.fromkeys(accelerator_ids, (0.5, 1.2)) | _CONVOLUTION_BOUNDS
    bounds = np.log([wide.get(name, (1e-2, 1e2)) for _, name in free])
    x0 = np.clip(np.log([float(table[name]) for table, name in free]), bounds[:, 0] + 1e-6, bounds[:, 1] - 1e-6)

    def residuals(values: F64) -> F64:
        for (table, name), value in zip(free, values, strict=True):
            table[name] = float(np.exp(value))
        ratios = list[F64]()
        for g in groups:
            device_s = convolution_bench_time(g.accelerator, g.shapes, document)
            shown_s = device_s + launch_growth_s(g.rows, device_s)
            ratios.append(np.log(shown_s / g.rows.measured_s)[g.fits])
        return np.concatenate([*ratios, values - x0])

    solution = least_squares(
        residuals, x0, bounds=(bounds[:, 0], bounds[:, 1]), loss="soft_l1", f_scale=0.06, max_nfev=12, diff_step=1e-2
    )
    residuals(solution.x)
