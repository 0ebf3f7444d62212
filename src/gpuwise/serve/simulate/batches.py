"""Several prompts processed at once beside a decoding batch: mlx_lm.server (mlx-lm 0.32.0 generate.py, ``BatchGenerator._next``).

A step first generates a token of each sequence. While fewer than ``limits.sequences`` decode, waiting requests are admitted in
order of arrival, with at most ``limits.prompts`` prompts in progress. Each of those has its next ``limits.tokens`` tokens in
this step, as rows of one batch padded to the longest; the last token of a prompt is a separate step, and the first token of
the answer is its result. Caches of finished sequences are reused by prompts with the same beginning (``LRUPromptCache``); here
each place stores its last sequence. There is no preemption.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.serve.simulate.core import PROMPT, Limits
from gpuwise.serve.simulate.slots import SlotsEngine
from gpuwise.serve.simulate.step_time import StepTime
from gpuwise.serve.simulate.texts import Runs


class BatchesEngine(SlotsEngine):
    """``limits.sequences`` that write at once, ``limits.prompts`` that are read at once."""

    similar = 0.0

    def __init__(self, prompt: Sequence[int], output: Sequence[int], runs: Runs, limits: Limits, time: StepTime) -> None:
        super().__init__(prompt, output, runs, limits, time)
        self.reading: dict[int, int] = {}
        """Tokens to compute of each prompt in progress."""

    def step(self, arrival_s: float) -> None:
        """One step, or all steps without a prompt that end before ``arrival_s`` or the next event."""
        n = len(self.running) - len(self.reading)
        if n:
            self.pool.take(n)
        chunks: list[tuple[int, int]] = []
        ended: list[int] = []
        if n < self.limits.sequences:
            self._take()
            self._read(chunks, ended)
        if chunks:
            self._mixed_step(n, chunks, ended)
        else:
            self._decode_stretch(n, False, arrival_s)

    def _take(self) -> None:
        """Admit waiting requests while there is place."""
        while self.waiting and len(self.reading) < self.limits.prompts and len(self.running) < self.limits.sequences:
            request = self.waiting.popleft()
            slot, done = self._choose(request)
            self.slot[request], self.kept[slot] = slot, request
            self.running[request] = PROMPT
            self.admissions += 1
            self.admitted[request] = self.admissions
            self.pool.take(done)
            self.trace.cached_tokens[request] = done
            self.reading[request] = done

    def _read(self, chunks: list[tuple[int, int]], ended: list[int]) -> None:
        """Process the next chunk of every prompt in progress."""
        wanted = {r: self.prompt[r] - done - 1 for r, done in self.reading.items()}
        padded = min(max(wanted.values(), default=0), self.limits.tokens)
        for request, left in wanted.items():
            done = self.reading[request]
            if left:
                new = min(left, padded)
                self.pool.take(new)
                chunks.append((padded, done))
                self.reading[request] = done + new
            else:
                self.pool.take(1)
                chunks.append((1, done))
                ended.append(request)
        for request in ended:
            del self.reading[request]
        self.partial = next(iter(self.reading), -1)
