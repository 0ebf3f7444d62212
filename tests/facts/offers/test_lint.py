import datetime
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.offers.lint import clean_offers, lint_offers
from gpuwise.facts.offers.offer import Offer, offers

TODAY = datetime.date(2026, 11, 21)
GOOD = Offer("me", "here", "box", "h100-sxm-80gb", 8, 3.0, 1.5, 1.8, datetime.date(2026, 10, 1), "list", "bill", "market")


def market(accelerator="h100-sxm-80gb", price=3.0, providers=4):
    return [
        replace(
            GOOD,
            provider=f"other{n}",
            accelerator_id=accelerator,
            on_demand_usd_per_hour=price * (1 + 0.02 * n),
            spot_usd_per_hour=None,
            reserved_usd_per_hour=None,
            spot_kind="",
            count=1,
            instance="",
        )
        for n in range(providers)
    ]


def rules(*found, **options):
    return {(f.rule, f.severity, f.part) for f in lint_offers(list(found), **options)}


def test_the_shipped_table_has_nothing_to_refuse():
    findings = lint_offers(offers(), today=TODAY)
    assert [f for f in findings if f.severity == "refuse"] == []
    kept, _ = clean_offers(offers(), today=TODAY)
    assert kept == offers()


def test_a_good_offer_passes_alone_and_in_a_market():
    assert rules(GOOD, today=TODAY) == set()
    assert rules(GOOD, *market(), today=TODAY) == set()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"on_demand_usd_per_hour": 700.0}, ("placeholder", "refuse", "on_demand")),
        ({"spot_usd_per_hour": 0.0}, ("spot-not-positive", "refuse", "spot")),
        ({"spot_usd_per_hour": 3.0}, ("spot-equals-on-demand", "refuse", "spot")),
        ({"spot_usd_per_hour": 3.1}, ("spot-above-on-demand", "refuse", "spot")),
        ({"reserved_usd_per_hour": 3.1}, ("reserved-above-on-demand", "refuse", "reserved")),
        ({"reserved_3y_usd_per_hour": 4.0}, ("reserved-above-on-demand", "refuse", "reserved")),
        ({"count": 12}, ("count", "refuse", "offer")),
        ({"count": 3}, ("count", "refuse", "offer")),
        ({"instance": "Standard_ND96isr_H100_v5", "count": 4}, ("count", "refuse", "offer")),
        ({"on_demand_usd_per_hour": 25.0, "spot_usd_per_hour": None}, ("outlier", "refuse", "on_demand")),
        ({"on_demand_usd_per_hour": 24.0, "spot_usd_per_hour": None}, ("per-instance", "refuse", "on_demand")),
        ({"on_demand_usd_per_hour": 0.3, "spot_usd_per_hour": 0.1}, ("outlier", "refuse", "on_demand")),
        ({"instance": "8xA100-80G"}, ("another-accelerator", "refuse", "offer")),
        ({"instance": "gpu_1x_gh200"}, ("another-accelerator", "refuse", "offer")),
        ({"accelerator_id": "h100"}, ("unknown-accelerator", "refuse", "offer")),
        ({"as_of": datetime.date(2027, 1, 1)}, ("date-to-come", "refuse", "offer")),
    ],
)
def test_each_rule_finds_the_row_that_breaks_it(change, expected):
    bad = replace(GOOD, **change)
    findings = lint_offers([*market(), bad], today=TODAY)
    assert expected in {(f.rule, f.severity, f.part) for f in findings if f.offer is bad}
    assert all(f.offer is bad for f in findings)
    assert all(f.message for f in findings)


@pytest.mark.parametrize(
    ("accelerator", "instance", "count"),
    [
        ("h100-sxm-80gb", "p5.48xlarge", 8),
        ("h100-sxm-80gb", "", 4),
        ("h100-sxm-80gb", "", 16),
        ("h100-sxm-80gb", "Standard_ND96isr_H100_v5", 8),
        ("h100-sxm-80gb", "1H100.80S.30V", 1),
        ("a100-sxm-40gb", "a2-megagpu-16g", 16),
        ("a100-pcie-80gb", "Standard_NC24ads_A100_v4", 1),
        ("inferentia2", "inf2.48xlarge", 12),
        ("trainium1", "trn1.32xlarge", 16),
        ("l40s", "", 3),
        ("rtx-4090", "RTX 4090", 6),
        ("l4", "g2-standard-4", 1),
    ],
)
def test_true_names_and_counts_pass(accelerator, instance, count):
    offer = replace(GOOD, accelerator_id=accelerator, instance=instance, count=count)
    assert rules(offer, today=TODAY) == set()


def test_one_price_for_many_products_is_a_placeholder():
    same = [
        replace(
            GOOD,
            accelerator_id=name,
            count=8,
            on_demand_usd_per_hour=1.0,
            spot_usd_per_hour=None,
            spot_kind="",
            reserved_usd_per_hour=None,
        )
        for name in ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm")
    ]
    assert {("placeholder", "refuse", "on_demand")} == rules(*same)
    assert rules(*same[:2]) == set()
    other = [replace(offer, on_demand_usd_per_hour=1.37) for offer in same]
    assert rules(*other) == set()


def test_a_fixed_share_is_a_policy_and_a_market_is_not():
    names = ("t4", "l4", "l40s", "a100-sxm-80gb", "h100-sxm-80gb")
    fixed = [
        replace(
            GOOD, accelerator_id=name, count=1, on_demand_usd_per_hour=p, spot_usd_per_hour=0.35 * p, reserved_usd_per_hour=None
        )
        for name, p in zip(names, (0.4, 0.7, 0.9, 1.3, 2.3), strict=True)
    ]
    assert rules(*fixed) == {("spot-is-policy", "mark", "spot")}
    kept, _ = clean_offers(fixed)
    assert {o.spot_kind for o in kept} == {"policy"}
    assert rules(*kept) == set()
    assert rules(*fixed[:3]) == set()
    moved = [*fixed[:-1], replace(fixed[-1], spot_usd_per_hour=1.4)]
    assert rules(*moved) == set()


def test_price_of_the_instance_beside_the_price_of_one():
    one = replace(GOOD, count=1, on_demand_usd_per_hour=2.35, spot_usd_per_hour=None, spot_kind="", reserved_usd_per_hour=None)
    two = replace(one, count=2, on_demand_usd_per_hour=4.7)
    (finding,) = lint_offers([one, two])
    assert (finding.rule, finding.offer, finding.severity) == ("per-instance", two, "refuse")
    assert rules(one, replace(two, on_demand_usd_per_hour=2.35)) == set()


def test_the_same_thing_at_two_prices():
    again = replace(GOOD, on_demand_usd_per_hour=3.2)
    assert rules(GOOD, again) == {("two-prices", "refuse", "offer")}
    assert rules(GOOD, replace(again, as_of=datetime.date(2026, 10, 2))) == set()
    hosts = [replace(offer, kind="marketplace") for offer in (GOOD, again)]
    assert rules(*hosts) == {("two-prices", "mark", "offer")}
    assert rules(GOOD, replace(GOOD)) == {("repeated", "mark", "offer")}


def test_a_marketplace_host_may_rent_out_part_of_a_board():
    part = replace(GOOD, kind="marketplace", count=3)
    assert rules(part) == {("count", "mark", "offer")}
    assert clean_offers([part])[0] == (part,)


def test_the_spread_between_clouds_is_no_outlier():
    azure = replace(GOOD, provider="azure", on_demand_usd_per_hour=12.29)
    vast = replace(
        GOOD, provider="vast", on_demand_usd_per_hour=1.74, spot_usd_per_hour=None, spot_kind="", reserved_usd_per_hour=None
    )
    assert rules(azure, vast, *market()) == set()


def test_too_few_providers_judge_nobody():
    dear = replace(GOOD, on_demand_usd_per_hour=40.0)
    assert rules(dear, *market(providers=2)) == set()
    assert ("outlier", "refuse", "on_demand") in rules(dear, *market(providers=3))


def test_cleaning_takes_off_what_is_wrong_and_keeps_the_rest():
    spot = replace(GOOD, spot_usd_per_hour=3.0)
    reserved = replace(GOOD, region="b", reserved_usd_per_hour=3.5)
    dear = replace(GOOD, region="c", on_demand_usd_per_hour=700.0)
    kept, findings = clean_offers([spot, reserved, dear])
    assert len(findings) == 3
    assert kept == (
        replace(spot, spot_usd_per_hour=None, spot_kind=""),
        replace(reserved, reserved_usd_per_hour=None),
    )


prices = st.one_of(st.floats(0.01, 2000), st.sampled_from([0.0, 1.0, 700.0, 3.0]))
rows = st.builds(
    lambda provider, name, count, price, spot, kind: replace(
        GOOD,
        provider=provider,
        accelerator_id=name,
        count=count,
        on_demand_usd_per_hour=price,
        spot_usd_per_hour=spot,
        spot_kind="" if spot is None else "market",
        reserved_usd_per_hour=None,
        kind=kind,
        instance="",
    ),
    st.sampled_from("abcde"),
    st.sampled_from(["h100-sxm-80gb", "l4", "t4", "rtx-4090", "b200-sxm"]),
    st.integers(1, 16),
    prices,
    st.none() | prices,
    st.sampled_from(["list", "marketplace"]),
)


@given(st.lists(rows, max_size=12))
def test_what_is_kept_is_always_a_price(table):
    kept, findings = clean_offers(table, today=TODAY)
    assert len(kept) <= len(table)
    assert {f.severity for f in findings} <= {"refuse", "mark"}
    for offer in kept:
        assert 0 < offer.on_demand_usd_per_hour < 100
        assert math.isfinite(offer.on_demand_usd_per_hour)
        spot = offer.spot_usd_per_hour
        assert spot is None or 0 < spot < offer.on_demand_usd_per_hour
        assert (spot is None) == (offer.spot_kind == "")
