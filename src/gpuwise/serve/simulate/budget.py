"""Steps under one token budget: vLLM's V1 scheduler (v1/core/sched/scheduler.py, ``schedule``).

In each step the running requests come first, in the order they were admitted: one token for each that decodes, then the rest of a
prompt in progress. With the remaining tokens, waiting requests are admitted in order of arrival while fewer than
``max_sequences`` run and the whole prompt fits into free blocks; the last prompt is cut to the remaining tokens. If a running
request needs a block and none is free, the one admitted last is preempted: it frees all its blocks and waits at the head of the
queue, to be recomputed; in such a step nothing is admitted.

An engine that schedules ahead fixes the content of a step when the previous step begins: a later request waits one more step
(async scheduling, v1/engine/core.py step_with_batch_queue).

An engine with low-rank adapters limits their number per step: a request whose adapter would exceed it is skipped, and keeps its
place in the queue.

Steps without a prompt are summed: as long as no request arrives, finishes or lacks a block, step ``j`` takes ``a + b (S + n
j)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuwise.serve.simulate.core import Engine
from gpuwise.serve.simulate.unshared import serve_unshared


class BudgetEngine(Engine):
    """Running requests first, then those that wait, out of the same tokens."""

    at_once = True
    """Blocks can be hit as soon as the step that computes them is scheduled; otherwise when it has ended."""

    def serve(self, requests: Sequence[int], at_s: Sequence[float]) -> None:
        """Advance to each of ``at_s`` and offer the request of the same place, if there is one."""
        done = 0
        if self._unshared():
            done = serve_unshared(self, requests, at_s)
        super().serve(requests[done:], at_s[done:])

    def _unshared(self) -> bool:
        """Whether :func:`serve_unshared` applies: no shared prompts, no adapters, and no request preempted so far."""
        return type(self) is BudgetEngine and not (self.runs.n_shared or self.adapter or self.trace.preemptions)

    def step(self, arrival_s: float) -> None:
        """One step, or all steps without a prompt that end before ``arrival_s`` or the next event."""
        n = len(self.running) - (self.partial >= 0)
        pool = self.pool
        need = self.phases[-self.decoded % self.limits.block_tokens] if n else 0
        preempted = late = False
        if need > pool.free:
            preempted = self._grow_one_by_one()
            n = len(self.running) - (self.partial >= 0)
        elif need:
            pool.take(need)
        budget = self.limits.tokens - n * self.limits.row_tokens
        chunks: list[tuple[int, int]] = []
        ended: list[int] = []
        if n and self._held_back(n, budget):
            late = True
        else:
            if self.partial >= 0:
                budget, lost = self._go_on(budget, chunks, ended)
                preempted = preempted or lost
            if not self.running:
                self.settled = math.inf
            if self.waiting and not preempted and budget > 0:
                late = self._admit(budget, chunks, ended)
        if chunks:
            self._mixed_step(n, chunks, ended)
        elif n:
            self._decode_stretch(n, preempted or late, arrival_s)

    # --- prompts

    def _held_back(self, n: int, budget: int) -> bool:
        """Whether prompts are held back to collect more beside ``n`` decoding sequences."""
        return False

    def _go_on(self, budget: int, chunks: list[tuple[int, int]], ended: list[int]) -> tuple[int, bool]:
        """The next chunk of the prompt in progress; returns the remaining tokens, and whether it was preempted for lack of
        blocks."""
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
        if self.at_once:
            pool.computed(request, self.done // size)
        if self.done == self.wanted:
            ended.append(request)
            self.partial = -1
        return budget - new, False

    def _admit(self, budget: int, chunks: list[tuple[int, int]], ended: list[int]) -> bool:
        """Admit the waiting requests that fit; returns whether the next one only arrived too late for this step."""
        skipped: list[int] = []
        late = self._admit_next(budget, chunks, ended, skipped)
        self.waiting.extendleft(reversed(skipped))
        return late

    def _admit_next(self, budget: int, chunks: list[tuple[int, int]], ended: list[int], skipped: list[int]) -> bool:
        """Those whose adapter would be one too many are ``skipped``."""
        self._count_adapters()
        limits, pool, waiting, running = self.limits, self.pool, self.waiting, self.running
        size = limits.block_tokens
        watermark = limits.watermark_blocks if running else 0
        seats = self._seats()
        while waiting and budget > 0 and len(running) < seats:
            if not self._pass_over(skipped):
                return self.arrived[waiting[-1]] > self.settled
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
            if -(-reserved // size) - found + pool.idle_blocks(request, found) > pool.free - watermark:
                return False
            budget -= new
            self._begin(request, found, new, wanted, chunks, ended)
            pool.computed(request, (done + new) // size)
        return False

    def _seats(self) -> int:
        """Sequences that may run in this batch."""
        return self.limits.sequences

    def _note_written(self, request: int) -> None:
        """Answers that later prompts repeat can be hit as far as they are generated."""
        for run, _, _ in self.runs.segments(request):
            for writer in self.writers.get(run, ()):
                self.pool.computed(writer, (self.running[writer] + self.decoded) // self.limits.block_tokens)
