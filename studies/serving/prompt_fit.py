"""Prompts under llama.cpp and MLX LM (``prompt`` of ``coefficients/single_stream.json`` and ``mlx_stream.json``, in the form of
:mod:`gpuwise.serve.streams`), from ``local/speed.parquet``: ``fit(folder)``.

Each vendor by itself, NVIDIA first: what a batch's kernels and a row's bytes cost is of its rows, and a weak pull to its other
constants keeps vendors with few rows sane. Rows of one device that state the prompt's length, with the tokens before it.
Left out: rates above the device's 16-bit peak, which a prompt cache gave; rows of the builds in :data:`OLD`, but for Apple, whose
rows of today are few: there those builds have a rate of their own, and attention of May 2024, which was not fused, another;
both are thrown away. Short prompts of 16-bit weights of May 2024 count on NVIDIA: their products are cuBLAS's, then as now.
Errors and widths are of rows whose cell of machine and family was left out, without old builds.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.engine import ENGINES, Engine
from gpuwise.serve.streams import prompt_time, row_flop
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.serving.local_fit import APART, BEST_OF_BACKENDS, YOUNG, median_error, width
from studies.serving.local_rows import FOLDS, Row, read_rows

F64 = NDArray[np.float64]
OLD = ("LocalScore", "XiongjieDai", "lhl/strix-halo-testing")
"""Sources whose builds are of May 2024 to August 2025: 1.5 to 4 times slower than those of 2026 on the same device."""
MEAN_PROMPT = 1232.0
"""Tokens of LocalScore's nine prompts on the average."""
LEAST = 64
"""Tokens of a prompt from which its rate counts."""
TWICE = "localmaxxing"
"""Its rows of ``ONE_PERSON`` of 512 tokens are those of h1st0ry3D, without the depth."""
ONE_PERSON = "RTX 4070"
NEURAL = "apple-m5"
"""Chips with matrix units beside those of the catalogue's rate."""
SHARED = ("launch_clocks", "row_bytes")
START: dict[str, dict[str, float]] = {
    "NVIDIA": {"flop_per_clock": 700.0, "half_share": 0.25, "attention_flop_per_clock": 250.0, "state_clocks": 2000.0},
    "AMD": {"flop_per_clock": 250.0, "half_share": 0.4, "attention_flop_per_clock": 50.0, "state_clocks": 2000.0},
    "Intel": {"flop_per_clock": 250.0, "half_share": 0.15, "attention_flop_per_clock": 50.0, "state_clocks": 2000.0},
    "Apple": {"flop_per_clock": 153.0, "half_share": 0.74, "attention_flop_per_clock": 125.0, "state_clocks": 30000.0},
}
"""Apple's rates are those of ggml's own table (llama.cpp discussion 4167)."""
EXPONENT = {"AMD": 0.6}
"""Of the 16-bit peak in the rate of quantised weights: RDNA4 has twice that of RDNA3 a unit and clock. The best of 0, 0.3, 0.6
and 1 on rows left out; NVIDIA's A100 and H100 are no faster for their wider units."""
EXPERTS = {"expert_share": 0.7, "expert_rows": 70.0}
PULL = {
    "flop_per_clock": 0.02,
    "half_share": 0.2,
    "attention_flop_per_clock": 0.1,
    "state_clocks": 0.1,
    "expert_share": 0.3,
    "expert_rows": 0.3,
    "launch_clocks": 0.3,
    "row_bytes": 0.2,
    "old_rate": 0.02,
    "old_attention": 0.02,
}
OLD_START = {"old_rate": 1.0, "old_attention": 1.5}
BEGIN = {"launch_clocks": 20000.0, "row_bytes": 200.0}


def prompt_rows(rows: Sequence[Row], engine: Engine) -> list[Row]:
    """Of one prompt on one device under ``engine``."""
    found = [
        r
        for r in rows
        if r.arch is not None
        and isinstance(r.device, Accelerator)
        and r.engine in (("mlx",) if engine.name == "mlx-lm" else ("llama.cpp", "llamafile"))
        and not any(word in r.text["engine"] for word in APART)
        and r.device.vendor in START
        and r.users == 1
        and r.number.get("prompt_tok_s")
        and r.number.get("n_gpu", 0) == 1
        and not r.offloaded
        and LEAST <= tokens_of(r) <= r.arch.max_seq_len
        and r.device.compute_units
        and r.device.boost_hz
        and "wall" not in r.text["metric_kind"]
        and r.text["family"] not in YOUNG
        and not r.device.id.startswith(NEURAL)
        and not (r.text["source"].startswith(TWICE) and r.text["machine"] == ONE_PERSON and tokens_of(r) == 512)
    ]
    found = [r for r in found if _possible(r)]
    best: dict[tuple[Any, ...], float] = {}
    for r in found:
        best[_same(r)] = max(best.get(_same(r), 0.0), r.number["prompt_tok_s"])
    return [r for r in found if not _choice(r) or r.number["prompt_tok_s"] == best[_same(r)]]


def tokens_of(r: Row) -> float:
    """Tokens of the prompt; 0 where the row does not say."""
    if r.engine == "llamafile":
        return MEAN_PROMPT
    return r.number.get("prompt_tokens") or (512.0 if "pp512" in r.text["metric_kind"] else 0.0)


def before(r: Row) -> float:
    """Tokens before the prompt."""
    kind = r.text["metric_kind"]
    return max(r.number["context_tokens"] - tokens_of(r), 0.0) if "@" in kind or "depth" in kind else 0.0


def is_old(r: Row) -> bool:
    """Whether the row's build is not today's."""
    return r.text["source"].startswith(OLD)


def _of_cublas(r: Row) -> bool:
    """Whether an old row's time is that of cuBLAS; two machines of the table fell back from it."""
    return (
        r.text["source"].startswith("XiongjieDai")
        and r.weights == "F16"
        and tokens_of(r) <= 1024
        and not r.text["machine"].startswith(("A100 SXM", "L40S"))
    )


def _possible(r: Row) -> bool:
    assert r.arch is not None and isinstance(r.device, Accelerator)
    rates = r.device.peak_flop_per_s
    peak = max(r.device.fp16_accumulate_flop_per_s or 0.0, *(rates.get(n, 0.0) for n in ("fp16", "bf16", "fp32")))
    return row_flop(r.arch, head=False) * r.number["prompt_tok_s"] <= peak


def _choice(r: Row) -> bool:
    return isinstance(r.device, Accelerator) and r.device.vendor in BEST_OF_BACKENDS


def _same(r: Row) -> tuple[Any, ...]:
    assert r.arch is not None
    return r.text["machine"], r.arch.id, r.weights, tokens_of(r), before(r)


def ratio(form: dict[str, Any], row: Row, batch: int) -> float:
    """Predicted over measured seconds."""
    assert row.arch is not None and isinstance(row.device, Accelerator)
    tokens = tokens_of(row)
    return (
        prompt_time(form, row.arch, row.device, row.weights, batch=batch)(tokens, before(row))
        / tokens
        * row.number["prompt_tok_s"]
    )


def _of_old(prompt: dict[str, Any], vendor: str, v: dict[str, float], row: Row) -> dict[str, Any]:
    """``prompt`` of the row's build."""
    mine = dict(prompt["vendors"][vendor])
    if row.engine == "llamafile":
        mine |= {name: mine[name] / v["old_rate"] for name in ("flop_per_clock", "half_share")}
    elif is_old(row):
        mine["attention_flop_per_clock"] /= v["old_attention"]
    return prompt | {"vendors": {vendor: mine}}


def fit_vendor(form: dict[str, Any], vendor: str, rows: Sequence[Row], batch: int, *, shared: bool) -> dict[str, Any]:
    """``form["prompt"]`` with the constants of ``vendor``, and with ``shared`` those that all have."""
    old = form["prompt"]
    start = START[vendor] | EXPERTS | (BEGIN if shared else {}) | (OLD_START if any(map(is_old, rows)) else {})
    begin, pull = np.log(list(start.values())), np.array([PULL[name] for name in start])
    weight = np.sqrt([min(r.number["weight"], 1.0) * (0.3 if is_old(r) else 1.0) for r in rows])

    def prompt(v: dict[str, float]) -> dict[str, Any]:
        mine = {name: v[name] for name in (*START[vendor], *EXPERTS)} | {"peak_exponent": EXPONENT.get(vendor, 0.0)}
        return old | ({name: v[name] for name in SHARED} if shared else {}) | {"vendors": old["vendors"] | {vendor: mine}}

    def residual(x: F64) -> F64:
        v = dict(zip(start, np.exp(x).tolist(), strict=True))
        made = prompt(v)
        ratios = [ratio(form | {"prompt": _of_old(made, vendor, v, r)}, r, batch) for r in rows]
        return np.concatenate([np.log(ratios) * weight, pull * (x - begin)])

    best = least_squares(residual, begin, loss="soft_l1", f_scale=0.15, diff_step=1e-2).x
    return prompt({name: float(f"{v:.3g}") for name, v in zip(start, np.exp(best).tolist(), strict=True)})


def fit_engine(rows: Sequence[Row], engine: Engine, form: dict[str, Any]) -> dict[str, float]:
    """Fit ``form["prompt"]`` in place with the width of each vendor; the errors."""
    mine = prompt_rows(rows, engine)
    errors: dict[str, float] = {}
    for vendor in START:
        part = [r for r in mine if isinstance(r.device, Accelerator) and r.device.vendor == vendor]
        part = [r for r in part if vendor == "Apple" or not is_old(r) or _of_cublas(r)]
        if not part:
            continue
        shared, batch = vendor == "NVIDIA", engine.prompt_batch
        out: list[tuple[Row, float]] = []
        for fold in range(FOLDS):
            trial = form | {"prompt": fit_vendor(form, vendor, [r for r in part if r.fold != fold], batch, shared=shared)}
            out += [(r, ratio(trial, r, batch)) for r in part if r.fold == fold and not is_old(r)]
        form["prompt"] = fit_vendor(form, vendor, part, batch, shared=shared)
        form["prompt"]["vendors"][vendor]["log_sigma"] = round(width(out), 3)
        errors[f"prompts, {vendor}, left out by machine and family, median ({len(out)} rows)"] = median_error(out)
    return errors


def fit(folder: Path) -> dict[str, float]:
    """Write ``prompt`` of both programs; the errors."""
    rows = read_rows(folder)
    errors: dict[str, float] = {}
    shared: dict[str, float] = {}
    for engine in (ENGINES["llama.cpp"], ENGINES["mlx-lm"]):
        document = deepcopy(load_json(engine.streams))
        form, provenance = document["form"], document["provenance"]
        form["prompt"] = {"batch_rows": form["prompt"]["batch_rows"], "batch_launch_clocks": 0.0, "vendors": {}} | shared
        found = fit_engine(rows, engine, form)
        if not shared:
            form["prompt"]["batch_launch_clocks"] = form["prompt"]["launch_clocks"]
        shared = {name: form["prompt"][name] for name in SHARED}
        provenance["errors"] = {k: v for k, v in provenance["errors"].items() if "prompt" not in k} | found
        write(engine.streams, document)
        errors |= {f"{engine.name}: {k}": v for k, v in found.items()}
    return errors
