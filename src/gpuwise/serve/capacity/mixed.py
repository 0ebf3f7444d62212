"""Fleets of two kinds of accelerators: the lowest cost per hour for a rate.

    minimise  sum n_i c_i    with  sum n_i C_i >= rate,   n_i whole, at most two kinds

``C_i`` is the rate of a replica of kind ``i`` within the targets and ``c_i`` its cost per hour. Requests are sent to each kind
at random in proportion to its rate, so no replica exceeds its own largest rate and arrivals stay as bursty as simulated. Every
pair is searched exhaustively, so the answer is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from gpuwise.serve.capacity.fleet import copies_for

CHEAPER = 0.98
"""Maximum cost of two kinds, relative to the best fleet of one kind, to be worth operating two."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of replica: display ``name``, requests per second, dollars per hour, accelerators."""

    name: str
    rate_per_s: float
    usd_per_hour: float
    accelerators: int
    watts: float | None = None
    """Design power of its accelerators."""


@dataclass(frozen=True, slots=True)
class MixedFleet:
    """``copies`` of each kind, ``shares`` of the requests that go to it; ``alone_usd_per_hour`` is what the best fleet of one
    kind costs."""

    kinds: tuple[Kind, ...]
    copies: tuple[int, ...]
    rate_per_s: float
    alone_usd_per_hour: float

    @property
    def usd_per_hour(self) -> float:
        """Rent of all replicas."""
        return sum(n * k.usd_per_hour for n, k in zip(self.copies, self.kinds, strict=True))

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the requests for each kind, in proportion to its rate."""
        carried = [n * k.rate_per_s for n, k in zip(self.copies, self.kinds, strict=True)]
        return tuple(c / sum(carried) for c in carried)

    def as_dict(self) -> dict[str, object]:
        """JSON document."""
        return {
            "kinds": [
                {"name": k.name, "copies": n, "accelerators": n * k.accelerators, "share_of_requests": s}
                for k, n, s in zip(self.kinds, self.copies, self.shares, strict=True)
            ],
            "usd_per_hour": self.usd_per_hour,
            "usd_per_hour_of_one_kind": self.alone_usd_per_hour,
        }


def copies_alone(kind: Kind, rate_per_s: float) -> int:
    """Replicas of one kind needed for a rate."""
    return copies_for(rate_per_s, kind.rate_per_s)


def mixed_fleet(kinds: Sequence[Kind], rate_per_s: float, most_watts: float | None = None) -> MixedFleet | None:
    """The cheapest fleet of two of ``kinds`` for ``rate_per_s`` that stays within ``most_watts``; None where none is cheaper than
    the best of one kind by two per cent."""
    able = [k for k in kinds if k.rate_per_s > 0]
    alone = [(k, copies_alone(k, rate_per_s)) for k in able]
    best_alone = min((n * k.usd_per_hour for k, n in alone if _within([k], [n], most_watts)), default=math.inf)
    best: MixedFleet | None = None
    for pair in combinations(able, 2):
        first, second = pair
        for n in range(1, copies_alone(first, rate_per_s)):
            left = rate_per_s - n * first.rate_per_s
            m = copies_alone(second, left)
            if not _within(pair, (n, m), most_watts):
                continue
            found = MixedFleet(pair, (n, m), rate_per_s, best_alone)
            if best is None or found.usd_per_hour < best.usd_per_hour:
                best = found
    if best is None or best.usd_per_hour > CHEAPER * best_alone:
        return None
    return best


def _within(kinds: Sequence[Kind], copies: Sequence[int], most_watts: float | None) -> bool:
    if most_watts is None:
        return True
    return all(k.watts is not None for k in kinds) and most_watts >= sum(
        n * (k.watts or 0.0) for n, k in zip(copies, kinds, strict=True)
    )
