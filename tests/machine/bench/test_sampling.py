"""The adaptive loop and its interval, against arithmetic and simulation; one slow card among siblings is named."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.machine.bench.sampling import LEAST_SAMPLES, interval_rank, measure, outliers, summarise

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


def ticking(step_s: float) -> Callable[[], float]:
    counter = itertools.count()
    return lambda: next(counter) * step_s


@pytest.mark.parametrize(("n", "k"), [(1, None), (5, None), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (50, 18), (100, 40)])
def test_ranks_are_those_of_the_tables(n: int, k: int | None) -> None:
    assert interval_rank(n) == k
    if k is not None:
        outside = 2 * sum(math.comb(n, i) for i in range(k)) / 2**n
        assert outside <= 0.05 < 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n


def test_the_interval_holds_the_median_19_times_in_20() -> None:
    rng = random.Random(5)
    held = 0
    for _ in range(2000):
        summary = summarise([rng.lognormvariate(0.0, 0.3) for _ in range(25)])
        assert summary.low is not None
        assert summary.high is not None
        held += summary.low <= 1.0 <= summary.high
    assert 0.945 <= held / 2000 <= 0.975


@given(TIMES)
def test_order_does_not_matter_and_the_interval_holds_the_median(samples: list[float]) -> None:
    summary = summarise(samples)
    assert summary == summarise(samples[::-1])
    if summary.low is not None and summary.high is not None:
        assert summary.low <= summary.median <= summary.high
    else:
        assert len(samples) < LEAST_SAMPLES


@given(TIMES, st.sampled_from([0.5, 2.0, 1024.0]))
def test_units_do_not_matter(samples: list[float], factor: float) -> None:
    one, other = summarise(samples), summarise([factor * s for s in samples])
    assert other.median == one.median * factor
    assert other.half_width == pytest.approx(one.half_width)


def test_quiet_samples_stop_at_once_and_noisy_ones_go_on() -> None:
    quiet = measure(lambda: 1.0, limit_s=1e9, clock=ticking(0.001))
    assert len(quiet) == LEAST_SAMPLES
    rng = random.Random(1)
    noisy = measure(lambda: rng.gauss(1.0, 0.1), limit_s=1e9, clock=ticking(0.001))
    assert 100 < len(noisy) < 2000
    assert summarise(noisy).half_width <= 0.01


@given(st.integers(0, 50))
def test_the_limit_holds_whatever_the_noise(seconds: int) -> None:
    rng = random.Random(seconds)
    samples = measure(lambda: rng.random(), limit_s=float(seconds), clock=ticking(1.0))
    assert 1 <= len(samples) <= max(1, seconds)


def test_a_sample_that_fails_is_not_swallowed() -> None:
    def fail() -> float:
        raise RuntimeError("CUDA error: an illegal memory access")

    with pytest.raises(RuntimeError, match="illegal"):
        measure(fail, limit_s=1.0, clock=ticking(0.1))


def test_no_samples_have_no_median() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarise([])


# --- siblings ---


def test_one_slow_card_of_eight_is_named() -> None:
    assert outliers([700, 702, 698, 701, 560, 699, 703, 700]) == (4,)


def test_a_healthy_node_spreads_by_some_percent_and_nobody_is_named() -> None:
    rng = random.Random(3)
    for _ in range(300):
        assert outliers([700 * (1 + rng.uniform(-0.025, 0.025)) for _ in range(8)]) == ()


def test_of_two_nobody_knows_which_is_wrong() -> None:
    assert outliers([700, 300]) == ()


def test_a_fast_card_is_no_complaint() -> None:
    assert outliers([700, 701, 702, 990]) == ()


@given(st.lists(st.floats(1.0, 1e15), min_size=3, max_size=16), st.sampled_from([0.25, 8.0]))
def test_siblings_in_any_unit(rates: list[float], factor: float) -> None:
    assert outliers(rates) == outliers([factor * r for r in rates])


@given(st.lists(st.floats(1.0, 1e6), min_size=3, max_size=16))
def test_less_than_half_are_outliers(rates: list[float]) -> None:
    assert len(outliers(rates)) <= len(rates) // 2
