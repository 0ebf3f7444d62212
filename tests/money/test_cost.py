from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.offers.offer import offers_for
from gpuwise.money.cost import (
    STALE_DAYS,
    price_of,
    provider_price,
    rent,
    typical_price,
    user_price,
    variant_price,
)
from gpuwise.predict.estimate import Estimate
from gpuwise.units import HOUR_S

NODE = find_cluster("8xH100-SXM")
TODAY = datetime.date(2026, 11, 21)


def test_the_typical_price_is_the_median_over_providers() -> None:
    price = typical_price(NODE, TODAY)
    assert price.low <= price.expected <= price.high
    assert price.n_providers == len({o.provider for o in offers_for("h100-sxm-80gb")})
    assert price.as_of is not None and price.oldest is not None and price.oldest <= price.as_of
    assert price.age_days == (TODAY - price.as_of).days


def test_a_price_goes_stale() -> None:
    price = typical_price(NODE, TODAY)
    assert price.as_of is not None
    assert not typical_price(NODE, price.as_of + datetime.timedelta(days=STALE_DAYS)).stale
    assert typical_price(NODE, price.as_of + datetime.timedelta(days=STALE_DAYS + 1)).stale


def test_a_providers_price_is_its_cheapest() -> None:
    price = provider_price(NODE, "AWS", TODAY)
    assert price.expected == min(o.on_demand_usd_per_hour for o in offers_for("h100-sxm-80gb") if o.provider == "aws")


def test_unknown_providers_list_those_that_offer_it() -> None:
    with pytest.raises(UnknownNameError) as caught:
        provider_price(NODE, "nobody", TODAY)
    assert caught.value.hint and "lambda" in caught.value.hint


def test_nobody_rents_it_is_no_price() -> None:
    assert price_of(find_cluster("apple-m2-ultra"), TODAY) is None


def test_what_nobody_rents_out_costs_what_its_chip_does() -> None:
    """H800 is an H100 SXM with slower links."""
    found, sold = variant_price(find_cluster("8xH800-SXM"), TODAY), price_of(find_cluster("8xH100-SXM"), TODAY)
    assert found is not None and sold is not None
    assert (found.low, found.expected, found.high) == (sold.low, sold.expected, sold.high)
    assert found.origin == "like" and found.basis == "derived" and "H800" in found.provider
    assert variant_price(find_cluster("apple-m2-ultra"), TODAY) is None


@pytest.mark.parametrize("usd", [0.0, -1.0, math.nan, math.inf])
def test_a_price_must_be_positive(usd: float) -> None:
    with pytest.raises(InputError):
        user_price(usd)


@given(hours=st.floats(1e-3, 1e5), n=st.integers(1, 10_000), usd=st.floats(0.01, 100))
def test_rent_is_time_times_price(hours: float, n: int, usd: float) -> None:
    time_s = Estimate.from_log_sigma(hours * 3600, 0.1, "fitted")
    cost = rent(time_s, n, user_price(usd))
    assert cost.expected == pytest.approx(hours * n * usd)
    assert cost.high / cost.expected == pytest.approx(time_s.high / time_s.expected)
    assert cost.basis == "specified"


@pytest.mark.parametrize(
    ("name", "provider", "count"),
    [
        ("p4d.24xlarge", "aws", 8),
        ("p4d", "aws", 8),
        ("g5.12xlarge", "aws", 4),
        ("nd96isr_h100_v5", "azure", 8),
        ("2xa2-highgpu-4g", "gcp", 8),
    ],
)
def test_an_instance_type_takes_its_providers_price(name: str, provider: str, count: int) -> None:
    cluster = find_cluster(name)
    price = price_of(cluster, TODAY)
    assert price is not None and cluster.n_accelerators == count and price.provider.startswith(provider)
    assert price.per_hour.low == price.per_hour.high
    usual = price_of(find_cluster(f"8x{cluster.accelerator.id}"), TODAY)
    assert usual is not None and usual.provider != price.provider
    assert price_of(cluster, TODAY, usd_per_hour=2.5) == user_price(2.5)


def test_the_interval_of_a_cost_spans_the_providers_where_none_is_named() -> None:
    cluster, hour = find_cluster("8xH100-SXM"), Estimate(HOUR_S, HOUR_S, HOUR_S, "fitted")
    price = price_of(cluster, TODAY)
    assert price is not None
    cost = rent(hour, 8, price)
    assert (cost.low, cost.high) == pytest.approx((8 * price.low, 8 * price.high))
