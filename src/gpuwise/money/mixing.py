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

SCENARIOS = 1024
_MOST_TRIED = 16


@dataclass(frozen=True, slots=True)
class Tried:
    """Owning each of ``counts`` GPUs and renting the rest in the cheapest way: ``usd`` is ``(3, K)``."""

    counts: Floats
    usd: Floats
    best: Mix


def best_mix(batch: Batch, most_owned: int, most_reserved: int, terms: Sequence[Reservation]) -> Tried:
    """The cheapest mix in expectation. For each way to rent the rest and each term, from owning nothing and from the
    best amount to own: how much to reserve, how much to own beside it, and both once more."""
    server = batch.own.gpus_per_server
    counts, reserves = _counts(most_owned, server), _counts(most_reserved, 1)
    tops: tuple[Top, ...] = ("on-demand",) if batch.rent.spot is None else ("on-demand", "spot")
    found: list[tuple[float, Mix]] = []
    bands: list[tuple[float, Floats]] = []
    for top in tops:
        totals = [batch.cost(Mix(n, top=top)).total_usd for n in counts]
        means = [float(np.mean(t)) for t in totals]
        owned = counts[int(np.argmin(means))]
        found.append((min(means), Mix(owned, top=top)))
        bands.append((min(means), np.stack([np.quantile(t, BAND) for t in totals], axis=1).astype(np.float64)))
        for term in terms:
            for start in {0, owned}:
                mix = Mix(start, top=top)
                for _ in range(2):
                    mix = _best(batch, [Mix(mix.owned, r, term, top) for r in reserves])
                    mix = _best(batch, [Mix(n, mix.reserved, term, top) for n in counts])
                found.append((mean_usd(batch, mix), mix if mix.reserved else Mix(mix.owned, top=top)))
    best = min(found, key=lambda one: one[0])[1]
    return Tried(np.array(counts, dtype=np.float64), min(bands, key=lambda one: one[0])[1], best)


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
