"""A token of one sequence under llama.cpp and MLX LM: shares of bandwidth, clocks of a kernel and how much slower a cache is
read, by vendor (``vendors`` of ``coefficients/single_stream.json`` and ``mlx_stream.json``, in the form of
:mod:`gpuwise.serve.streams`).

Each vendor by itself, on its filled rows of one device. Rows of builds that are not today's (LocalScore's llamafile; one table
of May 2024) have constants of their own (:data:`OLD`), which are thrown away. Errors and
widths are of rows whose cell of machine and family was left out, widths asked as a person would: with the context that the
source states, whether it was filled or not, on several devices too; those for
a device that is not in the fit are of whole machines that were left out. Refit: ``fit(folder)``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.interval import INTERVAL, Z80
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.engine import ENGINES
from gpuwise.serve.streams import seconds_by_part, token_work
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.serving.local_rows import FOLDS, Row, fold_of, read_rows
from studies.spreads import weighted_quantile

F64 = NDArray[np.float64]
CLOCKS = {"half": 0.28, "quantised": 0.078}
"""Clocks of a unit for a weight: of the earlier fit (0.137 a byte of 16-bit weights, 0.144 of Q4_K_M's and Q8_0's) at 2 and 0.54
bytes; by the weight, since fewer bits are no fewer weights to unpack."""
OWN_CLOCKS = {"Apple": {"apple-m1": 0.12, "quantised": 0.06}}
"""Where those of a vendor's chips are fitted, by generation: M1's cores are the slower, whatever their number. Apple's 16-bit
weights are read at the bandwidth."""
START = {
    "share": 0.0,
    "launch_clocks": math.log(9000.0),
    "cache_slowdown": 0.3,
    "old_share": 0.3,
    "old_launch": 0.5,
    "table_launch": 0.1,
}
"""Logarithms; a weak pull to them keeps a vendor with few rows sane."""
OLD = ("old_share", "old_launch", "table_launch")
"""Constants of builds that are not today's: LocalScore's, and those of May 2024, before a token was one graph."""
PULL = 0.3
SHARED_START = -0.15
APART = ("mlx-vlm", "turboquant", "vllm-mlx", "mlx-swift")
"""Programs on MLX that are not MLX LM."""
YOUNG = ("deepseek-v4",)
"""Families whose first kernels in llama.cpp are those of these rows: 1.7 times slower than its own of other experts."""
SPLIT = "cells of machine and model family, and whole machines, in five folds; of batches whole models"
BEST_OF_BACKENDS = ("Intel",)
"""SYCL and Vulkan differ by 4 times either way by model: a person takes the faster one."""


def token_rows(rows: Sequence[Row], engine: str) -> list[Row]:
    """Of one sequence, whole on one device or on several alike."""
    return [
        r
        for r in rows
        if r.arch is not None
        and isinstance(r.device, Accelerator)
        and r.users == 1
        and "decode_tok_s" in r.number
        and 1 <= r.number.get("n_gpu", 0) <= (1 if engine == "mlx" else ENGINES[engine].in_turn)
        and not r.text["gpu_list"]
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
    work = token_work(row.arch, row.weights, row.context)
    share = launch = 0.0
    if old is not None and row.engine == "llamafile":
        share, launch = old["old_share"], old["old_launch"]
    elif old is not None and row.text["source"].startswith("XiongjieDai"):
        launch = old["table_launch"]
    time = seconds_by_part(form, work, row.arch, row.device, row.n_devices)
    return (time.stream_s * math.exp(share) + time.launches_s * math.exp(launch) + time.hand_over_s) * row.written_per_s


def fit_vendor(form: dict[str, Any], rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, float]]:
    """Constants of the one vendor of ``rows``, and those of old builds."""
    devices = [r.device for r in rows if isinstance(r.device, Accelerator)]
    vendor, trial = devices[0].vendor, deepcopy(form)
    shared = any(d.unified_memory for d in devices)
    discrete = any(not d.unified_memory for d in devices)
    own = {name: math.log(c) for name, c in OWN_CLOCKS.get(vendor, {}).items() if form["clocks_per_weight"]["half"]}
    start = START | ({"shared_share": SHARED_START} if shared else {}) | own
    names, begin = list(start), np.array(list(start.values()))
    weight = np.sqrt([min(r.number["weight"], 1.0) for r in rows])

    def constants(x: F64) -> tuple[dict[str, Any], dict[str, float]]:
        v = dict(zip(names, x.tolist(), strict=True))
        found: dict[str, Any] = {name: math.exp(v[name]) for name in ("launch_clocks", "cache_slowdown")}
        if discrete:
            found["memory_share"] = math.exp(v["share"])
        found["shared_memory_share"] = math.exp(v["shared_share"] if shared else v["share"])
        if own:
            found["clocks_per_weight"] = {"half": 0.0} | {name: math.exp(v[name]) for name in own}
        return found, {name: v[name] for name in OLD}

    def residual(x: F64) -> F64:
        trial["vendors"][vendor], old = constants(x)
        return np.concatenate([np.log([ratio(trial, r, old) for r in rows]) * weight, PULL * (x - begin)])

    best = least_squares(residual, begin, loss="soft_l1", f_scale=0.08, diff_step=1e-3)
    found, old = constants(best.x)
    return _rounded(found), old


def _rounded(found: dict[str, Any]) -> dict[str, Any]:
    """To three digits."""
    return {k: _rounded(cast("dict[str, Any]", v)) if isinstance(v, dict) else float(f"{v:.3g}") for k, v in found.items()}


def fit_engine(rows: Sequence[Row], engine: str, form: dict[str, Any]) -> dict[str, float]:
    """Fit ``form["vendors"]`` in place with the widths of each, for its machines in the fit and for new ones; the errors."""
    errors: dict[str, float] = {}
    by_vendor: dict[str, list[Row]] = defaultdict(list)
    for r in token_rows(rows, engine):
        assert isinstance(r.device, Accelerator)
        by_vendor[r.device.vendor].append(r)
    for vendor, mine in sorted(by_vendor.items()):
        mine = _best(mine) if vendor in BEST_OF_BACKENDS else mine
        learn = [r for r in mine if r.filled and r.n_devices == 1]
        left_out = {"": _left_out(form, vendor, mine, learn, lambda r: r.fold)}
        left_out["new_"] = _left_out(form, vendor, mine, learn, lambda r: fold_of(r.text["machine"]))
        form["vendors"][vendor], _ = fit_vendor(form, learn)
        for kind, name in (("dense", "log_sigma"), ("experts", "experts_log_sigma")):
            least = 0.0
            for new, found in left_out.items():
                mine_of = [(r, q) for r, q in found if (r.arch is not None and r.arch.moe is None) == (kind == "dense")]
                least = max(least, width(mine_of)) if mine_of else least
                form["vendors"][vendor][new + name] = round(least, 3)
                part = [(r, q) for r, q in mine_of if r.filled and r.n_devices == 1]
                by = "machine" if new else "machine and family"
                if part:
                    errors[f"{vendor}, {kind}, left out by {by}, median ({len(part)} rows)"] = median_error(part)
    return errors


def _left_out(
    form: dict[str, Any], vendor: str, rows: Sequence[Row], learn: Sequence[Row], fold: Callable[[Row], int]
) -> list[tuple[Row, float]]:
    """Ratios of ``rows`` of today's builds, each by a fit without the rows of ``learn`` in its fold."""
    found: list[tuple[Row, float]] = []
    for one in range(FOLDS):
        others = [r for r in learn if fold(r) != one]
        if others:
            trial = form | {"vendors": form["vendors"] | {vendor: fit_vendor(form, others)[0]}}
            found += [(r, ratio(trial, r)) for r in rows if fold(r) == one and r.engine != "llamafile"]
    return found


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
    """Log sigma whose 80 % interval holds four fifths of the cells of machine, model, format and context, by their medians."""
    cells: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for r, q in ratios:
        assert r.arch is not None
        near = round(math.log2(max(r.number.get("context_tokens", 512), 128)))
        cells[r.text["machine"], r.n_devices, r.arch.id, r.weights, near, r.engine].append(math.log(q))
    logs = np.abs([float(np.median(v)) for v in cells.values()])
    return weighted_quantile(logs, np.ones_like(logs), INTERVAL) / Z80


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
        form["clocks_per_weight"] = CLOCKS if engine == "llama.cpp" else dict.fromkeys(CLOCKS, 0.0)
        form["vendors"] = {}
        form.pop("clocks_per_byte", None)
        found = fit_engine(rows, engine, form)
        mine = [r for r in token_rows(rows, engine) if r.filled]
        document["measured"] = sorted({r.device.id for r in mine if isinstance(r.device, Accelerator)})
        document["log_sigma"] = {"batch": document["log_sigma"]["batch"]}
        provenance = document["provenance"]
        kept = {k: v for k, v in provenance["errors"].items() if "prompts" in k or "batch" in k}
        provenance["errors"] = kept | found
        provenance["decode"] = "local/speed.parquet: measurements that people published, studies/serving/local_fit.py"
        provenance["split"] = SPLIT
        provenance["date"] = "2026-11-29"
        write(name, document)
        errors |= {f"{name}: {k}": v for k, v in found.items()}
    return errors
