"""An engine with any policy: requests arrive, run step by step, grow by a token and a block at a time, and end.

The content of a step is decided by the policy (:mod:`~gpuwise.serve.simulate.budget`,
:mod:`~gpuwise.serve.simulate.prefill_first`, :mod:`~gpuwise.serve.simulate.no_evict`); its seconds come from
:mod:`~gpuwise.serve.simulate.step_time`. Steps without a prompt are summed: as long as no request arrives, finishes or lacks a
block, step ``j`` takes ``a + b (S + n j)``.

An engine that schedules ahead fixes the content of a step when the previous step begins: a later request waits one more step
(vllm v1/engine/core.py step_with_batch_queue; sglang managers/scheduler.py event_loop_overlap).
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
class Reserve:
    """Share of the tokens still allowed to running requests that a prefill-first engine keeps free for them: ``first``, falling
    to ``least`` over ``steps`` decode steps; after a retraction what the running ones show, and ``retract_tokens`` more each."""

    first: float
    least: float
    steps: int
    retract_tokens: int
    most_tokens: int
    """Maximum tokens of one request that are counted."""
    fixed_whole: bool
    """Fixed-length answers are reserved in full, regardless of the share."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a step. ``reserve_prompt``: a request is admitted only if its whole prompt fits now, although it takes blocks
    chunk by chunk."""

    tokens: int
    sequences: int
    n_blocks: int
    block_tokens: int
    chunked: bool = True
    prefix_cache: bool = True
    reserve_prompt: bool = True
    ahead: bool = False
    """The content of a step is fixed when the previous step begins."""
    watermark_blocks: int = 0
    """Stay free when a request is admitted."""
    asked: int | None = None
    """Maximum output tokens of requests (``max_tokens``), which engines that reserve ahead reserve; None: the actual length."""
    adapters: int | None = None
    """Low-rank adapters that may be in one step; None: any."""
    reserve: Reserve | None = None
    prompts: int = 1
    """Prompts processed at once, each in chunks of ``tokens``, if a step has rows of several."""
    row_tokens: int = 1
    """Tokens of a step per decoding sequence, draft tokens included."""
    prompt_tokens: int = 16384
    """Prompt tokens admitted at once beside ``tokens`` (SGLang's ``max_prefill_tokens``)."""
    wait_steps: int = 0
    """Steps that prompts wait at most beside decoding sequences for a step of ``wait_tokens`` (TensorRT-LLM's
    ``batch_wait_timeout_iters``, ``batch_wait_max_tokens_ratio``)."""
    wait_tokens: float = 0.0
    wait_prompts: int = 0
    """Prompts that wait for each other instead, where groups that attend apart wait until each of them has one."""


STRETCH_COLUMNS = (
    "begin_s",
    "n_steps",
    "decoding",
    "each_s",
    "growth_s",
    "prompt_tokens",
    "cached_tokens",
    "free_blocks",
    "waiting",
    "stalled",
    "running",
)
Row = tuple[float, int, int, float, float, int, int, int, int, int, int]
"""A stretch, steps with the same sequences, by :data:`STRETCH_COLUMNS`: begin, number of steps, decoding sequences, seconds of
the first step, increase per step, prompt tokens, tokens in the caches of decoding sequences at the begin, free blocks, waiting
requests, sequences whose first gap is in ``gap_s``, sequences of all batches in flight (of one batch those that decode)."""


@dataclass(slots=True)
class Trace:
    """Result of a run. ``first_s`` and ``finish_s`` [N] are the ends of the steps with the first and last token."""

    first_s: list[float]
    finish_s: list[float]
    cached_tokens: list[int]
    """[N] prompt tokens that hit the prefix cache at first admission."""
    preemptions: int = 0
    rows: list[Row] = field(default_factory=list[Row])
    """Stretches, the first first."""
    gap_s: list[float] = field(default_factory=list[float])
    """Between two tokens with a preemption or prompts of others between them, and of how many sequences."""
    gap_tokens: list[int] = field(default_factory=list[int])

    def column(self, name: str) -> list[float]:
        """One of :data:`STRETCH_COLUMNS` of all stretches."""
        at = STRETCH_COLUMNS.index(name)
        return [row[at] for row in self.rows]

    def gap(self, seconds: float, tokens: int = 1) -> None:
        """A gap that is of no stretch."""
        self.gap_s.append(seconds)
        self.gap_tokens.append(tokens)


class Engine:
    """One engine serving requests given as columns of lists: ``offer`` adds one, ``run_until`` advances to a time."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int], runs: Runs, limits: Limits, time: StepTime) -> None:
        n = len(prompt)
        self.prompt, self.output, self.limits, self.time = prompt, output, limits, time
        self.pool = BlockPool(limits.n_blocks, runs, n, limits.prefix_cache)
        self.runs = runs
        self.now = 0.0
        self.trace = Trace([math.nan] * n, [math.nan] * n, [-1] * n)
        self.waiting: deque[int] = deque()
        self.running: dict[int, int] = {}
        """For each running request its decode step of admission and cached tokens, as ``tokens - decoded``; in order of
        admission."""
        self.partial = -1
        """The request whose prompt is in progress, and ``done`` of its ``wanted`` tokens."""
        self.done: int = 0
        self.wanted: int = 0
        self.written = [0] * n
        """Tokens of the answer of a request when it was preempted last."""
        self.admitted = [0] * n
        self.admissions = 0
        self.decoded: int = 0
        self.cache_tokens = 0
        self.finishing: list[tuple[int, int]] = []
        self.phases = [0] * limits.block_tokens
        self.preempted_at: dict[int, float] = {}
        self.writers: dict[int, set[int]] = {}
        self.adapter: list[int] | None = None
        """[N] of each request; None: none has one."""
        self.active: set[int] | None = None
        """Adapters of the next step while requests are admitted; None where no number of them is one too many."""
        self.finished: list[int] = []
        self.arrived = [0.0] * n
        self.settled = math.inf
        """When what is in the next step was settled: who came later is not in it."""
        self.stalls: list[list[float]] = []
        """Decoding sequences, and the seconds of steps since their last token that were not theirs."""
        self.ghosts = self.ghost_tokens = 0
        """Rows of answers that have ended but are still computed, and the tokens in their caches."""

    # --- the loop

    def offer(self, request: int, arrival_s: float) -> None:
        """A request arrives, not before those that came earlier."""
        if self.now < arrival_s:
            self.now = arrival_s
        self.arrived[request] = arrival_s
        self.waiting.append(request)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not (self.waiting or self.running)

    def next_finish_s(self) -> float:
        """Time before which no request ends: no decoding one has fewer tokens left, and prompts only lengthen a step."""
        if self.waiting or self.partial >= 0 or not self.finishing:
            return self.now
        n, time = len(self.running), self.time
        each = max(time.fixed[n] + time.slope[n] * self.cache_tokens, time.host[n])
        return self.now + max(self.finishing[0][0] - self.decoded, 0) * each

    def serve(self, requests: Sequence[int], at_s: Sequence[float]) -> None:
        """Advance to each of ``at_s`` and offer the request of the same place, if there is one."""
        for place, arrival_s in enumerate(at_s):
            self.run_until(arrival_s)
            if place < len(requests):
                self.offer(requests[place], arrival_s)

    def run_until(self, arrival_s: float) -> None:
        """Steps until one ends at or after ``arrival_s``, or nothing is left to do."""
        while self.now < arrival_s and (self.waiting or self.running):
            self.step(arrival_s)

    def step(self, arrival_s: float) -> None:
        """One step, or all steps without a prompt that end before ``arrival_s`` or the next event."""
        raise NotImplementedError

    def _decode_stretch(self, n: int, once: bool, arrival_s: float) -> None:
        """Steps in which ``n`` sequences decode, the first of which has its blocks; ``once``: one, for whoever waits may be
        admitted after it."""
        limits, time, now = self.limits, self.time, self.now
        cached = self.cache_tokens
        rows = n + self.ghosts
        a, b = time.fixed[rows], time.slope[rows]
        first = a + b * (cached + self.ghost_tokens)
        growth = b * rows
        host = time.host[rows]
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
        if steps > 1 and len(self.running) < limits.sequences and self._may_pass() and arrival_s < math.inf:
            steps = steps_until(arrival_s - now, first, growth, steps)
        blocks = 0
        if steps > 1:
            steps, blocks = steps_with_blocks(steps, n, self.limits.block_tokens, self.pool.free, self.phases, self.decoded)
        stalled = self._note_stalls(n, first) if self.stalls else 0
        self.trace.rows.append((now, steps, n, first, growth, 0, cached, self.pool.free, len(self.waiting), stalled, n))
        if blocks:
            self.pool.take(blocks)
        if limits.ahead:
            self.settled = now + ((steps - 1) * first + growth * ((steps - 1) * (steps - 2) // 2))
        self.now = now + (steps * first + growth * (steps * (steps - 1) // 2))
        self.decoded += steps
        self.cache_tokens = cached + n * steps
        if self.ghosts:
            self.ghost_tokens += self.ghosts * steps
        if finishing[0][0] <= self.decoded:
            self._finish_decoded()

    def _may_pass(self) -> bool:
        """Whether one who comes next may be admitted before those that wait."""
        return not self.waiting or self.adapter is not None

    def _stall(self, n: int, seconds: float) -> None:
        """A step in which ``n`` decoding sequences had no token."""
        stalls = self.stalls
        stall = 0.0
        for group in stalls:
            group[1] += seconds
            stall += group[0]
        if n > stall:
            stalls.append([n - stall, seconds])

    def _note_stalls(self, n: int, first: float) -> int:
        """A stretch begins after such steps; the sequences that waited for them."""
        n_left = n
        for count, seconds in self.stalls:
            tokens = min(int(count), n_left)
            if tokens:
                self.trace.gap(first + seconds, tokens)
                n_left -= tokens
        self.stalls.clear()
        return n - n_left

    def _mixed_step(self, n: int, chunks: list[tuple[int, int]], ended: list[int]) -> None:
        """One step with prompts in it; those in ``ended`` have their next token at its end."""
        cached = self.cache_tokens if n else 0
        seconds = self.time.mixed(n, cached, chunks)
        least = self.time.host[min(n + len(chunks), len(self.time.host) - 1)]
        if seconds < least:
            seconds = least
        tokens = 0
        for new, _ in chunks:
            tokens += new
        self.trace.rows.append((self.now, 1, n, seconds, 0.0, tokens, cached, self.pool.free, len(self.waiting), 0, n))
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

    def _begin(self, request: int, found: int, new: int, wanted: int, chunks: list[tuple[int, int]], ended: list[int]) -> None:
        """The first request that waits is admitted, with ``new`` of its tokens in this step."""
        size, done = self.limits.block_tokens, found * self.limits.block_tokens
        self.waiting.popleft()
        self.running[request] = PROMPT
        self.admissions += 1
        self.admitted[request] = self.admissions
        if self.active is not None and self.adapter is not None:
            self.active.add(self.adapter[request])
        self.pool.admit(request, found)
        self.pool.take(-(-(done + new) // size) - found)
        if self.trace.cached_tokens[request] < 0:
            self.trace.cached_tokens[request] = done
        chunks.append((new, done))
        if done + new == wanted:
            ended.append(request)
        else:
            self.partial, self.done, self.wanted = request, done + new, wanted

    def _first_token(self, request: int) -> None:
        """A prompt is computed: its next token is here, and it decodes from the next step on."""
        written = self.written[request] + 1
        tokens = self.prompt[request] + written - 1  # computed
        if written == 1:
            self.trace.first_s[request] = self.now
        else:
            self.trace.gap(self.now - self.preempted_at.pop(request))
        n_left = self.output[request] - written
        if n_left <= 0:
            del self.running[request]
            self._end(request, tokens)
            return
        # tokens its cache holds after decode step d are running[request] + d
        self.running[request] = tokens - self.decoded
        self.cache_tokens += tokens + 1
        self.phases[(tokens - self.decoded) % self.limits.block_tokens] += 1
        heappush(self.finishing, (self.decoded + n_left, request))
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

    def _max_output(self, request: int) -> int:
        """Tokens of its answer that a request allows, as far as the pool holds them."""
        tokens = self.output[request]
        if self.limits.asked is not None and self.limits.asked > tokens:
            room = (self.limits.n_blocks - 2) * self.limits.block_tokens - self.prompt[request]
            tokens = max(tokens, min(self.limits.asked, room))
        return tokens

    def _count_adapters(self) -> None:
        """Note those of the requests that run, before others are admitted."""
        if self.adapter is not None and self.limits.adapters is not None:
            self.active = {self.adapter[r] for r in self.running}

    def _pass_over(self, skipped: list[int]) -> bool:
        """Move requests at the head of the queue to ``skipped`` if their adapter would exceed the engine's number of active
        ones (vllm v1/core/sched/scheduler.py, ``max_loras``; sglang managers/scheduler.py, ``can_schedule_lora_req``;
        TensorRT-LLM batch_manager/capacityScheduler.cpp, ``availablePeftPages``). False, without a move, if that applies to
        all."""
        waiting, adapter, most, active = self.waiting, self.adapter, self.limits.adapters, self.active
        if active is None or adapter is None or most is None or len(active) < most:
            return True
        n = next((i for i, r in enumerate(waiting) if adapter[r] in active), None)
        if n is None:
            return False
        skipped.extend([waiting.popleft() for _ in range(n)])
        return True

    def _preempt(self, request: int) -> None:
        """Preempt the request: free its blocks and put it at the head of the queue, to be recomputed."""
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


def steps_with_blocks(steps: int, n: int, size: int, free: int, phases: Sequence[int], decoded: int) -> tuple[int, int]:
    """The most of ``steps`` steps of ``n`` sequences for whose tokens ``free`` blocks of ``size`` tokens suffice, the first
    step's being taken; and the blocks of the others. ``phases`` counts sequences by where they are in a block, ``decoded`` the
    steps so far."""
    rounds, rest = divmod(steps - 1, size)
    if (rounds + 1) * n > free:
        most = free // n
        if most < rounds:
            rounds, rest = most, size
    taken, done = rounds * n, 1 + rounds * size
    at = -(decoded + 1) % size
    for _ in range(rest):
        more = phases[at]
        if taken + more > free:
            break
        taken += more
        done += 1
        at = at - 1 if at else size - 1
    return done, taken


def steps_until(seconds: float, first: float, growth: float, most: int) -> int:
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
