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

from gpuwise.calibrate import coefficient_files
from gpuwise.calibrate.neusight.tables import BINARY, UNARY, OpRows, accelerator_of, read_ops
from gpuwise.calibrate.optimizers import least_squares, minimize
from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict import coefficients
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels import clock, convolution
from gpuwise.predict.kernels.gemm import fp32

F64 = NDArray[np.float64]
ROWS_PER_GROUP = 700
SHORTEST_S = 1.5e-4
"""Shorter rows of the table are host time."""
LONG_STREAM_BYTES = 2.0**29
ALIGNED_SHARE = 0.965
"""Median over large aligned products of (rate / rate of the best tile), as the model has it on the fitted
GPUs."""


class Group(NamedTuple):
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
    coefficients.load_json.cache_clear()
    coefficients._manifest.cache_clear()  # pyright: ignore[reportPrivateUsage]


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
    "misaligned_linear": (0.3, 1.0),
    "misaligned_batched": (0.3, 1.0),
    "long_k": (5e3, 2e6),
}


def product_groups(rows: OpRows, site: int) -> list[Group]:
    """A sample of the products of each GPU whose shape falls in half ``site``."""
    picker = np.random.default_rng(7)
    out: list[Group] = []
    usable = (rows.measured_s > SHORTEST_S) & (rows.site == site)
    for name in sorted(set(rows.gpu)):
        accelerator = accelerator_of(name)
        for op in ("linear", "bmm"):
            index = np.flatnonzero(usable & (rows.gpu == name) & (rows.op == op))
            if accelerator is None or not index.size:
                continue
            index = np.sort(picker.permutation(index)[:ROWS_PER_GROUP])
            shapes = fp32.Shapes(*rows.shape[index].T)
            out.append(Group(accelerator, op == "bmm", shapes, rows.measured_s[index]))
    return out


def bench_time(accelerator: Accelerator, shapes: fp32.Shapes, document: dict[str, Any], batched: bool) -> F64:
    """What the study's benchmark shows for a product: best 5 of 25 launches, each between two events."""
    bench = document["bench"]
    keys = (f"sm_{(accelerator.compute_capability or '').replace('.', '')}", accelerator.family)
    burst_s = max((bench["burst_s"].get(k, 0.0) for k in keys), default=0.0)
    return fp32.product_time(accelerator, shapes, document, batched, burst_s=burst_s) + bench["event_s"]


def _restart(document: dict[str, Any]) -> None:
    """Every fit starts from the same place, not from the last result."""
    for part in ("form", "kernels"):
        for key, values in document["start"][part].items():
            document[part][key].update(values)


def _fit_products(rows: OpRows, document: dict[str, Any]) -> None:
    """Least squares of log times over the form of both vendors and the kernels of each measured family."""
    groups = product_groups(rows, 0)
    _restart(document)
    free = [(document["form"][vendor], name) for vendor in ("NVIDIA", "AMD") for name in _FREE_FORM]
    for key in document["fitted_kernels"]:
        tied = key in document["tied_linear"]
        free += [(document["kernels"][key], n) for n in _FREE_KERNELS if not (tied and n == "linear")]
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
    document["provenance"]["errors"] = {
        f"{g.accelerator.id} {'batched' if g.batched else 'linear'}": _error(
            bench_time(g.accelerator, g.shapes, document, g.batched), g.seconds
        )
        for g in product_groups(rows, 1)
    }


def _error(predicted: F64, measured: F64) -> dict[str, float]:
    """Median and mean absolute relative error on rows kept from the fit."""
    error = np.abs(predicted / measured - 1)
    return {"rows": len(error), "median_ape": float(np.median(error)), "mape": float(np.mean(error))}


_FREE_CONVOLUTION = (
    "implicit_efficiency",
    "fused_winograd_efficiency",
    "winograd_efficiency",
    "image_passes",
    "weight_passes",
    "bench_s",
)


def convolutions_of(rows: OpRows) -> convolution.Convolutions:
    """The study's convolutions: 3 x 3, stride 1, padding 1, square images."""
    b, c_in, c_out, side = rows.shape.T
    one = np.ones_like(b)
    return convolution.Convolutions(b, c_in, c_out, side, side, 9.0 * one, one, one)


def _fit_convolutions(rows: OpRows, document: dict[str, Any]) -> None:
    """Simplex search over the algorithms' efficiencies (the fastest algorithm makes the loss rough)."""
    products = load_json("fp32")
    picker = np.random.default_rng(7)

    def groups(site: int) -> list[tuple[Accelerator, convolution.Convolutions, F64]]:
        out: list[tuple[Accelerator, convolution.Convolutions, F64]] = []
        usable = (rows.op == "conv") & (rows.site == site) & (rows.measured_s > SHORTEST_S)
        for name in sorted(set(rows.gpu[usable])):
            accelerator = accelerator_of(name)
            index = np.flatnonzero(usable & (rows.gpu == name))
            part = rows.select(np.sort(picker.permutation(index)[:1200]))
            if accelerator is not None:
                out.append((accelerator, convolutions_of(part), part.measured_s))
        return out

    fitted = groups(0)

    def put(values: F64) -> None:
        for name, value in zip(_FREE_CONVOLUTION, values, strict=True):
            limit = 1.0 if name == "implicit_efficiency" else np.inf
            document[name] = float(np.minimum(np.exp(value), limit))

    def loss(values: F64) -> float:
        put(values)
        ratio = np.concatenate(
            [np.log((convolution.vector_time(a, c, document, products) + document["bench_s"]) / t) for a, c, t in fitted]
        )
        return float(np.mean(np.sqrt(1.0 + (ratio / 0.2) ** 2)))

    start = np.log([float(document["start"][name]) for name in _FREE_CONVOLUTION])
    options = {"maxfev": 250, "xatol": 1e-2, "fatol": 1e-4}
    put(minimize(loss, start, method="Nelder-Mead", options=options).x)
    document["provenance"]["errors"] = {
        a.id: _error(convolution.vector_time(a, c, document, products) + document["bench_s"], t) for a, c, t in groups(1)
    }
