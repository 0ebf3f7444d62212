"""Laws within and between answers of ``capacity``."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.agreement.questions import Words, answer, answers, capacity, most, seeds

from gpuwise.cli.called import Asked
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.serve.capacity.configurations import SLOW_LINKS
from gpuwise.units import HOUR_S, MEGA

EACH = 2
"""Questions of a seed."""


def served(seed: int) -> Iterator[tuple[Words, Asked]]:
    """Questions with something that serves them."""
    yield from ((words, asked) for words, asked in answers(random.Random(seed), capacity, EACH) if asked.document.get("served"))


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_rates_are_stable_up_to_the_knee_and_percentiles_are_ordered(seed: int) -> None:
    for words, asked in served(seed):
        s = asked["served"]
        knee = s["knee_requests_per_s_of_a_copy"]
        assert s["requests_per_s_of_a_copy"]["expected"] <= knee * 1.001, words
        assert all(p["saturated"] or p["requests_per_s"] <= knee * 1.001 for p in s["curve"]), words
        for point in (s["at_limit"], s["at_load"], *s["curve"]):
            for metric in () if point is None else point["latency_s"].values():
                if metric and metric["p50"] is not None:
                    assert metric["p50"] <= metric["p90"] <= metric["p95"] <= metric["p99"], words
        assert s["at_limit"] is None or all(target["met"] for target in s["at_limit"]["targets"]), words


def rent_of_tokens(asked: Asked) -> float:
    """Price of a million tokens times those written in an hour, over the rent of an hour."""
    fleet, written = asked["served"]["fleet"], asked["workload"]["output_tokens"]
    million = fleet["usd_per_million_output_tokens"]["expected"]
    return million / MEGA * fleet["requests_per_s"] * written * HOUR_S / fleet["usd_per_hour"]


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_the_price_of_a_million_tokens_times_the_tokens_is_the_rent(seed: int) -> None:
    for words, asked in served(seed):
        if asked["served"]["fleet"]["usd_per_hour"]:
            assert rent_of_tokens(asked) == pytest.approx(1.0, rel=0.02), words


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_more_users_never_need_fewer_accelerators(seed: int) -> None:
    for words, asked in served(seed):
        if "--users" in words:
            i = words.index("--users") + 1
            more = answer((*words[:i], str(int(1.5 * int(words[i]))), *words[i + 1 :]))
            if isinstance(more, Asked) and more.document.get("served"):
                needed = (a["served"]["fleet"]["accelerators_peak"] for a in (asked, more))
                assert next(needed) <= next(needed), words


FREE = 1.03
"""A rate under an option over that without it: both are searched to within 3 % (serve/capacity/rate.py, RESOLUTION)."""


def carried(asked: Asked | str) -> float:
    """Requests a second within the targets, of all replicas; 0 where nothing serves them."""
    served = None if isinstance(asked, str) else asked.document.get("served")
    return served["requests_per_s"]["expected"] if served else 0.0


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_the_default_carries_as_much_as_any_option(seed: int) -> None:
    """A split or a width of weights asked for is one of those that are tried without it: stages where links are slow."""
    draw = random.Random(seed)
    words = most(draw)
    splits = [("--tp", draw.choice("124")), ("--pp", draw.choice("1234")), ("--tp", draw.choice("12"), "--pp", draw.choice("24"))]
    if find_cluster(words[words.index("--on") + 1]).system.topology not in SLOW_LINKS:
        splits = splits[:1]
    for option in draw.sample([*splits, ("--weights", draw.choice(["16", "8"]))], 2):
        assert carried(answer((*words, *option))) <= FREE * carried(answer(words)), (words, option)
