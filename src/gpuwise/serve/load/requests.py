"""Requests as columns: for a simulated engine or a load test.

Shared tokens are described by texts: a prompt is the beginning of a text, and texts may share a beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class Texts:
    """Columns [T]: text ``t`` equals text ``parent[t]`` (an earlier one; -1: none) in its first ``shared_tokens[t]`` tokens and
    nowhere else."""

    parent: I64
    shared_tokens: I64


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Prompts by block: ``keys[offsets[i]:offsets[i + 1]]`` name request ``i``'s leading full blocks of ``block_tokens`` each.
    Equal keys are equal tokens up to the end of that block."""

    block_tokens: int
    keys: I64
    offsets: I64
    """[N + 1]"""

    def of(self, i: int) -> I64:
        """Keys of request ``i``."""
        return self.keys[self.offsets[i] : self.offsets[i + 1]]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``users`` who each send their next request ``think_s`` after their last answer ended; requests are sent in order and
    their arrival times are ignored."""

    users: int
    think_s: float


@dataclass(frozen=True, slots=True)
class Requests:
    """Columns [N], arrivals ascending. Two prompts of one text agree up to the end of the shorter one."""

    arrival_s: F64
    prompt_tokens: I64
    output_tokens: I64
    """At least 1."""
    text: I64 | None = None
    """None: every prompt is its own text."""
    texts: Texts | None = None
    """None: no text begins like another."""
    adapter: I64 | None = None
    """Low-rank adapter of each; None: none has one."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def mean_rate(self) -> float:
        """Requests a second from the first arrival to the last; 0 where all arrive at once."""
        span = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) > 1 else 0.0
        return (len(self) - 1) / span if span > 0 else 0.0

    @property
    def reused_share(self) -> float:
        """Share of prompt tokens that an earlier request had: what a prefix cache without bounds would spare."""
        return float(self.reused_tokens().sum() / self.prompt_tokens.sum()) if len(self) else 0.0

    def reused_tokens(self) -> I64:
        """[N] leading tokens of each prompt that an earlier request had."""
        found = np.zeros(len(self), np.int64)
        if self.text is None:
            return found
        had: dict[int, int] = {}
        for i, (text, prompt) in enumerate(zip(self.text.tolist(), self.prompt_tokens.tolist(), strict=True)):
            t, within = text, prompt
            while t != NO_PARENT and within > 0:
                found[i] = max(found[i], min(within, had.get(t, 0)))
                had[t] = max(had.get(t, 0), within)
                if self.texts is None:
                    break
                within = min(within, int(self.texts.shared_tokens[t]))
                t = int(self.texts.parent[t])
        return found

    def apart_by_adapter(self) -> Requests:
        """The same with texts of each adapter's own: what one computed of a text, another does not find."""
        if self.adapter is None or self.text is None:
            return self
        _, adapter = np.unique(self.adapter, return_inverse=True)
        count = int(self.text.max()) + 1 if self.texts is None else len(self.texts.parent)
        text: I64 = np.asarray(adapter, np.int64) * count + self.text
        if self.texts is None:
            return replace(self, text=text)
        groups = int(adapter.max()) + 1
        parent = np.concatenate(
            [np.where(self.texts.parent >= 0, self.texts.parent + g * count, NO_PARENT) for g in range(groups)]
        )
        return replace(self, text=text, texts=Texts(parent.astype(np.int64), np.tile(self.texts.shared_tokens, groups)))

    def prefixes(self, block_tokens: int) -> Prefixes:
        """Keys of the full blocks of every prompt, for an engine that caches by hashed blocks."""
        text = np.arange(len(self)) if self.text is None else self.text
        parts = [self._keys(int(t), int(p) // block_tokens, block_tokens) for t, p in zip(text, self.prompt_tokens, strict=True)]
        offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int64)
        return Prefixes(block_tokens, np.concatenate(parts) if parts else np.zeros(0, np.int64), offsets)

    def _keys(self, text: int, blocks: int, block_tokens: int) -> I64:
        """A block is named by the text that first has it and its place there."""
        keys = np.arange(blocks, dtype=np.int64)
        owner = np.full(blocks, text, np.int64)
        t, within = text, blocks
        while self.texts is not None and self.texts.parent[t] != NO_PARENT:
            within = min(within, int(self.texts.shared_tokens[t]) // block_tokens)
            t = int(self.texts.parent[t])
            owner[:within] = t
        return keys + (owner << 32)

    def scaled(self, rate_per_s: float) -> Requests:
        """The same requests with arrivals from 0, stretched to a mean rate. Raises InputError where all arrive at once."""
        if not self.mean_rate:
            raise InputError("requests that all arrive at once have no rate to scale", hint="give arrivals that differ")
        return replace(self, arrival_s=(self.arrival_s - self.arrival_s[0]) * (self.mean_rate / rate_per_s))

    def select(self, rows: I64) -> Requests:
        """Those of ``rows``, ascending."""
        text = None if self.text is None else self.text[rows]
        adapter = None if self.adapter is None else self.adapter[rows]
        return Requests(self.arrival_s[rows], self.prompt_tokens[rows], self.output_tokens[rows], text, self.texts, adapter)

    def longer_than(self, context: int) -> I64:
        """Rows whose prompt and answer together are longer than ``context`` tokens."""
        return np.flatnonzero(self.prompt_tokens + self.output_tokens > context).astype(np.int64)

    def cut_to(self, context: int) -> Requests:
        """Answers of at most half of ``context``, and prompts shortened at their ends so that both stay within it."""
        output = np.minimum(self.output_tokens, max(context // 2, 1))
        return replace(self, output_tokens=output, prompt_tokens=np.clip(self.prompt_tokens, 1, context - output))


def texts_of_hashes(hashes: Sequence[Sequence[int]], block_tokens: int) -> tuple[I64, Texts]:
    """A text for each request, and what they share, from chained hashes of its blocks of ``block_tokens``: a request begins like
    the earlier one with which it has the most leading blocks in common. Equal hashes are equal tokens up to there."""
    owner: dict[int, int] = {}
    parent = np.full(len(hashes), NO_PARENT, np.int64)
    shared = np.zeros(len(hashes), np.int64)
    for i, mine in enumerate(hashes):
        depth = 0
        for key in mine:
            if key not in owner:
                break
            parent[i], depth = owner[key], depth + 1
        shared[i] = depth * block_tokens
        for key in mine[depth:]:
            owner.setdefault(key, i)
    return np.arange(len(hashes), dtype=np.int64), Texts(parent, shared)
