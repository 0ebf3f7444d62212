"""The best amount to own and to reserve, found on a part of the scenarios.

The same scenarios judge every amount, so that differences are not noise. Owned GPUs come in whole servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.money.comparison import BAND, Floats
from gpuwise.money.engine import Batch, Mix, Top
from gpuwise.money.renting import Reservation

SCENARIOS = 2048
_MOST_TRIED = 24


@dataclass(frozen=True, slots=True)
class Tried:
    """Owning each of ``counts`` GPUs and renting the rest in the cheapest way: ``usd`` is ``(3, K)``."""

    counts: Floats
    usd: Floats
    best: Mix


def best_mix(batch: Batch, most_owned: int, most_reserved: int, tops: Sequence[Top]) -> Tried:
    """The cheapest mix in expectation: first how much to own, then how much to reserve, then both again."""
    server = batch.own.gpus_per_server
    counts = _counts(most_owned, server)
    best, least = Mix(), np.inf
    band = np.zeros((3, len(counts)))
    for top in tops:
        totals = [batch.cost(Mix(n, top=top)).total_usd for n in counts]
        means = [float(np.mean(t)) for t in totals]
        if min(means) < least:
            least, best = min(means), Mix(counts[int(np.argmin(means))], top=top)
            band = np.stack([np.quantile(t, BAND) for t in totals], axis=1)
    for reservation in batch.rent.reservations:
        mix = best
        for _ in range(2):
            mix = _best(batch, [Mix(mix.owned, r, reservation, mix.top) for r in (0, *_counts(most_reserved, 1)[1:])])
            mix = _best(batch, [Mix(n, mix.reserved, reservation, mix.top) for n in counts])
        cost = mean_usd(batch, mix)
        if mix.reserved and cost < least:
            least, best = cost, mix
    return Tried(np.array(counts, dtype=np.float64), band, best)


def best_reserved(batch: Batch, reservation: Reservation, most: int) -> Mix:
    """At least one reserved GPU, the rest on demand."""
    return _best(batch, [Mix(0, r, reservation) for r in _counts(most, 1)[1:]])


def mean_usd(batch: Batch, mix: Mix) -> float:
    return float(np.mean(batch.cost(mix).total_usd))


def _best(batch: Batch, mixes: Iterable[Mix]) -> Mix:
    return min(mixes, key=lambda mix: mean_usd(batch, mix))


def _counts(most: int, step: int) -> list[int]:
    """0 and up to a few dozen multiples of ``step`` up to ``most``, at least one."""
    last = max(1, -(-most // step))
    picked = np.unique(np.round(np.linspace(0, last, min(last, _MOST_TRIED) + 1)).astype(np.int64))
    return [int(n) * step for n in picked]
