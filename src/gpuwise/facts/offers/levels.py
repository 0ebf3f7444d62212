"""Price level of an accelerator at a typical provider: comparable prices of accelerators with different providers.

    log price(provider, accelerator) = accelerator + provider + noise

A card offered only by a cheap marketplace seems to cost less than one that clouds offer too. Both parts are fitted by medians
(Tukey's median polish), so single outliers do not move them.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from functools import lru_cache
from statistics import median
from types import MappingProxyType

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.offers.offer import current_by_provider
from gpuwise.facts.offers.store import StoredFile, current_files

ROUNDS, CONVERGED = 200, 1e-9
ONE_PROVIDER_SIGMA = 0.18
"""Standard deviation of the logarithm of a level from one provider's price: from 80 pairs, without all other offers of the
accelerator (1.48 x the median deviation; 0.40 without the provider's part)."""


def level_usd_per_hour(today: datetime.date) -> Mapping[str, float]:
    """Dollars an hour of each accelerator in the book on ``today`` at the typical provider. Raises DataError when a file of it is
    corrupt."""
    return _levels(current_files(), today)


@lru_cache(maxsize=16)
def _levels(_files: tuple[StoredFile, ...], today: datetime.date) -> Mapping[str, float]:
    rows = [
        (name, provider, math.log(offer.on_demand_usd_per_hour))
        for name in accelerators()
        for provider, offer in current_by_provider(name, today).items()
    ]
    by_accelerator: dict[str, list[tuple[str, float]]] = {}
    by_provider: dict[str, list[tuple[str, float]]] = {}
    for name, provider, price in rows:
        by_accelerator.setdefault(name, []).append((provider, price))
    for name, provider, price in rows:
        if (
            len(by_accelerator[name]) > 1
        ):  # an accelerator with a single provider contains no information on that provider's price level
            by_provider.setdefault(provider, []).append((name, price))
    level: dict[str, float] = {}
    dearness = dict.fromkeys((provider for _, provider, _ in rows), 0.0)
    for _ in range(ROUNDS):
        level = {name: median(price - dearness[p] for p, price in of) for name, of in by_accelerator.items()}
        before = dearness
        dearness = before | {p: median(price - level[name] for name, price in of) for p, of in by_provider.items()}
        typical = median(dearness.values()) if dearness else 0.0
        dearness = {p: value - typical for p, value in dearness.items()}
        if max((abs(dearness[p] - before[p]) for p in dearness), default=0.0) < CONVERGED:
            break
    return MappingProxyType({name: math.exp(value) for name, value in level.items()})
