"""Batches of MLX LM on Apple's chips (``prompt.batch_rows`` of ``coefficients/mlx_stream.json``), of ``local/speed.parquet``: the
median over batches of two and four on an M2 Max, whose models need no dimensions for it:
``(t(n) - t(1)) / ((n - 1) 2 N / R)``. Refit after :mod:`studies.serving.prompt_fit`.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.streams import arithmetic_rate
from studies.coefficient_files import write
from studies.serving.local_rows import Row, read_rows

F64 = NDArray[np.float64]
ENGINES = ("mlx", "mlx-lm", "mlx-lm-0.31.2", "oMLX (mlx)")
"""Without mlx-vlm, vllm-mlx and compressed caches."""


def fit(folder: Path) -> dict[str, float]:
    """Write ``coefficients/mlx_stream.json``; the errors."""
    rows = [r for r in read_rows(folder) if r.text["engine"] in ENGINES and isinstance(r.device, Accelerator)]
    document = deepcopy(load_json("mlx_stream"))
    form = document["form"]
    batches = _batch_rows(form, rows)
    form["prompt"]["batch_rows"] = float(f"{np.median(batches):.3g}")
    errors = {f"rows of a batch, median ({len(batches)} rows)": _median(form["prompt"]["batch_rows"] / batches)}
    document["provenance"]["errors"] |= errors
    write("mlx_stream", document)
    return errors


def _median(ratios: F64) -> float:
    return round(float(np.median(np.abs(ratios - 1))), 4)


def _batch_rows(form: dict[str, Any], rows: list[Row]) -> F64:
    """Of batches with a row of one user of the same model, prompt and format."""
    alone = {_same(r): r.number["decode_tok_s"] for r in rows if r.users == 1 and "decode_tok_s" in r.number}
    found: list[float] = []
    for r in (r for r in rows if r.users > 1 and "decode_tok_s" in r.number and _same(r) in alone):
        assert isinstance(r.device, Accelerator)
        more = r.users / r.number["decode_tok_s"] - 1.0 / alone[_same(r)]
        active = 1e9 * r.number.get("active_params_b", r.number["model_params_b"])
        found.append(more / ((r.users - 1) * 2.0 * active / arithmetic_rate(form, r.device, wide=r.weights.lower() == "bf16")))
    return np.array(found)


def _same(row: Row) -> tuple[Any, ...]:
    return row.text["machine"], row.text["model_name"], row.weights, row.number.get("prompt_tokens")
