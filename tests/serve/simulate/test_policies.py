"""The closed form of every other engine's scheduler against the same written token by token."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.serve.simulate.core import Limits, Reserve
from gpuwise.serve.simulate.policies import POLICIES
from gpuwise.serve.simulate.texts import runs_of

sys.path.insert(0, str(Path(__file__).parent))
from reference_engine import PlainRequest
from reference_policies import PlainNoEvict, PlainPrefillFirst, PlainRadix, PlainStatic
from test_budget import linear_time, loads, owners

PLAIN = {"prefill_first": PlainPrefillFirst, "radix": PlainRadix, "no_evict": PlainNoEvict, "static": PlainStatic}


def play(policy, requests, limits, time):
    columns = zip(requests.arrival_s, requests.prompt_tokens, requests.output_tokens, strict=True)
    plain = PLAIN[policy](
        [PlainRequest(float(a), int(p), int(o), owners(requests, i)) for i, (a, p, o) in enumerate(columns)], limits, time
    )
    plain.run()
    runs = runs_of(requests, limits.block_tokens)
    engine = POLICIES[policy](requests.prompt_tokens.tolist(), requests.output_tokens.tolist(), runs, limits, time)
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
    written = sum(k * n for k, n in zip(engine.trace.n_steps, engine.trace.decoding, strict=True))
    restarts = len(plain.requests) + sum(engine.trace.gap_tokens) - sum(engine.trace.stalled)
    assert written + restarts == sum(len(t) for t in plain.token_times.values()) == sum(r.output for r in plain.requests)


def gaps(trace):
    """Every gap between two tokens of one answer, ascending."""
    found = []
    for s in range(len(trace.n_steps)):
        for j in range(trace.n_steps[s]):
            count = trace.decoding[s] - (trace.stalled[s] if j == 0 else 0)
            found += [trace.each_s[s] + j * trace.growth_s[s]] * count
    for seconds, tokens in zip(trace.gap_s, trace.gap_tokens, strict=True):
        found += [seconds] * tokens
    return sorted(found)


@settings(max_examples=250, deadline=None)
@given(
    policy=st.sampled_from(sorted(PLAIN)),
    requests=loads(),
    size=st.sampled_from([1, 4, 16]),
    spare=st.integers(0, 300),
    sequences=st.integers(1, 8),
    tokens=st.sampled_from([8, 16, 64, 200]),
    chunked=st.booleans(),
    cache=st.booleans(),
    host=st.sampled_from([0.0, 0.00402]),
    ahead=st.booleans(),
    watermark=st.integers(0, 2),
    asked=st.sampled_from([None, 10, 60]),
    first=st.sampled_from([0.1, 0.7]),
    fixed=st.booleans(),
    prompts=st.sampled_from([30, 16384]),
)
def test_closed_form_equals_the_plain_policy(
    policy, requests, size, spare, sequences, tokens, chunked, cache, host, ahead, watermark, asked, first, fixed, prompts
):
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    chunked = chunked and policy != "prefill_first"
    tokens = max(tokens, size if chunked else longest)
    limits = Limits(
        max(tokens, sequences),
        sequences,
        -(-(longest + spare) // size) + 3,
        size,
        chunked,
        cache,
        ahead=ahead,
        watermark_blocks=watermark if policy == "prefill_first" else 0,
        asked=asked,
        reserve=Reserve(first, 0.14, 60, 5, 40, fixed),
        prompt_tokens=prompts,
    )
    plain, engine = play(policy, requests, limits, linear_time(sequences, host))
    check(plain, engine, limits)
    if not engine.trace.preemptions and policy != "static":
        expected = sorted(b - a for t in plain.token_times.values() for a, b in pairwise(t))
        assert gaps(engine.trace) == pytest.approx(expected, rel=1e-6, abs=1e-9)
