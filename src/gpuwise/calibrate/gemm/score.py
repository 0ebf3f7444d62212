"""Scores matrix products against ``ops/gemm.parquet``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.gemm.rows import CHECK, GemmRows, accelerator_of, predict_rows, read_gemm
from gpuwise.calibrate.scores import Scores
from gpuwise.errors import UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_arrays, load_json
from gpuwise.predict.kernels.gemm.coefficients import Coefficients, coefficients_of, duration_class, sigma_as_measured
from gpuwise.predict.kernels.gemm.formats import IMPLEMENTATIONS, implementation_name

F64 = NDArray[np.float64]


def score(folder: Path, all_check: bool) -> Scores | None:
    """Every row of the table, by format; None when it is not in ``folder``.

    A row is compared with what its timing loop would have shown (block-scaled fp8 and Intel were not
    graph-captured, so the host's launch is in their short rows). The baseline is one constant share of the
    roofline per device and format.
    """
    rows = read_gemm(folder)
    if rows is None:
        return None
    predicted, sigma, baseline = (np.full(len(rows), np.nan) for _ in range(3))
    reason = np.full(len(rows), "", dtype=object)
    for gpu in rows.gpu.distinct():
        here = rows.gpu == gpu
        for name in rows.take(here).implementation.distinct():
            index = np.flatnonzero(here & (rows.implementation == name))
            try:
                accelerator, s = _coefficients(gpu, name)
            except (UnpredictableError, UnknownNameError) as error:
                reason[index] = error.message
                continue
            part = rows.take(index)
            predicted[index] = predict_rows(accelerator, name, load_json("gemm"), load_arrays("gemm"), part)
            sigma[index] = sigma_as_measured(accelerator, name)[duration_class(predicted[index])]
            baseline[index] = roofline(s, part) / roofline_share(accelerator, IMPLEMENTATIONS[name].coefficients)
    split = np.where((rows.part == CHECK) | all_check, "check", "fit").astype(object)
    sources = np.array([f"aiconfigurator {d}" for d in rows.dtype.vocabulary], dtype=object)[rows.dtype.code]
    return Scores(
        list(sources),
        list(rows.gpu.text()),
        list(split),
        rows.time_s,
        predicted,
        sigma,
        baseline,
        list(reason),
    )


def _coefficients(gpu: str, name: str) -> tuple[Accelerator, Coefficients]:
    accelerator = accelerator_of(gpu)
    if accelerator is None:
        raise UnpredictableError("unknown accelerator", f"the catalogue has no {gpu!r}")
    return accelerator, coefficients_of(accelerator, implementation_name(name, None))


def roofline(c: Coefficients, rows: GemmRows) -> F64:
    """Seconds [R] at peak rate or full bandwidth, whichever is longer."""
    form = c.form
    bytes_moved = rows.m * rows.k * form.a + rows.n * rows.k * form.b + rows.m * rows.n * form.c
    return np.maximum(
        2.0 * rows.m * rows.n * rows.k / c.device.rate_flop_per_s,
        bytes_moved / c.device.bandwidth_bytes_per_s,
    )


def roofline_share(accelerator: Accelerator, key: str) -> float:
    """Median share of the roofline on the fit rows of this device, else of its family, else of all."""
    shares = load_json("gemm")["roofline_share"][key]
    if accelerator.id in shares:
        return float(shares[accelerator.id]["share"])
    family = [v["share"] for v in shares.values() if v["family"] == accelerator.family]
    return float(np.mean(family or [v["share"] for v in shares.values()]))
