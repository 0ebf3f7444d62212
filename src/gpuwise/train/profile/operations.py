"""Operations of one host thread: nesting, own time, and the line of the script they came from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec

import numpy as np

from gpuwise.train.profile.families import OTHER_OPS, family
from gpuwise.train.profile.spans import inside
from gpuwise.train.profile.trace import NONE, Floats, Ints, Trace

OP_CATEGORIES = ("cpu_op", "operator", "Operator")
_LEAST = 1e-9
_STANDARD = sys.stdlib_module_names - {"cmd", "code", "profile", "site", "this", "token", "trace"}
"""Python's own modules, as the profiler names their files; less those whose names people give to scripts of theirs."""


@dataclass(frozen=True, eq=False)
class Operations:
    """The operations of one thread, in order of their start."""

    trace: Trace
    rows: Ints
    parent: Ints
    """Position in ``rows`` of the operation that contains it; -1 of the outermost."""
    segments: Floats
    """[m, 2] stretches during which one operation is the innermost."""
    owner: Ints
    """[m] position in ``rows`` of that operation."""

    @cached_property
    def families(self) -> list[str]:
        """Family of each operation: its own, else that of the operation around it."""
        names: list[str] = []
        for at, row in enumerate(self.rows.tolist()):
            name = family("op", self.trace.text(row))
            parent = int(self.parent[at])
            names.append(name or (names[parent] if parent >= 0 else ""))
        return [f or OTHER_OPS for f in names]

    @cached_property
    def self_s(self) -> Floats:
        """Seconds in which each is the innermost."""
        out = np.zeros(len(self.rows))
        np.add.at(out, self.owner, self.segments[:, 1] - self.segments[:, 0])
        return out

    def outermost(self, at: int) -> int:
        """Position of the operation that contains all above it."""
        while (parent := int(self.parent[at])) >= 0:
            at = parent
        return at


def operations(trace: Trace, lane: int, first_s: float, last_s: float) -> Operations:
    """The operations of one thread between two moments."""
    wanted = trace.in_categories(OP_CATEGORIES) & (trace.lane == lane) & (trace.end_s > first_s) & (trace.start_s < last_s)
    rows = np.flatnonzero(wanted)
    starts, ends = trace.start_s[rows].tolist(), trace.end_s[rows].tolist()
    parent = np.full(len(rows), NONE, np.int64)
    stack: list[int] = []
    low: list[float] = []
    high: list[float] = []
    owner: list[int] = []
    clock = 0.0

    def emit(until: float, who: int) -> None:
        if until > clock + _LEAST:
            low.append(clock)
            high.append(until)
            owner.append(who)

    for at, start in enumerate(starts):
        while stack and ends[stack[-1]] <= start:
            emit(ends[stack[-1]], stack[-1])
            clock = max(clock, ends[stack.pop()])
        if stack:
            emit(start, stack[-1])
            parent[at] = stack[-1]
        clock = start
        stack.append(at)
    while stack:
        emit(ends[stack[-1]], stack[-1])
        clock = max(clock, ends[stack.pop()])
    segments = np.array([low, high]).T.reshape(-1, 2)
    return Operations(trace, rows, parent, segments, np.array(owner, np.int64))


class Lines:
    """Lines of a script that a thread was in, from the profiler's stacks; knows nothing where they were not recorded."""

    def __init__(self, trace: Trace, lane: int, own: Sequence[str] = ()) -> None:
        """``own`` are ends of the names of the person's files; empty: all but Python's and the installed packages' count."""
        self._trace = trace
        rows = trace.in_categories(("python_function",)) & (trace.lane == lane)
        mine = trace.named(lambda n: n.split("(", 1)[0].endswith(tuple(own))) if own else trace.named(_is_a_persons)
        self._rows = np.flatnonzero(rows & mine)
        self._starts, self._ends = trace.start_s[self._rows], trace.end_s[self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, moment_s: float) -> str:
        """``file:line function`` of the innermost frame of the person's own files around a moment; empty where unknown.

        The profiler gives the line where the function was when it was entered or first seen, not that of the call.
        """
        last = int(np.searchsorted(self._starts, moment_s, side="right"))
        for at in range(last - 1, max(last - 4096, -1), -1):
            if self._ends[at] > moment_s:
                return _words(self._trace.text(int(self._rows[at])))
        return ""

    def spent(self, within: Floats) -> dict[str, tuple[int, float]]:
        """Calls and seconds of each of the person's functions that begin inside these stretches; what a function spends in
        another of them counts for that one."""
        totals: dict[str, tuple[int, float]] = {}
        stack: list[tuple[float, str]] = []
        chosen = np.flatnonzero(inside(self._starts, within))
        for row, start, end in zip(
            self._rows[chosen].tolist(), self._starts[chosen].tolist(), self._ends[chosen].tolist(), strict=True
        ):
            while stack and stack[-1][0] <= start:
                stack.pop()
            where = _words(self._trace.text(row))
            n, seconds = totals.get(where, (0, 0.0))
            totals[where] = (n + 1, seconds + end - start)
            if stack:
                n, seconds = totals[stack[-1][1]]
                totals[stack[-1][1]] = (n, seconds - (end - start))
            stack.append((end, where))
        return totals


def _is_a_persons(name: str) -> bool:
    if not name.endswith((">",)) and ".py(" not in name:
        return False
    foreign = ("site-packages", "dist-packages", "torch/", "<built-in", "<frozen", "lib/python", "nn.Module:", "gpuwise/")
    first = name.split("(", 1)[0].split("/", 1)[0].removesuffix(".py")
    return ".py(" in name and not any(part in name for part in foreign) and not (first in _STANDARD or _is_installed(first))


@cache
def _is_installed(name: str) -> bool:
    """Whether a package of this name is installed beside this one: the profiler leaves the folder of packages out of their
    files' names. A folder of the same name beside the script is then taken for it too."""
    if not name.isidentifier():
        return False
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    origin = spec.origin if spec is not None else None
    return origin is not None and ("site-packages" in origin or "dist-packages" in origin)


def _words(name: str) -> str:
    """``train.py(12): step`` as ``train.py:12 step``."""
    file, _, rest = name.partition("(")
    line, _, function = rest.partition("): ")
    # of the outermost level the profiler has the line at which it began
    return f"{file}:{line} {function}".strip() if function != "<module>" else f"{file}, top level"
