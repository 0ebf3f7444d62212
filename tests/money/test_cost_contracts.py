"""A person's own contract is the price other commands reckon with, and it says so."""

from __future__ import annotations

import datetime
from pathlib import Path

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.offers.company_prices import parse_import
from gpuwise.facts.offers.store import save_offers
from gpuwise.money.cost import price_of, provider_price, typical_price

NODE = find_cluster("8xH100-SXM")
DAY = datetime.date(2026, 11, 21)


def sign(text: str) -> None:
    save_offers(parse_import(text, "c.csv", DAY, provider="acme").offers, "own-acme", DAY)


def test_a_contract_comes_before_the_market(home: Path) -> None:
    market = typical_price(NODE, DAY)
    sign("accelerator,price,region\nh100-sxm-80gb,2.2,a\nh100-sxm-80gb,2.4,b\n")
    price = price_of(NODE, DAY)
    assert price is not None
    assert (price.low, price.expected, price.high, price.origin) == (2.2, 2.2, 2.4, "contract")
    assert price.provider == "acme (your contract)" and price.as_dict()["origin"] == "contract"
    assert typical_price(NODE, DAY) == market


def test_a_given_price_or_provider_comes_before_the_contract(home: Path) -> None:
    sign("accelerator,price\nh100-sxm-80gb,2.2\n")
    given = price_of(NODE, DAY, usd_per_hour=1.0)
    named = price_of(NODE, DAY, provider="aws")
    mine = price_of(NODE, DAY, provider="ACME")
    assert given is not None and given.origin == "given"
    assert named is not None and (named.provider, named.origin) == ("aws", "provider")
    assert mine is not None and (mine.expected, mine.origin) == (2.2, "contract")


def test_an_expired_contract_is_no_price(home: Path) -> None:
    sign("accelerator,price,valid_to\nh100-sxm-80gb,2.2,2026-11-20\n")
    price = price_of(NODE, DAY)
    assert price is not None and price.origin == "market"
    before = price_of(NODE, DAY - datetime.timedelta(days=1))
    assert before is not None and before.origin == "contract"


def test_a_contract_that_holds_is_never_stale(home: Path) -> None:
    sign("accelerator,price,as_of\nh100-sxm-80gb,2.2,2024-01-01\n")
    price = price_of(NODE, DAY)
    assert price is not None and price.age_days is not None and price.age_days > 365 and not price.stale


def test_what_is_out_of_stock_is_last_at_its_provider(home: Path) -> None:
    sign(
        "accelerator,price,kind,in_stock,region\nh100-sxm-80gb,0.5,list,false,a\nh100-sxm-80gb,0.9,list,true,b\n"
        "h100-sxm-80gb,0.4,list,false,c\n"
    )
    assert provider_price(NODE, "acme", DAY).expected == 0.9
    assert typical_price(NODE, DAY).low == 0.9
