"""Requests that run in batches, each a pass through the model: a request waits until a device is free; then all waiting requests,
at most ``most``, run as one batch of ``t(B)`` seconds and are answered together:

    latency = wait + t(B)
    full rate = max over B of B / t(B)

A batcher may delay a batch until it is full or its oldest request has waited ``delay`` (dynamic batching with a queue delay,
as Triton's ``max_queue_delay_microseconds``), or until it is full without a time limit (static). The largest rate meets the
targets under Poisson arrivals. Several devices share one queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.interval import Z80
from gpuwise.predict.estimate import Basis, Estimate
from gpuwise.serve.load.arrivals import unit_arrivals
from gpuwise.serve.load.targets import Target

F64 = NDArray[np.float64]
REQUESTS = 4000
RESOLUTION = 1.02
GROWS = 0.5
"""A queue grows where the second half of the requests waits longer than the first by this share and more than one batch."""


@dataclass(frozen=True, slots=True)
class Batcher:
    """Rule for forming batches: at most ``most`` items (None: as many as fit on the device), started when full or when the
    oldest has waited ``delay_s``; ``math.inf`` waits for a full one."""

    most: int | None = None
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if self.most is not None and self.most < 1:
            raise InputError(f"batches of {self.most}", hint="at least 1")
        if self.delay_s < 0:
            raise InputError(f"a batch waits {self.delay_s:g} s", hint="0 begins as soon as the device is free")


AT_ONCE = Batcher()


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Seconds [B] of batches of ``sizes`` items on one accelerator."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    log_sigma: float
    basis: Basis

    @classmethod
    def of_estimates(cls, times: Sequence[tuple[int, Estimate]]) -> BatchTimes:
        """From sizes and their seconds: as uncertain as the largest batch."""
        last = times[-1][1]
        sizes, seconds = zip(*((size, time.expected) for size, time in times), strict=True)
        return cls(sizes, seconds, math.log(last.high / last.expected) / Z80, last.basis)

    def of(self, items: int) -> float:
        """Seconds of a batch of ``items``, between measured sizes in a straight line."""
        return float(np.interp(items, self.sizes, self.seconds))

    def up_to(self, most: int) -> BatchTimes:
        """Batch sizes up to ``most`` for the available number of items."""
        if most >= self.sizes[-1]:
            return self
        sizes = (*(b for b in self.sizes if b < most), most)
        return replace(self, sizes=sizes, seconds=tuple(self.of(b) for b in sizes))

    @property
    def full_per_s(self) -> float:
        """Items a second of the best batch, always full."""
        return max(b / s for b, s in zip(self.sizes, self.seconds, strict=True))


@dataclass(frozen=True, slots=True)
class PassPoint:
    """One accelerator at a rate: latencies [N] of its requests, and the mean of its batches."""

    rate_per_s: float
    latency_s: F64
    mean_batch: float
    busy: float
    saturated: bool

    def latency(self, percentile: float | None) -> float | None:
        """Seconds; None for the mean. None where queues grow."""
        if self.saturated:
            return None
        return float(self.latency_s.mean() if percentile is None else np.percentile(self.latency_s, percentile))

    def keeps(self, targets: Sequence[Target]) -> bool:
        """Whether every target's percentile is within its limit, and the queue does not grow without end."""
        values = [(self.latency(t.percentile), t.limit_s) for t in targets]
        return not self.saturated and all(v is not None and v <= limit for v, limit in values)


def simulate(
    times: BatchTimes, rate_per_s: float, n: int | None = None, seed: int = 0, batcher: Batcher = AT_ONCE, devices: int = 1
) -> PassPoint:
    """``n`` Poisson requests (None: the default number) at a rate. Whenever one of ``devices``, which share a queue, is free,
    all waiting requests form a batch."""
    n = REQUESTS if n is None else n
    arrival = (unit_arrivals(n, 1.0, np.random.default_rng(seed)) / rate_per_s).tolist()
    most = times.sizes[-1]
    seconds = [0.0, *(times.of(b) for b in range(1, most + 1))]
    latency = np.empty(n)
    free = [0.0] * devices
    busy = 0.0
    at = batches = 0
    while at < n:
        now = max(free[0], arrival[at])
        if batcher.delay_s:  # full, or the oldest has waited, or no more requests arrive
            now = max(now, min(arrival[min(at + most, n) - 1], arrival[at] + batcher.delay_s))
        upto = at + 1
        while upto < n and upto - at < most and arrival[upto] <= now:
            upto += 1
        took = seconds[upto - at]
        heapreplace(free, now + took)
        busy += took
        batches += 1
        latency[at:upto] = now + took - np.array(arrival[at:upto])
        at = upto
    half = latency[: n // 2].mean(), latency[n // 2 :].mean()
    grows = half[1] > half[0] * (1 + GROWS) and half[1] - half[0] > seconds[most] / devices
    return PassPoint(rate_per_s, latency, n / batches, busy / (max(free) * devices), bool(grows))


def fewest(times: BatchTimes, targets: Sequence[Target], rate_per_s: float, each_per_s: float, batcher: Batcher) -> int:
    """Minimum devices that meet the targets at ``rate_per_s`` with one shared queue: at most the number with separate queues
    of ``each_per_s`` each, and fewer because a request never waits while another device is free."""
    apart = max(math.ceil(rate_per_s / each_per_s - 1e-9), 1)
    if math.isinf(batcher.delay_s):
        return apart
    low, high = max(math.ceil(rate_per_s / times.full_per_s - 1e-9), 1) - 1, apart
    while high - low > 1:
        middle = (low + high) // 2
        enough = simulate(times, rate_per_s, batcher=batcher, devices=middle).keeps(targets)
        low, high = (low, middle) if enough else (middle, high)
    return high


def largest(times: BatchTimes, targets: Sequence[Target], batcher: Batcher = AT_ONCE) -> PassPoint | None:
    """The largest rate within the targets; None where a request alone misses one. A batch that must be full is never alone: the
    search then begins where one fills half the time that is allowed."""
    if math.isinf(batcher.delay_s):
        return _largest_static(times, targets, batcher) if targets else busy(times)
    best = simulate(times, 1e-3 * times.full_per_s, 200, batcher=batcher)
    if not best.keeps(targets):
        return None
    rate, missed = times.full_per_s, math.inf
    best = simulate(times, 1e-3 * times.full_per_s, batcher=batcher)
    while missed / best.rate_per_s > RESOLUTION:
        point = simulate(times, rate, batcher=batcher)
        if point.keeps(targets):
            best = point
            if rate >= times.full_per_s:
                break
        else:
            missed = rate
        rate = math.sqrt(best.rate_per_s * missed) if best.rate_per_s > 0.01 * missed else 0.7 * missed
    return best


def busy(times: BatchTimes) -> PassPoint:
    """A device whose batches are always full, of items that are all there: their latency is that of a batch."""
    most, seconds = times.sizes[-1], times.seconds[-1]
    return PassPoint(most / seconds, np.array([seconds]), float(most), 1.0, False)


def _largest_static(times: BatchTimes, targets: Sequence[Target], batcher: Batcher) -> PassPoint | None:
    """Static batches take too long to fill at low rates and overload the device at high ones: the largest rate between that
    meets the targets."""
    rate = times.sizes[-1] / times.seconds[-1]
    while rate > 1e-3 * times.full_per_s:
        point = simulate(times, rate, batcher=batcher)
        if point.keeps(targets):
            return point
        rate /= RESOLUTION
    return None
