"""Steps under one token budget: vLLM's V1 scheduler (v1/core/sched/scheduler.py, ``schedule``).

In each step the running requests come first, in the order they were admitted: one token for each that decodes, then the rest
of a prompt that was begun. With the tokens that are left, waiting requests are admitted in the order they came while fewer
than ``max_sequences`` run and the whole prompt fits into free blocks; the last prompt is cut to the tokens left. Where a
running request needs a block and none is free, the one admitted last gives all of its back and waits at the head of the queue,
to be computed anew; in such a step nothing is admitted.

An engine that schedules ahead settles what is in a step when the step before begins: a request that came after that waits one
step more (async scheduling, v1/engine/core.py step_with_batch_queue).

Steps without a prompt in them are summed: as long as nobody arrives, finishes or lacks a block, step ``j`` takes
``a + b (S + n j)``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gpuwise.serve.simulate.pool import BlockPool
from gpuwise.serve.simulate.step_time import StepTime
from gpuwise.serve.simulate.texts import Runs

PROMPT = -(1 << 60)
"""In place of the tokens of a running request whose prompt is not computed yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step. ``reserve_prompt``: a request is admitted only if its whole prompt fits now, though it takes blocks
    chunk by chunk."""

    tokens: int
    sequences: int
    n_blocks: int
    block_tokens: int
    chunked: bool = True
    prefix_cache: bool = True
    reserve_prompt: bool = True
    ahead: bool = False
    """What is in a step is settled when the step before it begins."""


@dataclass(slots=True)
class Trace:
    """What happened. ``first_s`` and ``finish_s`` [N] are the ends of the steps that gave the first and the last token. Stretches
    are steps of the same sequences: when they begin, how many steps, sequences that decode, seconds of the first step, seconds
    each next one takes more, tokens of prompts."""

    first_s: list[float]
    finish_s: list[float]
    cached_tokens: list[int]
    """[N] prompt tokens found in the prefix cache on first admission."""
    preemptions: int = 0
    steps: int = 0
    begin_s: list[float] = field(default_factory=list[float])
    n_steps: list[int] = field(default_factory=list[int])
    decoding: list[int] = field(default_factory=list[int])
    each_s: list[float] = field(default_factory=list[float])
    growth_s: list[float] = field(default_factory=list[float])
    prompt_tokens: list[int] = field(default_factory=list[int])
    cached: list[int] = field(default_factory=list[int])
    """Tokens in the caches of decoding sequences when a stretch begins."""
    free_blocks: list[int] = field(default_factory=list[int])
    waiting: list[int] = field(default_factory=list[int])
    gap_s: list[float] = field(default_factory=list[float])
    """Between the last token before a preemption and the next."""

    def stretch(
        self, begin: float, steps: int, n: int, each: float, growth: float, prompt: int, cached: int, free: int, waiting: int
    ) -> None:
        self.begin_s.append(begin)
        self.n_steps.append(steps)
        self.decoding.append(n)
        self.each_s.append(each)
        self.growth_s.append(growth)
        self.prompt_tokens.append(prompt)
        self.cached.append(cached)
        self.free_blocks.append(free)
        self.waiting.append(waiting)
        self.steps += steps


class BudgetEngine:
    """One engine at work on requests given by columns of lists: ``offer`` brings one, ``run_until`` goes on until a time."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int], runs: Runs, limits: Limits, time: StepTime) -> None:
        n = len(prompt)
        self.prompt, self.output, self.limits, self.time = prompt, output, limits, time
        self.pool = BlockPool(limits.n_blocks, runs, n, limits.prefix_cache)
        self.runs = runs
        self.now = 0.0
        self.trace = Trace([math.nan] * n, [math.nan] * n, [-1] * n)
        self.waiting: deque[int] = deque()
        self.running: dict[int, int] = {}
        """Of each running request the decode step at which it was admitted with its cached tokens: ``tokens - decoded``; in the
        order of admission."""
        self.partial = -1
        """The request whose prompt was begun, and ``done`` of its ``wanted`` tokens."""
        self.done = self.wanted = 0
        self.written = [0] * n
        """Tokens of the answer of a request when it was preempted last."""
        self.admitted = [0] * n
        self.admissions = 0
        self.decoded = 0
        self.cache_tokens = 0
        self.finishing: list[tuple[int, int]] = []
        self.phases = [0] * limits.block_tokens
        self.preempted_at: dict[int, float] = {}
        self.writers: dict[int, set[int]] = {}
        self.finished: list[int] = []
        self.arrived = [0.0] * n
        self.settled = math.inf
        """When what is in the next step was settled: who came later is not in it."""

    # --- the loop

    def offer(self, request: int, arrival_s: float) -> None:
        """A request arrives, not before those that came earlier."""
        if self.now < arrival_s:
            self.now = arrival_s
        self.arrived[request] = arrival_s
        self.waiting.append(request)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running)

    def run_until(self, arrival_s: float) -> None:
        """Steps until one ends at or after ``arrival_s``, or nothing is left to do."""
        while self.now < arrival_s and (self.waiting or self.running):
            self.step(arrival_s)

    def step(self, arrival_s: float) -> None:
        """One step, or as many without a prompt as end before ``arrival_s`` or the next event."""
        n = len(self.running) - (self.partial >= 0)
        pool = self.pool
        need = self.phases[-self.decoded % self.limits.block_tokens] if n else 0
        preempted = False
        if need > pool.free:
            preempted = self._grow_one_by_one()
            n = len(self.running) - (self.partial >= 0)
        elif need:
            pool.take(need)
        budget = self.limits.tokens - n
        chunks: list[tuple[int, int]] = []
        ended: list[int] = []
        if self.partial >= 0:
            budget, lost = self._go_on(budget, chunks, ended)
            preempted = preempted or lost
        late = False
        if not self.running:
            self.settled = math.inf
        if self.waiting and not preempted and budget > 0:
            late = self._admit(budget, chunks, ended)
        if chunks:
            self._mixed_step(n, chunks, ended)
        elif n:
            self._decode_stretch(n, preempted or late, arrival_s)

    def _decode_stretch(self, n: int, once: bool, arrival_s: float) -> None:
        """Steps in which ``n`` sequences decode, the first of which has its blocks; ``once``: one, for whoever waits may be
        admitted after it."""
        limits, time, now = self.limits, self.time, self.now
        cached = self.cache_tokens
        a, b = time.fixed[n], time.slope[n]
        first = a + b * cached
        growth = b * n
        host = time.host[n]
        finishing = self.finishing
        while not self._finishes(*finishing[0]):
            heappop(finishing)
        steps = finishing[0][0] - self.decoded
        if first < host:
            if growth > 0:
                steps = min(steps, max(int((host - first) / growth), 1))
            first, growth = host, 0.0
        if once and self.waiting:
            steps = 1
        if steps > 1 and len(self.running) < limits.sequences and not self.waiting and arrival_s < math.inf:
            steps = _steps_until(arrival_s - now, first, growth, steps)
        blocks = 0
        if steps > 1:
            steps, blocks = self._steps_with_blocks(steps, n)
        self.trace.stretch(now, steps, n, first, growth, 0, cached, self.pool.free, len(self.waiting))
        if blocks:
            self.pool.take(blocks)
        if limits.ahead:
            self.settled = now + ((steps - 1) * first + growth * ((steps - 1) * (steps - 2) // 2))
        self.now = now + (steps * first + growth * (steps * (steps - 1) // 2))
        self.decoded += steps
        self.cache_tokens = cached + n * steps
        if finishing[0][0] <= self.decoded:
            self._finish_decoded()

    def _steps_with_blocks(self, steps: int, n: int) -> tuple[int, int]:
        """The most of ``steps`` steps for whose tokens blocks are free, the first step's being taken; and the blocks of the
        others."""
        size, free, phases = self.limits.block_tokens, self.pool.free, self.phases
        rounds, rest = divmod(steps - 1, size)
        if (rounds + 1) * n > free:
            most = free // n
            if most < rounds:
                rounds, rest = most, size
        taken, done = rounds * n, 1 + rounds * size
        at = -(self.decoded + 1) % size
        for _ in range(rest):
            more = phases[at]
            if taken + more > free:
                break
            taken += more
            done += 1
            at = at - 1 if at else size - 1
        return done, taken

    def _mixed_step(self, n: int, chunks: list[tuple[int, int]], ended: list[int]) -> None:
        """One step with prompts in it; those in ``ended`` have their next token at its end."""
        cached = self.cache_tokens
        seconds = self.time.mixed(n, cached, chunks)
        least = self.time.host[min(n + len(chunks), len(self.time.host) - 1)]
        if seconds < least:
            seconds = least
        tokens = 0
        for new, _ in chunks:
            tokens += new
        self.trace.stretch(self.now, 1, n, seconds, 0.0, tokens, cached, self.pool.free, len(self.waiting))
        if self.limits.ahead:
            self.settled = self.now
        self.now += seconds
        if n:
            self.decoded += 1
            self.cache_tokens = cached + n
        finishing = self.finishing
        if n and finishing and finishing[0][0] <= self.decoded:
            self._finish_decoded()
        for request in ended:
            self._first_token(request)

    # --- requests

    def _first_token(self, request: int) -> None:
        """A prompt is computed: its next token is here, and it decodes from the next step on."""
        written = self.written[request] + 1
        tokens = self.prompt[request] + written - 1  # computed
        if written == 1:
            self.trace.first_s[request] = self.now
        else:
            self.trace.gap_s.append(self.now - self.preempted_at.pop(request))
        left = self.output[request] - written
        if left <= 0:
            del self.running[request]
            self._end(request, tokens)
            return
        # tokens its cache holds after decode step d are running[request] + d
        self.running[request] = tokens - self.decoded
        self.cache_tokens += tokens + 1
        self.phases[(tokens - self.decoded) % self.limits.block_tokens] += 1
        heappush(self.finishing, (self.decoded + left, request))
        if self.runs.own_block[request] * self.limits.block_tokens > self.prompt[request]:
            self.writers.setdefault(self.runs.text[request], set()).add(request)

    def _finish_decoded(self) -> None:
        """Those that have their last token end, in the order of admission."""
        finishing, decoded = self.finishing, self.decoded
        ending: list[int] = []
        while finishing and finishing[0][0] <= decoded:
            at, request = heappop(finishing)
            if self._finishes(at, request) and request not in ending[-1:]:
                ending.append(request)
        if len(ending) > 1:
            ending.sort(key=self.admitted.__getitem__)
        for request in ending:
            self._end(request, self._stop_decoding(request))

    def _finishes(self, at: int, request: int) -> bool:
        """Whether an entry of the heap is of the request as it runs now, not of before a preemption."""
        offset = self.running.get(request)
        return offset is not None and request != self.partial and offset + at == self.prompt[request] + self.output[request] - 1

    def _stop_decoding(self, request: int) -> int:
        """Takes a request out of the decoding ones; the tokens in its cache."""
        offset = self.running.pop(request)
        tokens = offset + self.decoded
        self.cache_tokens -= tokens + 1
        self.phases[offset % self.limits.block_tokens] -= 1
        if self.writers:
            self.writers.get(self.runs.text[request], set()).discard(request)
        return tokens

    def _end(self, request: int, tokens: int) -> None:
        self.pool.release(request, tokens, self.limits.block_tokens)
        self.trace.finish_s[request] = self.now
        self.finished.append(request)

    def _grow_one_by_one(self) -> bool:
        """A block for each decoding request that needs one; where none is free, those admitted last give theirs back. Whether one
        did."""
        size, pool, decoded = self.limits.block_tokens, self.pool, self.decoded
        lost = False
        for request in list(self.running):
            offset = self.running.get(request)
            if offset is None or request == self.partial or (offset + decoded) % size:
                continue
            while pool.free < 1:
                lost = True
                last = next(reversed(self.running))
                self._preempt(last)
                if last == request:
                    break
            else:
                pool.take(1)
        return lost

    def _preempt(self, request: int) -> None:
        """The request gives its blocks back and waits at the head, to be computed anew."""
        self.trace.preemptions += 1
        if request == self.partial:
            del self.running[request]
            tokens, self.partial = self.done, -1
        else:
            tokens = self._stop_decoding(request)
            self.written[request] = tokens + 1 - self.prompt[request]
            self.preempted_at[request] = self.now
        self.pool.release(request, tokens, self.limits.block_tokens)
        self.waiting.appendleft(request)

    # --- prompts

    def _go_on(self, budget: int, chunks: list[tuple[int, int]], ended: list[int]) -> tuple[int, bool]:
        """The next chunk of the prompt that was begun; tokens left, and whether it lost its place for want of blocks."""
        size, pool = self.limits.block_tokens, self.pool
        request = self.partial
        new = min(self.wanted - self.done, budget)
        if new <= 0:
            return budget, False
        need = -(-(self.done + new) // size) - -(-self.done // size)
        if need > pool.free:
            self._preempt(request)
            return budget, True
        pool.take(need)
        chunks.append((new, self.done))
        self.done += new
        pool.computed(request, self.done // size)
        if self.done == self.wanted:
            ended.append(request)
            self.partial = -1
        return budget - new, False

    def _admit(self, budget: int, chunks: list[tuple[int, int]], ended: list[int]) -> bool:
        """Requests that wait, as many as fit; whether the next one only came too late for this step."""
        limits, pool, waiting, running = self.limits, self.pool, self.waiting, self.running
        size = limits.block_tokens
        while waiting and budget > 0 and len(running) < limits.sequences:
            request = waiting[0]
            if self.arrived[request] > self.settled:
                return True
            wanted = self.prompt[request] + self.written[request]
            found = 0
            if limits.prefix_cache:
                if self.writers:
                    self._note_written(request)
                found = pool.found_blocks(request, wanted, size)
            done = found * size
            new = wanted - done
            if new > budget:
                if not limits.chunked:
                    return False
                new = budget
            reserved = wanted if limits.reserve_prompt else done + new
            if -(-reserved // size) - found + pool.idle_blocks(request, found) > pool.free:
                return False
            waiting.popleft()
            running[request] = PROMPT
            self.admissions += 1
            self.admitted[request] = self.admissions
            pool.admit(request, found)
            pool.take(-(-(done + new) // size) - found)
            pool.computed(request, (done + new) // size)
            if self.trace.cached_tokens[request] < 0:
                self.trace.cached_tokens[request] = done
            chunks.append((new, done))
            budget -= new
            if done + new == wanted:
                ended.append(request)
            else:
                self.partial, self.done, self.wanted = request, done + new, wanted
        return False

    def _note_written(self, request: int) -> None:
        """Answers that later prompts repeat can be found as far as they are written."""
        for run, _, _ in self.runs.segments(request):
            for writer in self.writers.get(run, ()):
                self.pool.computed(writer, (self.running[writer] + self.decoded) // self.limits.block_tokens)


def _steps_until(seconds: float, first: float, growth: float, most: int) -> int:
    """Fewest steps of ``first + growth j`` seconds that last ``seconds``; at most ``most``."""
    if most * first + growth * (most * (most - 1) // 2) < seconds:
        return most
    if growth <= 0:
        steps = math.ceil(seconds / first)
    else:
        half = first - growth / 2
        steps = math.ceil((math.sqrt(half * half + 2 * growth * seconds) - half) / growth)
    steps = max(1, min(steps, most))
    while steps > 1 and (steps - 1) * first + growth * ((steps - 1) * (steps - 2) // 2) >= seconds:
        steps -= 1
    while steps < most and steps * first + growth * (steps * (steps - 1) // 2) < seconds:
        steps += 1
    return steps
