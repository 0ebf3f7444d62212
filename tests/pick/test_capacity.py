"""Accelerators by what a load costs on them."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick import capacity
from gpuwise.pick.capacity import REQUESTS, RESOLUTION, Option, rank_accelerators, rank_passes, ranked_document
from gpuwise.pick.limits import Limits
from gpuwise.serve.capacity import configurations
from gpuwise.serve.capacity.answer import Draft
from gpuwise.serve.capacity.configurations import Requirements
from gpuwise.serve.capacity.fleet import Demand, copies_for
from gpuwise.serve.capacity.search import contends, search
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import parse_targets
from gpuwise.serve.load.workloads import find_workload
from gpuwise.serve.passes import batches
from gpuwise.serve.passes.capacity import PassQuestion

ARCH = find_model("llama-3.1-8b")
LOAD = Load(find_workload("in=1000,out=100"), 8192)
TODAY = datetime.date(2026, 11, 23)
AMD = Limits(ways=("rent",), vendors=("AMD",))


def test_the_cheapest_comes_first_and_every_other_has_a_reason() -> None:
    found = rank_accelerators(ARCH, LOAD, parse_targets("ttft_p95=1s"), Demand(rate_per_s=20.0), today=TODAY, limits=AMD)
    assert found.options
    keys = [o.key for o in found.options]
    assert keys == sorted(keys)
    assert all(o.cluster.accelerator.vendor == "AMD" for o in found.options)
    for o in found.options:
        assert o.fleet.copies_peak * o.limit.rate_per_s >= 20.0
    assert all(one.why for one in found.left_out)
    document = ranked_document(found)
    assert len(document["options"]) == len(found.options)  # type: ignore[arg-type]


def test_a_target_none_meets_leaves_the_nearest() -> None:
    found = rank_accelerators(ARCH, LOAD, parse_targets("ttft_p95=1ms"), Demand(rate_per_s=1.0), today=TODAY, limits=AMD)
    assert not found.options
    assert found.nearest is not None
    assert any("1 s allowed" in o.why or "0.001 s allowed" in o.why for o in found.left_out)


def test_a_budget_leaves_out_what_is_dearer() -> None:
    targets, demand = parse_targets("ttft_p95=1s"), Demand(rate_per_s=20.0)
    every = rank_accelerators(ARCH, LOAD, targets, demand, today=TODAY, limits=AMD)
    most = min(o.fleet.usd_per_hour or 0.0 for o in every.options) * 1.001
    some = rank_accelerators(ARCH, LOAD, targets, demand, today=TODAY, limits=AMD, budget_usd_per_hour=most)
    assert [o.cluster for o in some.options] == [o.cluster for o in every.options if (o.fleet.usd_per_hour or 0.0) <= most]
    assert any("over the budget" in o.why for o in some.left_out)


def test_the_full_answer_is_of_the_first_option() -> None:
    """Where it makes the first dearer than the next, the next is answered too; what keeps no targets at length is left out."""
    targets, demand = parse_targets("ttft_p95=1s"), Demand(rate_per_s=20.0)
    ranked = rank_accelerators(ARCH, LOAD, targets, demand, today=TODAY, limits=AMD)
    asked: list[str] = []
    finished: list[str] = []

    def ask(option: Option, dearer: float | None) -> Draft:
        """The first one asked about costs so many times what the ranking said, or serves nothing."""
        asked.append(option.name)
        usd = (option.fleet.usd_per_hour or 0.0) * ((dearer or 1.0) if len(asked) == 1 else 1.0)
        fleet = replace(option.fleet, usd_per_hour=usd)
        limit = None if len(asked) == 1 and dearer is None else option.limit
        answer = SimpleNamespace(served=limit and SimpleNamespace(limit=limit, fleet=fleet), name=option.name)
        completed = partial(finished.append, option.name)
        return cast(
            "Draft", SimpleNamespace(limit=limit, fleet=lambda: fleet, completed=lambda **_options: completed() or answer)
        )

    for dearer, answered in ((1.0, 1), (100.0, 2), (None, 2)):
        asked.clear()
        finished.clear()
        found, answer = ranked.answered(partial(ask, dearer=dearer), LOAD, targets, demand, AMD)
        assert len(asked) == answered
        assert finished == asked[-1:]
        assert found.options[0].name == asked[-1] == cast("SimpleNamespace", answer).name
        assert any(one.name == asked[0] for one in found.left_out) == (dearer is None)


@pytest.mark.parametrize("fast", [True, False])
def test_every_option_that_may_cost_less_is_searched(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those are the ones of which fewer replicas cost less than the first option, and one keeps the targets at their rate."""
    targets, demand = parse_targets("ttft_p95=1s"), Demand(rate_per_s=400.0)
    ranked = rank_accelerators(ARCH, LOAD, targets, demand, today=TODAY, limits=AMD)
    needed: list[float] = []
    asked: list[str] = []

    def carries(_configuration: object, _load: object, rate_per_s: float, *_others: object) -> bool:
        needed.append(rate_per_s)
        return fast and math.isfinite(rate_per_s)

    def ask(option: Option) -> Draft:
        asked.append(option.name)
        answer = SimpleNamespace(served=SimpleNamespace(limit=option.limit, fleet=option.fleet))
        return cast("Draft", SimpleNamespace(limit=option.limit, fleet=lambda: option.fleet, completed=lambda **_options: answer))

    monkeypatch.setattr(capacity, "carries", carries)
    first, *others = ranked.options
    cheaper = [o for o in others if o.key / o.fleet.cluster.n_accelerators * o.limit.configuration.ranks < first.key]
    assert cheaper
    ranked.answered(ask, LOAD, targets, demand, AMD)
    assert sorted(asked) == sorted(o.name for o in ([first, *cheaper] if fast else [first]))
    assert all(rate > min(o.limit.rate_per_s for o in others) for rate in needed)


def test_a_model_that_writes_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="not a decoder"):
        rank_accelerators(find_model("bert-base"), LOAD, (), Demand(), today=TODAY)


EDGE = Limits(ways=("rent", "buy"), form="edge", max_watts=70.0)
SLOW = parse_targets("ttft_p95=20s,tpot_p95=500ms")


def test_edge_modules_run_what_their_software_runs_within_their_watts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "SLOTS", (4,))
    wanted = Requirements(bits=(4,))
    found = rank_accelerators(ARCH, LOAD, SLOW, Demand(rate_per_s=0.05), wanted, today=TODAY, limits=EDGE)
    assert found.options
    for o in found.options:
        assert o.how in ("new", "used")
        assert o.cluster.accelerator.unified_memory
        assert o.fleet.cluster.n_accelerators * (o.cluster.accelerator.tdp_w or 1e9) <= 70.0
        assert o.usd_per_accelerator_hour > 0
    assert any(one.why.endswith("70 W allowed") for one in found.left_out)


def test_more_load_than_the_watts_carry_has_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "SLOTS", (4,))
    found = rank_accelerators(ARCH, LOAD, SLOW, Demand(rate_per_s=50.0), Requirements(bits=(4,)), today=TODAY, limits=EDGE)
    assert not found.options
    assert any("W allowed" in one.why for one in found.left_out)


def test_only_what_keeps_the_targets_at_a_rate_contends() -> None:
    """A search finds a rate: its accelerators contend just below it, and not where no closed form reaches."""
    cluster, targets = find_cluster("8xh100-sxm"), parse_targets("ttft_p95=1s")
    found = search(ARCH, cluster, LOAD, targets, Requirements(), n=REQUESTS, refine=False, resolution=RESOLUTION)
    assert found.best is not None
    each = max(limit.rate_per_s / limit.configuration.ranks for limit in found.limits)
    assert contends(ARCH, cluster, LOAD, targets, Requirements(), 0.95 * each, n=REQUESTS)
    assert not contends(ARCH, cluster, LOAD, targets, Requirements(), 4.0 * each, n=REQUESTS)
    assert not contends(ARCH, cluster, LOAD, parse_targets("ttft_p95=5ms"), Requirements(), 0.1 * each, n=REQUESTS)


def test_what_is_passed_over_would_not_have_been_among_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, demand = parse_targets("ttft_p95=1s"), Demand(rate_per_s=20.0)
    some = Limits(ways=("rent",), vendors=("AMD", "Intel"))
    monkeypatch.setattr(capacity, "TOP", 2)
    quick = rank_accelerators(ARCH, LOAD, targets, demand, today=TODAY, limits=some)
    monkeypatch.setattr(capacity, "contends", lambda *_, **__: True)
    every = rank_accelerators(ARCH, LOAD, targets, demand, today=TODAY, limits=some)
    assert [o.name for o in quick.options[:2]] == [o.name for o in every.options[:2]]
    assert quick.simulated <= every.simulated


@pytest.mark.thorough
def test_a_small_load_takes_the_smallest_replica_that_carries_it() -> None:
    """Eight accelerators carry most as they are, and a load that one carries is served by one; where one is too slow for it, by
    no more than the fewest found when every layout is asked."""
    cluster, targets = find_cluster("8xl40s"), parse_targets("ttft_p95=1s")

    def fewest(rate_per_s: float) -> tuple[int, int]:
        demand = Demand(rate_per_s=rate_per_s)
        found = search(
            ARCH, cluster, LOAD, targets, Requirements(bits=(16,)), demand=demand, n=REQUESTS, refine=False, resolution=1.08
        )
        each = search(ARCH, cluster, LOAD, targets, Requirements(bits=(16,)), n=REQUESTS, refine=False, resolution=1.08)
        assert found.best is not None
        of = [x.configuration.ranks * copies_for(rate_per_s, x.rate_per_s) for x in each.limits if x.best is not None]
        return found.best.configuration.ranks * copies_for(rate_per_s, found.best.rate_per_s), min(of)

    small, _ = fewest(0.5)
    assert small == 1
    large, least = fewest(20.0)
    assert 1 < large <= least


@pytest.mark.thorough
def test_a_replica_dearer_than_the_best_fleets_is_not_simulated() -> None:
    """A load that one accelerator carries ten times over costs what the accelerator does, and by the hour the cheapest come
    first."""
    targets, some = parse_targets("ttft_p95=2s"), Limits(ways=("rent",), form="card")
    found = rank_accelerators(ARCH, LOAD, targets, Demand(users=2), today=TODAY, limits=some)
    prices = [o.fleet.usd_per_hour or 0.0 for o in found.options]
    assert prices == sorted(prices)
    passed = [one.why for one in found.left_out if one.why.startswith("dearer even as one replica")]
    assert passed
    assert found.simulated < len(passed)


@pytest.mark.thorough
def test_the_cheapest_for_a_million_pairs_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "REQUESTS", 300)
    ranked = rank_passes(find_model("bert-base"), PassQuestion("rerank", parse_targets("e2e_p95=50ms"), TODAY, 1000.0))
    costs = [a.usd_per_million for a in ranked]
    assert len(ranked) > 10 and costs == sorted(costs, key=lambda usd: usd or 0.0)
