"""Several prompts read at once beside a batch that writes: mlx_lm.server (mlx-lm 0.32.0 generate.py, ``BatchGenerator._next``).

A step first writes a token of each sequence. While fewer than ``limits.sequences`` write, requests that wait are taken in the
order they came, so that at most ``limits.prompts`` are read. Each of those has its next ``limits.tokens`` tokens in this step, as
rows of one batch padded to the longest; the last token of a prompt is a step by itself, and the first token of the answer is its
result. Caches of sequences that ended are reused by prompts that begin alike (``LRUPromptCache``); here each place holds its last
sequence. Nothing is sent back.
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
        """Of each prompt that was begun, the tokens that are computed."""

    def step(self, arrival_s: float) -> None:
        """One step, or as many without a prompt as end before ``arrival_s`` or the next event."""
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
        """Requests that wait, as many as there is place for."""
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
        """The next chunk of every prompt that was begun."""
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
