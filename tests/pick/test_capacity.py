"""Accelerators by what a load costs on them."""

from __future__ import annotations

import datetime

import pytest

from gpuwise.errors import InputError
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.capacity import rank_accelerators, ranked_document
from gpuwise.pick.limits import Limits
from gpuwise.serve.capacity.fleet import Demand
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import parse_targets
from gpuwise.serve.load.workloads import find_workload

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


def test_a_model_that_writes_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no decoder"):
        rank_accelerators(find_model("bert-base"), LOAD, (), Demand(), today=TODAY)
