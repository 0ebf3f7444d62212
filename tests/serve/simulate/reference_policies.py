"""Other engines' schedulers written plainly, token by token, over the blocks of the plain vLLM engine."""

from __future__ import annotations

from collections import deque

from reference_engine import PlainEngine


class PlainPolicy(PlainEngine):
    """What a step holds is a policy's: ``plan`` gives those that decode and ``(request, new tokens)`` of prompts."""

    free_first = False

    def __init__(self, requests, limits, time):
        super().__init__(requests, limits, time)
        self.waiting, self.running = deque(), []
        self.settled = float("inf")
        self.gone = []
        for i, r in enumerate(requests):
            r.index = i
            asked = r.output
            if limits.asked is not None and limits.asked > asked:
                asked = max(asked, min(limits.asked, (limits.n_blocks - 2) * self.size - r.prompt))
            r.asked = asked

    def blocks(self, tokens):
        return -(-tokens // self.size)

    def pages(self, tokens):
        return self.blocks(tokens) * self.size

    def late(self, r):
        return r.arrival > self.settled

    def release(self, r, keep=None):
        if keep is not None:
            for block in r.blocks[keep // self.size :]:
                if block.holders == 1 and block.key is not None:
                    del self.by_key[block.key]
                    block.key = None
        blocks = list(r.blocks)
        super().release(r)
        if self.free_first:
            for block in blocks:
                if block.holders == 0 and block.key is None:
                    self.free.move_to_end(id(block), last=False)

    def begin(self, r, found, new):
        self.waiting.remove(r)
        self.take(r, found, new)
        self.running.append(r)
        return (r, new)

    def seconds(self, decoding, chunks):
        n, cached = len(decoding), sum(r.computed + 1 for r in decoding)
        if chunks:
            return self.time.mixed(n, cached, [(new, r.computed - new) for r, new in chunks])
        rows = n + len(self.gone)
        cached += sum(r.ghost for r in self.gone)
        for r in self.gone:
            r.ghost += 1
        return self.time.fixed[rows] + self.time.slope[rows] * cached

    def finish(self, r):
        r.finish = self.now
        self.running.remove(r)
        self.cache(r)
        self.release(r)

    def decoded(self, decoding, lost):
        pass

    def arrives_idle(self):
        pass

    def run(self):
        self.now, todo = 0.0, deque(self.requests)
        while todo or self.waiting or self.running:
            idle = not self.waiting and not self.running
            if idle:
                self.now, self.settled = max(self.now, todo[0].arrival), float("inf")
            while todo and todo[0].arrival <= self.now:
                if not self.waiting and not self.running:
                    self.arrives_idle()
                self.waiting.append(todo.popleft())
            if not self.running:
                self.settled = float("inf")
            decoding, chunks, lost = self.plan()
            rows = len(decoding) + (len(self.gone) if not chunks else 0)
            seconds = max(
                self.seconds(decoding, chunks),
                self.time.host[min(len(decoding) + len(chunks) if chunks else rows, len(self.time.host) - 1)],
            )
            if self.limits.ahead:
                self.settled = self.now
            self.now += seconds
            self.decoded(decoding, lost)
            for r in decoding:
                r.computed += 1
            for r in decoding:
                self.token(r)
            for r, _ in chunks:
                self.cache(r)
            for r, _ in chunks:
                if r.computed == r.prompt + r.written:
                    self.token(r)
        return self.now

    def token(self, r):
        r.written += 1
        r.decodes = True
        self.token_times[r.index].append(self.now)
        if r.written == 1:
            r.first = self.now
        if r.written == r.output:
            self.finish(r)

    def grow(self):
        """A block for each that decodes; the last admitted start anew where none is free."""
        lost, at = False, 0
        while at < len(self.running):
            r = self.running[at]
            if not r.decodes:
                at += 1
                continue
            while not self.allocate(r, r.computed + 1):
                lost = True
                last = self.running.pop()
                self.preemptions += 1
                self.cache(last)
                self.release(last)
                self.waiting.appendleft(last)
                if last is r:
                    break
            else:
                at += 1
        return lost


class PlainPrefillFirst(PlainPolicy):
    def plan(self):
        budget, chunks = self.limits.tokens, []
        while self.waiting and len(self.running) < self.limits.sequences:
            r = self.waiting[0]
            wanted = r.prompt + r.written
            if self.late(r) or len(self.free) - self.blocks(wanted) < self.limits.watermark_blocks:
                break
            found = self.hits(r, wanted)
            new = wanted - len(found) * self.size
            if new > budget:
                break
            budget -= new
            chunks.append(self.begin(r, found, new))
        if chunks:
            return [], chunks, False
        lost = self.grow()
        return list(self.running), [], lost


class PlainRadix(PlainPolicy):
    free_first = True

    def __init__(self, requests, limits, time):
        super().__init__(requests, limits, time)
        self.rule = limits.reserve
        self.ratio = self.rule.first
        self.full = False

    def arrives_idle(self):
        self.ratio = self.rule.first

    def finish(self, r):
        super().finish(r)
        self.full = False

    def decoded(self, decoding, lost):
        if decoding and not lost:
            least = self.rule.first * self.rule.least
            self.ratio = max(self.ratio - (self.rule.first - least) / self.rule.steps, least)

    def plan(self):
        chunks = []
        partial = next((r for r in self.running if not r.decodes), None)
        if partial is not None or (self.waiting and not self.full):
            chunks = self.prompts(partial)
        if chunks:
            return [], chunks, False
        lost = False
        if sum(r.computed % self.size == 0 for r in self.running) > len(self.free):
            lost = True
            self.retract()
        for r in self.running:
            assert self.allocate(r, r.computed + 1)
        return list(self.running), [], lost

    def prompts(self, partial):
        most = self.rule.most_tokens
        share = 1.0 if self.rule.fixed_whole and self.limits.asked is None else self.ratio
        offset = sum(min(r.asked - r.written, most) for r in self.running if r.decodes) * share
        current = 0
        left, left_input, chunks = self.limits.tokens if self.limits.chunked else 1 << 60, self.limits.prompt_tokens, []
        if partial is not None:
            wanted = partial.prompt + partial.written
            room = int(len(self.free) * self.size - offset)
            new = min(wanted - partial.computed, min(left, room) if room > 0 else left)
            assert self.allocate(partial, partial.computed + new)
            partial.computed += new
            chunks.append((partial, new))
            left -= self.pages(new)
            left_input -= self.pages(new)
            offset += self.size
            current += self.size
            if partial.computed == wanted:
                offset += min(partial.asked, most)
                partial = None
        while self.waiting and left > 0 and left_input > 0 and partial is None:
            if len(self.running) >= self.limits.sequences:
                self.full = True
                break
            r = self.waiting[0]
            if self.late(r):
                break
            wanted = r.prompt + r.written
            found = self.hits(r, wanted)
            new = wanted - len(found) * self.size
            available = (len(self.free) - sum(b.holders == 0 for b in found)) * self.size
            if new + min(max(r.asked - r.written, 0), most) + self.size >= available - offset:
                self.full = bool(self.running)
                break
            if self.pages(new) > left:
                new = left // self.size * self.size
                if not new:
                    break
                partial = r
            elif not self.limits.chunked and chunks and self.pages(new) >= left_input:
                break
            chunks.append(self.begin(r, found, new))
            offset += self.size + (0 if partial is r else min(r.asked, most))
            current += self.size
            left -= self.pages(new)
            left_input -= self.pages(new)
            free = len(self.free) * self.size
            if free - offset <= 0 or free - current <= 0:
                self.full = True
                break
        return chunks

    def retract(self):
        order = sorted(self.running, key=lambda r: (r.written, -r.prompt), reverse=True)
        first = True
        while first or sum(r.computed % self.size == 0 for r in order) > len(self.free):
            if len(order) == 1:
                break
            first = False
            r = order.pop()
            self.running.remove(r)
            self.preemptions += 1
            self.release(r, keep=r.prompt)
            self.waiting.append(r)
        wrote, allowed = sum(r.written for r in order), sum(r.asked for r in order)
        self.ratio = min(1.0, (wrote + self.rule.retract_tokens * len(order)) / (allowed + 1))
        self.full = False


class PlainNoEvict(PlainPolicy):
    held = 0

    def hold(self, decoding):
        """Prompts that could run now wait for more of them."""
        if not self.limits.wait_steps or not decoding:
            return False
        budget, tokens, n = self.limits.tokens - len(decoding), 0, len(self.running)
        for r in self.running:
            if not r.decodes:
                tokens += r.prompt
                budget -= min(r.prompt - r.computed, budget)
        free = len(self.free) - sum(self.blocks(r.prompt + r.asked) - len(r.blocks) for r in self.running)
        for r in self.waiting:
            if budget <= 0 or n >= self.limits.sequences or self.late(r):
                break
            charged = r.prompt - len(self.hits(r, r.prompt)) * self.size if self.limits.chunked else r.prompt
            whole = self.blocks(r.prompt + r.asked)
            if whole > free or (charged > budget and not self.limits.chunked):
                break
            tokens, budget, free, n = tokens + r.prompt, budget - min(charged, budget), free - whole, n + 1
        if not tokens:
            return False
        if self.held < self.limits.wait_steps and tokens + len(decoding) < self.limits.wait_tokens:
            self.held += 1
            return True
        self.held = 0
        return False

    def plan(self):
        decoding = [r for r in self.running if r.decodes]
        for r in decoding:
            assert self.allocate(r, r.computed + 1)
        if self.hold(decoding):
            return decoding, [], False
        budget, chunks, reading = self.limits.tokens - len(decoding), [], []
        for r in self.running:
            if not r.decodes:
                reading.append(self.missing(r, r.computed // self.size))
                new = min(r.prompt - r.computed, budget)
                if new > 0:
                    assert self.allocate(r, r.computed + new)
                    r.computed += new
                    budget -= new
                    chunks.append((r, new))
                else:
                    reading.pop()
        self.admit(budget, chunks, reading)
        return decoding, chunks, False

    def missing(self, r, found):
        if not self.limits.prefix_cache or (found + 1) * self.size > r.prompt:
            return None
        return self.key(r, found)

    def admit(self, budget, chunks, reading):
        remaining = sum(self.blocks(r.prompt + r.asked) - len(r.blocks) for r in self.running)
        free = len(self.free) - remaining
        for r in list(self.waiting):
            if budget <= 0 or len(self.running) >= self.limits.sequences or self.late(r):
                break
            found = self.hits(r, r.prompt)
            missing = self.missing(r, len(found))
            if missing is not None and missing in reading:
                continue
            new = r.prompt - len(found) * self.size
            charged = new if self.limits.chunked else r.prompt
            whole = self.blocks(r.prompt + r.asked)
            if whole > free or (charged > budget and not self.limits.chunked):
                break
            new, charged = min(new, budget), min(charged, budget)
            budget -= charged
            free -= whole
            reading.append(missing)
            chunks.append(self.begin(r, found, new))


class PlainStatic(PlainNoEvict):
    def admit(self, budget, chunks, reading):
        if not self.running and not self.gone:
            super().admit(budget, chunks, reading)

    def finish(self, r):
        r.finish = self.now
        self.running.remove(r)
        r.ghost = r.computed + 1
        self.gone.append(r)
        if not self.running:
            for ended in self.gone:
                self.cache(ended)
                self.release(ended)
            self.gone = []


class PlainSlots(PlainPolicy):
    """llama.cpp's: each slot is the list of tokens it holds."""

    def __init__(self, requests, limits, time):
        super().__init__(requests, limits, time)
        self.slots = [[] for _ in range(limits.sequences)]
        self.busy, self.last, self.clock = {}, [0] * limits.sequences, 0

    def finish(self, r):
        slot = self.busy.pop(r.index)
        self.slots[slot] = list(enumerate(r.owners))[: r.prompt + r.output - 1]
        self.clock += 1
        self.last[slot] = self.clock
        super().finish(r)

    def common(self, r, slot):
        count = 0
        for mine, theirs in zip(enumerate(r.owners[: r.prompt]), self.slots[slot], strict=False):
            if mine != theirs:
                break
            count += 1
        return count

    def choose(self, r, similar):
        """The slot of a request, which it takes, and how many of its tokens are there."""
        free = [s for s in range(self.limits.sequences) if s not in self.busy.values()]
        slot = min(free, key=lambda s: (self.last[s], s))
        done = 0
        if self.limits.prefix_cache:
            best = max(free, key=lambda s: (self.common(r, s), -s))
            slot = best if self.common(r, best) > similar * r.prompt else slot
            done = min(self.common(r, slot), r.prompt - 1)
        self.busy[r.index] = slot
        return done

    def plan(self):
        decoding = [r for r in self.running if r.decodes]
        for r in decoding:
            assert self.allocate(r, r.computed + 1)
        budget, chunks = self.limits.tokens - len(decoding), []
        for r in self.running:
            new = 0 if r.decodes else min(r.prompt - r.computed, budget)
            if new > 0:
                assert self.allocate(r, r.computed + new)
                r.computed += new
                budget -= new
                chunks.append((r, new))
        while self.waiting and budget > 0 and len(self.running) < self.limits.sequences:
            r = self.waiting.popleft()
            done = self.choose(r, 0.1)
            new = min(r.prompt - done, budget)
            budget -= new
            assert self.allocate(r, done + new)
            r.computed = done + new
            self.running.append(r)
            chunks.append((r, new))
        return decoding, chunks, False


class PlainBatches(PlainSlots):
    """mlx_lm.server's: all prompts that were begun are rows of one batch, padded to its longest."""

    def plan(self):
        decoding = [r for r in self.running if r.decodes]
        for r in decoding:
            assert self.allocate(r, r.computed + 1)
        reading = [r for r in self.running if not r.decodes]
        while self.waiting and len(reading) < self.limits.prompts and len(self.running) < self.limits.sequences:
            r = self.waiting.popleft()
            r.computed = self.choose(r, 0.0)
            assert self.allocate(r, r.computed)
            self.running.append(r)
            reading.append(r)
        chunks = []
        self.padded = 0
        for r in reading:
            new = max(min(r.prompt - r.computed - 1, self.limits.tokens), 1)
            if r.prompt - r.computed > 1:
                self.padded = max(self.padded, new)
            r.last_token = r.prompt - r.computed == 1
            assert self.allocate(r, r.computed + new)
            r.computed += new
            chunks.append((r, new))
        return decoding, chunks, False

    def seconds(self, decoding, chunks):
        if not chunks:
            return super().seconds(decoding, chunks)
        rows = [(1 if r.last_token else self.padded, r.computed - new) for r, new in chunks]
        return self.time.mixed(len(decoding), sum(r.computed + 1 for r in decoding), rows)
