"""Prefill first: a step either processes prompts or decodes.

vLLM's first engine (v0.6.6 core/scheduler.py, ``_schedule_default``): whole prompts in order of arrival while they fit in a
step's tokens and leave the watermark of blocks free; if a running sequence lacks a block, the one admitted last restarts.

SGLang (v0.5.23 managers/scheduler.py ``get_next_batch_to_run``; managers/schedule_policy.py ``PrefillAdder``): prompts are cut
into chunks and a prompt in progress is finished before any decoding. A request is admitted if its prompt, its maximum output
and one page fit beside a share of the remaining output of running ones; one that does not fit blocks admission until a request
ends. When the pool is full, requests with the fewest output tokens (ties: the longest prompts) are retracted to the tail of
the queue (managers/schedule_batch.py ``retract_decode``), their prompts still in the cache, and the share is re-estimated. Its
radix cache is modelled token by token: evicted from the end of the least recently used text, where SGLang drops a whole leaf;
two copies of a prompt processed at once both stay until their requests end.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.serve.simulate.core import PROMPT, Engine, Limits
from gpuwise.serve.simulate.pool import BlockPool
from gpuwise.serve.simulate.step_time import StepTime
from gpuwise.serve.simulate.texts import Runs


class PrefillFirstEngine(Engine):
    """vLLM's first engine."""

    full = False
    """No request is admitted before one ends."""

    def step(self, arrival_s: float) -> None:
        """A step of prompts if one can be read, else steps that decode."""
        n = len(self.running) - (self.partial >= 0)
        if not self.running:
            self.settled = float("inf")
        chunks: list[tuple[int, int]] = []
        readers: list[int] = []
        ended: list[int] = []
        late = False
        if self.partial >= 0 or (self.waiting and not self.full):
            late = self._prompts(chunks, readers, ended)
        if chunks:
            self._prompt_step(n, chunks, readers, ended)
            return
        need = self.phases[-self.decoded % self.limits.block_tokens]
        lost = False
        if need > self.pool.free:
            lost = self._make_room()
            n = len(self.running)
        else:
            self.pool.take(need)
        if n:
            before = self.decoded
            self._decode_stretch(n, lost or late, arrival_s)
            self._decoded_steps(self.decoded - before - lost)

    def _prompts(self, chunks: list[tuple[int, int]], readers: list[int], ended: list[int]) -> bool:
        """The prompts of the next step; whether the next request only came too late for it."""
        limits, pool, waiting = self.limits, self.pool, self.waiting
        size, budget = limits.block_tokens, limits.tokens
        while waiting and len(self.running) < limits.sequences:
            request = waiting[0]
            if self.arrived[request] > self.settled:
                return True
            wanted = self.prompt[request] + self.written[request]
            if pool.free - -(-wanted // size) < limits.watermark_blocks:
                return False
            n_cached = pool.found_blocks(request, wanted, size)
            new = wanted - n_cached * size
            if new > budget:
                return False
            budget -= new
            self._begin(request, n_cached, new, wanted, chunks, ended)
            readers.append(request)
        return False

    def _prompt_step(self, n: int, chunks: list[tuple[int, int]], readers: list[int], ended: list[int]) -> None:
        """One step of prompts alone; its tokens can be hit from the next step on."""
        if n:
            begin = self.now
            self._mixed_step(0, chunks, [])
            self._stall(n, self.now - begin)
        else:
            self._mixed_step(0, chunks, [])
        size = self.limits.block_tokens
        for request, (new, before) in zip(readers, chunks, strict=True):
            self.pool.computed(request, (before + new) // size)
        for request in ended:
            self._first_token(request)

    def _make_room(self) -> bool:
        """Blocks for the next token of every decoding request, by sending some back."""
        return self._grow_one_by_one()

    def _decoded_steps(self, steps: int) -> None:
        """Decode that many steps without a lack of blocks."""


class RadixEngine(PrefillFirstEngine):
    """SGLang's engine: prefill first, prefixes matched in a radix tree."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int], runs: Runs, limits: Limits, time: StepTime) -> None:
        super().__init__(prompt, output, runs, limits, time)
        assert limits.reserve is not None
        self.rule = limits.reserve
        self.pool = BlockPool(limits.n_blocks, runs, len(prompt), limits.prefix_cache, empty_first=True)
        self.ratio = self.rule.first
        self.asked_tokens = [self._max_output(i) for i in range(len(prompt))]
        self.clipped = max(self.asked_tokens, default=0) > self.rule.most_tokens
        self.left = 0
        """Sum over the decoding requests: allowed remaining tokens, plus the decode steps so far times their number."""

    def offer(self, request: int, arrival_s: float) -> None:
        """As in every engine; an idle engine forgets its estimate of answer lengths."""
        if self.idle:
            self.ratio = self.rule.first
        super().offer(request, arrival_s)

    def _reserved(self) -> float:
        """Tokens reserved for decoding requests."""
        n = len(self.running) - (self.partial >= 0)
        if self.clipped:
            most, tokens, decoded = self.rule.most_tokens, self.asked_tokens, self.decoded
            reserve = 0
            for r, offset in self.running.items():
                if offset != PROMPT:
                    reserve += min(tokens[r] + self.prompt[r] - 1 - offset - decoded, most)
        else:
            reserve = self.left - n * self.decoded
        return reserve * (1.0 if self.rule.fixed_whole and self.limits.asked is None else self.ratio)

    def _prompts(self, chunks: list[tuple[int, int]], readers: list[int], ended: list[int]) -> bool:
        """A chunk of the prompt in progress, then waiting requests, until tokens or room run out. Requests whose adapter would
        exceed the limit are skipped, and keep their places."""
        skipped: list[int] = []
        late = self._read(chunks, readers, ended, skipped)
        self.waiting.extendleft(reversed(skipped))
        return late

    def _read(self, chunks: list[tuple[int, int]], readers: list[int], ended: list[int], skipped: list[int]) -> bool:
        """Same as ``_prompts``; skipped requests go to ``skipped``."""
        limits, pool, waiting, rule = self.limits, self.pool, self.waiting, self.rule
        self._count_adapters()
        size, most = limits.block_tokens, self.rule.most_tokens
        reserve, pages = self._reserved(), 0
        budget = limits.tokens if limits.chunked else 1 << 60
        left_input = limits.prompt_tokens
        if self.partial >= 0:
            request = self.partial
            room = int(pool.free * size - reserve)
            new = min(self.wanted - self.done, min(budget, room) if room > 0 else budget)
            pool.take(-(-(self.done + new) // size) - -(-self.done // size))
            chunks.append((new, self.done))
            readers.append(request)
            self.done += new
            reserve += size
            pages += size
            budget -= -(-new // size) * size
            left_input -= -(-new // size) * size
            if self.done == self.wanted:
                reserve += min(self.asked_tokens[request], most)
                ended.append(request)
                self.partial = -1
        while waiting and budget > 0 and left_input > 0 and self.partial < 0:
            if len(self.running) >= limits.sequences:
                self.full = True
                break
            if not self._pass_over(skipped):
                return self.arrived[waiting[-1]] > self.settled
            request = waiting[0]
            if self.arrived[request] > self.settled:
                return True
            wanted = self.prompt[request] + self.written[request]
            n_cached = pool.found_blocks(request, wanted, size)
            new = wanted - n_cached * size
            may_write = min(max(self.asked_tokens[request] - self.written[request], 0), most)
            free = (pool.free - pool.idle_blocks(request, n_cached)) * size
            if new + may_write + size >= free - reserve:
                self.full = bool(self.running)
                break
            if -(-new // size) * size > budget:
                new = budget // size * size
                if not new:
                    break
            elif not limits.chunked and readers and -(-new // size) * size >= left_input:
                break
            whole = n_cached * size + new == wanted
            self._begin(request, n_cached, new, wanted, chunks, ended)
            readers.append(request)
            reserve += size + (min(self.asked_tokens[request], rule.most_tokens) if whole else 0)
            pages += size
            budget -= -(-new // size) * size
            left_input -= -(-new // size) * size
            if pool.free * size - reserve <= 0 or pool.free * size - pages <= 0:
                self.full = True
                break
        return False

    def _first_token(self, request: int) -> None:
        super()._first_token(request)
        offset = self.running.get(request)
        if offset is not None:
            self.left += self.asked_tokens[request] + self.prompt[request] - 1 - offset

    def _stop_decoding(self, request: int) -> int:
        offset = self.running[request]
        self.left -= self.asked_tokens[request] + self.prompt[request] - 1 - offset
        return super()._stop_decoding(request)

    def _end(self, request: int, tokens: int) -> None:
        super()._end(request, tokens)
        self.full = False

    def _make_room(self) -> bool:
        """Retracts those with the fewest tokens written, of them the longest prompts, until the others' next tokens fit."""
        size, pool, decoded, prompt = self.limits.block_tokens, self.pool, self.decoded, self.prompt

        def written(request: int) -> int:
            return self.running[request] + decoded + 1 - prompt[request]

        order = sorted(self.running, key=lambda r: (written(r), -prompt[r]), reverse=True)
        while len(order) > 1:
            request = order.pop()
            self.trace.preemptions += 1
            tokens = self._stop_decoding(request)
            self.written[request] = tokens + 1 - prompt[request]
            self.preempted_at[request] = self.now
            pool.release(request, tokens, size, keep=prompt[request])
            self.waiting.append(request)
            if self.phases[-decoded % size] <= pool.free:
                break
        pool.take(self.phases[-decoded % size])
        wrote = sum(written(r) for r in order)
        allowed = sum(self.asked_tokens[r] for r in order)
        self.ratio = min(1.0, (wrote + self.rule.retract_tokens * len(order)) / (allowed + 1))
        self.full = False
        return True

    def _decoded_steps(self, steps: int) -> None:
        rule = self.rule
        least = rule.first * rule.least
        self.ratio = max(self.ratio - steps * (rule.first - least) / rule.steps, least)
