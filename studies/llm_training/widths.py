"""How wide the interval of a training step is: a spread for each stack, on one system and on several.

A run of a new model is another draw of the model, not of the row: models (of one source, on one GPU) are what is counted. Each
weighs as the root of its rows. Rows that a stack was fitted on flatter it; their errors are those of a model left out
(:mod:`leverage`). A stack with few models borrows from the others of its kind (dense, with experts).

    |log(measured / predicted)| <= 1.28 sqrt(spread^2 + (share kernel)^2) for 0.8 of the weight

``share`` is what a whole step shows of the spread its kernels were given: they miss apart, and a stack's factors were fitted
through them. It is the one under which all runs together are most likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.interval import Z80
from gpuwise.predict.stack_costs import EXPERTS
from studies.spreads import weighted_quantile

F64 = NDArray[np.float64]
B1 = NDArray[np.bool_]
LEAST_SPREAD = 0.03
"""Replicates of a whole step differ by 2-8 % between machines and releases; no spread is narrower."""
BORROWED_WEIGHT = 6.0
"""What the other stacks of a kind weigh together beside a stack's own models: as many models of one row, or one of thirty-six."""
SHARES = tuple(i / 20 for i in range(21))
Cell = tuple[str, bool]
"""Stack profile; whether the run is on several systems."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """``log_ratio`` [R] log(measured / predicted) of a model that took no part in the fit; ``kernel`` [R] spread of its kernels;
    ``cell`` and ``model`` (source, model, GPU) by row."""

    log_ratio: F64
    kernel: F64
    cell: Sequence[Cell]
    model: Sequence[tuple[str, str, str]]

    def without(self, model: tuple[str, str, str]) -> Residuals:
        keep = [i for i, m in enumerate(self.model) if m != model]
        cell, others = [self.cell[i] for i in keep], [self.model[i] for i in keep]
        return Residuals(self.log_ratio[keep], self.kernel[keep], cell, others)

    def inside(self, spread: F64, share: float) -> B1:
        """Whether each row is inside the 80 % interval of its stack's ``spread`` [R]."""
        return np.abs(self.log_ratio) <= Z80 * np.hypot(spread, share * self.kernel)


def kernel_share(residuals: Residuals) -> float:
    """The share, of :data:`SHARES`, under which the runs are most likely, each about 1 by a Student t of two degrees of freedom
    as wide as its cell's spread and that share of its kernels'."""

    def likelihood(share: float) -> float:
        by_cell = spreads(residuals, share)
        width = np.hypot(np.array([by_cell[cell] for cell in residuals.cell]), share * residuals.kernel)
        return float((_weights(residuals) * (-np.log(width) - 1.5 * np.log1p((residuals.log_ratio / width) ** 2 / 2))).sum())

    return max(SHARES, key=likelihood)


def spreads(residuals: Residuals, share: float, least: float = LEAST_SPREAD) -> dict[Cell, float]:
    """Spread of every cell, and of both cells of every stack that has one, beside ``share`` of the kernels' spread;
    none narrower than ``least``."""
    error, weight = np.abs(residuals.log_ratio), _weights(residuals)
    stack = np.array([s for s, _ in residuals.cell])
    several = np.array([many for _, many in residuals.cell])
    experts = np.char.endswith(stack, EXPERTS)
    by_cell: dict[Cell, float] = {}
    for kind in (experts, ~experts):
        if not kind.any():
            continue
        needed = np.sqrt(np.maximum((error / Z80) ** 2 - (share * residuals.kernel) ** 2, 0.0))
        for name in sorted(set(stack[kind])):
            for many in (False, True):
                of_cell = kind & (stack == name) & (several == many)
                others = kind & ~of_cell
                lent = weight * BORROWED_WEIGHT / max(float(weight[others].sum()), 1e-12)
                part = np.where(of_cell, weight, np.where(others, lent, 0.0))
                by_cell[str(name), many] = max(weighted_quantile(needed, part, 0.8), least)
    return by_cell


def left_out_coverage(residuals: Residuals, share: float, least: float = LEAST_SPREAD) -> float:
    """Share of rows inside their 80 % interval when the widths were found without the row's model."""
    spread = np.empty(len(residuals.model))
    for model in sorted(set(residuals.model)):
        by_cell = spreads(residuals.without(model), share, least)
        widest = max(by_cell.values())
        for i in [i for i, m in enumerate(residuals.model) if m == model]:
            spread[i] = by_cell.get(residuals.cell[i], widest)
    return float(residuals.inside(spread, share).mean())


def _weights(residuals: Residuals) -> F64:
    rows = [(cell, model) for cell, model in zip(residuals.cell, residuals.model, strict=True)]
    count = {key: rows.count(key) for key in set(rows)}
    return np.array([count[key] ** -0.5 for key in rows])
