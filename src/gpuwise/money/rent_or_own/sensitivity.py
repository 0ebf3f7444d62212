"""What drives the answer: each uncertain number alone from its 10th to its 90th percentile, and its share of the
variance.

The bars are exact evaluations of (own - rent) with every other number at its median. The shares are
first-order Sobol indices from the scenarios themselves: ``Var(E[y | x]) / Var(y)`` with ``x`` cut into equal
bins, less what bins of noise would show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuwise.interval import BAND
from gpuwise.money.rent_or_own.comparison import Bar
from gpuwise.money.rent_or_own.demand import Demand
from gpuwise.money.rent_or_own.engine import PRICE, Batch, Mix, uncertain_inputs_of
from gpuwise.money.rent_or_own.ownership import Ownership
from gpuwise.money.rent_or_own.renting import Renting
from gpuwise.money.rent_or_own.uncertain_inputs import Array, UncertainInput

SCENARIOS = 8192
"""Number of scenarios used for the shares."""
_BINS = 32
_NOTHING = 1e-9


def tornado(
    demand: Demand, ownership: Ownership, rent: Renting, drawn: Sequence[Batch], owned: Mix, rented: Mix, difference: Array
) -> tuple[Bar, ...]:
    """A bar for each uncertain number that matters, the widest first.

    ``drawn`` holds the scenarios ``difference`` ``(S,)``, (own - rent), begins with.
    """
    moving = [d for d in uncertain_inputs_of(demand, ownership, rent) if not d.is_exact]
    mean_price = np.concatenate([batch.mean_price() for batch in drawn])
    prices = np.quantile(mean_price, BAND) if mean_price.size > len(drawn) else None
    sample = {d.name: np.concatenate([batch.x[d.name] for batch in drawn]) for d in moving}
    if prices is not None:
        sample[PRICE] = mean_price
    if not sample:
        return ()
    ends = _ends(demand, ownership, rent, drawn[0], moving, prices)
    swing = np.broadcast_to(ends.cost(owned).total_usd - ends.cost(rented).total_usd, (ends.n,))
    shares = variance_shares(sample, difference)
    bars = [
        Bar(d.name, d.label, d.unit, d.low, d.high, float(swing[2 * i]), float(swing[2 * i + 1]), shares[d.name])
        for i, d in enumerate(moving)
    ]
    if prices is not None:
        i = 2 * len(moving)
        low, high = float(prices[0]), float(prices[2])
        bars.append(Bar(PRICE, "rental prices", "$/h", low, high, float(swing[i]), float(swing[i + 1]), shares[PRICE]))
    whole = max(bar.swing_usd for bar in bars)
    return tuple(sorted((bar for bar in bars if bar.swing_usd > _NOTHING * whole), key=lambda bar: -bar.swing_usd))


def variance_shares(sample: Mapping[str, Array], y: Array) -> dict[str, float]:
    """First-order Sobol index of ``y`` for each of ``sample``, 0 to 1; all 0 when ``y`` does not vary."""
    n = min(SCENARIOS, y.size) // _BINS * _BINS
    y = np.asarray(y[:n], dtype=np.float64)
    whole = float(y.var()) if n else 0.0
    if whole == 0:
        return dict.fromkeys(sample, 0.0)
    shares: dict[str, float] = {}
    for name, values in sample.items():
        binned = y[np.argsort(values[:n])].reshape(_BINS, -1)
        noise = float(binned.var(axis=1).mean()) / binned.shape[1]
        shares[name] = float(np.clip((binned.mean(axis=1).var() - noise) / whole, 0.0, 1.0))
    return shares


def _ends(
    demand: Demand, ownership: Ownership, rent: Renting, batch: Batch, moving: Sequence[UncertainInput], prices: Array | None
) -> Batch:
    """A batch of two scenarios for each number, at its 10th and its 90th percentile, the rest at their medians; then
    two for rental prices when they move, and one with everything at its median."""
    n = 2 * (len(moving) + (prices is not None)) + 1
    x: dict[str, Array] = {d.name: np.full(n, d.expected) for d in uncertain_inputs_of(demand, ownership, rent)}
    for i, uncertain_input in enumerate(moving):
        x[uncertain_input.name][2 * i : 2 * i + 2] = uncertain_input.low, uncertain_input.high
    path = rent.usd_per_hour * np.exp(rent.process.drift * np.arange(batch.months + 1, dtype=np.float64))
    later = np.ones(n)
    if prices is not None and batch.months > 1:  # today's price is known: only later ones move
        weights = batch.discounts
        low, middle, high = np.maximum(prices * weights.sum() - weights[0] * path[0], 0.0) / (weights[1:] @ path[1:-1])
        later[:] = middle
        later[2 * len(moving) : 2 * len(moving) + 2] = low, high
    paths = path[:, None] * later
    paths[0] = path[0]
    return Batch(demand, ownership, rent, x, paths[:-1], paths[-1] / path[0], n=n)
