"""What a simulated engine did with a load: latencies of each request, and what the engine was busy with.

Times to the first token and of the whole answer are the client's: with what stands before and after the engine. ITL, the gap
between two tokens of an answer, is not kept by token: a stretch of steps says how many tokens had which gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.serve.load.targets import Target

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Metric = Literal["ttft", "tpot", "itl", "e2e"]
METRICS: tuple[Metric, ...] = ("ttft", "tpot", "itl", "e2e")
_SURELY = 1.0 + 1e-9
"""Of a limit, from which no rounding decides whether it is missed."""
_WAITED_SHARE = 0.125
"""Of the rise: a queue that grows evenly makes requests wait half of it in the mean."""
TURNS = 3.0
"""Times that requests stay for which they have to come, so that the first ones, which found an empty server, count for little."""
_LEFT = 0.02
"""Of the requests that came in half of that time, by how many more may be in the system at its end."""
_GROWN, _CHANCE = 0.1, 2.0
"""Of the requests in the system, and of their root, by how much more may be chance."""
_TREND_SHARE = 1.0
"""Of the median time to the first token: by how much it must rise from the first arrival to the last for a queue that grows."""


def surely_missed(target: Target, least_s: F64, n: int) -> bool:
    """Whether ``n`` values can no longer be within ``target``, of some of which ``least_s`` is the least that they come to."""
    if target.percentile is None:
        return float(least_s.sum()) > _SURELY * target.limit_s * n
    rank = math.floor(target.percentile / 100.0 * (n - 1))  # of the value at or below the percentile, from 0
    return int(np.count_nonzero(least_s > _SURELY * target.limit_s)) >= n - rank


@dataclass(frozen=True, slots=True)
class Stretches:
    """Columns [M] of steps of the same sequences. ``begin_s`` when the first begins; ``n_steps`` of ``each_s`` seconds and
    ``growth_s`` more each; sequences that decode, prompt tokens, tokens in their caches, free blocks, requests that wait."""

    begin_s: F64
    n_steps: I64
    each_s: F64
    growth_s: F64
    decoding: I64
    prompt_tokens: I64
    cached_tokens: I64
    free_blocks: I64
    waiting: I64
    stalled: I64
    """Sequences whose first gap of the stretch is in ``Run.preemption_gaps_s``."""
    running: I64
    """Sequences of all batches in flight; of one batch those that decode."""

    @property
    def total_s(self) -> F64:
        """[M] seconds of all steps of a stretch."""
        k = self.n_steps
        return k * self.each_s + self.growth_s * (k * (k - 1) // 2)


@dataclass(frozen=True, slots=True)
class Run:
    """Columns [N] by request; NaN where there is none (TPOT of an answer of one token)."""

    arrival_s: F64
    ttft_s: F64
    e2e_s: F64
    tpot_s: F64
    output_tokens: I64
    prompt_tokens: I64
    cached_tokens: I64
    """Of the prompt, found in the prefix cache."""
    stretches: Stretches
    """Of all replicas, one after the other."""
    preemption_gaps_s: F64
    """Gaps that are of no step alone: with a preemption, or steps of others' prompts, in them; of ``gap_tokens`` tokens each."""
    gap_tokens: I64
    preemptions: int
    n_blocks: int
    """Of one replica's pool."""
    max_sequences: int
    max_tokens: int
    busy_s: Mapping[str, float]
    """Seconds the engine worked, by what they went to: compute, memory, communication, host."""
    log_sigma: float
    """Of the steps' times."""
    replicas: int = 1
    waited_s: float = 0.0
    """Of all requests together, before they came to the engines that ``stretches`` are of."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def finish_s(self) -> F64:
        """[N] seconds from the start of the load to each request's last token."""
        return self.arrival_s + self.e2e_s

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.finish_s.max() - self.arrival_s.min())

    @property
    def requests_per_s(self) -> float:
        """Finished requests over the time from the first arrival to the last token."""
        return len(self) / self.duration_s

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens written over the time from the first arrival to the last token."""
        return float(self.output_tokens.sum()) / self.duration_s

    @property
    def prefix_hit_share(self) -> float:
        """Of all prompt tokens, those found in the prefix cache."""
        return float(self.cached_tokens.sum() / self.prompt_tokens.sum())

    def column(self, metric: Metric) -> F64:
        """[N] of a request's own metrics. Raises InputError for ITL, which is not a request's."""
        if metric == "itl":
            raise InputError("ITL is between tokens, not of a request", hint="take its percentile or its mean")
        return {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}[metric]

    def percentile(self, metric: Metric, q: float) -> float:
        """The ``q``-th percentile (0 to 100), in seconds; NaN where nothing has the metric."""
        if metric != "itl":
            values = self.column(metric)
            values = values[np.isfinite(values)]
            return float(np.percentile(values, q)) if len(values) else float("nan")
        gaps, tokens = self._gaps()
        if not len(gaps):
            return float("nan")
        order = np.argsort(gaps, kind="stable")
        upto = np.cumsum(tokens[order], dtype=np.int64)
        at = min(int(np.searchsorted(upto, q / 100 * float(upto[-1]))), len(order) - 1)
        ascending: F64 = gaps[order]
        return float(ascending[at])

    def mean(self, metric: Metric) -> float:
        """In seconds; of ITL over all gaps."""
        if metric != "itl":
            values = self.column(metric)
            values = values[np.isfinite(values)]
            return float(values.mean()) if len(values) else float("nan")
        gaps, tokens = self._gaps()
        return float((gaps * tokens).sum() / tokens.sum()) if len(gaps) else float("nan")

    def _gaps(self) -> tuple[F64, I64]:
        """Gaps between tokens, and how many had each: the steps of every stretch, and what preemptions took."""
        s = self.stretches
        keep = s.decoding > 0
        k = s.n_steps[keep]
        before: I64 = np.asarray(np.cumsum(k), np.int64) - k
        first: I64 = np.repeat(before, k)
        j: I64 = np.arange(int(k.sum()), dtype=np.int64) - first
        gaps = np.repeat(s.each_s[keep], k) + j * np.repeat(s.growth_s[keep], k)
        tokens = np.repeat(s.decoding[keep], k)
        tokens[before] -= s.stalled[keep]
        return np.concatenate([gaps, self.preemption_gaps_s]), np.concatenate([tokens, self.gap_tokens])

    @property
    def kv_fill(self) -> tuple[F64, F64]:
        """When, and the share of blocks that requests held then."""
        s = self.stretches
        return s.begin_s, 1.0 - s.free_blocks / self.n_blocks

    @property
    def queue(self) -> tuple[F64, I64, I64]:
        """When, and how many requests decoded (were in flight) and waited then."""
        s = self.stretches
        return s.begin_s, s.running, s.waiting

    def in_flight(self, begin: float, end: float) -> float:
        """Mean requests in the system between two shares of the time in which requests come."""
        first, span = float(self.arrival_s.min()), float(np.ptp(self.arrival_s))
        if not span:
            return float(len(self))
        a, b = first + begin * span, first + end * span
        inside = np.minimum(self.finish_s, b) - np.maximum(self.arrival_s, a)
        return float(np.clip(inside, 0.0, None).sum()) / (b - a)

    @property
    def stay_s(self) -> float:
        """Seconds that a request which is in the system at any moment stays there: long ones are seen for longer."""
        return float((self.e2e_s * self.e2e_s).sum() / self.e2e_s.sum())

    @property
    def settled(self) -> bool:
        """Requests came for :data:`TURNS` times as long as those in the system stay in it, and no more were there in the last
        quarter of that time than in the one before: what is seen is the load, not the filling of an empty server."""
        if TURNS * self.stay_s > float(np.ptp(self.arrival_s)):
            return False
        before, last = self.in_flight(0.5, 0.75), self.in_flight(0.75, 1.0)
        return last - before <= max(_GROWN * last, _CHANCE * last**0.5)

    @property
    def saturated(self) -> bool:
        """The queue grows as long as requests come: fewer leave than come in the later part, the time to the first token rises
        from the first arrival to the last by more than its median, and by more than chance, and requests wait for it (prompts of
        a session grow with its calls as well, and take longer with nobody before them)."""
        if len(self) < 20:
            return False
        t = self.arrival_s - self.arrival_s.mean()
        spread = float((t * t).sum())
        if not spread:
            return False
        delay = self.ttft_s - self.ttft_s.mean()
        slope = float((t * delay).sum()) / spread
        rise = slope * float(np.ptp(self.arrival_s))
        noise = float(np.std(delay - slope * t)) * float(np.ptp(self.arrival_s)) / spread**0.5
        left = self.in_flight(0.75, 1.0) - self.in_flight(0.25, 0.5)
        if not (left > _LEFT * len(self) / 2.0 and rise > _TREND_SHARE * self.percentile("ttft", 50) and rise > 4.0 * noise):
            return False
        waited = self.waited_s + float((self.stretches.waiting * self.stretches.total_s).sum())
        return waited / len(self) > rise * _WAITED_SHARE

    @property
    def saturation(self) -> str:
        """What most requests that waited waited for: ``sequences`` (as many run as may), ``kv_memory`` (no blocks), ``compute``
        (the tokens of a step); ``none`` where they waited for less than a tenth of the mean time to the first token."""
        s = self.stretches
        waited = s.waiting * s.total_s
        if waited.sum() < 0.1 * np.nansum(self.ttft_s):
            return "none"
        full = s.decoding + s.prompt_tokens >= self.max_tokens
        crowded = s.running >= self.max_sequences - 1
        parts = {
            "compute": waited[full].sum(),
            "sequences": waited[crowded & ~full].sum(),
            "kv_memory": waited[~crowded & ~full].sum(),
        }
        return max(parts, key=lambda name: float(parts[name]))
