"""The correction of one family on one device, from its measurements: fitted, and checked on held-out shapes.

y = log(measured / predicted) is a Gaussian process over log2 sizes plus noise. The common part, the shape-dependent part, its
length in octaves and the noise maximise the likelihood, with a prior: a device differs from its kind by about the measured
spread of the kind. So few or scattered measurements leave the factor at 1; many that agree move it fully.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.corrections import Correction
from gpuwise.predict.kernels.corrections import LARGEST_LOG_FACTOR, evaluate, similarity

F64 = NDArray[np.float64]
LENGTHS = (2.0, 4.0, 8.0)
"""Octaves."""
SHARES = (0.0, 0.3, 1.0, 2.0)
"""Trial values of the constant and the shape part, relative to the kind's spread."""
NOISES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
PRIOR_LOG_SIGMA = 1.0
"""A part of twice or half the kind's spread is as unlikely as one standard deviation is of a normal: a weak prior."""
FOLDS = 5
LEAST_ROWS = 5
"""Below this many shapes only what is common to all is looked for."""
LEAST_GROUPS = 2
LEAST_STEPS = 1.645
"""Quantile 0.95 of the normal: one calibration in twenty is accepted where there is nothing to gain."""


@dataclass(frozen=True, slots=True)
class FamilyFit:
    """One family and format on one device. Errors are mean absolute ones of seconds, on held-out shapes."""

    key: str
    rows: int
    groups: int
    """Shapes are held out group by group: products with the same weight matrix are one group."""
    before: float | None
    after: float | None
    """With the correction, each group predicted by a fit without it; None with one group only."""
    bias: float
    """Median of measured over predicted before the fit, minus 1."""
    correction: Correction | None
    """None if it would not improve the held-out shapes."""


def fit_family(key: str, points: F64, y: F64, groups: Sequence[object], kind_sigma: float) -> FamilyFit:
    """``points`` [R, D] log2 sizes, ``y`` [R] log(measured / predicted), ``kind_sigma`` the model's own spread."""
    y = np.clip(y, -LARGEST_LOG_FACTOR, LARGEST_LOG_FACTOR)
    codes = {g: i for i, g in enumerate(dict.fromkeys(groups))}
    group = np.array([codes[g] for g in groups])
    bias = math.expm1(float(np.median(y)))
    before = _error(-y)
    if len(codes) < LEAST_GROUPS:
        return FamilyFit(key, len(y), len(codes), before, None, bias, fit_correction(points, y, kind_sigma))
    residual = np.empty(len(y))
    fold = np.random.default_rng(20261122).permutation(len(codes))[group] % min(FOLDS, len(codes))
    for f in range(int(fold.max()) + 1):
        held_out = fold == f
        correction = fit_correction(points[~held_out], y[~held_out], kind_sigma)
        residual[held_out] = evaluate(correction, points[held_out])[0] - y[held_out]
    after = _error(residual)
    if not _is_better(residual, -y, group):
        return FamilyFit(key, len(y), len(codes), before, before, bias, None)
    spread = float(np.sqrt(np.mean(residual**2)))
    correction = fit_correction(points, y, kind_sigma, log_sigma=spread)
    return FamilyFit(key, len(y), len(codes), before, after, bias, correction)


def fit_constant(key: str, y: float, log_sigma: float = 0.0) -> FamilyFit:
    """One number, the median of many samples and without a size: log(measured / predicted) as it is, within the largest."""
    y = min(max(y, -LARGEST_LOG_FACTOR), LARGEST_LOG_FACTOR)
    return FamilyFit(key, 1, 1, abs(math.expm1(-y)), None, math.expm1(y), Correction(((0.0,),), (y,), 1.0, 0.0, 1.0, log_sigma))


def _is_better(residual: F64, plain: F64, group: NDArray[np.int64]) -> bool:
    """Whether the error on held-out shapes fell by more than chance: by over ``LEAST_STEPS`` standard errors over the groups."""
    gain = np.abs(np.expm1(plain)) - np.abs(np.expm1(residual))
    by_group = np.bincount(group, gain)
    n = len(by_group)
    return bool(by_group.mean() > LEAST_STEPS * by_group.std(ddof=1) / math.sqrt(n))


def fit_correction(points: F64, y: F64, kind_sigma: float, *, log_sigma: float | None = None) -> Correction:
    """The most likely correction. ``log_sigma`` is its reported residual spread; default: the fitted noise.

    With K = Q diag(l) Q^T the covariance c^2 1 1^T + s^2 K + n^2 I is diagonal in Q but for one rank, so that each trial costs
    a few sums (Sherman and Morrison; the matrix determinant lemma).
    """
    best: tuple[float, Correction] | None = None
    with_shapes = len(y) >= LEAST_ROWS
    for length in LENGTHS if with_shapes else LENGTHS[-1:]:
        values, q = np.linalg.eigh(similarity(points, points, length))
        u, v = q.sum(0), y @ q
        for constant, shape, noise, prior in _trials(kind_sigma, shapes=with_shapes):
            if shape == 0.0 and length != LENGTHS[-1]:
                continue  # without a shape's part the length changes nothing
            d = shape**2 * np.maximum(values, 0.0) + noise**2
            more = 1.0 + constant**2 * float((u * u / d).sum())
            common = constant**2 * float((u * v / d).sum()) / more
            fitted = (v - common * u) / d
            score = -0.5 * float((v * fitted).sum() + np.log(d).sum() + math.log(more)) + prior
            if best is None or score > best[0]:
                weights = q @ fitted
                residual_sigma = noise if log_sigma is None else log_sigma
                correction = Correction(
                    tuple(map(tuple, points.tolist())), tuple(weights.tolist()), constant**2, shape**2, length, residual_sigma
                )
                best = (score, correction)
    assert best is not None
    return best[1]


def _trials(kind_sigma: float, *, shapes: bool) -> Iterator[tuple[float, float, float, float]]:
    """Standard deviations of the constant, the shape's part and the noise, with their log prior."""
    for a in SHARES:
        for b in SHARES if shapes else (0.0,):
            # a share of 0 is as likely as half the kind's spread
            log_prior = sum(-0.5 * (math.log(max(s, 0.5)) / PRIOR_LOG_SIGMA) ** 2 for s in (a, b))
            for noise in NOISES:
                yield a * kind_sigma, b * kind_sigma, noise, log_prior


def _error(log_ratio: F64) -> float:
    """Mean absolute error of exp(log_ratio) = predicted / measured."""
    return float(np.mean(np.abs(np.expm1(log_ratio))))
