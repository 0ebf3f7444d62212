"""Does calibrating pay? A card of a published table plays "this machine": ``python -m studies.machine.trial DIR``.

Its own coefficients, and those of its whole micro-architecture, are taken out of the kernel model first, as for a card that
nobody measured; then ``n`` of its products are "measured", and the error on shapes of other weight matrices is compared
before and after. The same with its coefficients left in shows what there is to gain where the card is known.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuwise.calibrate.gemm.rows import GemmRows, accelerator_of, read_gemm, site_hash
from gpuwise.calibrate.machine.fit import fit_family
from gpuwise.errors import DataError
from gpuwise.predict.coefficients import load_arrays, load_json
from gpuwise.predict.kernels.corrections import evaluate as evaluate_correction
from gpuwise.predict.kernels.gemm.coefficients import Coefficients, build, duration_class
from gpuwise.predict.kernels.gemm.product import evaluate

CARDS = (("a100_sxm", "bf16"), ("h100_sxm", "bf16"), ("h100_sxm", "fp8"), ("b200_sxm", "bf16"), ("l40s", "bf16"), ("l40s", "fp8"))
"""Devices and formats whose table was timed in CUDA graphs."""
SHORTEST_S = 5e-6
"""Shorter products are launches, which no kernel model should learn."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Mean absolute errors on products of weight matrices that the calibration never saw."""

    gpu: str
    dtype: str
    in_model: bool
    """The GPU's own coefficients were in the model."""
    n: int
    before: float
    after: float
    expected_before: float | None
    expected_after: float | None
    """What the calibration itself says of its ``n`` rows, by cross-validation."""

    @property
    def cut(self) -> float:
        """Share of the error that went."""
        return 1.0 - self.after / self.before


def trial(rows: GemmRows, gpu: str, dtype: str, n: int, *, in_model: bool, seed: int = 1) -> Trial:
    """One card and format. Raises DataError where the table does not have them."""
    accelerator = accelerator_of(gpu)
    part = rows.take((rows.gpu == gpu) & (rows.dtype == dtype) & (rows.time_s >= SHORTEST_S))
    if accelerator is None or not len(part):
        raise DataError(f"the table has no {dtype} products on {gpu}", hint="it is ops/gemm.parquet")
    document = copy.deepcopy(load_json("gemm"))
    if not in_model:
        for families in document["physics"].values():
            families.pop(accelerator.family, None)
    s = build(accelerator, dtype, document, load_arrays("gemm"))
    site = site_hash(part.n.astype(np.int64), part.k.astype(np.int64))
    ours = np.flatnonzero(site % np.uint64(2) == 0)
    others = np.flatnonzero(site % np.uint64(2) == 1)
    rng = np.random.default_rng(seed)
    picked = rng.choice(ours, n, replace=False)
    checked = rng.choice(others, min(5000, len(others)), replace=False)
    sampled, check_rows = part.take(picked), part.take(checked)
    y, sigma = _logs(s, sampled)
    truth, _ = _logs(s, check_rows)
    fit = fit_family(f"matmul/{dtype}", _points(sampled), y, list(zip(sampled.n, sampled.k, strict=True)), sigma)
    factor = np.zeros(len(truth)) if fit.correction is None else evaluate_correction(fit.correction, _points(check_rows))[0]
    before, after = (float(np.mean(np.abs(np.expm1(f - truth)))) for f in (np.zeros(len(truth)), factor))
    return Trial(gpu, dtype, in_model, n, before, after, fit.before, fit.after)


def _points(rows: GemmRows) -> np.ndarray:
    return np.log2(np.stack([rows.m, rows.n, rows.k], axis=1))


def _logs(s: Coefficients, rows: GemmRows) -> tuple[np.ndarray, float]:
    """log(measured / predicted) of bursts, as the table has them, and the model's own spread."""
    predicted = evaluate(s, rows.m, rows.n, rows.k, np.ones(len(rows)))
    sigma = s.sigma[duration_class(predicted)]
    return np.log(rows.time_s / predicted), float(np.median(sigma))


def main(arguments: Sequence[str]) -> int:
    """Print the trial on the tables of the folder in ``arguments``; returns the exit code. Raises DataError without tables."""
    rows = read_gemm(Path(arguments[0]))
    if rows is None:
        raise DataError(f"{arguments[0]} has no ops/gemm.parquet", hint="give the folder of the tables")
    seeds = 3
    sys.stdout.write("| card | format | own coefficients | products | error before | after | cut | it says of itself |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    for gpu, dtype in CARDS:
        for in_model in (False, True):
            for n in (20, 50, 200):
                trials = [trial(rows, gpu, dtype, n, in_model=in_model, seed=s) for s in range(seeds)]
                before, after = (float(np.mean([getattr(t, f) for t in trials])) for f in ("before", "after"))
                expected_error = float(np.mean([t.expected_after or np.nan for t in trials]))
                cells = (
                    gpu,
                    dtype,
                    "in" if in_model else "taken out",
                    n,
                    f"{before:.1%}",
                    f"{after:.1%}",
                    f"{1 - after / before:.0%}",
                )
                sys.stdout.write("| " + " | ".join(str(c) for c in cells) + f" | {expected_error:.1%} |\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
