"""What puts one way before another, beside time and money."""

from __future__ import annotations

import datetime
import math

import pytest
from tests.pick.scenarios import TODAY, chat_70b, finetune_8b, picked

from gpuwise.facts.hardware.accelerators import product_of
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.offers.levels import ONE_PROVIDER_SIGMA, level_usd_per_hour
from gpuwise.facts.offers.offer import current_by_provider
from gpuwise.facts.offers.purchases import aged, purchases_for, typical_purchase_usd
from gpuwise.interval import Z80
from gpuwise.pick.api import pick
from gpuwise.pick.candidates import Acquisition, counts_for, ways
from gpuwise.pick.jobs import serving_job, training_job
from gpuwise.pick.limits import Limits, balance, parse_have
from gpuwise.pick.outcomes import CLUSTER_LEAST_S, UNMEASURED, friction, level, on_offer
from gpuwise.pick.owning import counted_usd
from gpuwise.pick.ranking import key_of
from gpuwise.units import HOUR_S

OWN = Limits(ways=("buy",))
LITTLE = Limits(budget_usd=3.0, ways=("rent",))


def bought(name: str, condition: str = "used") -> Acquisition:
    return next(w for w in ways(OWN, TODAY) if w.accelerator.id == name and w.condition == condition)


def test_more_memory_of_the_same_speed_never_ranks_lower() -> None:
    """The 16 GB card of a pair that differs in nothing else holds wider weights: that is a bonus, not another job."""
    job, limits = serving_job(find_model("llama-3.1-8b")), Limits(ways=("rent",))
    found = {o.way.accelerator.id: o for o in picked(job, limits, 100).ranked}
    small, large = found["rtx-4060-ti-8gb"], found["rtx-4060-ti-16gb"]
    assert small.tokens_per_s.expected == pytest.approx(large.tokens_per_s.expected, rel=0.05)
    assert large.wider and not small.wider
    assert large.at_worst("time") < small.at_worst("time")


def test_a_card_of_the_data_sheet_is_counted_at_its_worse_end() -> None:
    for o in picked(chat_70b(users=16), Limits(ways=("rent",))).ranked:
        if o.time_s.basis in UNMEASURED:
            assert o.tokens_per_s.low >= 5.3
            assert o.at_worst("cost") >= o.cost_usd.expected * o.time_s.high / o.time_s.expected


def test_an_old_price_is_less_sure_and_comes_after_todays() -> None:
    fresh = typical_purchase_usd("rtx-3090", "used")
    old = fresh._replace(as_of=TODAY - datetime.timedelta(days=1000))
    assert aged(old, TODAY).high > aged(fresh, TODAY).high > fresh.median
    assert aged(old, TODAY).low <= fresh.low and aged(old, TODAY).median == fresh.median
    assert aged(fresh._replace(as_of=None), TODAY) == fresh._replace(as_of=None)
    stale = bought("rtx-2070")
    assert stale.stale and level(0, stale, 1, "infer") > level(0, bought("rtx-3060-12gb"), 1, "infer")


def test_what_is_no_longer_made_has_no_new_price() -> None:
    new = {w.accelerator.id for w in ways(OWN, TODAY) if w.condition == "new"}
    assert not new & {"p40", "v100-pcie-32gb", "titan-v", "a100-pcie-80gb"}
    assert {"rtx-5090", "rtx-5060-ti-16gb"} <= new
    assert not any(w.accelerator.id == "v100-sxm-16gb" for w in ways(OWN, TODAY) if w.purchase is not None)


def test_a_chip_is_sold_with_several_memories() -> None:
    sold = [w for w in ways(OWN, TODAY) if w.accelerator.id == "apple-m2-ultra" and w.purchase is not None]
    assert len({w.key for w in sold}) == len(sold)
    for name in ("apple-m3-ultra-60c", "gb10", "ryzen-ai-max-395"):
        sizes = {p.product for p in purchases_for(name)}
        assert sizes and all("GB" in product for product in sizes)


def test_a_chip_is_bought_in_the_cheapest_machine_of_the_form_asked_for() -> None:
    def price(form: str | None) -> float:
        limits = Limits(ways=("buy",), form=form)
        return min(w.purchase.median for w in ways(limits, TODAY) if w.accelerator.id == "apple-m4-max-40c" and w.purchase)

    sold = {p.product: p.usd_per_accelerator for p in purchases_for("apple-m4-max-40c")}
    assert price("laptop") == sold["MacBook Pro 16 128 GB"] > price("mini") == price(None) == sold["Mac Studio 128 GB"]


def test_counts_of_three_and_six_are_those_of_cards() -> None:
    assert {3, 6} <= set(counts_for(bought("rtx-3090"), OWN))
    rented = {w.accelerator.id: w for w in ways(Limits(ways=("rent",)), TODAY)}
    assert 3 in counts_for(rented["rtx-4090"], OWN) and 3 not in counts_for(rented["h100-sxm-80gb"], OWN)


def test_software_counts_half_again_and_several_radeons_come_after_one() -> None:
    card, radeon = bought("rtx-3090"), bought("rx-7900-xtx", "new")
    assert friction(card) == 1.0 and friction(radeon) == pytest.approx(1.5)
    assert friction(card, 4) > friction(card, 2) > 1.0
    assert level(0, radeon, 2, "infer") > level(0, radeon, 1, "infer") == level(0, card, 1, "infer")
    assert level(0, radeon, 1, "learn") > level(0, card, 1, "learn")
    assert level(0, radeon, 2, "infer") > level(1, card, 2, "infer")  # fewer bits on CUDA before more where it is served in part


def test_a_price_of_one_provider_is_no_market() -> None:
    rented = {w.accelerator.id: w for w in ways(Limits(ways=("rent",)), TODAY)}
    alone = [w for w in rented.values() if w.rent is not None and w.rent.n_providers == 1]
    many = [w for w in rented.values() if w.rent is not None and w.rent.n_providers > 9]
    assert alone and many and min(w.market for w in rented.values() if w.rent is not None) > 1.0
    assert min(w.market for w in alone) > 1.2 > 1.1 > max(w.market for w in many)


def test_what_a_cheap_marketplace_alone_offers_is_counted_as_others_would_ask() -> None:
    """vast rents out a 5070 Ti as nobody else does, and everything else for two thirds of what others take."""
    levels = level_usd_per_hour(TODAY)
    (only,) = current_by_provider("rtx-5070-ti", TODAY).values()
    assert only.provider == "vast" and levels["rtx-5070-ti"] > 1.3 * only.on_demand_usd_per_hour
    (dear,) = current_by_provider("a10g", TODAY).values()
    assert dear.provider == "aws" and levels["a10g"] < dear.on_demand_usd_per_hour
    way = next(w for w in ways(Limits(ways=("rent",)), TODAY) if w.accelerator.id == "a10g")
    assert way.market == pytest.approx(math.exp(Z80 * ONE_PROVIDER_SIGMA)), "and is not to be had for less"


@pytest.mark.thorough
def test_minutes_of_rented_hardware_are_not_waited_for() -> None:
    """Five minutes on what costs six dollars an hour are no better than forty on what costs a third of one."""
    found = picked(training_job(find_model("qwen2.5-7b"), purpose="finetune", tokens=2e6, method="qlora"), LITTLE).ranked
    brief = [o for o in found if o.at_worst("time") < HOUR_S and o.level == found[0].level]
    assert len(brief) > 1
    assert [counted_usd(o.way, o.bill) for o in brief] == sorted(counted_usd(o.way, o.bill) for o in brief)


def test_single_superchips_are_no_cluster() -> None:
    rented = {w.accelerator.id: w for w in ways(Limits(ways=("rent",)), TODAY)}
    assert on_offer(rented["gh200-96gb"], 1) and not on_offer(rented["gh200-96gb"], 32)
    assert on_offer(rented["h100-sxm-80gb"], 64)


@pytest.mark.thorough
def test_the_balance_stands_where_the_curve_bends() -> None:
    limits = Limits(budget_usd=1000)
    assert balance(10.0, 200.0, limits) > balance(5.0, 800.0, limits), "twice as fast is worth the set-aside money"
    assert balance(10.0, 200.0, limits) < balance(9.5, 1000.0, limits), "the last dollar for a twentieth is not"
    p = picked(finetune_8b(), Limits(budget_usd=2000, ways=("buy",)))
    keys = [key_of(o, p.limits) for o in p.ranked]
    assert p.limits.objective == "balance" and keys == sorted(keys)


def test_beaten_even_at_its_best_is_said_only_when_that_is_why() -> None:
    p = picked(finetune_8b(), Limits(budget_usd=2000, ways=("buy",)))
    shown = [key_of(o, p.limits) for o in p.ranked]
    codes = {out.code for out in p.ranking.left_out}
    assert {"beaten", "behind"} & codes
    for out in p.ranking.left_out:
        assert ("even at its best" in out.why) == (out.code == "beaten")
        if out.code == "beaten":
            assert out.short >= shown[0][1] or out.way.purchase is None


@pytest.mark.thorough
def test_over_budget_names_the_lowest_listing() -> None:
    p = picked(finetune_8b(), Limits(budget_usd=600, ways=("buy",)))
    whys = [out.why for out in p.ranking.left_out if out.code == "budget"]
    assert any("lowest price" in why for why in whys) and not any("at least" in why for why in whys)


def test_a_machine_that_takes_cards_takes_no_mac() -> None:
    p = picked(chat_70b(), Limits(ways=("buy",), have=parse_have("2 slots"), max_watts=300))
    assert p.ranked and all(o.way.accelerator.form == "PCIe" for o in p.ranked)


@pytest.mark.thorough
def test_nobody_rents_a_cluster_for_an_hour() -> None:
    """A job that one system does is not sent to 64 of them for minutes, however well that does on paper."""
    job = training_job(find_model("llama-3.1-8b"), tokens=15e9)
    best = picked(job, Limits(ways=("rent",), budget_usd=5000.0)).ranked
    assert not best[0].brief and [o.brief for o in best] == sorted(o.brief for o in best)
    assert best[0].cluster.n_systems == 1 or best[0].time_s.expected >= CLUSTER_LEAST_S


def test_a_notebook_served_from_all_year_is_paid_every_month() -> None:
    """Its hours of a month suffice, so that all its hours would fit into fewer months; nobody uses it so."""
    rows = picked(serving_job(find_model("llama-3.1-8b")), Limits(ways=("notebook",)), 100).ranked
    paid = [(o, o.way.notebook) for o in rows if o.way.notebook is not None and o.way.notebook.usd_per_month > 0]
    assert paid
    for o, plan in paid:
        assert o.cost_usd.expected == o.bill.outlay_usd == pytest.approx(12 * plan.usd_per_month)


@pytest.mark.thorough
def test_boards_of_one_product_take_one_place() -> None:
    p = pick(serving_job(find_model("gpt-oss-120b"), users=20), Limits(ways=("rent",)), today=TODAY)
    products = [product_of(o.way.accelerator.id) for o in p.ranked]
    assert len(products) == len(set(products))
    assert product_of("a800-pcie-80gb") == product_of("a100-sxm-80gb") != product_of("a100-sxm-40gb")
    assert product_of("l40s") != product_of("l40")
    for out in p.ranking.left_out:
        if out.code == "variant":
            assert product_of(out.way.accelerator.id) in products
