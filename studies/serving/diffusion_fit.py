"""Fits what a generation of images or video costs beside its products and its attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.diffusion import generations, is_check, read_table
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]


def fit_diffusion(folder: Path) -> dict[str, float]:
    """Refit ``coefficients/diffusion.json``; returns its errors."""
    c = read_table(folder)
    assert c is not None
    parts, _ = generations(c)
    names = (
        "matmul_slowdown",
        "attention_slowdown",
        "memory_slowdown",
        "launch_s",
        "image_s",
        "call_s",
        "exchange_call_s",
        "video_decode_flop_per_pixel",
    )
    start = np.log([1.1, 1.1, 1.1, 1e-5, 0.02, 0.05, 1e-4, 1e8])
    low = np.log([1.0, 0.8, 0.8, 2e-6, 5e-3, 1e-3, 1e-6, 5e6])
    high = np.log([1.5, 1.5, 2.0, 3e-5, 0.1, 0.3, 2e-3, 2e9])
    measured = c["batch_latency_s"]
    learn = [i for i, g in enumerate(parts) if g is not None and not is_check(c["model_id"][i])]

    def ratio(x: F64, rows: Sequence[int]) -> F64:
        costs: dict[str, Any] = dict(zip(names, np.exp(x), strict=True))
        return np.array([g.seconds(costs) / measured[i] for i in rows if (g := parts[i]) is not None])

    best = least_squares(lambda x: np.log(ratio(x, learn)), start, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    check_groups = [i for i, g in enumerate(parts) if g is not None and is_check(c["model_id"][i])]
    errors = {
        f"{name} mape ({len(rows)} rows)": round(float(np.mean(np.abs(ratio(best.x, rows) - 1))), 4)
        for name, rows in (("fit", learn), ("check", check_groups))
        if rows
    }
    values = ratio(best.x, check_groups or learn)
    document = {
        "costs": {k: float(f"{v:.4g}") for k, v in zip(names, np.exp(best.x), strict=True)},
        "log_sigma": round(log_sigma_of(np.ones_like(values), values), 3),
        "provenance": {
            "source": "ml-energy/leaderboard v3, diffusers and xDiT on H100 and B200",
            "errors": errors,
            "split": "a third of the models kept for checking, by hash",
            "date": "2026-11-26",
        },
    }
    write("diffusion", document)
    return errors
