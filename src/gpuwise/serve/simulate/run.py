"""Results of a simulated engine under a load: latencies of each request, and the engine's time by part.

Times to first token and of the whole answer are the client's, including the server before and after the engine. ITL, the gap
between two tokens of an answer, is not stored per token: a stretch of steps has the number of tokens for each gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
"""Fraction of a limit beyond which rounding cannot decide whether it is missed."""
_WAITED_SHARE = 0.125
"""Share of the rise: with an evenly growing queue requests wait half of it on average."""
TURNS = 3.0
"""Length of a run in mean request durations, so that the first requests, which met an empty server, count little."""
_LEFT = 0.02
"""Allowed growth of the number of requests in the system at the end, relative to the arrivals in half of that time."""
_GROWN, _CHANCE = 0.1, 2.0
"""Growth attributed to chance, relative to the requests in the system and to their square root."""
_TREND_SHARE = 1.0
"""Minimum rise of the time to first token from first to last arrival, relative to its median, for a growing queue."""


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
    """Columns [N] by request; NaN without a value (TPOT of an answer of one token)."""

    arrival_s: F64
    ttft_s: F64
    e2e_s: F64
    tpot_s: F64
    output_tokens: I64
    prompt_tokens: I64
    cached_tokens: I64
    """Prompt tokens that hit the prefix cache."""
    stretches: Stretches
    """Stretches of all replicas, one after the other."""
    preemption_gaps_s: F64
    """Gaps that are of no step alone: with a preemption, or steps of others' prompts, in them; of ``gap_tokens`` tokens each."""
    gap_tokens: I64
    preemptions: int
    n_blocks: int
    """Blocks of one replica's pool."""
    max_sequences: int
    max_tokens: int
    busy_s: Mapping[str, float]
    """Seconds the engine worked, by what they went to: compute, memory, communication, host."""
    log_sigma: float
    """Standard deviation of the log of the steps' times."""
    replicas: int = 1
    waited_s: float = 0.0
    """Total waiting time of all requests before they reached the engines of ``stretches``."""

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
        """Share of all prompt tokens that hit the prefix cache."""
        return float(self.cached_tokens.sum() / self.prompt_tokens.sum())

    def column(self, metric: Metric) -> F64:
        """[N] of a request's own metrics. Raises InputError for ITL, which is not a request's."""
        if metric == "itl":
            raise InputError("ITL is between tokens, not of a request", hint="take its percentile or its mean")
        return {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}[metric]

    def percentile(self, metric: Metric, q: float) -> float:
        """The ``q``-th percentile (0 to 100), in seconds; NaN where nothing has the metric."""
        return self.percentiles(metric, (q,))[0]

    def percentiles(self, metric: Metric, levels: Sequence[float]) -> list[float]:
        """The percentiles at ``levels`` (0 to 100), in seconds; NaN where nothing has the metric."""
        if metric != "itl":
            values = self.column(metric)
            values = values[np.isfinite(values)]
            return np.percentile(values, levels).tolist() if len(values) else [math.nan] * len(levels)
        gaps, tokens = self._gaps()
        if not len(gaps):
            return [math.nan] * len(levels)
        order = np.argsort(gaps, kind="stable")
        upto = np.cumsum(tokens[order], dtype=np.int64)
        at = np.searchsorted(upto, [q / 100 * float(upto[-1]) for q in levels])
        return gaps[order[np.minimum(at, len(order) - 1)]].tolist()

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
        """Times, and the share of blocks in use then."""
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
        """Whether the queue grows as long as requests arrive: fewer leave than arrive in the later part, the time to first
        token rises from first to last arrival by more than its median and more than chance, and requests wait (prompts of a
        session also grow with its calls, and take longer without a queue)."""
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
        """The resource that most waiting requests waited for: ``sequences`` (the maximum is running), ``kv_memory`` (no
        blocks), ``compute`` (the tokens of a step); ``none`` if they waited for less than a tenth of the mean time to the
        first token."""
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
