"""Which modules to checkpoint: an exact search over a sequence of (nested) choices.

The backward of a position ``j`` needs ``need_j`` bytes if nothing is checkpointed. A choice ``i`` taken saves ``saved_i`` bytes
at every later position (those between its forward and its backward), needs its own ``need`` while it is recomputed and costs
``time_s``. With ``D_j`` the bytes that the choices before ``j`` save, a selection fits the target ``M`` if

    need_j - D_j <= M   for every position j

and the result is the cheapest such selection: a knapsack with prefix constraints. The search walks the positions in forward
order with the Pareto front of (D, time) as its state: a state that saves no more and costs no less than another can never win,
and savings beyond the largest remaining need have no value. Equal blocks give equal states, so the front stays short; if it
still outgrows ``LIMIT`` it is thinned and the answer is marked inexact.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
LIMIT = 20_000
"""States retained after each position. Real networks needed a few thousand at most."""


@dataclass(frozen=True, slots=True)
class Position:
    """Operations about which nothing is decided; ``need_bytes`` is the most alive in their forward or backward."""

    need_bytes: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A module that may be checkpointed as a whole, or else is what ``items`` say, in forward order."""

    path: str
    items: tuple[Position | Choice, ...]
    need_bytes: int
    """The most alive in its recomputation and backward if it is checkpointed and nothing else is."""
    saved_bytes: int
    """Bytes freed between the choice's forward and backward, less the bytes it retains instead; may be negative."""
    time_s: float


@dataclass(frozen=True, slots=True)
class Solution:
    """``paths`` in forward order; ``exact``: no cheaper selection exists."""

    paths: tuple[str, ...]
    time_s: float
    exact: bool


@dataclass(slots=True)
class _Front:
    """States: ``saved`` [n] bytes ascending with ``time_s`` [n] ascending, ``link`` [n] the last choice taken."""

    saved: I64
    time_s: F64
    link: I64


@dataclass(slots=True)
class _Walk:
    target: int
    parents: list[I64] = field(default_factory=list[I64])
    choices: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """First link of each choice's run of links, and its path."""
    n_links: int = 0
    exact: bool = True

    def through(self, items: Sequence[Position | Choice], front: _Front, needs_after: int) -> _Front:
        """States after ``items``; ``needs_after`` is the largest need of what follows."""
        later = [needs_after]
        for item in reversed(items):
            later.append(max(later[-1], largest_need(item)))
        later.reverse()
        for item, needs in zip(items, later[1:], strict=True):
            front = self._step(item, front, needs)
            if not len(front.saved):
                break
        return front

    def _step(self, item: Position | Choice, front: _Front, needs_after: int) -> _Front:
        if isinstance(item, Position):
            return self._pruned(_allowed(front, item.need_bytes, self.target), needs_after)
        rows = _allowed(front, item.need_bytes, self.target)
        links = np.arange(self.n_links, self.n_links + len(rows.saved))
        if len(links):
            self.choices.append((self.n_links, item.path))
            self.parents.append(rows.link)
            self.n_links += len(links)
        rows = _Front(rows.saved + item.saved_bytes, rows.time_s + item.time_s, links)
        rest = self.through(item.items, front, needs_after)
        both = _Front(
            np.concatenate([rest.saved, rows.saved]),
            np.concatenate([rest.time_s, rows.time_s]),
            np.concatenate([rest.link, rows.link]),
        )
        return self._pruned(both, needs_after)

    def _pruned(self, front: _Front, needs_after: int) -> _Front:
        """States that no other dominates; savings beyond the largest remaining need count as equal."""
        saved = np.minimum(front.saved, max(needs_after - self.target, 0))
        order = np.lexsort((-saved, front.time_s))
        best = np.maximum.accumulate(saved[order])
        keep = np.ones(len(order), bool)
        keep[1:] = saved[order][1:] > best[:-1]
        order = order[keep]
        if len(order) > LIMIT:
            self.exact = False
            order = order[np.unique(np.linspace(0, len(order) - 1, LIMIT).astype(np.int64))]
        return _Front(saved[order], front.time_s[order], front.link[order])

    def paths(self, link: int) -> tuple[str, ...]:
        """The choices behind a state, in forward order."""
        firsts = np.array([first for first, _ in self.choices])
        names = list[str]()
        while link >= 0:
            run = int(np.searchsorted(firsts, link, side="right")) - 1
            names.append(self.choices[run][1])
            link = int(self.parents[run][link - int(firsts[run])])
        return tuple(reversed(names))


def _allowed(front: _Front, need: int, target: int) -> _Front:
    ok = front.saved >= need - target
    return _Front(front.saved[ok], front.time_s[ok], front.link[ok])


def largest_need(item: Position | Choice) -> int:
    """The largest need of an item, whichever way it goes."""
    if isinstance(item, Position):
        return item.need_bytes
    return max((item.need_bytes, *(largest_need(i) for i in item.items)))


def solve(items: Sequence[Position | Choice], target_bytes: int) -> Solution | None:
    """The cheapest selection that needs at most ``target_bytes`` at every position; None if no selection does."""
    walk = _Walk(target_bytes)
    start = _Front(np.zeros(1, np.int64), np.zeros(1), np.full(1, -1, np.int64))
    end = walk.through(items, start, 0)
    if not len(end.saved):
        return None
    best = int(np.argmin(end.time_s))
    return Solution(walk.paths(int(end.link[best])), float(end.time_s[best]), walk.exact)


def feasible(items: Sequence[Position | Choice], target_bytes: int) -> bool:
    """Whether any selection needs at most ``target_bytes``: only the most that can be saved matters, so one number
    is carried instead of a front."""

    def walk(parts: Sequence[Position | Choice], saved: int | None) -> int | None:
        for item in parts:
            if saved is None:
                return None
            if isinstance(item, Position):
                saved = saved if saved >= item.need_bytes - target_bytes else None
                continue
            whole = saved + item.saved_bytes if saved >= item.need_bytes - target_bytes else None
            inside = walk(item.items, saved)
            saved = whole if inside is None else inside if whole is None else max(whole, inside)
        return saved

    return walk(items, 0) is not None


def smallest_target(items: Sequence[Position | Choice]) -> int:
    """The least bytes that any selection needs."""
    low, high = 0, max((largest_need(i) for i in items), default=0)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if feasible(items, middle) else (middle + 1, high)
    return low


def needs(items: Sequence[Position | Choice], paths: Collection[str]) -> tuple[int, float]:
    """Bytes and seconds of one selection: the definition that :func:`solve` optimises."""
    peak, time_s, saved = 0, 0.0, 0

    def walk(parts: Sequence[Position | Choice]) -> None:
        nonlocal peak, time_s, saved
        for item in parts:
            if isinstance(item, Position):
                peak = max(peak, item.need_bytes - saved)
            elif item.path in paths:
                peak = max(peak, item.need_bytes - saved)
                saved += item.saved_bytes
                time_s += item.time_s
            else:
                walk(item.items)

    walk(items)
    return peak, time_s
