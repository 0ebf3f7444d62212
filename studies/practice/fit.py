"""The level of published runs, fitted on them: a handful of coefficients, shrunk, checked on families left out.

Needs scipy. Least Huber loss, nearly that of the median, over ``ln(published / tuned)``, each run with the software of its year;
a family's rows weigh less the more there are, so that a paper with ten does not count ten times. A run that is asked with its
own layout and with the published one counts for each: the level lies between the two questions. Tables of models with experts
by the authors of a stack say what is reached tuned, and take no part (dense ones do: they lie where runs lie). Experts are
shrunk to dense pre-training; adapters to the tuned level, for their authors' recipe trains them on one host; the other terms to
nothing.
``benchmarks/practice.py --fit`` asks the plans and calls :func:`fit`.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.interval import Z80
from studies.coefficient_files import write
from studies.optimizers import minimize
from studies.practice.rows import PracticeRow

F64 = NDArray[np.float64]
LEVELS = ("dense", "experts", "adapters")
SHRINK, SHRINK_SCALE, HUBER = 1.0, 2.0, 0.03
LEAST_SIGMA = 0.15
START = (0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""Dense level, the other kinds beside it, size, sparsity, rate of the GPU, PyTorch's own FSDP."""


def predicted(p: F64, rows: Sequence[PracticeRow]) -> F64:
    """ln slowdown of ``rows`` under the coefficients ``p``: none is faster than tuned, and one GPU is tuned."""
    level = {"dense": p[0], "experts": p[0] + p[1], "adapters": p[0] + p[2]}
    x = [level[r.level] + p[3] * r.size + p[4] * r.sparsity + p[5] * r.rate + p[6] * r.sharded for r in rows]
    return np.where([r.alone for r in rows], 0.0, np.maximum(np.array(x), 0.0))


def weights(rows: Sequence[PracticeRow]) -> F64:
    """One over the fourth root of the rows of a family that ask the same way."""
    count = Counter((r.run.family, r.run.how) for r in rows)
    return np.array([count[r.run.family, r.run.how] ** -0.25 for r in rows])


def solve(rows: Sequence[PracticeRow]) -> F64:
    """Coefficients of ``rows``."""
    y, w = np.array([r.slower for r in rows]), weights(rows)

    def loss(p: F64) -> float:
        e = np.abs(y - predicted(p, rows))
        huber = np.where(e < HUBER, e * e / (2 * HUBER), e - HUBER / 2)
        kinds = float(p[1] ** 2) + float((p[0] + p[2]) ** 2)
        penalty = SHRINK * (kinds + float(p[4] ** 2) + float(p[5] ** 2) + float(p[6] ** 2)) + SHRINK_SCALE * float(p[3] ** 2)
        return float(np.sum(w * huber)) + penalty

    solutions = [minimize(loss, np.array(START), method="Powell", options={"maxiter": 4000, "xtol": 1e-4, "ftol": 1e-6})]
    second = np.array([*START[:3], -0.05, *START[4:6], -0.2])
    solutions.append(minimize(loss, second, method="Powell", options={"maxiter": 4000, "xtol": 1e-4, "ftol": 1e-6}))
    return np.asarray(min(solutions, key=lambda f: f.cost).x, dtype=np.float64)


def joins(row: PracticeRow) -> bool:
    """Whether ``row`` tells what a team reaches at the work that was asked."""
    return not row.run.other_work and not row.run.of_authors


def left_out(rows: Sequence[PracticeRow]) -> F64:
    """ln(published / predicted) of each row with its family left out of the fit."""
    out = np.full(len(rows), np.nan)
    for family in {r.run.family for r in rows}:
        in_family = np.array([r.run.family == family for r in rows])
        p = solve([r for r in rows if r.run.family != family and joins(r)])
        part = [r for r, h in zip(rows, in_family, strict=True) if h]
        out[in_family] = np.array([r.slower for r in part]) - predicted(p, part)
    return out


def sigma_of(residuals: F64, w: F64, least: float = LEAST_SIGMA) -> float:
    """Standard deviation whose 80 % interval holds 80 % of the weight of ``residuals``."""
    order = np.argsort(np.abs(residuals))
    share = np.cumsum(w[order]) / w.sum()
    at = min(int(np.searchsorted(share, 0.80)), len(order) - 1)
    return max(float(np.abs(residuals)[order[at]]) / Z80, least)


def _class(errors: F64, sigma: F64) -> dict[str, Any]:
    """Figures of the rows of a class from ln(published / predicted) and the spread promised."""
    ratio = np.exp(-errors)
    return {
        "rows": len(errors),
        "median_error": round(float(np.median(np.abs(ratio - 1))), 3),
        "median_ratio": round(float(np.median(ratio)), 3),
        "inside_80": round(float(np.mean(np.abs(errors) <= Z80 * sigma)), 2),
    }


def memory_sigma(rows: Sequence[PracticeRow]) -> float:
    """Spread of published memory about the predicted one, whatever it is by."""
    held = [r for r in rows if r.run.metric == "mem"]
    return round(sigma_of(np.array([r.total for r in held]), weights(held), 0.0), 3)


def fit(rows: Sequence[PracticeRow], asked: Sequence[PracticeRow] = (), further: Sequence[PracticeRow] = ()) -> dict[str, Any]:
    """Fit ``rows`` (times and rates), write the coefficients, return the document.

    ``asked``: the same runs as the table asks them, judged on the same levels. ``further``: rows of other tables, which take part
    in the levels (adapters apart) and in the spread of memory; what is judged and promised is of ``rows``."""
    timed = [r for r in rows if r.run.metric != "mem"]
    more = [r for r in further if r.run.metric != "mem" and r.level != "adapters"]
    p, w = solve([r for r in (*timed, *more) if joins(r)]), weights(timed)
    residuals = left_out([*timed, *more])[: len(timed)]
    sigma: dict[str, float] = {}
    classes: dict[str, Any] = {}
    for level in LEVELS:
        # of a plan's own layouts where there are such rows: one that is given holds a team's choices already, and spreads less
        of_level = np.array([r.level == level and r.run.how == "best" for r in timed])
        mine = of_level if of_level.any() else np.array([r.level == level for r in timed])  # other work widens it too
        sigma[level] = round(sigma_of(residuals[mine], w[mine]), 3)
    today = {r.run.id: r.slower for r in asked}
    as_asked = residuals + np.array([today.get(r.run.id, r.slower) - r.slower for r in timed])
    for label, errors in (("", residuals), (" (as asked)", as_asked)):
        for kind, how in sorted({(r.run.scored, r.run.how) for r in timed}):
            mine = np.array([(r.run.scored, r.run.how) == (kind, how) for r in timed])
            if not label or np.any(errors[mine] != residuals[mine]):
                classes[f"{kind}, {how}{label}"] = _class(errors[mine], np.array([sigma[r.level] for r in timed])[mine])
    level = {"dense": p[0], "experts": p[0] + p[1], "adapters": p[0] + p[2]}
    document = {
        "level": {k: round(float(v), 4) + 0.0 for k, v in level.items()},
        "size": round(float(p[3]), 4),
        "sparsity": round(float(p[4]), 4),
        "rate": round(float(p[5]), 4),
        "sharded": round(float(p[6]), 4),
        "log_sigma": sigma,
        "memory_log_sigma": memory_sigma([*rows, *further]),
        "provenance": {
            "what": "seconds of published runs over the tuned level, failures and evaluation taken out",
            "sources": "published_runs.csv: model cards and papers, a line each",
            "rows": sum(map(joins, (*timed, *more))),
            "families": len({r.run.family for r in (*timed, *more) if joins(r)}),
            "date": datetime.date.today().isoformat(),
            "left_family_out": classes,
            "log_spread": round(math.sqrt(float(np.average(residuals**2, weights=w))), 3),
        },
    }
    write("practice", document)
    return document
