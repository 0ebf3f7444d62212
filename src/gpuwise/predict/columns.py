"""Strategies as columns: the same numbers as :class:`Strategy`, one array per field, for evaluating many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gpuwise.workload.strategy import RECOMPUTES, SCHEDULES, SHARDINGS, Strategy

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Integer arrays of one length N. ``sharding``, ``recompute`` and ``schedule`` are indices into the tuples of
    ``workload.strategy``; flags are 0 or 1. What a strategy fixes for the whole set (precision, optimizer, stack ...)
    is in ``base``."""

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

    def __len__(self) -> int:
        return len(self.micro_batch)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Columns:
        """The rows of ``index`` (positions or a mask)."""
        return Columns(self.base, *(getattr(self, f.name)[index] for f in fields(self)[1:]))

    def strategy(self, i: int) -> Strategy:
        """Row ``i`` as a Strategy."""
        v = {f.name: int(getattr(self, f.name)[i]) for f in fields(self)[1:]}
        return self.base.with_(
            micro_batch=v["micro_batch"], accumulation=v["accumulation"], dp=v["dp"], tp=v["tp"], pp=v["pp"],
            virtual_stages=v["virtual_stages"], cp=v["cp"], ep=v["ep"],
            sequence_parallel=bool(v["sequence_parallel"]), schedule=SCHEDULES[v["schedule"]],
            sharding=SHARDINGS[v["sharding"]], shard_group=v["shard_group"], recompute=RECOMPUTES[v["recompute"]],
            recompute_every=v["recompute_every"], offload_optimizer=bool(v["offload_optimizer"]),
            offload_activations=bool(v["offload_activations"]),
        )  # fmt: skip

    @classmethod
    def from_strategies(cls, strategies: Sequence[Strategy]) -> Columns:
        """Columns of strategies that share everything but the column fields."""
        base = strategies[0]
        codes = {"schedule": SCHEDULES, "sharding": SHARDINGS, "recompute": RECOMPUTES}
        arrays: list[I64] = []
        for f in fields(cls)[1:]:
            values = [getattr(s, f.name) for s in strategies]
            if f.name in codes:
                values = [codes[f.name].index(v) for v in values]
            arrays.append(np.array(values, dtype=np.int64))
        return cls(base, *arrays)
