"""Shared prompts as runs of blocks, the unit of prefix-cache hits.

A text is a run of tokens; a request has the beginning of its text and then unique tokens. Blocks of the pool are whole blocks
of a run, so the cached part of a run is one number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.serve.load.requests import NO_PARENT, Requests

Segment = tuple[int, int, int]
"""A run, and the range of a request's blocks in it (counted from the request's first block)."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs ``0..n_shared-1`` are texts, run ``n_shared + i`` has the unique tokens of request ``i``."""

    n_shared: int
    start: list[int]
    """[n_shared] block at which a text leaves its parent."""
    parent: list[int]
    text: list[int]
    """[N] of each request; -1: none."""
    own_block: list[int]
    """[N] block at which its unique tokens begin."""
    _segments: dict[int, list[Segment]]

    def segments(self, request: int) -> list[Segment]:
        """The shared runs of a request, the first first, without its own."""
        segments = self._segments.get(request)
        if segments is None:
            segments = self._segments[request] = self._walk(request)
        return segments

    def _walk(self, request: int) -> list[Segment]:
        upto, text = self.own_block[request], self.text[request]
        segments: list[Segment] = []
        while text != NO_PARENT and upto > 0:
            start = self.start[text]
            if upto > start:
                segments.append((text, start, upto))
                upto = start
            text = self.parent[text]
        segments.reverse()
        return segments


def runs_of(requests: Requests, block_tokens: int) -> Runs:
    """``requests`` over blocks of ``block_tokens``. An answer continues its text as far as a prompt of that text reaches. Of
    concurrent answers to one text, the one that ends first can be hit."""
    n = len(requests)
    if requests.text is None:
        return Runs(0, [], [], [NO_PARENT] * n, [0] * n, {})
    text = requests.text
    texts = requests.texts
    count = int(text.max()) + 1 if texts is None else len(texts.parent)
    extent = np.zeros(count, np.int64)
    np.maximum.at(extent, text, requests.prompt_tokens)
    parent = np.full(count, NO_PARENT, np.int64) if texts is None else texts.parent
    shared = np.zeros(count, np.int64) if texts is None else texts.shared_tokens
    for t in range(count - 1, -1, -1):
        if parent[t] != NO_PARENT:
            extent[parent[t]] = max(extent[parent[t]], shared[t])
    end = np.minimum(requests.prompt_tokens + requests.output_tokens, extent[text])
    users = np.bincount(text, minlength=count)
    alone = (users[text] < 2) & ~np.isin(text, parent)
    end = np.where(alone, np.minimum(shared[text], end), end)
    return Runs(count, (shared // block_tokens).tolist(), parent.tolist(), text.tolist(), (end // block_tokens).tolist(), {})
