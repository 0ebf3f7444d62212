"""Slots of one request each: llama.cpp's server (tools/server/server.cpp ``update_slots``, build 6918).

A request waits until a slot is free. It goes to the free slot whose last sequence shares the longest prefix with its prompt,
if that is more than a tenth of the prompt (``slot_prompt_similarity``), else to the least recently used one. The shared prefix
is not recomputed (``cache_prompt``); the rest of the slot is lost. Each batch has one token per decoding sequence, then
prompts up to ``n_batch`` tokens, in order of arrival (the server uses the order of its slots). A slot has a separate context,
so there is no preemption.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.serve.simulate.budget import BudgetEngine
from gpuwise.serve.simulate.core import PROMPT, Limits
from gpuwise.serve.simulate.step_time import StepTime
from gpuwise.serve.simulate.texts import Runs

NOBODY = -1


class SlotsEngine(BudgetEngine):
    """``limits.sequences`` slots; with ``limits.prefix_cache`` they keep their last content."""

    similar = 0.1
    """Minimum share of the prompt in common with a slot's last sequence for that slot to be preferred."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int], runs: Runs, limits: Limits, time: StepTime) -> None:
        super().__init__(prompt, output, runs, limits, time)
        self.pool = type(self.pool)(limits.n_blocks, runs, len(prompt), False)
        self.kept = [NOBODY] * limits.sequences
        """Request whose sequence was last in each slot."""
        self.used = [0] * limits.sequences
        """When each slot was given back, counted."""
        self.given = 0
        self.slot: dict[int, int] = {}

    def _admit(self, budget: int, chunks: list[tuple[int, int]], ended: list[int]) -> bool:
        waiting = self.waiting
        while waiting and budget > 0 and len(self.running) < self.limits.sequences:
            request = waiting[0]
            slot, done = self._choose(request)
            self.slot[request], self.kept[slot] = slot, request
            new = min(self.prompt[request] - done, budget)
            budget -= new
            self._place(request, done, new, chunks, ended)
        return False

    def _choose(self, request: int) -> tuple[int, int]:
        """The slot of a request, and how many of its tokens are there."""
        taken = set(self.slot.values())
        free = [s for s in range(self.limits.sequences) if s not in taken]
        oldest = min(free, key=self.used.__getitem__)
        if not self.limits.prefix_cache:
            return oldest, 0
        common = {s: 0 if self.kept[s] == NOBODY else self._common(request, self.kept[s]) for s in free}
        best = max(free, key=lambda s: (common[s], -s))
        slot = best if common[best] > self.similar * self.prompt[request] else oldest
        return slot, min(common[slot], self.prompt[request] - 1)

    def _common(self, request: int, other: int) -> int:
        """Tokens that the prompt of a request and the whole sequence of another begin with alike."""
        tokens = 0
        for mine, theirs in zip(self.runs.segments(request), self.runs.segments(other), strict=False):
            if mine[0] != theirs[0]:
                break
            tokens = min(mine[2], theirs[2])
            if mine[2] != theirs[2]:
                break
        return min(tokens * self.limits.block_tokens, self.prompt[request], self.prompt[other] + self.output[other] - 1)

    def _place(self, request: int, done: int, new: int, chunks: list[tuple[int, int]], ended: list[int]) -> None:
        """The first request that waits takes its slot, where ``done`` tokens are, with ``new`` in this batch."""
        size = self.limits.block_tokens
        self.waiting.popleft()
        self.running[request] = PROMPT
        self.admissions += 1
        self.admitted[request] = self.admissions
        self.pool.take(-(-(done + new) // size))
        self.trace.cached_tokens[request] = done
        chunks.append((new, done))
        if done + new == self.prompt[request]:
            ended.append(request)
        else:
            self.partial, self.done, self.wanted = request, done + new, self.prompt[request]

    def _end(self, request: int, tokens: int) -> None:
        super()._end(request, tokens)
        self.given += 1
        self.used[self.slot.pop(request)] = self.given
