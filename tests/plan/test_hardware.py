from __future__ import annotations

import datetime

import pytest

from gpuwise.errors import UnpredictableError
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan import hardware
from gpuwise.plan.goal import Wishes
from gpuwise.plan.planner import Pricing
from gpuwise.units import DAY_S

PRICING = Pricing(datetime.date(2026, 11, 21))
SMALL = find_model("llama-3.2-1b")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of accelerators and sizes, so that the comparison takes a second."""
    ids = {"a100-sxm-80gb", "h100-sxm-80gb", "l40s", "rtx-4090"}
    kept = tuple(o for o in hardware.book(PRICING.today) if o.accelerator_id in ids)
    monkeypatch.setattr(hardware, "book", lambda today: kept)
    monkeypatch.setattr(hardware, "COUNTS", (1, 4, 8))


def test_the_cheapest_that_meets_the_deadline_wins() -> None:
    plan = hardware.compare(SMALL, Wishes(tokens=2e9, deadline_s=1.5 * DAY_S), PRICING)
    assert plan.best is not None and plan.best.cost_usd is not None
    assert plan.on_time
    for other in plan.hardware:
        if other.time_s.expected <= 1.5 * DAY_S:
            assert other.cost_usd is not None
            assert other.cost_usd.expected >= plan.best.cost_usd.expected * (1 - 1e-9)
    assert len({o.cluster.accelerator.id for o in plan.hardware}) > 1


def test_the_fastest_within_the_budget_wins() -> None:
    plan = hardware.compare(SMALL, Wishes(tokens=2e9, budget_usd=60.0), PRICING)
    assert plan.best is not None and plan.in_budget
    for other in plan.hardware:
        if other.cost_usd is not None and other.cost_usd.expected <= 60.0:
            assert other.time_s.expected >= plan.best.time_s.expected * (1 - 1e-9)


def test_without_limits_patience_is_said() -> None:
    plan = hardware.compare(SMALL, Wishes(tokens=1e9), PRICING)
    assert "30 days" in plan.warnings[0]


def test_nothing_rented_can_do_it() -> None:
    with pytest.raises(UnpredictableError, match="no rented cluster"):
        hardware.compare(find_model("llama-3.1-405b"), Wishes(tokens=1e9, seq_len=8192), PRICING)
