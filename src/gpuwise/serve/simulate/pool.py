"""The pool of key-value blocks with a prefix cache, as in vLLM's engine, counted by runs instead of block by block.

A block that no request uses is free but still cached: its tokens stay valid until it is reused, least recently freed first
(vllm v1/core/block_pool.py, FreeKVCacheBlockQueue). A request frees its blocks last first, so the end of a run is evicted
before its beginning, and the cached part of a run is always its first blocks. Only whole blocks can be hit
(v1/core/kv_cache_manager.py, get_computed_blocks); of a block computed twice only the first copy can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gpuwise.serve.simulate.texts import Runs, Segment

ANONYMOUS = -1
_RUN, _LOW, _HIGH = 0, 1, 2
Entry = list[int]
"""Free blocks ``low..high`` of a run, freed together; without a run: a number of blocks without cached content."""


class BlockPool:
    """``free`` of ``n_blocks`` blocks. Taking blocks only counts; which cached blocks that cost is settled when a request looks
    for its prompt."""

    __slots__ = ("_cached", "_debt", "_empty_first", "_end", "_free_runs", "_held", "_queue", "_uses", "free", "n_blocks", "runs")

    def __init__(self, n_blocks: int, runs: Runs, n_requests: int, cached: bool, *, empty_first: bool = False) -> None:
        """``empty_first``: blocks without cached content are taken before cached ones, regardless of the time of their
        release."""
        self.n_blocks = n_blocks
        self.free = n_blocks
        self.runs = runs
        self._cached = cached
        self._empty_first = empty_first
        self._debt = 0
        self._queue: deque[Entry] = deque(([ANONYMOUS, 0, n_blocks],))
        self._end = [*runs.start, *runs.own_block]
        self._uses: list[dict[int, int]] = [{} for _ in range(runs.n_shared)]
        self._free_runs: dict[int, list[Entry]] = {}
        self._held: dict[int, list[tuple[Segment, int, bool]]] = {}

    def take(self, blocks: int) -> None:
        """Take free blocks; the caller has checked that there are enough."""
        self.free -= blocks
        self._debt += blocks

    def moved(self, taken: int, given: Sequence[int]) -> None:
        """Take ``taken`` blocks in all, and get back ``given`` ones without content that is asked for again, the first first."""
        self.take(taken)
        self.free += sum(given)
        if self._cached:
            self._queue.extend([ANONYMOUS, 0, blocks] for blocks in given)

    def found_blocks(self, request: int, tokens: int, block_tokens: int) -> int:
        """Blocks of the first ``tokens`` tokens of a request that are in the cache; at least one token is left to compute."""
        if not self._cached:
            return 0
        runs = self.runs
        own = runs.n_shared + request
        if runs.text[request] < 0 and self._end[own] == runs.own_block[request]:
            return 0
        self._settle()
        most = (tokens - 1) // block_tokens
        n_cached = 0
        for run, _, upto in runs.segments(request):
            n_cached = max(n_cached, min(self._end[run], upto, most))
            if n_cached < upto:
                return n_cached
        return min(self._end[own], most)

    def idle_blocks(self, request: int, found: int) -> int:
        """Those of the first ``found`` blocks that no request uses now."""
        if not found:
            return 0
        idle = 0
        for run, start, upto in self._parts(request):
            if start >= found:
                break
            upto = min(upto, found)
            for entry in self._free_runs.get(run, ()):
                if entry[_LOW] < upto:
                    idle += min(entry[_HIGH], upto) - entry[_LOW]
        return idle

    def admit(self, request: int, found: int) -> None:
        """The request takes its first ``found`` blocks from the cache."""
        if not self._cached:
            return
        places: list[tuple[Segment, int, bool]] = []
        for segment in self.runs.segments(request) if self.runs.n_shared else ():
            run, start, upto = segment
            mine = max(min(found, upto), start)
            if mine > start:
                self._touch(run, mine)
                uses = self._uses[run]
                uses[mine] = uses.get(mine, 0) + 1
            places.append((segment, mine, False))
        self._held[request] = places
        if found > self.runs.own_block[request]:
            self._touch(self.runs.n_shared + request, found)

    def computed(self, request: int, blocks: int) -> None:
        """The first ``blocks`` whole blocks of the request are computed, and can be hit from now on."""
        places = self._held.get(request)
        if not places:
            return
        for i, (segment, mine, twice) in enumerate(places):
            run, start, upto = segment
            upto = min(upto, blocks)
            if twice or upto <= mine:
                continue
            if self._end[run] != mine:
                self._settle()
            if self._end[run] != mine:
                places[i] = (segment, mine, True)
                continue
            uses = self._uses[run]
            if mine > start:
                _less(uses, mine)
            uses[upto] = uses.get(upto, 0) + 1
            self._end[run] = upto
            places[i] = (segment, upto, False)

    def release(self, request: int, tokens: int, block_tokens: int, keep: int | None = None) -> None:
        """Free the blocks of the request, of which ``tokens`` tokens are computed; the first ``keep`` of them (None: all) stay
        cached."""
        blocks, whole = -(-tokens // block_tokens), tokens // block_tokens
        if keep is not None:
            whole = min(whole, keep // block_tokens)
        if not self._cached:
            self.free += blocks
            return
        self.computed(request, whole)
        own_block = self.runs.own_block[request]
        places = self._held.pop(request)
        if whole >= own_block:
            self._give(ANONYMOUS, whole, blocks)
            if whole > own_block:
                own = self.runs.n_shared + request
                self._end[own] = whole
                self._give(own, own_block, whole)
        for (run, start, upto), mine, _ in reversed(places):
            if blocks > mine:  # computed twice, or partially filled
                self._give(ANONYMOUS, max(mine, start), min(upto, blocks))
            if mine > start:
                uses = self._uses[run]
                _less(uses, mine)
                others = max(uses, default=start)
                if others < mine:
                    self._give(run, others, mine)

    def _parts(self, request: int) -> list[Segment]:
        """All runs of a request, its own with them."""
        own_block = self.runs.own_block[request]
        return [*self.runs.segments(request), (self.runs.n_shared + request, own_block, self.n_blocks + own_block)]

    def _give(self, run: int, low: int, high: int) -> None:
        if high <= low:
            return
        self.free += high - low
        entry = [run, low, high]
        if run == ANONYMOUS and self._empty_first:
            self._settle()
            self._queue.appendleft(entry)
            return
        self._queue.append(entry)
        if run != ANONYMOUS:
            self._free_runs.setdefault(run, []).append(entry)

    def _touch(self, run: int, upto: int) -> None:
        """The free ones among the first ``upto`` blocks of a run are in use again. A run frees its end first, so its entries
        descend."""
        entries = self._free_runs.get(run)
        while entries:
            entry = entries[-1]
            if entry[_LOW] >= upto:
                return
            if entry[_HIGH] > upto:
                self.free -= upto - entry[_LOW]
                entry[_LOW] = upto
                return
            self.free -= entry[_HIGH] - entry[_LOW]
            entry[_LOW] = entry[_HIGH]
            entries.pop()

    def _settle(self) -> None:
        """Takes what is owed from the blocks that were given back first."""
        queue, debt = self._queue, self._debt
        while debt:
            entry = queue[0]
            run, low, high = entry
            paid = min(high - low, debt)
            debt -= paid
            entry[_HIGH] = high - paid
            if run != ANONYMOUS and paid:
                self._end[run] = high - paid
            if high - paid == low:
                queue.popleft()
                if run != ANONYMOUS and paid:
                    self._free_runs[run].pop(0)
        self._debt = 0


def _less(uses: dict[int, int], key: int) -> None:
    if uses[key] == 1:
        del uses[key]
    else:
        uses[key] -= 1
