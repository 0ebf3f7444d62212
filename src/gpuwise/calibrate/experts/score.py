"""Scores fused expert layers against ``ops/moe.parquet``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.experts.rows import MoeRows, loads_of_rows, predict_rows, read_moe, roofline_of_rows
from gpuwise.calibrate.gemm.rows import CHECK, accelerator_of
from gpuwise.calibrate.scores import Scores
from gpuwise.errors import UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.experts.coefficients import SAME_KERNELS, Coefficients, coefficients_of, duration_class
from gpuwise.predict.kernels.experts.loads import Distribution

F64 = NDArray[np.float64]


def score(folder: Path, all_check: bool) -> Scores | None:
    """Every row of the table, by format; None when it is not in ``folder``.

    The baseline is one constant share of the roofline per device, format and kernel.
    """
    rows = read_moe(folder)
    if rows is None:
        return None
    predicted, sigma, baseline = (np.full(len(rows), np.nan) for _ in range(3))
    reason = np.full(len(rows), "", dtype=object)
    for gpu, dtype, kernel, distribution, index in _calls(rows):
        try:
            accelerator, s = _coefficients(gpu, dtype, kernel)
        except (UnpredictableError, UnknownNameError) as error:
            reason[index] = error.message
            continue
        part = rows.take(index)
        predicted[index] = predict_rows(s, distribution, part)
        sigma[index] = s.sigma[duration_class(predicted[index])]
        ideal = roofline_of_rows(s.device, s.form, loads_of_rows(distribution, part), part)
        baseline[index] = ideal / roofline_share(accelerator, dtype, s.kernel)
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


def _calls(rows: MoeRows) -> list[tuple[str, str, str, Distribution, NDArray[np.intp]]]:
    """(gpu, dtype, kernel, distribution, rows) of each combination that occurs."""
    columns = (rows.gpu, rows.dtype, rows.kernel, rows.distribution)
    key = np.zeros(len(rows), dtype=np.int64)
    for column in columns:
        key = key * len(column.vocabulary) + column.code
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    out: list[tuple[str, str, str, Distribution, NDArray[np.intp]]] = []
    for index in np.split(order, starts[1:]) if len(order) else []:
        gpu, dtype, kernel, distribution = (str(c.vocabulary[c.code[index[0]]]) for c in columns)
        out.append((gpu, dtype, kernel, cast(Distribution, distribution), index))
    return out


def _coefficients(gpu: str, dtype: str, kernel: str) -> tuple[Accelerator, Coefficients]:
    accelerator = accelerator_of(gpu)
    if accelerator is None:
        raise UnpredictableError("unknown accelerator", f"the catalogue has no {gpu!r}")
    return accelerator, coefficients_of(accelerator, dtype, kernel)


def roofline_share(accelerator: Accelerator, dtype: str, kernel: str) -> float:
    """Median share of the roofline on the fit rows of this device and kernel, else of what is nearest to
    it."""
    devices = load_json("moe")["roofline_share"][SAME_KERNELS.get(dtype, dtype)]
    by_kernel = devices.get(accelerator.id, {})
    if kernel in by_kernel:
        return float(by_kernel[kernel])
    same = [shares[kernel] for shares in devices.values() if kernel in shares]
    return float(np.mean(list(by_kernel.values()) or same or [s for d in devices.values() for s in d.values()]))
