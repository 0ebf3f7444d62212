"""The closed form of every other engine's scheduler against the same written token by token."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.serve.simulate.core import Limits, Reserve
from gpuwise.serve.simulate.server import POLICIES

sys.path.insert(0, str(Path(__file__).parent))
from reference_policies import PlainBatches, PlainNoEvict, PlainPrefillFirst, PlainRadix, PlainSlots, PlainStatic
from test_budget import check, linear_time, loads, play

PLAIN = {"prefill_first": PlainPrefillFirst, "radix": PlainRadix, "no_evict": PlainNoEvict, "static": PlainStatic}


def gaps(trace):
    """Every gap between two tokens of one answer, ascending."""
    found = []
    for s in range(len(trace.column("n_steps"))):
        for j in range(trace.column("n_steps")[s]):
            count = trace.column("decoding")[s] - (trace.column("stalled")[s] if j == 0 else 0)
            found += [trace.column("each_s")[s] + j * trace.column("growth_s")[s]] * count
    for seconds, tokens in zip(trace.gap_s, trace.gap_tokens, strict=True):
        found += [seconds] * tokens
    return sorted(found)


@settings(max_examples=5 * settings().max_examples, deadline=None)
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
    wait=st.sampled_from([0, 0, 3, 20]),
)
def test_closed_form_equals_the_plain_policy(
    policy, requests, size, spare, sequences, tokens, chunked, cache, host, ahead, watermark, asked, first, fixed, prompts, wait
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
        wait_steps=wait,
        wait_tokens=0.7 * tokens,
    )
    plain, engine = play(PLAIN[policy], POLICIES[policy], requests, limits, linear_time(sequences, host))
    check(plain, engine, limits)
    if not engine.trace.preemptions and policy != "static":
        expected = sorted(b - a for t in plain.token_times.values() for a, b in pairwise(t))
        assert gaps(engine.trace) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(
    requests=loads(),
    sequences=st.integers(1, 5),
    tokens=st.sampled_from([8, 16, 64, 200]),
    cache=st.booleans(),
    spare=st.integers(0, 40),
)
def test_slots_equal_lists_of_tokens(requests, sequences, tokens, cache, spare):
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    limits = Limits(max(tokens, sequences), sequences, sequences * (longest + spare), 1, True, cache)
    plain, engine = play(PlainSlots, POLICIES["slots"], requests, limits, linear_time(sequences))
    check(plain, engine, limits)
    assert not engine.slot


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(
    requests=loads(),
    sequences=st.integers(1, 5),
    prompts=st.integers(1, 4),
    tokens=st.sampled_from([8, 16, 64, 200]),
    cache=st.booleans(),
)
def test_prompts_read_together_equal_lists_of_tokens(requests, sequences, prompts, tokens, cache):
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    limits = Limits(tokens, sequences, sequences * longest, 1, True, cache, prompts=prompts)
    plain, engine = play(PlainBatches, POLICIES["batches"], requests, limits, linear_time(sequences))
    check(plain, engine, limits)
    assert not engine.slot and not engine.reading
