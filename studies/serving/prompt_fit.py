"""Prompts under llama.cpp on AMD's and Intel's devices (``prompt`` of ``coefficients/single_stream.json``, in the form of
:mod:`gpuwise.serve.streams`), from ``local/speed.parquet``: rates by width of the weights, and what attention reaches of them.
The rest is :mod:`studies.serving.llama_batches`'s, after which this is refitted: ``fit(folder)``. Rows of one device that state
the prompt's length; errors are of rows whose cell of machine and family was left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.streams import prompt_time
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.serving.local_fit import BEST_OF_BACKENDS, median_error
from studies.serving.local_rows import FOLDS, Row, read_rows

F64 = NDArray[np.float64]
VENDORS = ("AMD", "Intel")
WIDTHS = ("half", "quantised")
LEAST = 64
"""Tokens of a prompt from which its rate counts."""
PULL = 0.1
START = {
    **{f"{vendor} {width}": math.log(300.0) for vendor in VENDORS for width in WIDTHS},
    **{f"{vendor} attention": math.log(0.5) for vendor in VENDORS},
}
"""Logarithms."""


def prompt_rows(rows: Sequence[Row]) -> list[Row]:
    """Of one prompt on one device."""
    found = [
        r
        for r in rows
        if r.arch is not None
        and isinstance(r.device, Accelerator)
        and r.device.vendor in VENDORS
        and r.users == 1
        and r.number.get("prompt_tok_s")
        and r.number.get("n_gpu", 0) == 1
        and not r.offloaded
        and r.engine == "llama.cpp"
        and LEAST <= r.number.get("prompt_tokens", 0) <= r.arch.max_seq_len
        and r.device.compute_units
        and r.device.boost_hz
        and "wall" not in r.text["metric_kind"]
        and not ("@" in r.text["metric_kind"] or "depth" in r.text["metric_kind"])
    ]
    best: dict[tuple[str, str, str, float], float] = {}
    for r in found:
        key = _same(r)
        best[key] = max(best.get(key, 0.0), r.number["prompt_tok_s"])
    return [r for r in found if not _choice(r) or r.number["prompt_tok_s"] == best[_same(r)]]


def _choice(r: Row) -> bool:
    return isinstance(r.device, Accelerator) and r.device.vendor in BEST_OF_BACKENDS


def _same(r: Row) -> tuple[str, str, str, float]:
    assert r.arch is not None
    return r.text["machine"], r.arch.id, r.weights, r.number["prompt_tokens"]


def prompt_constants(x: F64, old: dict[str, Any]) -> dict[str, Any]:
    """``old`` with the constants of these vendors."""
    v = dict(zip(START, x.tolist(), strict=True))
    rates = {vendor: {w: _rounded(math.exp(v[f"{vendor} {w}"])) for w in WIDTHS} for vendor in VENDORS}
    attention = {vendor: _rounded(math.exp(v[f"{vendor} attention"])) for vendor in VENDORS}
    return old | {"flop_per_clock": old["flop_per_clock"] | rates, "attention_share": old["attention_share"] | attention}


def ratio(form: dict[str, Any], row: Row) -> float:
    """Predicted over measured seconds."""
    assert row.arch is not None and isinstance(row.device, Accelerator)
    tokens = int(row.number["prompt_tokens"])
    return prompt_time(form, row.arch, row.device, row.weights)(tokens, 0.0) / tokens * row.number["prompt_tok_s"]


def fit_rows(form: dict[str, Any], rows: Sequence[Row]) -> F64:
    """The constants, in the order of :data:`START`."""
    begin, trial = np.array(list(START.values())), deepcopy(form)
    weight = np.sqrt([min(r.number["weight"], 1.0) for r in rows])

    def residual(x: F64) -> F64:
        trial["prompt"] = prompt_constants(x, form["prompt"])
        return np.concatenate([np.log([ratio(trial, r) for r in rows]) * weight, PULL * (x - begin)])

    return least_squares(residual, begin, loss="soft_l1", f_scale=0.15, diff_step=1e-2).x


def fit(folder: Path) -> dict[str, float]:
    """Write ``prompt``; the errors."""
    rows, document = prompt_rows(read_rows(folder)), deepcopy(load_json("single_stream"))
    form = document["form"]
    out: list[tuple[Row, float]] = []
    for fold in range(FOLDS):
        trial = form | {"prompt": prompt_constants(fit_rows(form, [r for r in rows if r.fold != fold]), form["prompt"])}
        out += [(r, ratio(trial, r)) for r in rows if r.fold == fold]
    form["prompt"] = prompt_constants(fit_rows(form, rows), form["prompt"])
    errors: dict[str, float] = {}
    for vendor in VENDORS:
        part = [(r, q) for r, q in out if isinstance(r.device, Accelerator) and r.device.vendor == vendor]
        errors[f"prompts, {vendor}, left out by machine and family, median ({len(part)} rows)"] = median_error(part)
    document["provenance"]["errors"] |= errors
    write("single_stream", document)
    return errors


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
