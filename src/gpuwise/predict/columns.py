"""Strategies as columns: the same numbers as :class:`Strategy`, one array per field, for evaluating many at once.

The arrays broadcast to one shape. A list of strategies has arrays [N]; a search writes a product of choices as
arrays [A, 1, 1], [1, S, 1] and [1, 1, R], so that what depends on one axis only is computed once along it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import CHOICES, COLUMNS, NEUTRAL, SHARDINGS, Strategy

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Integer arrays that broadcast to ``shape``, one for each of ``workload.strategy.COLUMNS`` and in that order. Names are
    indices into the field's choices, flags 0 or 1. What is the same in the whole set (precision, optimizer, stack ...) is in
    ``base``."""

    base: Strategy
    micro_batch: I64
    accumulation: I64
    dp: I64
    tp: I64
    pp: I64
    virtual_stages: I64
    cp: I64
    ep: I64
    sequence_parallel: I64
    schedule: I64
    sharding: I64
    shard_group: I64
    recompute: I64
    recompute_every: I64
    offload_optimizer: I64
    offload_activations: I64

    @property
    def expert_ranks(self) -> I64:
        """Ranks that all experts of a layer are divided over."""
        return self.ep * self.base.etp

    @property
    def offloads_parameters(self) -> NDArray[np.bool_]:
        """True where parameters are offloaded: with ZeRO-3's option, all of them; with FSDP, the sharded ones (a model on one
        rank is not wrapped) beside gradients and the optimizer's states."""
        if self.base.offload_parameters:
            return np.ones_like(self.offload_optimizer, bool)
        divided = (self.sharding > SHARDINGS.index("none")) & (self.dp * self.cp > 1)
        return (self.offload_optimizer > 0) & divided & find_stack(self.base.stack).offloads_parameters

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape to which the arrays broadcast: (N,) for a list of strategies."""
        return np.broadcast(*(getattr(self, f) for f in COLUMNS)).shape

    def __len__(self) -> int:
        return prod(self.shape)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Columns:
        """The strategies at ``index`` (flat positions in ``shape``, or a mask over a list) as a list."""
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        shape = self.shape
        where = np.unravel_index(index, shape)
        arrays: list[I64] = []
        for name in COLUMNS:
            array = getattr(self, name)
            array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
            arrays.append(array[tuple(w if n > 1 else np.zeros_like(w) for w, n in zip(where, array.shape, strict=True))])
        return Columns(self.base, *arrays)

    def strategy(self, i: int) -> Strategy:
        """Strategy ``i``, counted in C order over ``shape``."""
        row = self.take(np.array([i]))
        return self.base.with_(**{name: _value(name, int(getattr(row, name)[0])) for name in COLUMNS})

    @classmethod
    def from_strategies(cls, strategies: Sequence[Strategy]) -> Columns:
        """Columns of strategies that share everything but the column fields."""
        return cls(strategies[0], *np.array([*zip(*map(_codes, strategies), strict=True)], dtype=np.int64))

    @classmethod
    def of(cls, strategy: Strategy) -> Columns:
        """One strategy as arrays without an axis: as much work on a row of a list takes several times as long."""
        return cls(strategy, *(np.array(v, dtype=np.int64) for v in _codes(strategy)))


_CODES = {name: CHOICES[name] for name in COLUMNS if name in CHOICES}
_FLAGS = frozenset(name for name in COLUMNS if type(getattr(NEUTRAL, name)) is bool)


def _codes(strategy: Strategy) -> list[int]:
    """The values of the column fields, a name as its index."""
    return [code_of(f, getattr(strategy, f)) for f in COLUMNS]


def code_of(name: str, value: Any) -> int:
    """Number that represents ``value`` in the column ``name``: for a name, its index."""
    return _CODES[name].index(value) if name in _CODES else int(value)


def _value(name: str, code: int) -> int | str | bool:
    """Value of a column field from its ``code``."""
    return _CODES[name][code] if name in _CODES else bool(code) if name in _FLAGS else code


def base_of(strategy: Strategy) -> Strategy:
    """``strategy`` with every field that columns hold at its default: what a set of columns must share."""
    return strategy.with_(**{f: getattr(NEUTRAL, f) for f in COLUMNS})
