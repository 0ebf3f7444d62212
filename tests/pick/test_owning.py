"""Bills: rent by the hour, purchases with their box and resale, notebooks with their weeks."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.offers.notebooks import notebooks
from gpuwise.facts.offers.purchases import typical_purchase_usd
from gpuwise.money.cost import user_price
from gpuwise.money.rent_or_own.uncertain_inputs import economics
from gpuwise.pick.candidates import Acquisition, placed, ways
from gpuwise.pick.limits import Limits, parse_have
from gpuwise.pick.owning import Terms, bill, box_usd, least_bill_usd, resale_share
from gpuwise.predict.estimate import Estimate

CARD = accelerators()["rtx-3090"]
RENTED = Acquisition(CARD, "rent", rent=user_price(0.5))
BOUGHT = Acquisition(CARD, "buy", "used", purchase=typical_purchase_usd("rtx-3090", "used"))
DAY = Estimate(80_000.0, 86_400.0, 90_000.0, "derived")


def test_rent_is_hours_times_price() -> None:
    paid = bill(RENTED, find_cluster("2xrtx-3090"), DAY, Terms())
    assert paid.cost_usd.expected == pytest.approx(24.0) and paid.usd_per_hour == pytest.approx(1.0)
    assert paid.outlay_usd == paid.cost_usd.expected


def test_a_purchase_is_counted_in_full_unless_it_is_kept() -> None:
    cluster = find_cluster("rtx-3090")
    full, kept = bill(BOUGHT, cluster, DAY, Terms()), bill(BOUGHT, cluster, DAY, Terms(years=2))
    assert BOUGHT.purchase is not None
    price = BOUGHT.purchase.median
    assert full.cost_usd.expected == pytest.approx(price, rel=0.01)
    assert kept.cost_usd.expected < full.cost_usd.expected
    assert full.cost_usd.expected - kept.cost_usd.expected == pytest.approx(price * resale_share(CARD, 2))
    assert full.outlay_usd == kept.outlay_usd, "the money must be at hand either way"


def test_a_pc_holds_two_cards_and_more_need_a_machine() -> None:
    host, rig, second = (economics()[k].expected for k in ("host_usd", "rig_usd", "second_card_usd"))
    assert box_usd(BOUGHT, 1, Terms()) == 0 and box_usd(BOUGHT, 2, Terms()) == second
    assert box_usd(BOUGHT, 2, Terms(described=True)) == 0, "what goes into the machine as it is needs nothing beside"
    assert box_usd(BOUGHT, 1, Terms(box=True)) == host
    assert box_usd(BOUGHT, 3, Terms()) == box_usd(BOUGHT, 4, Terms()) == rig and box_usd(BOUGHT, 6, Terms()) == 2 * rig
    assert box_usd(BOUGHT, 4, Terms(box=True)) == max(host, rig)


def test_a_cool_server_card_needs_a_fan_and_a_hot_one_a_server() -> None:
    def passive(name: str) -> Acquisition:
        return Acquisition(accelerators()[name], "buy", "used", purchase=typical_purchase_usd("p40", "used"))

    assert box_usd(passive("p40"), 2, Terms()) == 2 * economics()["card_fan_usd"].expected
    assert box_usd(passive("l40s"), 1, Terms()) == economics()["host_usd"].expected


def test_passive_cards_and_modules_come_with_a_machine() -> None:
    passive = Acquisition(accelerators()["l40s"], "buy", "new", purchase=typical_purchase_usd("l40s"))
    assert box_usd(passive, 1, Terms()) > 0
    module = Acquisition(accelerators()["h100-sxm-80gb"], "buy", "new", purchase=typical_purchase_usd("h100-sxm-80gb"))
    assert module.purchase is not None
    factor = economics()["server_factor"].expected
    assert box_usd(module, 8, Terms()) == pytest.approx(8 * module.purchase.median * (factor - 1))


@given(st.floats(1.0, 1e7), st.integers(1, 4), st.sampled_from([RENTED, BOUGHT]))
def test_no_bill_is_below_its_bound(seconds: float, n: int, way: Acquisition) -> None:
    cluster = find_cluster(f"{n}xrtx-3090") if n != 3 else find_cluster("2xrtx-3090")
    n = cluster.n_accelerators
    paid = bill(way, cluster, Estimate(seconds, seconds, seconds, "derived"), Terms())
    assert paid.cost_usd.expected >= least_bill_usd(way, n, seconds, Terms()) * (1 - 1e-9)


@given(st.floats(1.0, 1e6), st.floats(1.0, 2.0))
def test_a_notebooks_calendar_is_never_shorter_than_its_work(seconds: float, factor: float) -> None:
    plan = next(p for p in notebooks() if p.provider == "kaggle" and p.accelerator_id == "t4")
    way, cluster = Acquisition(accelerators()["t4"], "notebook", notebook=plan), find_cluster("2xt4")
    one = bill(way, cluster, Estimate(seconds, seconds, seconds, "derived"), Terms()).calendar_s.expected
    more = bill(way, cluster, Estimate(*[seconds * factor] * 3, "derived"), Terms()).calendar_s.expected
    assert seconds <= one <= more
    hours = plan.hours_per_week or 168.0
    assert one <= seconds + 168 * 3600 * seconds / (hours * 3600)


def test_a_chip_is_bought_with_the_memory_it_is_sold_with() -> None:
    chip, today = accelerators()["apple-m2-ultra"], datetime.date(2026, 11, 21)
    bought = [w for w in ways(Limits(ways=("buy",)), today) if w.accelerator.id in (chip.id, CARD.id)]
    sold = min((w.accelerator for w in bought if w.accelerator.id == chip.id), key=lambda a: a.memory_bytes)
    assert sold.memory_bytes < chip.memory_bytes and "GB" in sold.name and sold.id == chip.id
    way = Acquisition(sold, "buy", "new", purchase=typical_purchase_usd("apple-m2-ultra"))
    there = placed(way, find_cluster("apple-m2-ultra"), None)
    assert there.accelerator.memory_bytes == sold.memory_bytes
    assert [w.accelerator for w in bought if w.accelerator.id == CARD.id and w.condition == "used"] == [CARD]


def test_the_machine_one_has_sets_memory_and_pcie() -> None:
    cluster = find_cluster("rtx-3090")
    there = placed(BOUGHT, cluster, parse_have("32GB RAM, PCIe 3.0 x8"))
    assert there.system.host_memory_bytes == pytest.approx(32e9)
    assert there.accelerator.pcie_bytes_per_s == pytest.approx(15.754e9 / 2)
    assert placed(RENTED, cluster, parse_have("32GB RAM")) is cluster
