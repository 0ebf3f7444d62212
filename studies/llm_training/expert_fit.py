"""Fit of a stack's costs for models with routed experts.

There are few such runs, so the fit starts from the stack's costs for dense models and is pulled towards them: kernels do not
know which model they serve, gradients are reduced and parameters gathered behind the same passes (Megatron-Bridge
training/comm_overlap.py), and products of 16, 8 and 4 bits share one slowdown. What runs with experts say for themselves is
how long the device idles between the many small kernels (each expert has its own), what a partial CUDA graph leaves of that,
what is hidden of the exchange of tokens, and what a later release gains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.llm_training.rows import LlmRow
from gpuwise.predict.columns import Columns
from gpuwise.predict.stack_costs import StackCosts
from studies.optimizers import least_squares

F64 = NDArray[np.float64]


class TimedRows(Protocol):
    """Rows of the table that are evaluated together (``score.Group``)."""

    @property
    def rows(self) -> tuple[int, ...]: ...

    @property
    def columns(self) -> Columns: ...

    def step_s(self, stack_costs: StackCosts) -> F64: ...


class Prior(NamedTuple):
    """Range, start and pull of a coefficient (in residuals a range); times are fitted in log space."""

    low: float
    start: float
    high: float
    pull: float = 0.05
    log: bool = False


PRIORS = {
    "kernel_gap_s": Prior(2e-7, 2e-6, 3e-5, log=True),
    "graph_launches": Prior(0.05, 0.5, 1.0),
    "attention_slowdown": Prior(0.7, 1.0, 2.0, 0.3),
    "memory_slowdown": Prior(0.7, 2.0, 3.5, 0.2),
    "communication_slowdown": Prior(0.7, 1.1, 2.0, 0.3),
    "network_slowdown": Prior(0.7, 1.1, 2.0, 0.3),
    "tp_overlap": Prior(0.0, 0.5, 1.0),
    "ep_overlap": Prior(0.0, 0.7, 1.0),
    "pp_overlap": Prior(0.0, 0.5, 1.0),
    "contention": Prior(0.0, 0.2, 0.6, 0.1),
    "micro_batch_overhead_s": Prior(1e-5, 1e-3, 5e-3, log=True),
    "step_overhead_s": Prior(1e-4, 5e-3, 3e-2, log=True),
    "straggler": Prior(0.0, 0.008, 0.03, 0.2),
    "gain_per_year": Prior(0.0, 0.05, 0.3, 0.1),
}
MATMUL = Prior(0.9, 1.2, 1.6, 0.6)
"""The start is the dense models'."""
SCALE = 0.06
"""Residual at which the loss turns from squares to logarithms: repeats of one configuration differ by as much."""


def fit_experts(dense: StackCosts, rows: Sequence[LlmRow], groups: Sequence[TimedRows], check: Sequence[bool]) -> StackCosts:
    """Costs of a stack for models with experts from the rows of ``groups`` (its groups only) that are not for checking;
    ``dense`` are its costs without, ``check`` [rows].

    Least squares on log(predicted / measured); a model of a source weighs as the root of its rows.
    """
    priors = {"matmul_slowdown": MATMUL._replace(start=min(max(dense.matmul_slowdown, MATMUL.low), MATMUL.high)), **PRIORS}
    low, start, high = (np.array([_into(p, getattr(p, end)) for p in priors.values()]) for end in ("low", "start", "high"))
    begin, pull = (start - low) / (high - low), np.array([p.pull for p in priors.values()])
    releases = [r for g in groups if (r := g.columns.base.release) is not None]
    first, last = (min(releases), max(releases)) if releases else (0.0, 0.0)
    fit_rows = [i for g in groups for i in g.rows if not check[i]]
    models = [(rows[i].source, rows[i].model) for i in fit_rows]
    weight = {key: models.count(key) ** -0.25 for key in set(models)}

    def costs_of(x: F64) -> StackCosts:
        at = {name: _out_of(p, v) for (name, p), v in zip(priors.items(), x * (high - low) + low, strict=True)}
        one = {"matmul_slowdown": at["matmul_slowdown"], "quantized_matmul_slowdown": at["matmul_slowdown"]}
        return replace(dense, first_release=first, last_release=last, **{**at, **one})

    def residuals(x: F64) -> F64:
        costs, out = costs_of(x), [pull * (x - begin)]
        for g in groups:
            for i, seconds in zip(g.rows, g.step_s(costs), strict=True):
                if not check[i]:
                    ratio = math.log(seconds / rows[i].step_time_s)
                    out.append(np.array([ratio * weight[rows[i].source, rows[i].model]]))
        return np.concatenate(out)

    solution = least_squares(residuals, begin, bounds=(0, 1), loss="cauchy", f_scale=SCALE, max_nfev=25, diff_step=3e-3)
    return costs_of(solution.x)


def _into(p: Prior, value: float) -> float:
    return math.log(value) if p.log else value


def _out_of(p: Prior, value: float) -> float:
    return math.exp(value) if p.log else float(value)
