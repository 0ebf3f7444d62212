"""The steps of :class:`~gpuwise.serve.simulate.budget.BudgetEngine` in one loop, for requests without shared prompts or adapters.

Most simulations are of such loads, and calls between small functions take most of their time: the loop needs a third of it.
Steps, seconds and results equal the engine's own (tests/serve/simulate/test_unshared.py). The loop ends when blocks run out: a
request is preempted then, and the engine's own steps continue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from gpuwise.serve.simulate.core import PROMPT, Engine, steps_until, steps_with_blocks


def serve_unshared(engine: Engine, requests: Sequence[int], at_s: Sequence[float]) -> int:
    """Advance to each of ``at_s`` and offer the request of the same place, if there is one. Returns how many places are done:
    fewer than all if a request that runs lacks a block."""
    limits, time, pool, trace = engine.limits, engine.time, engine.pool, engine.trace
    size, tokens_most, seats, row_tokens = limits.block_tokens, limits.tokens, limits.sequences, limits.row_tokens
    chunked, whole_prompt, ahead = limits.chunked, limits.reserve_prompt, limits.ahead
    fixed, slope, host, mixed, most_host = time.fixed, time.slope, time.host, time.mixed, len(time.host) - 1
    prompt, output, waiting, running, arrived = engine.prompt, engine.output, engine.waiting, engine.running, engine.arrived
    finishing, phases, admitted = engine.finishing, engine.phases, engine.admitted
    first_s, finish_s, cached_tokens = trace.first_s, trace.finish_s, trace.cached_tokens
    now, settled, decoded, cache_tokens = engine.now, engine.settled, engine.decoded, engine.cache_tokens
    partial, done, admissions, free = engine.partial, engine.done, engine.admissions, pool.free
    taken = 0
    given: list[int] = []
    rows = trace.rows
    places = 0
    lacking = False
    for arrival in at_s:
        while now < arrival and (running or waiting):
            n = len(running) - (partial >= 0)
            need = phases[-decoded % size] if n else 0
            budget = tokens_most - n * row_tokens
            new = 0
            if partial >= 0:
                new = min(prompt[partial] - done, budget)
                more = -(-(done + new) // size) - -(-done // size) if new > 0 else 0
                if need + more > free:
                    lacking = True
                    break
                need += more
            elif need > free:
                lacking = True
                break
            free -= need
            taken += need
            late = False
            chunks: list[tuple[int, int]] = []
            ended: list[int] = []
            if new > 0:
                chunks.append((new, done))
                done += new
                budget -= new
                if done == prompt[partial]:
                    ended.append(partial)
                    partial = -1
            if not running:
                settled = math.inf
            if waiting and budget > 0:
                watermark = limits.watermark_blocks if running else 0
                while waiting and budget > 0 and len(running) < seats:
                    request = waiting[0]
                    if arrived[request] > settled:
                        late = True
                        break
                    wanted = new = prompt[request]
                    if new > budget:
                        if not chunked:
                            break
                        new = budget
                    if -(-(wanted if whole_prompt else new) // size) > free - watermark:
                        break
                    budget -= new
                    waiting.popleft()
                    running[request] = PROMPT
                    admissions += 1
                    admitted[request] = admissions
                    blocks = -(-new // size)
                    free -= blocks
                    taken += blocks
                    cached_tokens[request] = 0
                    chunks.append((new, 0))
                    if new == wanted:
                        ended.append(request)
                    else:
                        partial, done = request, new
            if chunks:
                cached = cache_tokens if n else 0
                seconds = mixed(n, cached, chunks)
                least = host[min(n + len(chunks), most_host)]
                if seconds < least:
                    seconds = least
                tokens = 0
                for new, _ in chunks:
                    tokens += new
                rows.append((now, 1, n, seconds, 0.0, tokens, cached, free, len(waiting), 0, n))
                if ahead:
                    settled = now
                now += seconds
                if n:
                    decoded += 1
                    cache_tokens = cached + n
            elif n:
                cached = cache_tokens
                b = slope[n]
                seconds = fixed[n] + b * cached
                growth = b * n
                steps = finishing[0][0] - decoded
                if seconds < host[n]:
                    if growth > 0:
                        steps = min(steps, max(int((host[n] - seconds) / growth), 1))
                    seconds, growth = host[n], 0.0
                if late and waiting:
                    steps = 1
                blocks = 0
                if steps > 1:
                    if len(running) < seats and not waiting and arrival < math.inf:
                        steps = steps_until(arrival - now, seconds, growth, steps)
                    if steps > 1:
                        steps, blocks = steps_with_blocks(steps, n, size, free, phases, decoded)
                rows.append((now, steps, n, seconds, growth, 0, cached, free, len(waiting), 0, n))
                free -= blocks
                taken += blocks
                if ahead:
                    settled = now + ((steps - 1) * seconds + growth * ((steps - 1) * (steps - 2) // 2))
                now = now + (steps * seconds + growth * (steps * (steps - 1) // 2))
                decoded += steps
                cache_tokens = cached + n * steps
            if n and finishing and finishing[0][0] <= decoded:
                ending: list[int] = []
                while finishing and finishing[0][0] <= decoded:
                    ending.append(heappop(finishing)[1])
                if len(ending) > 1:
                    ending.sort(key=admitted.__getitem__)
                for request in ending:
                    offset = running.pop(request)
                    tokens = offset + decoded
                    cache_tokens -= tokens + 1
                    phases[offset % size] -= 1
                    blocks = -(-tokens // size)
                    free += blocks
                    given.append(blocks)
                    finish_s[request] = now
            for request in ended:
                first_s[request] = now
                tokens = prompt[request]
                n_left = output[request] - 1
                if n_left <= 0:
                    del running[request]
                    blocks = -(-tokens // size)
                    free += blocks
                    given.append(blocks)
                    finish_s[request] = now
                    continue
                running[request] = tokens - decoded
                cache_tokens += tokens + 1
                phases[(tokens - decoded) % size] += 1
                heappush(finishing, (decoded + n_left, request))
        if lacking:
            break
        if places < len(requests):
            if now < arrival:
                now = arrival
            arrived[requests[places]] = arrival
            waiting.append(requests[places])
        places += 1
    engine.now, engine.settled, engine.decoded, engine.cache_tokens = now, settled, decoded, cache_tokens
    engine.partial, engine.done, engine.admissions = partial, done, admissions
    engine.wanted = prompt[partial] if partial >= 0 else 0
    pool.moved(taken, given)
    if lacking:
        for request in running:
            pool.admit(request, 0)
    return places
