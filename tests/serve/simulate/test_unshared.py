"""The loop for requests that share nothing against the engine's own steps: equal to the last digit."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.serve.load.requests import Requests
from gpuwise.serve.simulate.budget import BudgetEngine
from gpuwise.serve.simulate.core import Limits
from gpuwise.serve.simulate.texts import runs_of

sys.path.insert(0, str(Path(__file__).parent))
from test_budget import linear_time


class StepByStep(BudgetEngine):
    """The engine's own steps for every load."""

    def _unshared(self) -> bool:
        return False


def served(engine_class, requests, limits, time, cuts):
    """An engine after ``requests``, which it was given in parts."""
    prompt, output = requests.prompt_tokens.tolist(), requests.output_tokens.tolist()
    engine = engine_class(prompt, output, runs_of(requests, limits.block_tokens), limits, time)
    at_s = requests.arrival_s.tolist()
    bounds = [0, *cuts, len(at_s)]
    for begin, end in pairwise(bounds):
        engine.serve(list(range(begin, end)), at_s[begin:end])
    engine.serve((), (math.inf,))
    return engine


@st.composite
def loads(draw):
    n = draw(st.integers(1, 40))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.003, 0.02, 0.3]), min_size=n, max_size=n))
    prompt = draw(st.lists(st.integers(1, 90), min_size=n, max_size=n))
    output = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    return Requests(np.cumsum(gaps), np.array(prompt, np.int64), np.array(output, np.int64))


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(
    requests=loads(),
    size=st.sampled_from([1, 4, 16]),
    spare=st.integers(0, 600),
    sequences=st.integers(1, 12),
    tokens=st.sampled_from([8, 16, 64, 200]),
    chunked=st.booleans(),
    cache=st.booleans(),
    reserve=st.booleans(),
    host=st.sampled_from([0.0, 0.00402]),
    ahead=st.booleans(),
    watermark=st.sampled_from([0, 2]),
    row_tokens=st.sampled_from([1, 4]),
    parts=st.integers(1, 3),
)
def test_one_loop_equals_the_steps(
    requests, size, spare, sequences, tokens, chunked, cache, reserve, host, ahead, watermark, row_tokens, parts
):
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    tokens = max(tokens if chunked else longest, sequences * row_tokens + 1)
    blocks = -(-(longest + spare) // size) + 1 + watermark
    limits = Limits(tokens, sequences, blocks, size, chunked, cache, reserve, ahead, watermark, row_tokens=row_tokens)
    cuts = [len(requests) * i // parts for i in range(1, parts)]
    time = linear_time(sequences, host)
    steps, loop = (served(c, requests, limits, time, cuts) for c in (StepByStep, BudgetEngine))
    for name in ("first_s", "finish_s", "cached_tokens", "preemptions", "gap_s", "gap_tokens", "rows"):
        assert getattr(loop.trace, name) == getattr(steps.trace, name), name
    assert (loop.pool.free, loop.now, loop.idle) == (steps.pool.free, steps.now, True)
