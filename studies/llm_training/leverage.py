"""Errors as they would be had a model taken no part in the fit: from the fit's own slopes, without fitting anew.

A robust least-squares fit near its optimum is linear in its coefficients. With slopes ``J`` [R, C], weights ``W`` and pulls
``P`` towards a prior, the rows ``b`` of a model have a share in deciding their own prediction, their leverage:

    H = J^T W J + P        A = W_b^1/2 J_b H^-1 J_b^T W_b^1/2

Of a direction with leverage ``l`` the residual keeps a variance of 1 - l, and a row never seen one of 1 + l: each direction of
the model's residuals is stretched by sqrt((1 + l) / (1 - l)). (The correction HC2 of White's covariance, for clusters: Bell
and McCaffrey, Survey Methodology 28, 2002.) A direction that the model alone decides shows nothing of its error, so the
leverage counted ends at :data:`LARGEST_LEVERAGE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
B1 = NDArray[np.bool_]
LARGEST_LEVERAGE = 0.75
"""A stretch of 2.6: about what whole models left out showed where refits were tried."""
AT_BOUND = 2e-3
"""A coefficient so near the end of its range, as a share of it, does not move."""
STEP = 3e-3
"""Of a slope, as a share of the range."""


@dataclass(frozen=True, slots=True)
class Range:
    """A fitted coefficient [C]: where it ended and where it started as shares of its range, and the pull to the start."""

    end: F64
    start: F64
    pull: F64


def slopes(error: Callable[[F64], F64], end: F64) -> F64:
    """[R, C] derivative of ``error`` (log(predicted / measured) of each row) at ``end``, inwards of the range."""
    base = error(end)
    slope = np.zeros((len(base), len(end)))
    for i, share in enumerate(end):
        step = -STEP if share > 0.5 else STEP
        moved = end.copy()
        moved[i] += step
        slope[:, i] = (error(moved) - base) / step
    return slope


def unseen_errors(error: F64, slope: F64, weight: F64, at: Range, scale: float, fit: B1, model: Sequence[object]) -> F64:
    """[R] ``error`` with that of every fit row stretched to what its model would show, had it been left out.

    ``weight`` [R] squares of the fit's row weights, ``scale`` that of its Cauchy loss, ``fit`` [R] the rows fitted on.
    """
    if not fit.any():
        return error
    moves = (at.end > AT_BOUND) & (at.end < 1 - AT_BOUND) & (np.abs(slope[fit]).max(axis=0) > 1e-6)
    trusted = weight / (1 + weight * (error / scale) ** 2)
    pulled = (at.pull * (at.end - at.start)) ** 2
    prior = at.pull**2 / (1 + pulled / scale**2)
    jacobian = slope[:, moves] * np.sqrt(trusted)[:, None]
    inverse = np.linalg.inv(jacobian[fit].T @ jacobian[fit] + np.diag(prior[moves]))
    unseen = error.copy()
    for name in dict.fromkeys(model):
        of_model = fit & np.array([m == name for m in model])
        if of_model.any():
            leverage, direction = np.linalg.eigh(jacobian[of_model] @ inverse @ jacobian[of_model].T)
            leverage = np.clip(leverage, 0.0, LARGEST_LEVERAGE)
            stretch = np.sqrt((1 + leverage) / (1 - leverage))
            root = np.sqrt(trusted[of_model])
            unseen[of_model] = direction @ (stretch * (direction.T @ (root * error[of_model]))) / root
    return unseen
