"""Evaluate strategies: columns in, step times out. The one entry to the training model, for one strategy or millions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.stack_costs import StackCosts
from gpuwise.predict.step.costs import PointCosts, point_costs
from gpuwise.predict.step.times import StepTimes, step_times
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.optimizer import autocasts
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import COLUMNS, OPTIONS, SHARDINGS

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepEvaluation:
    """``times`` of every row, with the points they were made from."""

    times: StepTimes
    costs: PointCosts
    point_index: I64


OF_BASE = tuple(f.name for f in fields(Point) if f.name in OPTIONS and f.name not in COLUMNS)
"""Fields of a point that all strategies of a set share."""


def points_of(c: Columns, seq_len: int, packed_document_len: int | None = None) -> tuple[list[Point], I64]:
    """The distinct points of ``c`` and which one each strategy has, in the shape their columns broadcast to."""
    # DeepSpeed's sharded states stand beside half-precision modules; only unsharded ones are cast from fp32 each time
    cast = (c.sharding == SHARDINGS.index("none")).astype(np.int64) if autocasts(c.base) else np.zeros(1, np.int64)
    columns = np.broadcast_arrays(c.micro_batch, c.tp, c.cp, c.ep, c.sequence_parallel, cast)
    keys = np.column_stack([k.ravel() for k in columns])
    flat = keys @ np.array([1 << 49, 1 << 37, 1 << 25, 1 << 2, 1 << 1, 1], dtype=np.int64)
    _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    base, stack = c.base, find_stack(c.base.stack)
    stack = stack.with_chunked_loss() if base.fused_loss else stack
    common: dict[str, Any] = {name: getattr(base, name) for name in OF_BASE} | {
        "seq_len": seq_len,
        "stack": stack,
        "fused_loss": base.fused_loss or stack.without_logits,
        "packed_document_len": packed_document_len,
    }
    points = [
        Point(**common, micro_batch=int(mb), tp=int(tp), cp=int(cp), ep=int(ep), sequence_parallel=bool(sp), autocast=bool(half))
        for mb, tp, cp, ep, sp, half in keys[first]
    ]
    return points, inverse.astype(np.int64).reshape(columns[0].shape)


def evaluate(
    arch: Architecture,
    system: System,
    c: Columns,
    seq_len: int,
    *,
    packed_document_len: int | None = None,
    stack_costs: StackCosts | None = None,
) -> StepEvaluation:
    """Step times of every strategy in ``c``. Raises UnpredictableError when the accelerator lacks a needed rate."""
    points, index = points_of(c, seq_len, packed_document_len)
    costs = point_costs(arch, points, system)
    return StepEvaluation(step_times(arch, system, costs, c, index, stack_costs), costs, index)
