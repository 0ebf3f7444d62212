"""The closed form against the same scheduler written token by token."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.serve.load.requests import Requests, Texts
from gpuwise.serve.simulate.budget import BudgetEngine
from gpuwise.serve.simulate.core import Limits
from gpuwise.serve.simulate.texts import runs_of

sys.path.insert(0, str(Path(__file__).parent))
from reference_engine import PlainEngine, PlainRequest


@dataclass
class LinearTime:
    fixed: list
    slope: list
    host: list
    token: float = 3e-5

    def mixed(self, n, cached, chunks):
        prompt = sum(q * self.token + 1e-8 * q * (c + q / 2) for q, c in chunks)
        return self.fixed[n] + self.slope[n] * cached + prompt


def linear_time(sequences, host=0.0):
    fixed = [0.004 + 1e-5 * n for n in range(sequences + 1)]
    return LinearTime(fixed, [2e-7 + 1e-9 * n for n in range(sequences + 1)], [host] * (sequences + 1))


def owners(requests, i):
    """Of each token of a request: the text it belongs to, or the request itself."""
    own = [("own", i)] * int(requests.prompt_tokens[i] + requests.output_tokens[i])
    if requests.text is None:
        return own
    texts, text = requests.texts, int(requests.text[i])
    extent = max(int(p) for p, t in zip(requests.prompt_tokens, requests.text, strict=True) if t == text)
    if texts is not None:

        def reach(t):
            direct = [int(p) for p, u in zip(requests.prompt_tokens, requests.text, strict=True) if u == t]
            below = [min(int(texts.shared_tokens[c]), reach(c)) for c in range(len(texts.parent)) if texts.parent[c] == t]
            return max(
                direct + [int(texts.shared_tokens[c]) for c in range(len(texts.parent)) if texts.parent[c] == t] + below + [0]
            )

        extent = reach(text)
    for p in range(min(len(own), extent)):
        t = text
        while texts is not None and texts.parent[t] >= 0 and p < texts.shared_tokens[t]:
            t = int(texts.parent[t])
        own[p] = t
    return own


def play(plain_class, engine_class, requests, limits, time):
    """Both engines on the same requests."""
    columns = zip(requests.arrival_s, requests.prompt_tokens, requests.output_tokens, strict=True)
    apart = requests.apart_by_adapter()
    plain = plain_class(
        [PlainRequest(float(a), int(p), int(o), owners(apart, i)) for i, (a, p, o) in enumerate(columns)], limits, time
    )
    adapter = None if requests.adapter is None else requests.adapter.tolist()
    for r, mine in zip(plain.requests, adapter or [None] * len(requests), strict=True):
        r.adapter = mine
    plain.run()
    runs = runs_of(apart, limits.block_tokens)
    engine = engine_class(requests.prompt_tokens.tolist(), requests.output_tokens.tolist(), runs, limits, time)
    engine.adapter = adapter
    for i, arrival in enumerate(requests.arrival_s.tolist()):
        engine.run_until(arrival)
        engine.offer(i, arrival)
    engine.run_until(float("inf"))
    return plain, engine


def check(plain, engine, limits):
    assert engine.trace.first_s == pytest.approx([r.first for r in plain.requests], rel=1e-9)
    assert engine.trace.finish_s == pytest.approx([r.finish for r in plain.requests], rel=1e-9)
    assert engine.trace.preemptions == plain.preemptions
    assert engine.pool.free == limits.n_blocks == len(plain.free)
    assert plain.taken == plain.given
    written = sum(k * n for k, n in zip(engine.trace.column("n_steps"), engine.trace.column("decoding"), strict=True))
    restarts = len(plain.requests) + sum(engine.trace.gap_tokens) - sum(engine.trace.column("stalled"))
    assert written + restarts == sum(len(t) for t in plain.token_times.values()) == sum(r.output for r in plain.requests)


@st.composite
def loads(draw):
    n = draw(st.integers(1, 14))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.003, 0.02, 0.3]), min_size=n, max_size=n))
    prompt = draw(st.lists(st.integers(1, 70), min_size=n, max_size=n))
    output = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    text = texts = None
    if draw(st.booleans()):
        count = draw(st.integers(1, 4))
        text = np.array(draw(st.lists(st.integers(0, count - 1), min_size=n, max_size=n)), np.int64)
        if draw(st.booleans()):  # sessions: a prompt repeats the answer before it, which has ended by then
            gaps = [5.0] * n
            reached = [0] * count
            for i, t in enumerate(text):
                prompt[i] += reached[t]
                reached[t] = prompt[i] + output[i]
        else:  # prompts that come again, or begin alike, while others of them are at work
            prompt = [prompt[int(np.flatnonzero(text == t)[0])] for t in text]
        if draw(st.booleans()):
            parent = [draw(st.integers(-1, t - 1)) for t in range(count)]
            least = [min([q for q, u in zip(prompt, text, strict=True) if u == t], default=0) for t in range(count)]
            shared = []
            for t, p in enumerate(parent):
                shared.append(draw(st.integers(0, min(least[p], 40))) if p >= 0 else 0)
                least[t] = least[t] or shared[t]
            texts = Texts(np.array(parent, np.int64), np.array(shared, np.int64))
    return Requests(np.cumsum(gaps), np.array(prompt, np.int64), np.array(output, np.int64), text, texts)


@settings(max_examples=8 * settings().max_examples, deadline=None)
@given(
    requests=loads(),
    size=st.sampled_from([1, 4, 16]),
    spare=st.integers(0, 300),
    sequences=st.integers(1, 8),
    tokens=st.sampled_from([8, 16, 64, 200]),
    chunked=st.booleans(),
    cache=st.booleans(),
    reserve=st.booleans(),
    host=st.sampled_from([0.0, 0.00402]),
    ahead=st.booleans(),
)
def test_closed_form_equals_the_plain_engine(requests, size, spare, sequences, tokens, chunked, cache, reserve, host, ahead):
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    if not chunked:
        tokens = max(tokens, longest)
    limits = Limits(max(tokens, sequences), sequences, -(-(longest + spare) // size) + 1, size, chunked, cache, reserve, ahead)
    plain, engine = play(PlainEngine, BudgetEngine, requests, limits, linear_time(sequences, host))
    check(plain, engine, limits)
    assert sum(engine.trace.gap_tokens) - sum(engine.trace.column("stalled")) == len(engine.trace.gap_s)


def test_prompts_in_turn_are_whole_prompt_hits_after_the_first_round():
    n = 300
    requests = Requests(
        np.arange(n) * 0.05, np.full(n, 600, np.int64), np.full(n, 20, np.int64), (np.arange(n) % 100).astype(np.int64)
    )
    limits = Limits(2048, 128, 30000, 16)
    engine = BudgetEngine([600] * n, [20] * n, runs_of(requests, 16), limits, linear_time(128))
    for i, arrival in enumerate(requests.arrival_s.tolist()):
        engine.run_until(arrival)
        engine.offer(i, arrival)
    engine.run_until(float("inf"))
    assert engine.trace.cached_tokens[:100] == [0] * 100
    assert engine.trace.cached_tokens[100:] == [592] * 200
