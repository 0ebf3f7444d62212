"""A token on a processor under llama.cpp (``coefficients/processor_stream.json``, in the form of
:mod:`gpuwise.serve.processor`), from ``local/speed.parquet``.

LocalScore's rows (llamafile) are a mean over nine mixes of prompt and answer: their caches hold 1,840 tokens on the average, and
the build has a factor of its own, which is thrown away. Errors and widths are of rows whose cell of machine and family was left
out; whole machines left out are in the errors too. The RAM of few rows is known: the shares hold what people have in their slots.
Refit: ``fit(folder)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.processor import seconds_by_part
from gpuwise.serve.streams import token_work
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.serving.local_fit import PULL, median_error, width
from studies.serving.local_rows import FOLDS, Row, fold_of, read_rows

F64 = NDArray[np.float64]
KINDS = ("desktop", "laptop", "server", "board", "phone")
OVERLAP = 2.0
MIXES = 1840.0
"""Tokens: of LocalScore's nine tests (1024+16, 4096+256, 2048+256, 2048+768, 1024+1024, 1280+3072, 384+1152, 64+1024,
16+1536) the prompt and half of the answer."""
SHORT = 256.0
"""Tokens in a cache whose length a source does not tell."""
SCRAMBLED = ("KrisDcosta", "Apple M4")
"""A source and its machine that the table's makers do not trust: its GPU rows are a quarter of everybody else's."""
START = {
    **dict(zip(KINDS, (-0.35, -0.6, -0.4, -0.6, -1.0), strict=True)),
    "channels_exponent": -0.2,
    "quantised": 2.4,
    "half": 2.4,
    "wait_s": math.log(3e-7),
    "old": 0.1,
}
"""Logarithms, but for the exponent."""


def processor_rows(rows: Sequence[Row]) -> list[Row]:
    """Of one sequence on a processor alone."""
    return [
        r
        for r in rows
        if r.arch is not None
        and isinstance(r.device, Cpu)
        and r.device.peak_flop_per_s.get("fp32")
        and r.users == 1
        and "decode_tok_s" in r.number
        and not r.offloaded
        and not (r.text["source"].startswith(SCRAMBLED[0]) and r.text["machine"].endswith(SCRAMBLED[1]))
        and r.text["backend"] in ("cpu", "")
        and r.engine in ("llama.cpp", "llamafile")
    ]


def document(x: F64) -> dict[str, Any]:
    """The coefficients, without widths."""
    v = dict(zip(START, x.tolist(), strict=True))
    found = {
        "share": {kind: _rounded(math.exp(v[kind])) for kind in KINDS},
        "channels_exponent": _rounded(v["channels_exponent"]),
        "flop_per_weight": {width: _rounded(math.exp(v[width])) for width in ("quantised", "half")},
        "wait_s": _rounded(math.exp(v["wait_s"])),
        "overlap": OVERLAP,
    }
    return found


def ratio(model: dict[str, Any], row: Row, old: float = 0.0) -> float:
    """Predicted over measured seconds, those of llamafile ``old`` longer (log)."""
    assert row.arch is not None and isinstance(row.device, Cpu)
    context = min(MIXES, float(row.arch.max_seq_len)) if row.engine == "llamafile" else row.context if row.filled else SHORT
    memory, compute, wait = seconds_by_part(model, row.device, token_work(row.arch, row.weights, context))
    total = math.hypot(memory, compute) + wait
    return total * row.number["decode_tok_s"] * (math.exp(old) if row.engine == "llamafile" else 1.0)


def fit_rows(rows: Sequence[Row]) -> F64:
    """The constants, in the order of :data:`START`."""
    begin = np.array(list(START.values()))
    weight = np.sqrt([min(r.number["weight"], 1.0) for r in rows])

    def residual(x: F64) -> F64:
        model = document(x)
        return np.concatenate([np.log([ratio(model, r, x[-1]) for r in rows]) * weight, PULL * (x - begin)])

    return least_squares(residual, begin, loss="soft_l1", f_scale=0.2, diff_step=1e-2).x


def left_out(rows: Sequence[Row], fold: Callable[[Row], int]) -> list[tuple[Row, float]]:
    """Ratios of the rows of each fold, by a fit on the others."""
    found: list[tuple[Row, float]] = []
    for one in range(FOLDS):
        model = document(fit_rows([r for r in rows if fold(r) != one]))
        found += [(r, ratio(model, r)) for r in rows if fold(r) == one]
    return found


def fit(folder: Path) -> dict[str, float]:
    """Write the coefficient file; the errors."""
    rows = processor_rows(read_rows(folder))
    cells = left_out(rows, lambda r: r.fold)
    machines = left_out(rows, lambda r: fold_of(r.text["machine"]))
    errors: dict[str, float] = {}
    for name, found in (("machine and family", cells), ("machine", machines)):
        for engine in ("llama.cpp", "llamafile"):
            part = [(r, q) for r, q in found if r.engine == engine]
            errors[f"{engine}, left out by {name}, median ({len(part)} rows)"] = median_error(part)
    sigma, new = ({kind: round(width(_of_kind(found, kind)), 3) for kind in KINDS} for found in (cells, machines))
    new = {kind: max(new[kind], sigma[kind]) for kind in KINDS}
    provenance = {
        "source": "local/speed.parquet: measurements that people published (llama.cpp, LocalScore)",
        "split": "cells of machine and family, and whole machines, in five folds",
        "errors": errors,
        "date": "2026-11-30",
    }
    measured = sorted({r.device.id for r in rows if isinstance(r.device, Cpu)})
    offload = load_json("processor_stream")["offload"]
    widths = {"log_sigma": sigma, "new_log_sigma": new, "measured": measured, "offload": offload}
    write("processor_stream", document(fit_rows(rows)) | widths | {"provenance": provenance})
    return errors


def _of_kind(found: Sequence[tuple[Row, float]], kind: str) -> list[tuple[Row, float]]:
    return [(r, q) for r, q in found if isinstance(r.device, Cpu) and r.device.kind == kind]


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
