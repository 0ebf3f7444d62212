"""A token of one sequence under llama.cpp and MLX LM: shares of bandwidth, clocks of a kernel and how much slower a cache is
read, by vendor (``vendors`` of ``coefficients/single_stream.json`` and ``mlx_stream.json``, in the form of
:mod:`gpuwise.serve.streams`).

Each vendor by itself, on its filled rows of one device. Rows of builds that are not today's (LocalScore's llamafile; one table
of May 2024, before a token was one graph) have a share and a kernel's clocks of their own, which are thrown away. Errors and
widths are of rows whose cell of machine and family was left out, widths asked as a person would: with the context that the
source states, whether it was filled or not. Refit: ``fit(folder)``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.interval import INTERVAL, Z80
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.streams import seconds_by_part, token_work
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.serving.local_rows import FOLDS, Row, read_rows
from studies.spreads import weighted_quantile

F64 = NDArray[np.float64]
CLOCKS = {"half": 0.28, "quantised": 0.078}
"""Clocks of a unit for a weight: of the earlier fit (0.137 a byte of 16-bit weights, 0.144 of Q4_K_M's and Q8_0's) at 2 and 0.54
bytes; by the weight, since fewer bits are no fewer weights to unpack."""
START = {
    "share": 0.0,
    "launch_clocks": math.log(9000.0),
    "cache_slowdown": 0.3,
    "old_share": 0.3,
    "old_launch": 0.5,
    "table_launch": 0.1,
}
"""Logarithms; a weak pull to them keeps a vendor with few rows sane."""
PULL = 0.3
SHARED_START = -0.15
APART = ("mlx-vlm", "turboquant", "vllm-mlx", "mlx-swift")
"""Programs on MLX that are not MLX LM."""
YOUNG = ("deepseek-v4",)
"""Families whose first kernels in llama.cpp are those of these rows: 1.7 times slower than its own of other experts."""
BEST_OF_BACKENDS = ("Intel",)
"""SYCL and Vulkan differ by 4 times either way by model: a person takes the faster one."""


def token_rows(rows: Sequence[Row], engine: str) -> list[Row]:
    """Of one sequence on one device, whole on it."""
    return [
        r
        for r in rows
        if r.arch is not None
        and isinstance(r.device, Accelerator)
        and r.users == 1
        and "decode_tok_s" in r.number
        and r.number.get("n_gpu", 0) == 1
        and not r.offloaded
        and not any(word in r.text["engine"] for word in APART)
        and r.text["family"] not in YOUNG
        and r.engine in (("mlx",) if engine == "mlx" else ("llama.cpp", "llamafile"))
        and (r.device.vendor == "Apple" or (r.device.compute_units and engine != "mlx"))
        and not (r.device.vendor == "Intel" and "ollama" in r.text["engine"])  # which has no backend for it: the CPU's figure
    ]


def ratio(form: dict[str, Any], row: Row, old: dict[str, float] | None = None) -> float:
    """Predicted over measured seconds; ``old`` with the constants of a build that is not today's."""
    assert row.arch is not None and isinstance(row.device, Accelerator)
    time = seconds_by_part(form, token_work(row.arch, row.weights, row.context), row.arch, row.device)
    total = time.total_s
    if old is not None and row.engine == "llamafile":
        total = time.stream_s * math.exp(old["old_share"]) + time.launches_s * math.exp(old["old_launch"])
    elif old is not None and row.text["source"].startswith("XiongjieDai"):
        total = time.stream_s + time.launches_s * math.exp(old["table_launch"])
    return total * row.written_per_s


def fit_vendor(form: dict[str, Any], rows: Sequence[Row]) -> tuple[dict[str, float], dict[str, float]]:
    """Constants of the one vendor of ``rows``, and those of old builds."""
    devices = [r.device for r in rows if isinstance(r.device, Accelerator)]
    vendor, trial = devices[0].vendor, deepcopy(form)
    shared = any(d.unified_memory for d in devices)
    discrete = any(not d.unified_memory for d in devices)
    start = START | ({"shared_share": SHARED_START} if shared else {})
    names, begin = list(start), np.array(list(start.values()))
    weight = np.sqrt([min(r.number["weight"], 1.0) for r in rows])

    def constants(x: F64) -> tuple[dict[str, float], dict[str, float]]:
        v = dict(zip(names, x.tolist(), strict=True))
        found = {"launch_clocks": math.exp(v["launch_clocks"]), "cache_slowdown": math.exp(v["cache_slowdown"])}
        if discrete:
            found["memory_share"] = math.exp(v["share"])
        found["shared_memory_share"] = math.exp(v["shared_share"] if shared else v["share"])
        return found, {name: v[name] for name in ("old_share", "old_launch", "table_launch")}

    def residual(x: F64) -> F64:
        trial["vendors"][vendor], old = constants(x)
        return np.concatenate([np.log([ratio(trial, r, old) for r in rows]) * weight, PULL * (x - begin)])

    best = least_squares(residual, begin, loss="soft_l1", f_scale=0.08, diff_step=1e-3)
    found, old = constants(best.x)
    return {name: float(f"{value:.3g}") for name, value in found.items()}, old


def fit_engine(rows: Sequence[Row], engine: str, form: dict[str, Any]) -> tuple[dict[str, float], list[tuple[Row, float]]]:
    """Fit ``form["vendors"]`` in place with the width of each; errors, and ratios of rows left out."""
    errors: dict[str, float] = {}
    out: list[tuple[Row, float]] = []
    by_vendor: dict[str, list[Row]] = defaultdict(list)
    for r in token_rows(rows, engine):
        assert isinstance(r.device, Accelerator)
        by_vendor[r.device.vendor].append(r)
    for vendor, mine in sorted(by_vendor.items()):
        mine = _best(mine) if vendor in BEST_OF_BACKENDS else mine
        trial, left_out = deepcopy(form), list[tuple[Row, float]]()
        for fold in range(FOLDS):
            learn = [r for r in mine if r.filled and r.fold != fold]
            trial["vendors"][vendor], _ = fit_vendor(form, learn)
            left_out += [(r, ratio(trial, r)) for r in mine if r.fold == fold and r.engine != "llamafile"]
        found, _ = fit_vendor(form, [r for r in mine if r.filled])
        form["vendors"][vendor] = found
        for kind, name in (("dense", "log_sigma"), ("experts", "experts_log_sigma")):
            whole = [(r, q) for r, q in left_out if (r.arch is not None and r.arch.moe is None) == (kind == "dense")]
            form["vendors"][vendor][name] = round(width(whole), 3)
            part = [(r, q) for r, q in left_out if (r.arch is not None and r.arch.moe is None) == (kind == "dense") and r.filled]
            if part:
                errors[f"{vendor}, {kind}, left out by machine and family, median ({len(part)} rows)"] = median_error(part)
        out += left_out
    return errors, out


def _best(rows: Sequence[Row]) -> list[Row]:
    """Of each model, format and context the fastest row."""
    best: dict[tuple[str, str, str, float], Row] = {}
    for r in rows:
        assert r.arch is not None
        key = (r.text["machine"], r.arch.id, r.weights, r.context)
        if key not in best or best[key].written_per_s < r.written_per_s:
            best[key] = r
    return list(best.values())


def width(ratios: Sequence[tuple[Row, float]]) -> float:
    """Log sigma whose 80 % interval holds four fifths of the weight."""
    logs, weights = np.abs(np.log([q for _, q in ratios])), np.array([min(r.number["weight"], 1.0) for r, _ in ratios])
    return weighted_quantile(logs, weights, INTERVAL) / Z80


def median_error(ratios: Sequence[tuple[Row, float]]) -> float:
    """Of the weight."""
    errors, weights = np.abs(np.array([q for _, q in ratios]) - 1), np.array([min(r.number["weight"], 1.0) for r, _ in ratios])
    return round(weighted_quantile(errors, weights, 0.5), 4)


def fit(folder: Path) -> dict[str, float]:
    """Write the vendors of both coefficient files; the errors."""
    rows = read_rows(folder)
    errors: dict[str, float] = {}
    for engine, name in (("llama.cpp", "single_stream"), ("mlx", "mlx_stream")):
        document = deepcopy(load_json(name))
        form = document["form"]
        form["clocks_per_weight"] = CLOCKS
        form["vendors"] = {}
        form.pop("clocks_per_byte", None)
        found, _ = fit_engine(rows, engine, form)
        mine = [r for r in token_rows(rows, engine) if r.filled]
        document["measured"] = sorted({r.device.id for r in mine if isinstance(r.device, Accelerator)})
        document["log_sigma"] = {"batch": document["log_sigma"]["batch"]}
        provenance = document["provenance"]
        kept = {k: v for k, v in provenance["errors"].items() if "prompts" in k or "batch" in k}
        provenance["errors"] = kept | found
        provenance["decode"] = "local/speed.parquet: measurements that people published, studies/serving/local_fit.py"
        provenance["date"] = "2026-11-29"
        write(name, document)
        errors |= {f"{name}: {k}": v for k, v in found.items()}
    return errors
