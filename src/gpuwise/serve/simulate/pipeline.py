"""Steps in flight on pipeline stages: vLLM's V1 scheduler over a batch queue (v1/engine/core.py, ``step_with_batch_queue``).

As many batches are in flight as there are stages. Whenever a place is free, all requests outside a batch are scheduled as one
batch, under the rules of one token budget: those of the batch that returned last, and waiting ones. Decoding requests therefore
stay together; the next chunk of a long prompt is scheduled while the previous one is in flight. Batches pass the stages in order,

    start(i, k) = max(end(i - 1, k), end(i, k - 1)),    end(i, k) = start(i, k) + share(i) step(k)

with the transfer of activations between two stages as a separate stage. Requests that arrive in between wait for the next place.
Rounds of decode-only batches without waiting requests are summed: each takes the time of the slowest batch, or of the busiest
stage.

A request that lacks a block takes it from those of its own batch admitted last; the engine would take it from the last of all.
Scheduling time is overlapped if the engine schedules one batch more than there are stages (vLLM's second model runner), else
it follows each batch.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.comm.collectives import curve
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.memory import layers_of_stages, stage_ends
from gpuwise.serve.simulate.budget import BudgetEngine
from gpuwise.serve.simulate.core import PROMPT, Engine, Limits
from gpuwise.serve.simulate.step_time import Steps, StepTime
from gpuwise.serve.simulate.texts import Runs
from gpuwise.workload.transformer.parameters import count_parameters

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
LEAST_ROUNDS = 3
"""Minimum number of decode-only rounds to sum."""
HOP_TOKENS = (1, 32, 256, 2048, 16384)
"""Token numbers at which the transfer between two stages is evaluated; others are interpolated."""


@dataclass(frozen=True, slots=True)
class Stages:
    """``decode_shares`` and ``prompt_shares`` of a step's seconds by stage; ``hops`` the seconds of ``hop_tokens`` tokens between
    each two."""

    decode_shares: tuple[float, ...]
    prompt_shares: tuple[float, ...]
    hop_tokens: tuple[int, ...] = (1,)
    hops: tuple[tuple[float, ...], ...] = ()
    hides_host: bool = True
    """One batch more than stages is scheduled ahead."""

    def seconds(self, step_s: float, tokens: int, prompts: bool) -> list[float]:
        """Seconds of each stage and each transfer between two, in order."""
        shares = self.prompt_shares if prompts else self.decode_shares
        found = [share * step_s for share in shares for _ in range(2)][:-1]
        found[1::2] = self.ways(tokens)
        return found

    def ways(self, tokens: int) -> list[float]:
        """Seconds to transfer that many tokens between neighbouring stages."""
        at = self.hop_tokens
        if len(at) == 1:
            return [hop[0] for hop in self.hops]
        i = min(max(bisect_right(at, tokens) - 1, 0), len(at) - 2)
        share = (tokens - at[i]) / (at[i + 1] - at[i])
        return [hop[i] + (hop[i + 1] - hop[i]) * share for hop in self.hops]


class _Batch(BudgetEngine):
    """Requests that are scheduled together, time after time."""

    def __init__(
        self, owner: PipelineEngine, prompt: Sequence[int], output: Sequence[int], runs: Runs, limits: Limits, time: StepTime
    ) -> None:
        super().__init__(prompt, output, runs, limits, time)
        self.owner = owner
        self.pool, self.waiting, self.trace, self.finished = owner.pool, owner.waiting, owner.trace, owner.finished
        self.written, self.admitted, self.arrived = owner.written, owner.admitted, owner.arrived
        self.preempted_at = owner.preempted_at
        self.decoding = 0
        """Sequences that decode in the batch in flight; ``chunks`` of prompts in it, and who has a next token after it."""
        self.chunks: list[tuple[int, int]] = []
        self.ended: list[int] = []
        self.busy = False
        self.step_s = self.end_s = self.before_s = 0.0
        """Seconds of its step on all stages, when it comes back, when the one before came back."""

    def schedule(self) -> bool:
        """Whether there is something for a batch; takes its blocks."""
        owner = self.owner
        self.now, n = owner.now, len(self.running)
        if n and not owner.reading:
            free = self.pool.free - self.phases[-self.decoded % self.limits.block_tokens]
            if free >= 0 and (not self.waiting or self._has_no_place(free)):  # a step of the same sequences
                self.pool.take(self.pool.free - free)
                self._decode_stretch(n, False, math.inf)
                return True
        self.admissions = owner.admissions
        self._take_prompt()
        self.busy = False
        self.step(math.inf)
        owner.admissions, owner.reading = self.admissions, self.partial >= 0
        return self.busy

    def _has_no_place(self, free: int) -> bool:
        """Whether the first that waits is surely not admitted to a batch that runs, beside ``free`` blocks."""
        limits, request = self.limits, self.waiting[0]
        if len(self.owner.running) >= limits.sequences:
            return True
        if self.runs.n_shared or self.written[request] or not limits.reserve_prompt:
            return False
        wanted = self.prompt[request]
        found = self.pool.found_blocks(request, wanted, limits.block_tokens)
        return not found and -(-wanted // limits.block_tokens) > free - limits.watermark_blocks

    def _take_prompt(self) -> None:
        """Continue here a prompt that another batch started."""
        if self.partial >= 0:
            return
        for other in self.owner.batches:
            if other.partial >= 0:
                del other.running[other.partial]
                self.running[other.partial] = PROMPT
                self.partial, self.done, self.wanted = other.partial, other.done, other.wanted
                other.partial = -1
                return

    def _mixed_step(self, n: int, chunks: list[tuple[int, int]], ended: list[int]) -> None:
        self.busy, self.decoding, self.chunks, self.ended = True, n, chunks, ended
        self.step_s = self.time.mixed(n, self.cache_tokens if n else 0, chunks)

    def _decode_stretch(self, n: int, once: bool, arrival_s: float) -> None:
        self.busy, self.decoding, self.chunks, self.ended = True, n, [], []
        self.step_s = self.time.fixed[n] + self.time.slope[n] * self.cache_tokens

    def come_back(self) -> None:
        """The batch has left the last stage: its tokens are here."""
        n, tokens = self.decoding, 0
        for new, _ in self.chunks:
            tokens += new
        cached, gap = self.cache_tokens if n else 0, self.end_s - self.before_s
        free, waiting, running = self.pool.free, len(self.waiting), len(self.owner.running)
        self.trace.rows.append((self.before_s, 1, n, gap, 0.0, tokens, cached, free, waiting, 0, running))
        self.busy = False
        self.now = self.before_s = self.end_s
        if n:
            self.decoded += 1
            self.cache_tokens = cached + n
            if self.finishing and self.finishing[0][0] <= self.decoded:
                self._finish_decoded()
        for request in self.ended:
            self._first_token(request)

    def rounds_left(self) -> int:
        """Steps until the next request of it ends."""
        while not self._finishes(*self.finishing[0]):
            heappop(self.finishing)
        return self.finishing[0][0] - self.decoded

    def skip(self, rounds: int, first_s: float, growth_s: float, seconds: float) -> None:
        """Advance by that many steps of the same sequences, allocating their blocks."""
        n = len(self.running)
        blocks = self.blocks_for(rounds)
        free, running = self.pool.free, len(self.owner.running)
        self.trace.rows.append((self.before_s, rounds, n, first_s, growth_s, 0, self.cache_tokens, free, 0, 0, running))
        self.pool.take(blocks)
        self.decoded += rounds
        self.cache_tokens += n * rounds
        self.before_s += seconds
        self.end_s += seconds

    def blocks_for(self, rounds: int) -> int:
        """Blocks for that many further steps; those of the step in flight are already allocated."""
        size = self.limits.block_tokens
        whole, rest = divmod(rounds, size)
        at = -(self.decoded + self.busy) % size
        return whole * len(self.running) + sum(self.phases[(at - j) % size] for j in range(rest))

    # --- requests

    def _seats(self) -> int:
        return self.limits.sequences - len(self.owner.running) + len(self.running)

    def _begin(self, request: int, found: int, new: int, wanted: int, chunks: list[tuple[int, int]], ended: list[int]) -> None:
        self.owner.running[request] = PROMPT
        super()._begin(request, found, new, wanted, chunks, ended)

    def _end(self, request: int, tokens: int) -> None:
        self.owner.running.pop(request, None)
        super()._end(request, tokens)

    def _preempt(self, request: int) -> None:
        self.owner.running.pop(request, None)
        super()._preempt(request)


class PipelineEngine(Engine):
    """Batches in flight, one for each of ``stages``."""

    def __init__(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        runs: Runs,
        limits: Limits,
        time: StepTime,
        stages: Stages,
        *,
        sums_rounds: bool = True,
    ) -> None:
        super().__init__(prompt, output, runs, limits, time)
        self.stages, self.sums_rounds = stages, sums_rounds
        self.batches = [_Batch(self, prompt, output, runs, limits, time) for _ in stages.decode_shares]
        self.in_flight: deque[_Batch] = deque()
        self.free_s = [0.0] * (2 * len(stages.decode_shares) - 1)
        """When each stage, and each way between two, is done with the last batch."""
        self.scheduled_s = 0.0
        self.reading = False
        """Whether a prompt is in progress, in the batch that was scheduled last."""
        self.ways: dict[int, list[float]] = {}
        """Transfer times by batch tokens, as far as they occurred."""

    @property
    def idle(self) -> bool:
        """Whether no request waits, runs or is between stages."""
        return not (self.waiting or self.in_flight or self.running)

    def next_finish_s(self) -> float:
        """Before which no request ends: the oldest batch is not back."""
        return self.in_flight[0].end_s if self.in_flight else self.now

    def run_until(self, arrival_s: float) -> None:
        """Step until the clock reaches ``arrival_s`` or nothing is left to do."""
        while self.now < arrival_s and (self.in_flight or self.running or self.waiting):
            self.step(arrival_s)

    def step(self, arrival_s: float) -> None:
        """Schedule a batch if there is a place and work for it; otherwise wait for the oldest, or until ``arrival_s``."""
        if len(self.in_flight) < len(self.batches) and (self.waiting or self.reading):
            for batch in self.batches:
                if batch not in self.in_flight and self._launch(batch):
                    return
        oldest = self.in_flight[0]
        if oldest.end_s >= arrival_s > self.now:
            self.now = arrival_s
            return
        self.in_flight.popleft()
        self.now = max(self.now, oldest.end_s)
        oldest.come_back()
        if self.sums_rounds and not self.waiting:
            self._skip(oldest, arrival_s)
        if oldest.running or self.waiting:
            self._launch(oldest)

    def _launch(self, batch: _Batch) -> bool:
        """The batch on its way, if there is something for it."""
        if not batch.schedule():
            return False
        n = tokens = rows = batch.decoding
        stages, shares, hosts = self.stages, self.stages.decode_shares, self.time.host
        if batch.chunks:
            shares, rows = stages.prompt_shares, min(n + len(batch.chunks), len(hosts) - 1)
            for new, _ in batch.chunks:
                tokens += new
        host, at = hosts[rows], self.now
        if not n:
            batch.before_s = at
        if stages.hides_host and self.scheduled_s + host > at:
            at = self.scheduled_s + host
        self.scheduled_s = at
        ways = self.ways.get(tokens)
        if ways is None:
            ways = self.ways[tokens] = stages.ways(tokens)
        free, step_s, i = self.free_s, batch.step_s, 1
        if free[0] > at:
            at = free[0]
        at = free[0] = at + shares[0] * step_s
        for way in ways:
            if free[i] > at:
                at = free[i]
            at = free[i] = at + way
            i += 1
            if free[i] > at:
                at = free[i]
            at = free[i] = at + shares[i // 2] * step_s
            i += 1
        batch.end_s = at if stages.hides_host else at + host
        self.in_flight.append(batch)
        return True

    def _skip(self, back: _Batch, arrival_s: float) -> None:
        """Decode-only rounds until a request ends or arrives, or the blocks run out; ``back`` is no longer in flight."""
        n = len(back.running)
        if not n or LEAST_ROUNDS * (self.time.fixed[n] + self.time.slope[n] * back.cache_tokens) > arrival_s - self.now:
            return
        if self.reading:
            return
        for batch in self.in_flight:
            if batch.chunks:
                return
        rounds = back.rounds_left()
        if rounds < LEAST_ROUNDS + 2:
            return
        active = [back]
        for batch in self.in_flight:
            if batch.running:
                rounds = min(rounds, batch.rounds_left())
                if rounds < LEAST_ROUNDS + 2:
                    return
                active.append(batch)
                n += len(batch.running)
        rounds -= 2
        size = self.limits.block_tokens
        rounds = min(rounds, (self.pool.free // n - 1) * size if n else 0)
        if rounds < LEAST_ROUNDS:
            return
        first_s, growth_s = self._round(active)
        if arrival_s < math.inf:
            most = arrival_s - self.now
            while rounds >= LEAST_ROUNDS and rounds * first_s + growth_s * (rounds * (rounds - 1) // 2) > most:
                rounds = min(rounds - 1, int(most / first_s))
        if rounds < LEAST_ROUNDS:
            return
        seconds = rounds * first_s + growth_s * (rounds * (rounds - 1) // 2)
        for batch in active:
            batch.skip(rounds, first_s, growth_s, seconds)
        self.now += seconds
        self.scheduled_s += seconds
        self.free_s = [at + seconds for at in self.free_s]

    def _round(self, active: Sequence[_Batch]) -> tuple[float, float]:
        """Seconds of a round of these batches, and what each next one takes more."""
        time = self.time
        rows: list[tuple[list[float], list[float], float]] = []
        for batch in active:
            n = len(batch.running)
            step = time.fixed[n] + time.slope[n] * batch.cache_tokens
            growth = time.slope[n] * n
            host = 0.0 if self.stages.hides_host else time.host[n]
            more = [0.0] * len(self.free_s)
            more[::2] = [growth * share for share in self.stages.decode_shares]
            rows.append((self.stages.seconds(step, n, False), more, host))
        ways = range(len(self.free_s))
        rounds: list[tuple[float, float]] = [(sum(s, host), sum(g, 0.0)) for s, g, host in rows]
        rounds += [(sum((s[i] for s, _, _ in rows), 0.0), sum((g[i] for _, g, _ in rows), 0.0)) for i in ways]
        if self.stages.hides_host:
            rounds.append((sum((time.host[len(b.running)] for b in active), 0.0), 0.0))
        return max(rounds)


class PipelineSteps:
    """:class:`~gpuwise.serve.simulate.step_time.StepTime` of whole steps; of their batches' rounds, what is no step of their own
    goes to ``pipeline``."""

    def __init__(self, plain: Steps) -> None:
        self.plain, self.tables = plain, plain.tables
        self.fixed, self.slope, self.host = plain.fixed, plain.slope, plain.host

    def mixed(self, decoding: int, cached_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """As in plain steps."""
        return self.plain.mixed(decoding, cached_tokens, chunks)

    def parts(self, decoding: I64, prompt_tokens: I64, cached_tokens: I64, n_steps: I64, total_s: F64) -> dict[str, float]:
        """Parts of plain steps, and ``pipeline``: batches that wait for each other, and transfers between stages."""
        fixed, slope = np.array(self.fixed, np.float64), np.array(self.slope, np.float64)
        cached = cached_tokens + decoding * (n_steps - 1) / 2.0
        own = n_steps * (fixed[decoding] + slope[decoding] * cached)
        own = np.where(prompt_tokens > 0, total_s, np.minimum(own, total_s))
        found = self.plain.parts(decoding, prompt_tokens, cached_tokens, n_steps, own)
        return found | {"pipeline": float((total_s - own).sum())}


@lru_cache(maxsize=256)
def stages_of(arch: Architecture, system: System, config: EngineConfig, *, hides_host: bool) -> Stages:
    """How a step is shared out: decoding by the weights a stage holds, prompts by its layers; between two stages go hidden states
    and residuals of every token in 16 bits, a part from each rank of the tensor group, put together there
    (vllm distributed/parallel_state.py, isend_tensor_dict)."""
    layers = layers_of_stages(arch.n_layers, config.pp)
    count = count_parameters(arch)
    head = stage_ends(arch)[1] / count.active_embedding_free
    held = [n / arch.n_layers * (1.0 - head) for n in layers]
    held[-1] += head
    payload = np.array(HOP_TOKENS, np.float64) * 2 * 2 * arch.hidden
    each_host = max(system.count // config.tp, 1)
    hops: list[tuple[float, ...]] = []
    for i in range(config.pp - 1):
        inside = (i + 1) % each_host != 0
        way = curve(system, "send_recv", 2, 2 if inside else 1, concurrent=1 if inside else config.tp).time_s(payload / config.tp)
        if config.tp > 1:
            way = way + curve(system, "all_gather", config.tp, config.tp).time_s(payload)
        hops.append(tuple(way.tolist()))
    return Stages(tuple(held), tuple(n / arch.n_layers for n in layers), HOP_TOKENS, tuple(hops), hides_host)
