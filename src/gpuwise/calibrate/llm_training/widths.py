"""How wide the interval of a training step is: a spread for each stack, on one system and on several.

A run of a new model is another draw of the model, not of the row: models (of one source, on one GPU) are what is counted. Each
weighs as the root of its rows. Rows that a stack was fitted on flatter it; their errors are stretched by what check rows show
over fit rows, all stacks together. A stack with few models borrows from the others of its kind (dense, with experts).

    |log(measured / predicted)| <= 1.28 sqrt(spread^2 + kernel^2) for 0.8 of the weight
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.validation import weighted_quantile
from gpuwise.predict.estimate import Z80
from gpuwise.predict.step.stack_costs import EXPERTS

F64 = NDArray[np.float64]
B1 = NDArray[np.bool_]
LEAST_SPREAD = 0.03
"""Replicates of a whole step differ by 2-8 % between machines and releases; no spread is narrower."""
BORROWED_WEIGHT = 6.0
"""What the other stacks of a kind weigh together beside a stack's own models: as many models of one row, or one of thirty-six."""
Cell = tuple[str, bool]
"""Stack profile; whether the run is on several systems."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """``log_ratio`` [R] log(measured / predicted); ``kernel`` [R] spread of its kernels that comes on top of the stack's;
    ``check`` [R]; ``cell`` and ``model`` (source, model, GPU) by row."""

    log_ratio: F64
    kernel: F64
    check: B1
    cell: Sequence[Cell]
    model: Sequence[tuple[str, str, str]]

    def without(self, model: tuple[str, str, str]) -> Residuals:
        keep = [i for i, m in enumerate(self.model) if m != model]
        cell, others = [self.cell[i] for i in keep], [self.model[i] for i in keep]
        return Residuals(self.log_ratio[keep], self.kernel[keep], self.check[keep], cell, others)

    def inside(self, spread: F64) -> B1:
        """Whether each row is inside the 80 % interval of its stack's ``spread`` [R]."""
        return np.abs(self.log_ratio) <= Z80 * np.hypot(spread, self.kernel)


def spreads(residuals: Residuals) -> dict[Cell, float]:
    """Spread of every cell, and of both cells of every stack that has one."""
    error, weight = np.abs(residuals.log_ratio), _weights(residuals)
    stack = np.array([s for s, _ in residuals.cell])
    several = np.array([many for _, many in residuals.cell])
    experts = np.char.endswith(stack, EXPERTS)
    found: dict[Cell, float] = {}
    for kind in (experts, ~experts):
        if not kind.any():
            continue
        stretched = np.where(residuals.check, error, error * _optimism(error[kind], weight[kind], residuals.check[kind]))
        needed = np.sqrt(np.maximum((stretched / Z80) ** 2 - residuals.kernel**2, 0.0))
        for name in sorted(set(stack[kind])):
            for many in (False, True):
                own = kind & (stack == name) & (several == many)
                others = kind & ~own
                lent = weight * BORROWED_WEIGHT / max(float(weight[others].sum()), 1e-12)
                part = np.where(own, weight, np.where(others, lent, 0.0))
                found[str(name), many] = max(weighted_quantile(needed, part, 0.8), LEAST_SPREAD)
    return found


def left_out_coverage(residuals: Residuals) -> float:
    """Share of rows inside their 80 % interval when the widths were found without the row's model."""
    spread = np.empty(len(residuals.model))
    for model in sorted(set(residuals.model)):
        found = spreads(residuals.without(model))
        widest = max(found.values())
        for i in [i for i, m in enumerate(residuals.model) if m == model]:
            spread[i] = found.get(residuals.cell[i], widest)
    return float(residuals.inside(spread).mean())


def _weights(residuals: Residuals) -> F64:
    rows = [(cell, model) for cell, model in zip(residuals.cell, residuals.model, strict=True)]
    count = {key: rows.count(key) for key in set(rows)}
    return np.array([count[key] ** -0.5 for key in rows])


def _optimism(error: F64, weight: F64, check: B1) -> float:
    """What errors of check rows are over those of fit rows, at least 1; 1 where either is missing."""
    if not check.any() or check.all():
        return 1.0
    return max(1.0, weighted_quantile(error[check], weight[check], 0.8) / weighted_quantile(error[~check], weight[~check], 0.8))
