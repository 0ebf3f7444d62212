"""A load: a workload that is drawn from or a trace that is replayed, at any rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpuwise.serve.load.arrivals import unit_arrivals
from gpuwise.serve.load.traces import Trace
from gpuwise.serve.load.workloads import Workload, draw

if TYPE_CHECKING:
    from gpuwise.serve.load.requests import Requests


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a server, without its rate, for a model with a context of ``context`` tokens.

    Longer requests of a workload are cut to the context; those of a trace were already rejected or dropped.
    """

    source: Workload | Trace
    context: int
    adapters: int = 0
    """Low-rank adapters that requests are for, each equally often; 0: none."""

    @property
    def title(self) -> str:
        """Display name: the workload's title, or the trace's name and format."""
        return self.source.title if isinstance(self.source, Workload) else f"{self.source.name} ({self.source.format} trace)"

    @property
    def peak_over_mean(self) -> float:
        """Rate of the busiest time over the mean: an hour of a workload's day, a minute of a trace."""
        return self.source.peak_over_mean

    @property
    def recorded_rate_per_s(self) -> float | None:
        """Rate of a trace with times; None if the rate is free."""
        return self.source.requests.mean_rate or None if isinstance(self.source, Trace) and self.source.timed else None

    def at(self, rate_per_s: float, n: int, *, seed: int = 0) -> Requests:
        """``n`` requests at a mean rate: the first ones of a trace, stretched."""
        found = self._at(rate_per_s, n, seed)
        if not self.adapters:
            return found
        return replace(found, adapter=np.random.default_rng([seed, self.adapters]).integers(0, self.adapters, len(found)))

    def _at(self, rate_per_s: float, n: int, seed: int) -> Requests:
        if isinstance(self.source, Workload):
            if self.source.sessions is not None:  # whose calls keep their pauses
                return draw(self.source, n, rate_per_s, seed=seed).cut_to(self.context)
            drawn = _drawn(self.source, n, seed, self.context)
            return replace(drawn, arrival_s=drawn.arrival_s / rate_per_s)
        first = self.source.requests.select(np.arange(min(n, len(self.source.requests))))
        if not self.source.timed or not first.mean_rate:
            arrival = unit_arrivals(len(first), 1.0, np.random.default_rng(seed))
            return replace(first, arrival_s=arrival / rate_per_s)
        return first.scaled(rate_per_s)

    def cut_share(self, n: int = 2000) -> float:
        """Share of a workload's requests that the context cuts."""
        if not isinstance(self.source, Workload):
            return 0.0
        return len(draw(self.source, n, 1.0).longer_than(self.context)) / n


@lru_cache(maxsize=16)
def _drawn(workload: Workload, n: int, seed: int, context: int) -> Requests:
    """Requests at one a second: a rate only stretches them."""
    return draw(workload, n, 1.0, seed=seed).cut_to(context)
