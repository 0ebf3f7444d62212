"""The best amounts to own and to reserve, searched on a subset of the scenarios.

Every amount is evaluated on the same scenarios, so differences are not noise. GPUs are bought in whole servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.interval import BAND
from gpuwise.money.rent_or_own.comparison import Floats
from gpuwise.money.rent_or_own.engine import Batch, Mix, Top
from gpuwise.money.rent_or_own.renting import Reservation

SCENARIOS = 1024
_MOST_TRIED = 16
_GROUPS = 4
"""Different demands a search looks at; the answer itself is costed month by month."""


@dataclass(frozen=True, slots=True)
class MixSearch:
    """Owning each of ``counts`` GPUs and renting the rest in the cheapest way: ``usd`` is ``(3, K)``."""

    counts: Floats
    usd: Floats
    best: Mix


def best_mix(batch: Batch, most_owned: int, most_reserved: int, terms: Sequence[Reservation]) -> MixSearch:
    """The cheapest mix in expectation. For each way to rent the rest and each term, from owning nothing and from the
    best amount to own: how much to reserve, how much to own beside it, and both once more."""
    counts, reserves = _counts(most_owned, batch.own.gpus_per_server), _counts(most_reserved, 1)
    tops: tuple[Top, ...] = ("on-demand",) if batch.rent.spot is None else ("on-demand", "spot")
    judge = _Judge(batch)
    for top in tops:
        owned = judge.best([Mix(n, top=top) for n in counts]).owned
        for term in terms:
            for start in {0, owned}:
                mix = Mix(start, top=top)
                for _ in range(2):
                    mix = judge.best([_mix(mix.owned, r, term, top) for r in reserves])
                    mix = judge.best([_mix(n, mix.reserved, term, top) for n in counts])
    best = judge.best(list(judge.seen))
    totals = [batch.cost(Mix(n, top=best.top)).total_usd for n in counts]
    band = np.stack([np.quantile(t, BAND) for t in totals], axis=1).astype(np.float64)
    return MixSearch(np.array(counts, dtype=np.float64), band, best)


def best_reserved(batch: Batch, reservation: Reservation, most: int) -> Mix:
    """At least one reserved GPU, the rest on demand."""
    return _Judge(batch).best([Mix(0, r, reservation) for r in _counts(most, 1)[1:]])


class _Judge:
    """The expected cost of mixes, each costed once, months of like demand taken together."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch.grouped(_GROUPS)
        self.seen: dict[Mix, float] = {}

    def best(self, mixes: Sequence[Mix]) -> Mix:
        for mix in mixes:
            if mix not in self.seen:
                self.seen[mix] = float(np.mean(self._batch.cost(mix).total_usd))
        return min(mixes, key=self.seen.__getitem__)


def _mix(owned: int, reserved: int, term: Reservation, top: Top) -> Mix:
    return Mix(owned, reserved, term if reserved else None, top)


def _counts(most: int, step: int) -> list[int]:
    """0 and up to a dozen or so multiples of ``step`` up to ``most``, at least one."""
    last = max(1, -(-most // step))
    picked = np.unique(np.round(np.linspace(0, last, min(last, _MOST_TRIED) + 1)).astype(np.int64))
    return [int(n) * step for n in picked]
