"""Two sums people do, reproduced by the engine; then what changes once everything is counted."""

from __future__ import annotations

import datetime
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.money.rent_or_own.counting import CostSteps, count_up
from gpuwise.money.rent_or_own.demand import Demand
from gpuwise.money.rent_or_own.ownership import catalogue_ownership, simple_ownership
from gpuwise.money.rent_or_own.price_process import still
from gpuwise.money.rent_or_own.renting import Renting, rent_of
from gpuwise.money.rent_or_own.rules import BUY_ABOVE, RENT_BELOW, check_rule
from gpuwise.money.rent_or_own.scenarios import rent_or_own
from gpuwise.money.rent_or_own.uncertain_inputs import number

TODAY = datetime.date(2026, 11, 21)
SURE = number("demand_spread", 1.0, "x", "demand over what was said")
NODE, CARDS = find_cluster("8xH100-SXM"), find_cluster("2x4090")


def _bare_rent(usd_per_hour: float) -> Renting:
    return Renting(usd_per_hour, still())


@cache
def _hundred_thousand_hours() -> CostSteps:
    """80 GPUs at 10 k$ with 5 k$ a month against 10,000 hours at 2 $/h."""
    demand = Demand(10_000.0)
    bare = (replace(demand, spread=SURE), simple_ownership(10_000.0, 80, 5000.0), _bare_rent(2.0))
    whole = (demand, replace(catalogue_ownership(NODE, gpu_usd=10_000.0), owned_gpus=80), rent_of(NODE, TODAY, usd_per_hour=2.0))
    return count_up(bare, whole, 60, n=1024)


def test_eighty_gpus_pay_for_themselves_in_53_months() -> None:
    """800 k$ / (10,000 h x 2 $/h - 5 k$) = 53.33 months, exactly."""
    answer = rent_or_own(
        Demand(10_000.0, spread=SURE), simple_ownership(10_000.0, 80, 5000.0), _bare_rent(2.0), 60, n_scenarios=100
    )
    assert answer.break_even.months is not None
    assert answer.break_even.months.expected == pytest.approx(800_000 / 15_000, rel=1e-6)
    assert answer.break_even.months.low == pytest.approx(answer.break_even.months.high)
    assert answer.option("own").total_usd.expected == pytest.approx(800_000 + 60 * 5000)
    assert answer.option("on-demand").total_usd.expected == pytest.approx(60 * 20_000)


def test_what_else_is_counted_moves_the_break_even() -> None:
    counted = _hundred_thousand_hours()
    assert counted.bare.break_even_months == pytest.approx(53.33, abs=0.01)
    alone = {s.label: s for s in counted.alone}
    bare = counted.bare.own_minus_rent_usd
    for name in ("servers around the GPUs", "network and storage", "electricity", "colocation", "staff and support"):
        assert alone[name].own_minus_rent_usd > bare, name
    assert alone["resale"].own_minus_rent_usd < bare
    assert alone["servers around the GPUs"].break_even_months == pytest.approx(800_000 * 1.6 / 15_000, rel=0.03)
    assert counted.together[-1].break_even_months is None
    assert counted.together[-1].own_wins < 0.1


def test_eighty_gpus_are_six_times_too_many() -> None:
    """Ten thousand hours a month are 14 GPUs at work, 16 with failures and gaps: those pay where 80 do not."""
    demand, rent = Demand(10_000.0), rent_of(NODE, TODAY, usd_per_hour=2.0)
    own = catalogue_ownership(NODE, gpu_usd=10_000.0)
    answer = rent_or_own(demand, own, rent, 60, n_scenarios=4000)
    assert answer.option("own").owned_gpus == 16
    assert answer.own_wins > 0.6
    eighty = rent_or_own(demand, replace(own, owned_gpus=80), rent, 60, n_scenarios=4000)
    assert eighty.own_wins < 0.1 and any("17 %" in note for note in eighty.notes)


def test_five_people_with_fifty_thousand_dollars() -> None:
    """Two consumer cards against 1 $/h for 800 hours a month: bare, 2 x 1,599 $ are back in four months; whole, the
    cards still win, later; and either way the budget is never in question."""
    demand = Demand(800.0)
    bare = rent_or_own(replace(demand, spread=SURE), simple_ownership(1599.0, 2, 0.0), _bare_rent(1.0), 36, n_scenarios=100)
    assert bare.break_even.months is not None
    assert bare.break_even.months.expected == pytest.approx(2 * 1599 / 800, rel=1e-6)
    whole = rent_or_own(
        demand, catalogue_ownership(CARDS, gpu_usd=1599.0), rent_of(CARDS, TODAY, usd_per_hour=1.0), 36, n_scenarios=4000
    )
    assert whole.option("own").owned_gpus == 2
    assert whole.break_even.months is not None and whole.break_even.months.expected > 2 * bare.break_even.months.expected
    assert whole.own_wins > 0.8
    assert whole.option("own").total_usd.high < 50_000 and whole.option("on-demand").total_usd.high < 50_000


def test_where_the_rules_of_thumb_hold() -> None:
    """Rent below 100 hours holds everywhere tried; buy above 1,000 holds for dear cards, not for servers of eight."""
    cards = check_rule("RTX 4090", catalogue_ownership(find_cluster("1x4090")), rent_of(CARDS, TODAY, usd_per_hour=0.45), 36)
    servers = check_rule("H100", catalogue_ownership(NODE, gpu_usd=30_000.0), rent_of(NODE, TODAY, usd_per_hour=3.9), 36)
    assert all(c.rent_holds for c in (*cards, *servers))
    assert [c.buy_holds for c in cards][-1] and not cards[0].buy_holds
    assert not any(c.buy_holds for c in servers)
    for checks in (cards, servers):
        wins = [c.own_wins_at[BUY_ABOVE] for c in checks]
        assert wins == sorted(wins)
        assert all(c.own_wins_at[RENT_BELOW] <= c.own_wins_at[BUY_ABOVE] for c in checks)
    assert servers[1].break_even is not None and servers[1].break_even.expected > 2 * BUY_ABOVE


def test_servers_for_a_peak_are_the_fewest_whole_ones() -> None:
    """Of GPUs that work nine tenths of the time, 15 need 16.7: three servers of eight, where 14 need 15.6: two."""
    owned = replace(
        catalogue_ownership(NODE, gpu_usd=20_000.0),
        availability=number("availability", 0.9, "share", "hours it can work"),
        fill=number("fill", 1.0, "share", "of them used"),
    )
    assert (owned.for_peak(14.0), owned.for_peak(15.0)) == (16, 24)


def test_what_runs_each_month_costs_twice_as_much_in_twice_the_months() -> None:
    owned = replace(catalogue_ownership(NODE, gpu_usd=20_000.0), warranty_months=0)
    values = {x.name: np.full(1, x.expected) for x in owned.uncertain_inputs()}
    one, two = (owned.fixed_usd(8, values, np.ones(months)) for months in (12, 24))
    assert float(np.sum(one["colocation"])) == pytest.approx(12 * owned.server_kw * owned.colocation.expected)
    assert all(float(np.sum(two[name])) == pytest.approx(2 * float(np.sum(one[name]))) for name in one)
