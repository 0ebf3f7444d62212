from __future__ import annotations

import datetime
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.grid import find_grid
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.offers.storage import storage_price
from gpuwise.facts.operations import operations, sites
from gpuwise.money.combine import exactly
from gpuwise.money.cost import user_price
from gpuwise.money.run.changes import changes, spot_usd_per_hour
from gpuwise.money.run.cost import Run, run_cost, run_usd
from gpuwise.money.run.document import run_document
from gpuwise.money.run.goodput import operate
from gpuwise.money.run.interruptions import causes, interruptions
from gpuwise.predict.estimate import Estimate

NODE = find_cluster("8xH100-SXM")
TODAY = datetime.date(2026, 11, 21)
DAY_S = 86400.0
RUN = Run(
    time_s=Estimate.from_log_sigma(10 * DAY_S, 0.1, "fitted"),
    cluster=NODE,
    price=user_price(3.0),
    state_bytes=8e9 * 14,
    weight_bytes=8e9 * 2,
    data_bytes=6e10,
    storage=storage_price("aws"),
    grid=find_grid("DE"),
)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    n = draw(st.sampled_from([8, 64, 1024]))
    price = user_price(draw(st.floats(0.1, 20)))
    return replace(
        RUN,
        time_s=Estimate.from_log_sigma(draw(st.floats(600, 1e8)), draw(st.floats(0, 0.5)), "fitted"),
        cluster=find_cluster(f"{n}xH100-SXM"),
        price=price,
        state_bytes=draw(st.floats(1e8, 5e12)),
        weight_bytes=draw(st.floats(0, 1e12)),
        spot_usd_per_hour=draw(st.none() | st.floats(0.05, 1.0)) and price.expected * draw(st.floats(0.1, 1.0)),
        evaluation_share=draw(st.none() | st.floats(0, 1)),
        egress_gb=draw(st.none() | st.floats(0, 1e6)),
        background=draw(st.booleans()),
    )


@settings(max_examples=2 * settings().max_examples)
@given(runs())
def test_the_bill_adds_up(run: Run) -> None:
    try:
        cost = run_cost(run)
        assert run_usd(run, operate(run)) == cost.total_usd
    except UnpredictableError:
        assert run.spot_usd_per_hour is not None or run.cluster.n_accelerators > 8
        return
    assert sum(x.usd.expected for x in cost.lines) == pytest.approx(cost.total_usd.expected)
    assert sum(x.hours.expected for x in cost.lines if x.hours is not None) == pytest.approx(cost.wall_s.expected / 3600)
    assert cost.total_usd.low <= cost.total_usd.expected <= cost.total_usd.high
    assert all(0 <= x.usd.low <= x.usd.expected * (1 + 1e-9) and x.usd.expected <= x.usd.high * (1 + 1e-9) for x in cost.lines)
    assert cost.wall_s.expected > run.time_s.expected and 0 < cost.effective < 1
    assert cost.kwh is not None and sum(cost.kwh_parts.values()) == pytest.approx(cost.kwh.expected)
    json.dumps(run_document(cost), allow_nan=False)


def test_the_wall_is_the_formula() -> None:
    cost = run_cost(RUN)
    work = 1 + cost.evaluation.expected
    wall = RUN.time_s.expected * (work * (1 + cost.stops.overhead) + cost.idle.expected)
    assert cost.wall_s.expected == pytest.approx(wall)
    compute = sum(x.usd.expected for x in cost.lines if x.hours is not None)
    assert compute == pytest.approx(cost.accelerator_hours * 3.0)


@given(st.floats(0.5, 50), st.floats(1.05, 3))
def test_money_follows_price_and_carbon_does_not(usd: float, factor: float) -> None:
    cheap, dear = (run_cost(replace(RUN, price=user_price(usd * f))) for f in (1.0, factor))
    assert dear.total_usd.expected > cheap.total_usd.expected
    assert dear.carbon == cheap.carbon and dear.kwh == cheap.kwh


def test_llama_3_keeps_above_90_percent() -> None:
    """Llama 3.1 405B, 54 days on 16,384 H100: 419 unexpected stops and more than 90 % effective training time
    (arXiv 2407.21783)."""
    cluster = find_cluster("16384xH100-SXM")
    found = interruptions(54 * DAY_S / 1.08, causes(cluster, 405e9 * 14))
    assert found.stops.expected == pytest.approx(419, rel=0.02)
    assert 0.90 < found.effective < 0.97
    assert found.stops.low < 419 < found.stops.high


def test_stops_grow_with_the_cluster() -> None:
    shares = [interruptions(DAY_S * 30, causes(find_cluster(f"{n}xH100-SXM"), 1e12)).overhead for n in (64, 1024, 8192)]
    assert shares[0] < shares[1] < shares[2]


def test_a_short_run_saves_once() -> None:
    cost = run_cost(replace(RUN, time_s=exactly(3600.0)))
    assert cost.stops.interval_s == pytest.approx(3600 * (1 + cost.evaluation.expected)) and cost.stops.checkpoints == 1


def test_background_writing_costs_less() -> None:
    big = replace(RUN, state_bytes=2e12)
    beside = run_cost(replace(big, background=True))
    assert beside.stops.overhead < run_cost(big).stops.overhead
    assert beside.stops.restart_s == run_cost(big).stops.restart_s


def test_measured_storage_replaces_the_usual() -> None:
    fast = run_cost(replace(RUN, write=exactly(1e11, "measured")))
    assert fast.stops.save_s.expected == pytest.approx(RUN.state_bytes / 1e11)


def test_spot_is_cheaper_an_hour_and_longer() -> None:
    on_demand, spot = run_cost(RUN), run_cost(replace(RUN, spot_usd_per_hour=1.0))
    share = operations()["spot_available"].expected
    assert spot.usd_per_hour == pytest.approx(share * 1.0 + (1 - share) * 3.0)
    assert spot.wall_s.expected > on_demand.wall_s.expected and spot.stops.stops.expected > 10 * on_demand.stops.stops.expected
    assert spot.total_usd.expected < on_demand.total_usd.expected
    assert spot.kwh is not None and on_demand.kwh is not None and spot.kwh.expected > on_demand.kwh.expected
    hardly = run_cost(replace(RUN, spot_usd_per_hour=2.9))
    assert hardly.total_usd.expected > on_demand.total_usd.expected


def test_reclaims_and_failures_add_their_rates() -> None:
    why = causes(NODE, 1e11, spot=True)
    found = interruptions(30 * DAY_S, why)
    assert why.reclaim_s is not None
    rate = 1 / why.failure_s.expected + why.on_spot / why.reclaim_s.expected
    assert 1 / found.mtbf_s.expected == pytest.approx(rate)


def test_storage_and_egress_of_a_provider() -> None:
    cost = run_cost(replace(RUN, egress_gb=1100.0))
    lines = {x.name: x for x in cost.lines}
    months = cost.wall_s.expected / (365.25 / 12 * DAY_S)
    assert lines["data storage"].usd.expected == pytest.approx(60 * 0.023 * months)
    assert lines["egress"].usd.expected == pytest.approx((1100 - 100) * 0.09)
    kept = operations()["kept_states"].expected * 112 + operations()["kept_weights"].expected * 16 / 2
    assert lines["checkpoint storage"].usd.expected == pytest.approx(kept * 0.023 * months)
    free = run_cost(replace(RUN, egress_gb=1100.0, storage=storage_price("runpod")))
    assert next(x for x in free.lines if x.name == "egress").usd.expected == 0


def test_idle_hours_draw_less() -> None:
    """A run of debugging alone would draw idle power: the mean lies between idle and work."""
    cost = run_cost(RUN)
    assert cost.power is not None and cost.kwh is not None
    mean_w = cost.kwh.expected * 3.6e6 / cost.wall_s.expected
    assert 0.8 * cost.power.total_w.expected < mean_w < cost.power.total_w.expected


def test_ones_own_machine_pays_for_electricity() -> None:
    own = replace(RUN, cluster=find_cluster("m2-ultra"), price=None, grid=find_grid("SE"), state_bytes=1e9, weight_bytes=1e8)
    cost = run_cost(own)
    lines = {x.name: x.usd.expected for x in cost.lines}
    sweden = find_grid("SE").household
    assert cost.kwh is not None and sweden is not None
    assert lines["electricity"] == pytest.approx(cost.kwh.expected * sweden.usd_per_kwh) and lines["training"] == 0
    assert sum(lines.values()) == pytest.approx(cost.total_usd.expected)
    with pytest.raises(UnpredictableError) as caught:
        run_cost(replace(own, grid=None))
    assert caught.value.hint and "--price" in caught.value.hint


def test_rented_machines_stand_in_a_data_centre() -> None:
    rented = run_cost(replace(RUN, cluster=find_cluster("4090"), state_bytes=1e9))
    assert rented.power is not None and rented.power.site == "data-centre"
    assert rented.electricity == find_grid("DE").industrial


@pytest.mark.parametrize(
    "wrong",
    [
        {"time_s": exactly(0.0)},
        {"time_s": exactly(-1.0)},
        {"time_s": Estimate(1.0, math.nan, 2.0, "fitted")},
        {"state_bytes": 0.0},
        {"state_bytes": math.inf},
        {"weight_bytes": -1.0},
        {"data_bytes": math.nan},
        {"evaluation_share": -0.1},
        {"evaluation_share": math.nan},
        {"evaluation_share": 11.0},
        {"egress_gb": -1.0},
        {"egress_gb": math.inf},
        {"pue": 0.5},
        {"spot_usd_per_hour": 0.0},
        {"spot_usd_per_hour": -1.0},
        {"spot_usd_per_hour": 1.0, "price": None},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        run_cost(replace(RUN, **wrong))  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_run_that_would_not_end_is_said() -> None:
    with pytest.raises(UnpredictableError, match="does not end"):
        run_cost(replace(RUN, cluster=find_cluster("16384xH100-SXM"), write=exactly(1e6)))


# --- what would change it ---


def test_changes_are_the_run_costed_again() -> None:
    run = replace(RUN, price=user_price(8.0))
    cost = run_cost(run)
    found = changes(cost, TODAY)
    assert found == tuple(sorted(found, key=lambda c: c.usd))
    green = next(c for c in found if "g/kWh" in c.name)
    assert green.usd == 0 and green.kg_co2e is not None and cost.carbon.operational_kg is not None
    assert -cost.carbon.operational_kg.expected < green.kg_co2e < -0.5 * cost.carbon.operational_kg.expected
    spot = next(c for c in found if c.name.startswith("on spot"))
    usd = spot_usd_per_hour(NODE, TODAY, None)
    other = run_cost(replace(run, spot_usd_per_hour=usd))
    assert spot.usd == pytest.approx(other.total_usd.expected - cost.total_usd.expected)
    assert spot.wall_s == pytest.approx(other.wall_s.expected - cost.wall_s.expected)


def test_the_greenest_region_is_of_the_same_cloud() -> None:
    cost = run_cost(replace(RUN, grid=find_grid("aws:us-east-1"), site=sites()["aws"]))
    green = next(c for c in changes(cost, TODAY) if "g/kWh" in c.name)
    assert green.name.startswith("in aws:")


def test_nothing_trivial_is_said() -> None:
    cost = run_cost(replace(RUN, time_s=exactly(3600.0), state_bytes=1e6, grid=None))
    assert not any("background" in c.name for c in changes(cost, TODAY))


def test_spot_prices_are_medians_over_providers() -> None:
    usd = spot_usd_per_hour(NODE, TODAY, None)
    assert usd is not None and 0.3 < usd < 8
    assert spot_usd_per_hour(find_cluster("m2-ultra"), TODAY, None) is None
    assert spot_usd_per_hour(NODE, TODAY, "nobody") is None


def test_the_document_has_everything_in_si() -> None:
    cost = run_cost(RUN)
    document = run_document(cost, changes(cost, TODAY))
    assert {"total_usd", "wall_s", "bill", "interruptions", "power", "kwh", "carbon", "changes", "grid"} <= set(document)
    assert json.loads(json.dumps(document))["interruptions"]["interval_s"] == cost.stops.interval_s
