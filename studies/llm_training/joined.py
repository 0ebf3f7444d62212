"""All runs of a stack as one set of arrays: a fit changes the stack's costs only, so that everything else is made once.

Runs of different models, systems and sequence lengths stand beside one another; what a release, a precision or an accelerator
changes about the costs is an array over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.columns import Columns
from gpuwise.predict.parallel.data_parallel import LayerTraffic, StepTraffic
from gpuwise.predict.stack_costs import StackCosts
from gpuwise.predict.step.costs import PartCosts, PointCosts
from gpuwise.predict.step.passes import passes
from gpuwise.predict.step.times import ParameterCopies, StepInputs, composed
from gpuwise.workload.strategy import COLUMNS, Strategy

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RunGroups:
    """``inputs`` of all runs; ``settings`` the strategy and accelerator of each group with its points and runs."""

    inputs: StepInputs
    settings: tuple[tuple[Strategy, Accelerator], ...]
    points: NDArray[np.int64]
    """[groups]"""
    runs: NDArray[np.int64]
    """[groups]"""

    def step_s(self, sc: StackCosts) -> F64:
        """[N] seconds of every run under ``sc``, in the order of the groups."""
        each = [sc.under(strategy, accelerator) for strategy, accelerator in self.settings]
        of_points, of_runs = (_spread(each, times) for times in (self.points, self.runs))
        return composed(self.inputs, passes(self.inputs.costs, of_points), of_runs).step_s


def joined(parts: Sequence[StepInputs], accelerators: Sequence[Accelerator]) -> RunGroups:
    """``parts`` of one stack whose kernels are timed by families, as one."""
    runs = np.array([len(p.c) for p in parts])
    points = np.array([len(p.costs.layer.wgrad_s) for p in parts])
    start = np.concatenate([[0], np.cumsum(points)[:-1]])

    def rows(values: Sequence[Any]) -> Any:
        return np.concatenate([np.broadcast_to(v, (int(n),)) for v, n in zip(values, runs, strict=True)])

    def every(get: Callable[[StepInputs], Any]) -> Any:
        return rows([get(p) for p in parts])

    def column(name: str) -> Any:
        return rows([getattr(p.c, name) for p in parts])

    def traffic(kind: str, name: str) -> Any:
        return rows([getattr(getattr(p, kind), name) for p in parts])

    first = parts[0]
    inputs = StepInputs(
        costs=_costs([p.costs for p in parts], points),
        c=Columns(first.c.base, **{n: column(n) for n in COLUMNS}),
        at=rows([p.at + s for p, s in zip(parts, start, strict=True)]),
        layers=(every(lambda p: p.layers[0]), every(lambda p: p.layers[1]), every(lambda p: p.layers[2])),
        layer_traffic=LayerTraffic(*(traffic("layer_traffic", f.name) for f in fields(LayerTraffic))),
        step_traffic=StepTraffic(*(traffic("step_traffic", f.name) for f in fields(StepTraffic))),
        copies=None,
        parameters=_parameter_copies(parts, rows),
        recomputed=every(lambda p: p.recomputed),
        hop_s=every(lambda p: p.hop_s),
        update_s=every(lambda p: p.update_s),
        waits_for_device=True,
        offload_s=every(lambda p: p.offload_s),
        waits=every(lambda p: p.waits),
        sharded_layers=every(lambda p: p.sharded_layers),
    )
    settings = tuple((p.c.base, a) for p, a in zip(parts, accelerators, strict=True))
    return RunGroups(inputs, settings, points, runs)


def _parameter_copies(parts: Sequence[StepInputs], rows: Callable[[Sequence[Any]], Any]) -> ParameterCopies | None:
    """Of all runs, nothing for those whose parameters are on the device; None where all are."""
    if all(p.parameters is None for p in parts):
        return None
    nothing = ParameterCopies(np.zeros(1), np.zeros(1), np.zeros(1))
    moved = [p.parameters or nothing for p in parts]
    return ParameterCopies(*(rows([getattr(m, f.name) for m in moved]) for f in fields(ParameterCopies)))


def _costs(costs: Sequence[PointCosts], points: NDArray[np.int64]) -> PointCosts:
    """Points beside one another; the number of leading layers becomes an array over them."""
    lead: Any = np.repeat([c.n_lead for c in costs], points)
    together = {name: _part([getattr(c, name) for c in costs]) for name in ("layer", "lead", "embedding", "head")}
    return replace(costs[0], points=(), n_lead=lead, **together)


def _part(parts: Sequence[PartCosts]) -> PartCosts:
    columns: dict[str, Any] = {}
    for f in fields(PartCosts):
        values = [getattr(p, f.name) for p in parts]
        if isinstance(values[0], dict):
            names = list(cast("dict[str, F64]", values[0]))
            columns[f.name] = {name: np.concatenate([v[name] for v in values]) for name in names}
        else:
            columns[f.name] = np.concatenate(values)
    return PartCosts(**columns)


def _spread(each: Sequence[StackCosts], times: NDArray[np.int64]) -> StackCosts:
    """Costs whose fields are arrays, each group's value as often as it has points or runs."""
    columns: dict[str, Any] = {}
    for f in fields(StackCosts):
        values = [getattr(sc, f.name) for sc in each]
        columns[f.name] = values[0] if f.name == "basis" else np.repeat(np.array(values, np.float64), times)
    return StackCosts(**columns)
