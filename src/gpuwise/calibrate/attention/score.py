"""Attention against measurement: aiconfigurator's tables of prefill and decode attention (Apache-2.0).

Rows the fit saw and rows it did not are separated by whole shape site (heads, key-value heads, head size, window) and by device.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.attention.rows import DTYPES, SOURCES, Table, find, ideal_seconds, is_check_site, read_table
from gpuwise.calibrate.scores import Scores
from gpuwise.errors import GpuwiseError, UnpredictableError
from gpuwise.predict.kernels.attention.features import Shape
from gpuwise.predict.kernels.attention.fused import attention_decode_time, attention_forward_time
from gpuwise.predict.kernels.attention.implementations import coefficients
from gpuwise.units import MICRO

if TYPE_CHECKING:
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.predict.kernels.kernel_time import KernelTime

F64 = NDArray[np.float64]


def score(folder: Path, all_check: bool) -> Scores | None:
    """Predicted against measured for every attention row in ``folder/ops``; None when neither table is
    there."""
    tables = [t for phase in SOURCES if (t := read_table(folder, phase)) is not None]
    if not tables:
        return None
    parts = [_score_table(t, all_check) for t in tables]

    def joined(i: int) -> NDArray[np.generic]:
        return np.concatenate([p[i] for p in parts])

    source, gpu, split, reason = (joined(i).tolist() for i in (0, 1, 2, 7))
    measured, predicted, sigma, baseline = (np.asarray(joined(i), dtype=np.float64) for i in (3, 4, 5, 6))
    return Scores(source, gpu, split, measured, predicted, sigma, baseline, reason)


def _score_table(table: Table, all_check: bool) -> tuple[NDArray[np.generic], ...]:
    n = len(table.seconds)
    source = np.full(n, SOURCES[table.phase], dtype=object)
    gpu, split, reason = (np.full(n, "", dtype=object) for _ in range(3))
    predicted, sigma, baseline = (np.full(n, np.nan) for _ in range(3))
    fitted = {m["id"] for f in coefficients()["families"].values() for m in f["measured"]}
    check_site = is_check_site(table.shape)
    for labels, where in table.parts():
        name, engine, kernel, dtype, kv = labels
        gpu[where] = name
        shape = table.rows(where)
        accelerator = find(name)
        unseen = all_check or accelerator is None or accelerator.id not in fitted
        split[where] = np.where(unseen | check_site[where], "check", "fit")
        if accelerator is None:
            reason[where] = "accelerator not in the catalogue"
            continue
        try:
            time = predict(accelerator, table.phase, shape, f"{engine}:{kernel}", DTYPES[dtype], DTYPES[kv])
        except (GpuwiseError, KeyError) as error:
            reason[where] = error.reason if isinstance(error, UnpredictableError) else "kernel or format not measured"
            continue
        predicted[where], sigma[where] = time.time_s, time.log_sigma
        baseline[where] = baseline_time(accelerator, table.phase, shape, DTYPES[dtype], DTYPES[kv], name)
    return source, gpu, split, table.seconds, predicted, sigma, baseline, reason


def predict(accelerator: Accelerator, phase: str, shape: Shape, kernel: str | None, dtype: str, kv_dtype: str) -> KernelTime:
    """The package's own prediction of measured rows."""
    b, q, kv, h, g, d, dv, w = shape
    if phase == "decode":
        return attention_decode_time(accelerator, dtype, b, kv, h, g, d, window=w, kernel=kernel, kv_dtype=kv_dtype)
    return attention_forward_time(
        accelerator, dtype, b, q, kv, h, g, d, dv, causal=True, window=w, kernel=kernel, kv_dtype=kv_dtype
    )


def baseline_time(accelerator: Accelerator, phase: str, shape: Shape, dtype: str, kv_dtype: str, gpu: str) -> F64:
    """The rule to beat: constant shares of the device's matrix rate and bandwidth and a constant latency.

    Fitted to the same fit rows, per device; for a device without fit rows the median over devices.
    """
    rules: dict[str, dict[str, float]] = coefficients()["baseline"][phase]
    rule = rules.get(gpu, rules["any"])
    matrix, memory = ideal_seconds(accelerator, shape, dtype, kv_dtype)
    return np.maximum(matrix / rule["matrix_share"], memory / rule["bandwidth_share"]) + rule["latency_us"] * MICRO
