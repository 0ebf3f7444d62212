"""Requests that are never preempted: an admitted request has blocks to its end.

TensorRT-LLM's GUARANTEED_NO_EVICT (cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp, GuaranteedNoEvictScheduler; 1.2): a
request is admitted if the blocks of its prompt and of the longest answer it allows are free beside those that all running ones
still need. A request whose next missing block is being computed by another request of the same step waits for that step. Steps
are filled as under a token budget (microBatchScheduler.cpp): running sequences, then prompts, whole unless chunks are allowed; a
whole prompt counts in full, regardless of its cached part. MAX_UTILIZATION admits what fits now and restarts the last one when
blocks run out, like :mod:`~gpuwise.serve.simulate.budget`. With batch waiting (_torch/pyexecutor/scheduler,
``_apply_batch_waiting``), prompts that could run beside decoding sequences wait a number of steps for more of them, counting
whole lengths. With balanced groups that attend apart (``attention_dp_config``) they wait until every group has a prompt.

A static batch (StaticBatchScheduler; and libraries without an engine): requests are admitted only when nothing runs, and rows of
answers that have ended are computed until the last one ends.

llama.cpp (tools/server/server.cpp ``update_slots``): slots with a separate context never run out of room; decoded tokens come
first in a batch, then prompts up to ``n_batch``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuwise.serve.simulate.budget import BudgetEngine
from gpuwise.serve.simulate.core import PROMPT, Limits
from gpuwise.serve.simulate.step_time import StepTime
from gpuwise.serve.simulate.texts import Runs


def until_each_has_one(groups: int) -> int:
    """Prompts that one of ``groups`` alike has on the average, rounded up, once the last of them has its first: requests come
    independently, so that the last waits 1 + 1/2 + ... + 1/groups times as long as one between two requests."""
    return math.ceil(sum(1.0 / i for i in range(1, groups + 1)))


class NoEvictEngine(BudgetEngine):
    """TensorRT-LLM by default."""

    at_once = False

    def __init__(self, prompt: Sequence[int], output: Sequence[int], runs: Runs, limits: Limits, time: StepTime) -> None:
        super().__init__(prompt, output, runs, limits, time)
        self.whole = [-(-(p + self._max_output(i)) // limits.block_tokens) for i, p in enumerate(prompt)]
        """Blocks of each request at the end of the longest answer it allows."""
        self.promised = 0
        """Blocks promised to all running requests together."""
        self.readers: list[tuple[int, int]] = []
        """Requests read in this step, and their whole blocks after it."""
        self.waited_steps = 0
        """Number of consecutive steps in which prompts were held back."""

    def _held_back(self, n: int, budget: int) -> bool:
        limits = self.limits
        if not limits.wait_steps:
            return False
        ready = self._ready_tokens(budget)
        if not ready:
            return False
        few = ready + n * limits.row_tokens < limits.wait_tokens
        if limits.wait_prompts:
            few = sum(self.arrived[request] <= self.settled for request in self.waiting) < limits.wait_prompts
        if self.waited_steps < limits.wait_steps and few:
            self.waited_steps += 1
            return True
        self.waited_steps = 0
        return False

    def _ready_tokens(self, budget: int) -> int:
        """Tokens of the prompts ready for this step, counted in full."""
        limits, size = self.limits, self.limits.block_tokens
        tokens, running = 0, len(self.running)
        free = self.pool.free - (self.promised - self._blocks_held())
        if self.partial >= 0:
            tokens += self.wanted
            budget -= min(self.wanted - self.done, budget)
        for request in self.waiting:
            if budget <= 0 or running >= limits.sequences or self.arrived[request] > self.settled:
                break
            wanted = self.prompt[request]
            charged = wanted - self.pool.found_blocks(request, wanted, size) * size if limits.chunked else wanted
            if self.whole[request] > free or (charged > budget and not limits.chunked):
                break
            tokens += wanted
            budget -= min(charged, budget)
            free -= self.whole[request]
            running += 1
        return tokens

    def _admit(self, budget: int, chunks: list[tuple[int, int]], ended: list[int]) -> bool:
        waiting, limits, pool = self.waiting, self.limits, self.pool
        size = limits.block_tokens
        free = pool.free - (self.promised - self._blocks_held())
        skipped: list[int] = []
        reading: set[tuple[int, int]] = set()
        if chunks and (first := self._first_missing(self._reader(ended), chunks[0][1] // size)) is not None:
            reading.add(first)
        late = False
        self._count_adapters()
        while waiting and budget > 0 and len(self.running) < limits.sequences:
            if not self._pass_over(skipped):
                late = self.arrived[waiting[-1]] > self.settled
                break
            request = waiting[0]
            if self.arrived[request] > self.settled:
                late = True
                break
            wanted = self.prompt[request]
            n_cached = pool.found_blocks(request, wanted, size)
            missing = self._first_missing(request, n_cached)
            if missing is not None and missing in reading:
                skipped.append(waiting.popleft())
                continue
            new = wanted - n_cached * size
            charged = new if limits.chunked else wanted
            if self.whole[request] > free or (charged > budget and not limits.chunked):
                break
            new, charged = min(new, budget), min(charged, budget)
            budget -= charged
            if missing is not None:
                reading.add(missing)
            self._begin(request, n_cached, new, wanted, chunks, ended)
            self.readers.append((request, (n_cached * size + new) // size))
            self.promised += self.whole[request]
            free -= self.whole[request]
        waiting.extendleft(reversed(skipped))
        return late

    def _reader(self, ended: list[int]) -> int:
        """Request whose chunk is the first of this step."""
        return ended[0] if self.partial < 0 else self.partial

    def _go_on(self, budget: int, chunks: list[tuple[int, int]], ended: list[int]) -> tuple[int, bool]:
        request = self.partial
        left = super()._go_on(budget, chunks, ended)
        if chunks:
            self.readers.append((request, self.done // self.limits.block_tokens))
        return left

    def _mixed_step(self, n: int, chunks: list[tuple[int, int]], ended: list[int]) -> None:
        super()._mixed_step(n, chunks, [])
        for request, blocks in self.readers:
            self.pool.computed(request, blocks)
        self.readers.clear()
        for request in ended:
            self._first_token(request)

    def _first_missing(self, request: int, n_cached: int) -> tuple[int, int] | None:
        """Which block of a shared text a request computes first; None where it shares none."""
        if not self.limits.prefix_cache or (n_cached + 1) * self.limits.block_tokens > self.prompt[request]:
            return None
        for run, _, upto in self.runs.segments(request):
            if n_cached < upto:
                return (run, n_cached)
        return None

    def _blocks_held(self) -> int:
        """Blocks of all running requests, each counting what it shares."""
        if not self.limits.prefix_cache or not self.runs.n_shared:
            return self.limits.n_blocks - self.pool.free
        size, decoded = self.limits.block_tokens, self.decoded
        blocks = 0
        for request, offset in self.running.items():
            tokens = self.done if request == self.partial else self.prompt[request] if offset == PROMPT else offset + decoded + 1
            blocks += -(-tokens // size)
        return blocks

    def _end(self, request: int, tokens: int) -> None:
        super()._end(request, tokens)
        self.promised -= self.whole[request]


class StaticEngine(NoEvictEngine):
    """A batch after the other."""

    def _admit(self, budget: int, chunks: list[tuple[int, int]], ended: list[int]) -> bool:
        if self.running or self.ghosts:
            return False
        return super()._admit(budget, chunks, ended)

    def _end(self, request: int, tokens: int) -> None:
        """Its row, and its blocks, stay until the batch has ended."""
        self.trace.finish_s[request] = self.now
        self.finished.append(request)
        self.ghosts += 1
        self.ghost_tokens += tokens + 1
        self.gone.append((request, tokens))
        if not self.running:
            for ended, blocks in self.gone:
                self.pool.release(ended, blocks, self.limits.block_tokens)
                self.promised -= self.whole[ended]
            self.gone.clear()
            self.ghosts = self.ghost_tokens = 0

    def __init__(self, prompt: Sequence[int], output: Sequence[int], runs: Runs, limits: Limits, time: StepTime) -> None:
        super().__init__(prompt, output, runs, limits, time)
        self.gone: list[tuple[int, int]] = []
