"""Laws of the engine: conservation, monotonicity, the closed form, reproducibility."""

from __future__ import annotations

import datetime
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.facts.grid import find_grid
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.money.rent_or_own.comparison import RentOrOwn
from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH, Demand
from gpuwise.money.rent_or_own.engine import Batch, Mix, draw, draw_prices, uncertain_inputs_of
from gpuwise.money.rent_or_own.footprint import footprint_of
from gpuwise.money.rent_or_own.ownership import Ownership, catalogue_ownership
from gpuwise.money.rent_or_own.price_process import still
from gpuwise.money.rent_or_own.renting import Renting, rent_of
from gpuwise.money.rent_or_own.scenarios import rent_or_own
from gpuwise.money.rent_or_own.sensitivity import variance_shares
from gpuwise.money.rent_or_own.uncertain_inputs import UncertainInput, number

NODE = find_cluster("8xH100-SXM")
TODAY = datetime.date(2026, 11, 21)
SURE = number("demand_spread", 1.0, "x", "demand over what was said")


@cache
def _own() -> Ownership:
    return catalogue_ownership(NODE, gpu_usd=27_000.0)


@cache
def _rent(spot: bool = True) -> Renting:
    return rent_of(NODE, TODAY, usd_per_hour=3.0, reserved=("1y", "3y"), spot=spot)


@cache
def _answer(price: float = 3.0, hours: float = 10_000.0, peak: float = 1.0, seed: int = 0) -> RentOrOwn:
    return rent_or_own(Demand(hours, peak), _own(), replace(_rent(), usd_per_hour=price), 36, n_scenarios=2000, seed=seed)


def _batch(demand: Demand, own: Ownership, rent: Renting, months: int = 36, n: int = 300) -> Batch:
    rng = np.random.Generator(np.random.PCG64(3))
    x = draw(uncertain_inputs_of(demand, own, rent), rng, n)
    return Batch(demand, own, rent, x, *draw_prices(rent, rng, months, n), n=n)


def _at_median(uncertain: UncertainInput) -> UncertainInput:
    return replace(uncertain, low=uncertain.expected, high=uncertain.expected)


def _capital_recovery_factor(rate: float, periods: float) -> float:
    """``CRF = r (1+r)^n / ((1+r)^n - 1)``."""
    growth = (1 + rate) ** periods
    return rate * growth / (growth - 1)


def _closed_form_usd_per_hour(own: Ownership, gpus: int, hours_per_month: float, months: int) -> float:
    """``[C0 - R (1+i)^-M] CRF(i, M) / h + (monthly costs) / h`` with the monthly rate ``i`` and ``h`` delivered GPU-hours a
    month, every input at its median and rental prices held still."""
    x = {d.name: np.asarray(d.expected) for d in own.uncertain_inputs()}
    rate = (1 + own.capital_per_year) ** (1 / 12) - 1
    discounts = (1 + rate) ** -np.arange(1.0, months + 1)
    capital = own.hardware_usd(gpus, x) - own.resale_usd(gpus, x, months, np.ones(1)) * (1 + rate) ** -months
    fixed = sum(float(part) for part in own.fixed_usd(gpus, x, discounts).values()) / float(discounts.sum())
    idle = max(gpus * HOURS_PER_MONTH - hours_per_month, 0.0) * own.kw_per_gpu(x, "idle_share")
    power = x["usd_per_kwh"] * (hours_per_month * own.kw_per_gpu(x) + idle)
    return float((capital * _capital_recovery_factor(rate, months) + fixed + power).item() / hours_per_month)


def _certain(own: Ownership) -> Ownership:
    fixed = {f.name: _at_median(getattr(own, f.name)) for f in fields(own) if isinstance(getattr(own, f.name), UncertainInput)}
    return replace(own, **fixed)


# --- conservation ---


@settings(max_examples=settings().max_examples, deadline=None)
@given(
    st.floats(50, 50_000),
    st.floats(1, 8),
    st.floats(-0.4, 1.5),
    st.integers(0, 40),
    st.integers(0, 20),
    st.sampled_from(["on-demand", "spot"]),
    st.integers(1, 60),
)
def test_hours_are_conserved(hours: float, peak: float, growth: float, owned: int, reserved: int, top: str, months: int) -> None:
    demand = Demand(hours, peak, growth_per_year=growth)
    batch = _batch(demand, _own(), _rent(), months)
    mix = Mix(owned, reserved, _rent().reservations[0] if reserved else None, top)  # type: ignore[arg-type]
    costed = batch.cost(mix)
    wanted = demand.by_month(months).sum() * batch.x["demand_spread"]
    assert sum(costed.hours.values()) == pytest.approx(wanted, rel=2e-4)
    assert all(np.all(h >= -1e-3 * wanted) for h in costed.hours.values())
    assert sum(costed.parts_usd.values()) == pytest.approx(costed.total_usd)
    if owned:
        assert np.all(costed.hours["owned"] <= owned * HOURS_PER_MONTH * months * batch.usable * (1 + 1e-4))


def test_parts_and_hours_of_the_answer_add_up() -> None:
    for option in _answer().options:
        assert sum(option.parts_usd.values()) == pytest.approx(option.total_usd.expected, rel=1e-4)
        assert sum(option.hours.values()) == pytest.approx(_answer().option("on-demand").hours["on-demand"], rel=1e-4)
    assert sum(o.cheapest_share for o in _answer().options) <= 1 + 1e-9


def test_what_is_spent_by_the_end_is_the_total_without_resale() -> None:
    batch = _batch(Demand(9000.0, 2.0, growth_per_year=0.3), _own(), _rent())
    for mix in (Mix(), Mix(16), Mix(8, 5, _rent().reservations[1]), Mix(top="spot")):
        costed = batch.cost(mix)
        resale = costed.parts_usd.get("resale", 0.0)
        assert batch.by_month().spent_by_month(mix)[-1] == pytest.approx(costed.total_usd - resale, rel=1e-4)


# --- the closed form ---


@pytest.mark.parametrize(("months", "hours"), [(36, 5000.0), (60, 11_000.0), (12, 300.0)])
def test_without_spread_the_scenarios_are_the_closed_form(months: int, hours: float) -> None:
    own = replace(_certain(_own()), owned_gpus=16)
    demand, rent = Demand(hours, spread=SURE), replace(_rent(), process=still(), reservations=(), spot=None)
    found = rent_or_own(demand, own, rent, months, n_scenarios=100).option("own")
    usable = own.availability.expected * own.fill.expected
    assert hours <= 16 * HOURS_PER_MONTH * usable * 1.1
    if hours <= 16 * HOURS_PER_MONTH * usable:
        assert found.usd_per_gpu_hour.expected == pytest.approx(_closed_form_usd_per_hour(own, 16, hours, months), rel=1e-5)
        assert found.usd_per_gpu_hour.low == pytest.approx(found.usd_per_gpu_hour.high)


def test_without_running_costs_the_scenarios_are_the_annual_form_people_know() -> None:
    """With nothing but hardware, capital cost and resale: [C0 - R (1+r)^-T] CRF / (8760 u N), payments by the month."""
    zero = {f: number(f, 0.0, "", f) for f in ("colocation", "staff", "support_share", "failures", "host_w", "usd_per_kwh")}
    own = replace(_certain(_own()), tdp_w=None, capital_per_year=0.08, owned_gpus=8, **zero)
    x = {d.name: np.asarray(d.expected) for d in own.uncertain_inputs()}
    cost, resale = float(own.hardware_usd(8, x)), float(own.resale_usd(8, x, 36, np.ones(1))[0])
    by_hand = (cost - resale * 1.08**-3) * _capital_recovery_factor(1.08 ** (1 / 12) - 1, 36) / 4000
    demand, rent = Demand(4000.0, spread=SURE), replace(_rent(), process=still(), reservations=(), spot=None)
    assert 8 * HOURS_PER_MONTH * own.availability.expected * own.fill.expected >= 4000
    found = rent_or_own(demand, own, rent, 36, n_scenarios=100).option("own")
    assert found.usd_per_gpu_hour.expected == pytest.approx(by_hand, rel=1e-5)


def test_renting_without_spread_is_price_times_hours() -> None:
    rent = replace(_rent(False), process=still(), reservations=())
    own = replace(_certain(_own()), capital_per_year=0.0)
    found = rent_or_own(Demand(1000.0, spread=SURE), own, rent, 24, n_scenarios=100).option("on-demand")
    assert found.total_usd.expected == pytest.approx(3.0 * 1000 * 24)


# --- monotonicity ---


@settings(max_examples=10, deadline=None)
@given(st.floats(0.3, 12), st.floats(1.01, 3), st.sampled_from([1.0, 4.0]))
def test_a_higher_rent_never_favours_renting(price: float, factor: float, peak: float) -> None:
    one, dearer = _answer(price, peak=peak), _answer(price * factor, peak=peak)
    assert dearer.own_minus_rent_usd.expected <= one.own_minus_rent_usd.expected + 1e-6 * abs(one.own_minus_rent_usd.expected)
    assert dearer.break_even.hours_never <= one.break_even.hours_never
    assert dearer.break_even.months_never <= one.break_even.months_never
    assert dearer.best.owned_gpus >= one.best.owned_gpus


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.floats(100, 10_000), st.floats(1.0, 2.0))
def test_more_use_never_raises_the_cost_of_an_owned_hour(hours: float, factor: float) -> None:
    own = replace(_certain(_own()), owned_gpus=16)
    most = 16 * HOURS_PER_MONTH * own.availability.expected * own.fill.expected
    rent = replace(_rent(), process=still(), reservations=(), spot=None)

    def usd_per_hour(each: float) -> float:
        found = rent_or_own(Demand(min(each, most), spread=SURE), own, rent, 36, n_scenarios=100)
        return found.option("own").usd_per_gpu_hour.expected

    assert usd_per_hour(hours * factor) <= usd_per_hour(hours) * (1 + 1e-9)


def test_the_best_option_is_no_dearer_than_any() -> None:
    for peak in (1.0, 5.0):
        answer = _answer(peak=peak)
        totals = [o.total_usd.expected for o in answer.options]
        assert totals == sorted(totals)
        assert answer.best.name in {o.name for o in answer.options}
        assert answer.regret_usd.low >= 0 and answer.regret_usd.expected < answer.best.total_usd.expected


def test_a_mix_beats_all_or_nothing_where_the_load_has_a_base_and_a_peak() -> None:
    rent = replace(_rent(False), usd_per_hour=6.0, reservations=())
    answer = rent_or_own(Demand(20_000.0, 6.0, peak_share=0.05), _own(), rent, 36, n_scenarios=2000)
    assert answer.best.name == "mix"
    assert 0 < answer.best.owned_gpus < answer.option("own").owned_gpus
    assert answer.best.hours["owned"] > answer.best.hours["on-demand"] > 0


# --- reproducibility ---


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    one = rent_or_own(Demand(5000.0), _own(), _rent(), 24, n_scenarios=20_000, seed=7)
    again = rent_or_own(Demand(5000.0), _own(), _rent(), 24, n_scenarios=20_000, seed=7)
    other = rent_or_own(Demand(5000.0), _own(), _rent(), 24, n_scenarios=20_000, seed=8)
    assert one.mix_usd.tobytes() == again.mix_usd.tobytes()
    for a, b in zip(one.options, again.options, strict=True):
        assert a.total_usd == b.total_usd and a.cumulative_usd.tobytes() == b.cumulative_usd.tobytes()
    assert one.bars == again.bars
    assert one.own_minus_rent_usd != other.own_minus_rent_usd
    assert one.own_minus_rent_usd.expected == pytest.approx(other.own_minus_rent_usd.expected, rel=0.1)


# --- what drives it ---


def test_variance_shares_find_what_made_the_variance() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    a, b, c = rng.standard_normal((3, 16_384))
    shares = variance_shares({"a": a, "b": b, "c": c}, 2 * a + b)
    assert shares["a"] == pytest.approx(0.8, abs=0.03)
    assert shares["b"] == pytest.approx(0.2, abs=0.03)
    assert shares["c"] < 0.01


def test_the_tornado_is_sorted_and_points_the_right_way() -> None:
    bars = {b.name: b for b in _answer().bars}
    swings = [b.swing_usd for b in _answer().bars]
    assert swings == sorted(swings, reverse=True) and len(bars) >= 10
    assert bars["resale_keep"].usd_at_high < bars["resale_keep"].usd_at_low
    assert bars["server_factor"].usd_at_high > bars["server_factor"].usd_at_low
    assert bars["rental_price"].usd_at_high < bars["rental_price"].usd_at_low
    assert sum(b.variance_share for b in bars.values()) < 1.1


def test_prices_to_come_do_not_move_what_is_reserved_today() -> None:
    """Each path of prices begins at today's, at which a reservation of the whole time is paid."""
    term = min(_rent().reservations, key=lambda r: abs(r.months - 36))
    rent = replace(_rent(), reservations=(replace(term, months=36),))
    answer = rent_or_own(Demand(20_000.0), _own(), rent, 36, n_scenarios=2000)
    bar = next(b for b in answer.bars if b.name == "rental_price")
    free = rent_or_own(Demand(20_000.0), _own(), replace(rent, reservations=()), 36, n_scenarios=2000)
    loose = next(b for b in free.bars if b.name == "rental_price")
    assert bar.swing_usd < 0.4 * loose.swing_usd and bar.variance_share < loose.variance_share


# --- power and carbon ---


def test_carbon_follows_the_grid_and_making_is_apart() -> None:
    answers = {}
    for country in ("PL", "NO"):
        print_of = footprint_of(NODE, find_grid(country))
        answers[country] = rent_or_own(Demand(5000.0), _own(), _rent(), 36, n_scenarios=500, footprint=print_of).option("own")
    dirty, clean = answers["PL"], answers["NO"]
    assert dirty.kwh == clean.kwh and dirty.embodied_kgco2e == clean.embodied_kgco2e
    assert dirty.operational_kgco2e and clean.operational_kgco2e
    assert dirty.operational_kgco2e.expected > 5 * clean.operational_kgco2e.expected


def test_owning_counts_the_whole_making_and_idle_power() -> None:
    print_of = footprint_of(NODE, None)
    answer = rent_or_own(Demand(2000.0), _own(), _rent(), 36, n_scenarios=500, footprint=print_of)
    own, rent = answer.option("own"), answer.option("on-demand")
    assert own.kwh and rent.kwh and own.embodied_kgco2e and rent.embodied_kgco2e
    assert own.kwh.expected > rent.kwh.expected and own.embodied_kgco2e.expected > rent.embodied_kgco2e.expected
    assert own.operational_kgco2e is None


# --- refusals ---


@pytest.mark.parametrize("wrong", [{"horizon_months": 0}, {"horizon_months": 1000}, {"n_scenarios": 1}, {"seed": -1}])
def test_questions_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    months = wrong.pop("horizon_months", 36)
    with pytest.raises(InputError) as caught:
        rent_or_own(Demand(100.0), _own(), _rent(), months, **wrong)  # type: ignore[arg-type]
    assert caught.value.hint


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_prices_that_cannot_be_are_refused(price: float) -> None:
    with pytest.raises(InputError):
        replace(_rent(), usd_per_hour=price)
    if price != 1e9:
        with pytest.raises(InputError):
            replace(_own(), gpu_usd=price)
