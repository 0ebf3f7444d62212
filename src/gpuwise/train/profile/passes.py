"""Outermost passes of models in a trace: which of them learn, and those by which text is sampled before an update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuwise.train.profile.families import CONVOLUTIONS, COPIES_ON_DEVICE, ELEMENTWISE, PRODUCTS, REDUCTIONS, family
from gpuwise.train.profile.operations import OP_CATEGORIES
from gpuwise.train.profile.spans import NO_SPANS, inside
from gpuwise.train.profile.steps import Steps
from gpuwise.train.profile.trace import NONE, Floats, Ints, Trace

MODULE = "nn.Module: "
NODE = "autograd::engine::evaluate_function: "
"""Beginning of the name of an operation that is a node of the graph, differentiated (torch/csrc/autograd/engine.cpp)."""
SMALL = (ELEMENTWISE, COPIES_ON_DEVICE, REDUCTIONS)
"""Families of what is done to a parameter; and reading a value of it."""
MOVES = 4
"""Moves of an environment in a step, or sampling passes, above which the loop plays rather than computes once for each. Rule
of this project."""
ACTS = 4
"""Times fewer rows than in a pass with gradients: the pass acts on an environment, it evaluates nothing. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes of the training thread, in order. ``roots`` are rows of outermost module calls, ``names`` their names."""

    roots: Ints
    names: tuple[str, ...]
    rows: tuple[int, ...]
    """Rows per pass: all dimensions but the last of its first product's input, samples or their tokens."""
    learns: Mapping[str, int]
    """For modules with a pass that a backward pass used: the largest rows of such a pass."""
    silent: tuple[int, ...]
    """Places in ``roots`` of all other passes that compute."""
    recorded: frozenset[int]
    """Positions of those of them that create graph nodes."""
    waits: Mapping[str, tuple[tuple[float, float], ...]]
    """When passes that learn began, and when their gradients did; seconds by module."""

    @property
    def acting(self) -> Ints:
        """Places of passes without gradients on far fewer rows than a pass that learns has."""
        few = [at for at in self.silent if ACTS * self.rows[at] <= self.learns.get(self.names[at], 0)]
        return np.array(few, np.int64)


def passes_of(trace: Trace, steps: Steps) -> Passes:
    """The passes that begin inside the steps."""
    roots, names = _roots(trace, steps)
    ops = np.flatnonzero(trace.in_categories(OP_CATEGORIES))
    ops = ops[inside(trace.start_s[ops], steps.windows)]
    nodes = trace.in_categories(OP_CATEGORIES) & trace.named(lambda n: n.startswith(NODE)) & (trace.sequence != NONE)
    differentiated, taken_s = trace.sequence[nodes], trace.start_s[nodes]
    learns, silent, recorded, rows = dict[str, int](), list[int](), set[int](), list[int]()
    waits = dict[str, tuple[tuple[float, float], ...]]()
    first_op = np.searchsorted(trace.start_s[ops], trace.start_s[roots]).tolist()
    after_op = np.searchsorted(trace.start_s[ops], trace.end_s[roots]).tolist()
    for at, (name, low, high) in enumerate(zip(names, first_op, after_op, strict=True)):
        rows_in = _rows_in(trace, ops[low:high])
        rows.append(rows_in)
        numbers = np.unique(trace.sequence[ops[low:high]])
        numbers = numbers[numbers != NONE]
        # a call without a graph node has the number of the next one that has: a single one may belong to another
        own = np.isin(differentiated, numbers)
        if len(np.unique(differentiated[own])) >= min(2, max(len(numbers), 1)):
            learns[name] = max(learns.get(name, 0), rows_in)
            start = float(trace.start_s[roots[at]])
            wait = (start, float(taken_s[own & (taken_s > start)].min(initial=np.inf)))
            waits[name] = (*waits.get(name, ()), wait)
        elif any(family("op", trace.text(op)) not in ("", *SMALL) for op in ops[low:high].tolist()):
            silent.append(at)
            recorded |= {at} if len(numbers) else set()
    return Passes(roots, names, tuple(rows), learns, tuple(silent), frozenset(recorded), waits)


def _roots(trace: Trace, steps: Steps) -> tuple[Ints, tuple[str, ...]]:
    """Rows and modules of the outermost calls; a ``forward`` called directly belongs to the one module whose calls begin with
    it."""
    functions = trace.in_categories(("python_function",)) & (trace.lane == steps.lane)
    calls = np.flatnonzero(functions & trace.named(lambda n: n.startswith(MODULE)))
    calls = _outermost(trace, calls[inside(trace.start_s[calls], steps.windows)])
    bodies = np.flatnonzero(functions & trace.named(lambda n: n.endswith("): forward") and "torch/" not in n))
    first = np.searchsorted(trace.start_s[bodies], trace.start_s[calls])
    modules = dict[str, set[str]]()
    for row, at in zip(calls.tolist(), first.tolist(), strict=True):
        if at < len(bodies) and trace.start_s[bodies[at]] < trace.end_s[row]:
            modules.setdefault(trace.text(int(bodies[at])), set()).add(trace.text(row))
    of = {body: next(iter(names)) for body, names in modules.items() if len(names) == 1}
    direct = bodies[[trace.text(row) in of for row in bodies.tolist()]] if len(bodies) else bodies
    direct = direct[inside(trace.start_s[direct], steps.windows)]
    every = np.concatenate((np.flatnonzero(functions & trace.named(lambda n: n.startswith(MODULE))), direct))
    every = every[inside(trace.start_s[every], steps.windows)]
    roots = _outermost(trace, every[trace.start_s[every].argsort(kind="stable")])
    return roots, tuple(of.get(trace.text(row), trace.text(row)) for row in roots.tolist())


def _outermost(trace: Trace, rows: Ints) -> Ints:
    """Those of the rows, in order of their start, that begin in none before them."""
    roots, until = list[int](), -1.0
    for row, start, end in zip(rows.tolist(), trace.start_s[rows].tolist(), trace.end_s[rows].tolist(), strict=True):
        if start >= until:
            roots.append(row)
            until = end
    return np.array(roots, np.int64)


def _rows_in(trace: Trace, ops: Ints) -> int:
    """The rows of the first product of a pass: samples, or their tokens. 1 where shapes were not recorded."""
    for row in ops.tolist():
        shape = next((s for s in trace.inputs(row).shapes if s), None)
        kind = family("op", trace.text(row)) if shape is not None else ""
        if shape is not None and kind in (PRODUCTS, CONVOLUTIONS):
            return shape[0] if kind == CONVOLUTIONS else math.prod(shape[:-1])
    return 1


def sampling(trace: Trace, steps: Steps, updates: Floats) -> tuple[Floats, Floats, float]:
    """Intervals ``[n, 2]`` of the passes that sample before an update (without gradients, on far fewer rows than those that
    learn), and of all from the first to the last of them between two that learn; none of either where one of the steps has
    fewer than ``MOVES``. With the share of these passes' time that does not grow with their rows, by a line through their mean
    and that of the passes that learn. ``updates`` are the intervals of the optimizer."""
    found = passes_of(trace, steps)
    acting, roots = found.acting, found.roots
    if len(acting) < MOVES * steps.n:
        return NO_SPANS, NO_SPANS, 0.0
    silent = set(found.silent)
    learning = np.array([at for at, name in enumerate(found.names) if at not in silent and name in found.learns], np.int64)
    marks = np.sort(np.concatenate((trace.start_s[roots[learning]], updates[:, 0])))
    starts, ends = trace.start_s[roots[acting]], trace.end_s[roots[acting]]
    turn = np.searchsorted(marks, starts)
    if any(((starts >= low) & (starts < high)).sum() < MOVES for low, high in steps.windows.tolist()):
        return NO_SPANS, NO_SPANS, 0.0
    groups = [turn == t for t in np.unique(turn) if (turn == t).sum() >= MOVES]
    whole = np.array([(starts[g].min(), ends[g].max()) for g in groups], np.float64).reshape(-1, 2)
    calls = np.stack((starts, ends), axis=1)
    rows = np.array(found.rows, np.float64)
    few, many = float(rows[acting].mean()), float(rows[learning].mean())
    short_s, long_s = float((ends - starts).mean()), float(trace.duration_s[roots[learning]].mean())
    a_row_s = max(long_s - short_s, 0.0) / max(many - few, 1.0)
    return calls[inside(starts, whole)], whole, max(1.0 - a_row_s * few / short_s, 0.0)
