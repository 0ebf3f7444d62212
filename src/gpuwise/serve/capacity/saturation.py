"""What gives out first as the rate rises, in words and figures."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from gpuwise.serve.capacity.rate import Limit, Point
from gpuwise.serve.load.targets import METRICS
from gpuwise.units import format_duration

FULL_SHARE = 0.97
"""Of the cache's blocks in use: full."""
WORDS = {
    "kv_memory": "memory for the key-value cache",
    "sequences": "the sequences an engine runs at once",
    "compute": "compute: prompts fill the steps",
    "memory": "memory bandwidth: a step reads weights and caches",
    "communication": "the links between accelerators",
    "pipeline": "pipeline stages that wait for each other",
    "host": "the host: scheduling and launches",
}
"""What gives out, by key."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """``first`` is a key of :data:`WORDS`; ``busy`` shares of the engine's time at the largest rate; ``kv_fill`` the share of
    blocks in use there, 95th percentile."""

    first: str
    busy: dict[str, float]
    kv_fill: float
    target: str
    """Key of the target that breaks next; empty when it is the queue that grows."""

    @property
    def words(self) -> str:
        """What gives out first, in words."""
        return WORDS[self.first]


def saturation_of(limit: Limit) -> Saturation:
    """What keeps the rate from rising: who waits for blocks or places when the targets break, and what the steps are made of."""
    assert limit.best is not None
    beyond = limit.missed or limit.best
    busy = _shares(limit.best)
    waiting = beyond.run.saturation
    fill = kv_fill(limit.best)
    if waiting == "sequences" or (waiting == "kv_memory" and (beyond.saturated or fill > FULL_SHARE)):
        first = waiting
    else:
        first = max(busy, key=lambda k: busy[k])
    broken = "" if beyond.saturated or beyond.worst is None or beyond.worst.met else beyond.worst.target.key
    return Saturation(first, busy, fill, broken)


def kv_fill(point: Point) -> float:
    """Share of the cache's blocks in use, 95th percentile over time."""
    _, share = point.run.kv_fill
    order = np.argsort(share)
    upto = np.cumsum(point.run.stretches.total_s[order]).tolist()
    return float(share[order[min(bisect_left(upto, 0.95 * upto[-1]), len(upto) - 1)]])


def _shares(point: Point) -> dict[str, float]:
    """Of the time the engine worked."""
    total = sum(point.run.busy_s.values())
    return {k: v / total for k, v in point.run.busy_s.items()} if total else {}


def why_missed(alone: Point) -> str:
    """Why requests that meet nobody miss a target, in a sentence, and what does not mend it."""
    worst = alone.worst
    if worst is None or worst.met or worst.value_s is None:
        return ""
    name, value = METRICS[worst.target.metric], format_duration(worst.value_s)
    limit = format_duration(worst.target.limit_s)
    if worst.target.metric == "ttft":
        because = "reading its prompt takes that long by itself: no number of replicas mends it"
    elif worst.target.metric in ("tpot", "itl"):
        because = "a token reads all weights by itself: no number of replicas mends it"
    else:
        because = "an answer of that length takes that long by itself: no number of replicas mends it"
    return f"A request that meets nobody has a {name} of {value} where {limit} is allowed ({worst.target.key}): {because}."
