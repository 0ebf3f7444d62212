"""The resource that saturates first as the rate rises, in words and figures."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.interval import P80
from gpuwise.serve.capacity.rate import Limit, Point
from gpuwise.serve.load.targets import METRICS
from gpuwise.units import format_duration

FULL_SHARE = 0.97
"""Share of the cache's blocks in use that counts as full."""
STILL_FOUND = 0.95
"""Prefix-cache hit rate, relative to that with enough room, below which prompts are recomputed for lack of room."""
WORDS = {
    "kv_memory": "memory for the key-value cache",
    "sequences": "the sequences an engine runs at once",
    "compute": "compute: prompts fill the steps",
    "memory": "memory bandwidth: a step reads weights and caches",
    "communication": "the links between accelerators",
    "pipeline": "pipeline stages that wait for each other",
    "host": "the host: scheduling and launches",
}
"""Descriptions of saturated resources, by key."""


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
        """The resource that saturates first, in words."""
        return WORDS[self.first]


def saturation_of(limit: Limit, curve: Sequence[Point] = ()) -> Saturation:
    """The limit of the rate: blocks or places that requests wait for when the targets fail, and the parts of the steps.
    ``curve`` are points at other rates: the next above the largest shows the saturated resource best."""
    assert limit.best is not None
    next_one = min((p for p in curve if p.rate_per_s > limit.rate_per_s and not p.met), key=lambda p: p.rate_per_s, default=None)
    busy = _shares(limit.best)
    fill = kv_fill(limit.best)
    first = next((w for p in (limit.missed, next_one) if p is not None and (w := _waits_for(limit, p, fill))), "")
    beyond = limit.missed or limit.best
    broken = "" if beyond.saturated or beyond.worst is None or beyond.worst.met else beyond.worst.target.key
    return Saturation(first or max(busy, key=lambda k: busy[k]), busy, fill, broken)


def _waits_for(limit: Limit, beyond: Point, fill: float) -> str:
    """``sequences`` or ``kv_memory`` if requests wait for these, or if cached prefixes were evicted; else empty."""
    waiting = beyond.run.saturation
    if waiting == "sequences":
        return waiting
    # the last prompt that does not fit leaves its own length free
    pool = beyond.run.n_blocks * limit.configuration.server.limits.block_tokens
    prompt = float(np.percentile(beyond.run.prompt_tokens, 95)) / pool
    full = beyond.saturated or max(fill, kv_fill(beyond)) + prompt > FULL_SHARE
    evicted = _found_share(beyond) < STILL_FOUND * _found_share(limit.alone)
    return "kv_memory" if full and (waiting == "kv_memory" or evicted) else ""


def _found_share(point: Point) -> float:
    """Share of all prompt tokens that hit the prefix cache."""
    return float(point.run.cached_tokens.sum() / max(point.run.prompt_tokens.sum(), 1))


def kv_fill(point: Point) -> float:
    """Share of the cache's blocks in use, 95th percentile over time."""
    _, share = point.run.kv_fill
    order = np.argsort(share)
    upto = np.cumsum(point.run.stretches.total_s[order]).tolist()
    return float(share[order[min(bisect_left(upto, 0.95 * upto[-1]), len(upto) - 1)]])


def _shares(point: Point) -> dict[str, float]:
    """Shares of the time in which the engine worked."""
    total = sum(point.run.busy_s.values())
    return {k: v / total for k, v in point.run.busy_s.items()} if total else {}


def why_missed(alone: Point) -> str:
    """Reason why requests without others miss a target, as a sentence, and changes that do not help."""
    worst = alone.worst
    if worst is None or worst.value_s is None or alone.surely_met:
        return ""
    name, value = METRICS[worst.target.metric], format_duration(worst.value_s)
    limit = format_duration(worst.target.limit_s)
    if worst.met:
        longest = format_duration(worst.value_s * alone.longest)
        return (
            f"Even without other requests the {name} is {value}, up to {longest} within its {P80} interval, where {limit} is "
            f"allowed ({worst.target.key}): the target is met only by chance, with any number of replicas."
        )
    if worst.target.metric == "ttft":
        because = "prefill alone takes that long: more replicas do not change that"
    elif worst.target.metric in ("tpot", "itl"):
        because = "each token reads all weights: more replicas do not change that"
    else:
        because = "an answer of that length alone takes that long: more replicas do not change that"
    return f"Even without other requests the {name} is {value} where {limit} is allowed ({worst.target.key}): {because}."
