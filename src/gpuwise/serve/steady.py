"""A simulated engine without the simulation: closed forms of the same step times.

One more token of ``n`` sequences with ``S`` cached tokens in total, and the first token of a request without others:

    step(n, S) = max(fixed(n) + slope(n) S, host(n))
    first(p)   = sum of steps over the chunks of the prompt, each no longer than a step's tokens; over pipeline stages until the
                 last chunk has passed the last

An engine that is always full of requests of ``p`` tokens in and ``o`` out, ``n`` of them decoding, gets ``r = n / (o - 1)`` new
prompts a step, ``k`` of them with the chance of a Poisson count, and serves

    rate(n) = r / E[step(n, S, k prompts)],    S = n (p + o / 2)

The largest rate has the most sequences whose caches fit, whose prompts fit into the tokens of the steps, and whose tokens come
in time. Over pipeline stages as many such batches are in flight, each of its share of the sequences. Equal to simulated runs
within what ``tests/serve/test_steady.py`` states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpuwise.predict.estimate import Estimate, weakest
from gpuwise.serve.simulate.pipeline import stages_of
from gpuwise.serve.simulate.server import Server
from gpuwise.serve.simulate.step_time import Steps

MOST_PROMPTS = 24
"""Number of new prompts per step up to which each is evaluated; beyond, a step's time is linear."""
FULL_SHARE = 0.97
"""Share of the cache and of the steps' tokens that a load can fill; the rest is lost to random arrivals."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The largest rate of one replica. ``sequences`` decode at once, ``token_s`` between two tokens of an answer."""

    requests_per_s: float
    sequences: int
    token_s: Estimate


def step_time(server: Server, sequences: int, context: int) -> Estimate:
    """Seconds of one more token of each of ``sequences`` whose caches hold ``context`` tokens. Raises as Server.steps."""
    steps = server.steps(context)
    seconds = max(steps.fixed[sequences] + steps.slope[sequences] * sequences * context, steps.host[sequences])
    return _estimate(server, steps, seconds)


def first_token_time(server: Server, prompt_tokens: int, context: int | None = None) -> Estimate:
    """Seconds to the first token of a request without others, at the client; ``context`` as in :func:`prompt_time`. Raises as
    Server.steps."""
    front = server.front
    before = front.request_s + front.prompt_token_s * prompt_tokens + front.answer_s
    prompt = prompt_time(server, prompt_tokens, context)
    return prompt.scaled((prompt.expected + before) / prompt.expected)


def prompt_time(server: Server, prompt_tokens: int, context: int | None = None) -> Estimate:
    """Seconds of prefill of one prompt alone, in chunks of a step's tokens. ``context`` (None: the prompt's tokens) is that of
    the step times: with a shorter one, whose times are there already, it is shorter by some thousandths. Raises as
    Server.steps."""
    most = server.limits.tokens
    chunks = [(min(most, prompt_tokens - at), at) for at in range(0, prompt_tokens, most)]
    steps = server.steps(context or prompt_tokens)
    host = steps.host[min(1, len(steps.host) - 1)]
    seconds = [max(steps.mixed(0, 0, [chunk]), host) for chunk in chunks]
    return _estimate(server, steps, _through_stages(server, chunks, seconds) if server.staged else sum(seconds))


def _through_stages(server: Server, chunks: Sequence[tuple[int, int]], seconds: Sequence[float]) -> float:
    """When the last of ``chunks`` leaves the last pipeline stage: one follows another on each stage and between two."""
    stages = stages_of(server.arch, server.system, server.config, hides_host=server.rules.ahead_in_stages)
    free = [0.0] * (2 * server.config.pp - 1)
    at = 0.0
    for (new, _), step_s in zip(chunks, seconds, strict=True):
        at = 0.0
        for i, part_s in enumerate(stages.seconds(step_s, new, prompts=True)):
            at = free[i] = max(at, free[i]) + part_s
    return at


def _estimate(server: Server, steps: Steps, seconds: float) -> Estimate:
    """Estimate with the spread of the engine's steps, and of the kernels if the device's were not fitted."""
    tables = steps.tables
    fitted = tables.basis in ("measured", "fitted") and not server.config.program.whole_steps
    sigma = math.hypot(server.front.costs.log_sigma, 0.0 if fitted else tables.log_sigma)
    return Estimate.from_log_sigma(seconds, sigma, weakest(tables.basis, "fitted"))


def mean_context(prompt_tokens: int, output_tokens: int) -> float:
    """Tokens in the cache of a request that is half answered."""
    return prompt_tokens + output_tokens / 2


@lru_cache(maxsize=1024)
def largest(server: Server, prompt_tokens: int, output_tokens: int, token_s: float = math.inf) -> Steady:
    """The largest rate of requests of the given lengths at which answer tokens take at most ``token_s`` on average; if even
    one sequence is slower, the rate of one. Raises as Server.steps."""
    limits = server.limits
    tokens = mean_context(prompt_tokens, output_tokens)
    blocks = -(-int(tokens) // limits.block_tokens)
    pool = limits.n_blocks if server.options.kv_blocks else server.memory.blocks_of(tokens)
    steps = server.steps(max(int(tokens), 1))
    batches = server.config.pp if server.staged else 1  # in flight, each of its share of the sequences
    most = max(min(limits.sequences, int(FULL_SHARE * pool / blocks)) // batches, 1)
    budget = FULL_SHARE * limits.tokens / (1.0 + prompt_tokens / max(output_tokens - 1, 1))
    most = max(min(most, int(budget)), 1)
    low, high = 1, most  # time between tokens rises with the sequences
    if _step(steps, limits.tokens, high, prompt_tokens, output_tokens) > token_s:
        while high - low > 1:
            middle = (low + high) // 2
            if _step(steps, limits.tokens, middle, prompt_tokens, output_tokens) > token_s:
                high = middle
            else:
                low = middle
    else:
        low = high
    seconds = _step(steps, limits.tokens, low, prompt_tokens, output_tokens)
    n = low * batches
    return Steady(n / max(output_tokens - 1, 1) / seconds, n, _estimate(server, steps, seconds))


def _step(steps: Steps, tokens: int, n: int, prompt_tokens: int, output_tokens: int) -> float:
    """Mean seconds of a step with ``n`` decoding sequences and as many new prompts as answers end."""
    cached = int(n * (prompt_tokens + output_tokens / 2))
    plain = max(steps.fixed[n] + steps.slope[n] * cached, steps.host[n])
    new = n / max(output_tokens - 1, 1)
    room = max(tokens - n, 1)
    if prompt_tokens > room:
        chunks = [(min(room, prompt_tokens - at), at) for at in range(0, prompt_tokens, room)]
        return plain + new * sum(steps.mixed(n, cached, [chunk]) - plain for chunk in chunks)
    fit = min(room // prompt_tokens, MOST_PROMPTS)
    times = [plain] + [steps.mixed(n, cached, [(prompt_tokens, 0)] * k) for k in range(1, fit + 1)]
    each = (times[-1] - times[0]) / fit
    seconds, chance, rest, counted = 0.0, math.exp(-new), 1.0, 0.0
    for k, time in enumerate(times):
        seconds += chance * time
        rest, counted = rest - chance, counted + chance * k
        chance *= new / (k + 1)
    # the prompts of steps with more of them are read at the pace of a full one
    return seconds + max(rest, 0.0) * times[0] + max(new - counted, 0.0) * each
