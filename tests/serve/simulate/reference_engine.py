"""vLLM's V1 scheduler written plainly: block by block, token by token, with hashes and a queue of free blocks.

Slow on purpose: the closed form in ``gpuwise.serve.simulate`` must give the same times.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field


@dataclass
class Block:
    key: object = None
    holders: int = 0


@dataclass
class PlainRequest:
    arrival: float
    prompt: int
    output: int
    owners: list  # of each token of prompt and answer: which text it is of
    computed: int = 0
    written: int = 0
    blocks: list = field(default_factory=list)
    keyed: int = 0
    decodes: bool = False
    twice: set = field(default_factory=set)
    first: float | None = None
    finish: float | None = None
    adapter: int | None = None
    last_token: bool = False


class PlainEngine:
    def __init__(self, requests, limits, time):
        self.requests, self.limits, self.time = requests, limits, time
        self.size = limits.block_tokens
        self.free: OrderedDict[int, Block] = OrderedDict()
        for _ in range(limits.n_blocks):
            block = Block()
            self.free[id(block)] = block
        self.all = list(self.free.values())
        self.by_key: dict[object, Block] = {}
        self.preemptions = 0
        self.taken = self.given = 0
        self.token_times: dict[int, list[float]] = {i: [] for i in range(len(requests))}

    def key(self, r, b):
        """Chained: a block is the same only after the same blocks."""
        return tuple(r.owners[: (b + 1) * self.size])

    def allocate(self, r, tokens):
        need = -(-tokens // self.size) - len(r.blocks)
        if need > len(self.free):
            return False
        for _ in range(max(need, 0)):
            _, block = self.free.popitem(last=False)
            if block.key is not None:
                del self.by_key[block.key]
                block.key = None
            block.holders = 1
            r.blocks.append(block)
            self.taken += 1
        return True

    def take(self, r, found, new):
        """The blocks already written are held once more, those of ``new`` tokens are allocated."""
        for block in found:
            if block.holders == 0:
                del self.free[id(block)]
                self.taken += 1
            block.holders += 1
        r.blocks, r.computed, r.keyed = list(found), len(found) * self.size, len(found)
        assert self.allocate(r, r.computed + new)
        r.computed += new

    def cache(self, r):
        if not self.limits.prefix_cache:
            return
        while r.keyed < r.computed // self.size:
            b = r.keyed
            run = r.owners[(b + 1) * self.size - 1]
            key = self.key(r, b)
            if key in self.by_key:
                r.twice.add(run)
            elif run not in r.twice:
                r.blocks[b].key = key
                self.by_key[key] = r.blocks[b]
            r.keyed += 1

    def release(self, r):
        for block in reversed(r.blocks):
            block.holders -= 1
            if block.holders == 0:
                self.free[id(block)] = block
                self.given += 1
        r.blocks, r.computed, r.keyed, r.twice, r.decodes = [], 0, 0, set(), False

    def hits(self, r, tokens):
        found = []
        if self.limits.prefix_cache:
            for b in range((tokens - 1) // self.size):
                block = self.by_key.get(self.key(r, b))
                if block is None:
                    break
                found.append(block)
        return found

    def run(self):
        now, todo = 0.0, deque(self.requests)
        waiting, running = deque(), []
        settled = float("inf")
        while todo or waiting or running:
            while todo and todo[0].arrival <= now:
                waiting.append(todo.popleft())
            if not waiting and not running:
                now, settled = todo[0].arrival, float("inf")
                continue
            if not running:
                settled = float("inf")
            budget, preempted, decoding, chunks = self.limits.tokens, False, [], []
            for r in running:
                budget -= r.decodes
            at = 0
            while at < len(running):
                r = running[at]
                decode = r.decodes
                new = 1 if decode else min(r.prompt + r.written - r.computed, budget)
                if new <= 0:
                    at += 1
                    continue
                while not self.allocate(r, r.computed + new):
                    preempted = True
                    self.preemptions += 1
                    last = running.pop()
                    budget += last.decodes
                    self.release(last)
                    waiting.appendleft(last)
                    if last is r:
                        break
                else:
                    if decode:
                        decoding.append(r)
                    else:
                        chunks.append((r, new))
                        budget -= new
                        r.computed += new
                        self.cache(r)
                    at += 1
            passed = []
            while waiting and not preempted and budget > 0 and len(running) < self.limits.sequences:
                r = waiting[0]
                if r.arrival > settled:
                    break
                active = {x.adapter for x in running}
                if self.limits.adapters and r.adapter not in active and len(active) >= self.limits.adapters:
                    passed.append(waiting.popleft())
                    continue
                wanted = r.prompt + r.written
                found = self.hits(r, wanted)
                new = wanted - len(found) * self.size
                if new > budget:
                    if not self.limits.chunked:
                        break
                    new = budget
                reserved = wanted if self.limits.reserve_prompt else len(found) * self.size + new
                idle = sum(b.holders == 0 for b in found)
                if -(-reserved // self.size) - len(found) + idle > len(self.free):
                    break
                waiting.popleft()
                self.take(r, found, new)
                self.cache(r)
                running.append(r)
                chunks.append((r, new))
                budget -= new
            waiting.extendleft(reversed(passed))
            n, cached = len(decoding), sum(r.computed + 1 for r in decoding)
            if chunks:
                seconds = self.time.mixed(n, cached, [(new, r.computed - new) for r, new in chunks])
            else:
                seconds = self.time.fixed[n] + self.time.slope[n] * cached
            if self.limits.ahead:
                settled = now
            now += max(seconds, self.time.host[min(n + len(chunks), len(self.time.host) - 1)])
            for r in decoding:
                r.computed += 1
                self.cache(r)
            for r in decoding + [r for r, _ in chunks if r.computed == r.prompt + r.written]:
                r.written += 1
                r.decodes = True
                self.token_times[self.requests.index(r)].append(now)
                if r.written == 1:
                    r.first = now
                if r.written == r.output:
                    r.finish = now
                    running.remove(r)
                    self.release(r)
        return now
