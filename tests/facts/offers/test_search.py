"""Which offers a few words mean, and what each costs for its work; how prices moved."""

from __future__ import annotations

import datetime
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import UnknownNameError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.offers.price_moves import moves
from gpuwise.facts.offers.search import (
    KINDS,
    ORDERS,
    OfferFilter,
    accelerators_of,
    offers_named,
    select,
    sort_offers,
)
from gpuwise.facts.offers.table import Offer

DAY = datetime.date(2026, 11, 21)


def offer(**changes: object) -> Offer:
    base = Offer("lambda", "us-east-1;us-west-2", "gpu_8x", "h100-sxm-80gb", 8, 3.0, 1.5, 2.0, DAY, "list", "x", "market")
    return replace(base, **changes)  # type: ignore[arg-type]


T4 = offer(
    accelerator_id="t4",
    provider="aws",
    count=1,
    on_demand_usd_per_hour=0.5,
    spot_usd_per_hour=None,
    reserved_usd_per_hour=None,
    region="eu-west-1",
    spot_kind="",
)
MI300X = offer(accelerator_id="mi300x", on_demand_usd_per_hour=2.5, in_stock=False)
LISTED = (offer(), T4, MI300X)


def test_words() -> None:
    assert offers_named("", LISTED) == LISTED
    assert offers_named("h100-sxm-80gb", LISTED) == (offer(),)
    assert offers_named("h100", LISTED) == (offer(),)
    assert offers_named("lambda amd", LISTED) == (MI300X,)
    assert offers_named("eu-west", LISTED) == (T4,)
    assert offers_named("apple-m2-ultra", LISTED) == ()
    with pytest.raises(UnknownNameError):
        offers_named("nonsense words", LISTED)
    assert "h100-pcie-80gb" in accelerators_of("h100") and accelerators_of("4090") == ("rtx-4090",)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (OfferFilter(), {"h100-sxm-80gb", "t4", "mi300x"}),
        (OfferFilter(kind="spot"), {"h100-sxm-80gb", "mi300x"}),
        (OfferFilter(kind="reserved", max_usd_per_hour=1.9), set()),
        (OfferFilter(provider="LAMB"), {"h100-sxm-80gb", "mi300x"}),
        (OfferFilter(region="us-west"), {"h100-sxm-80gb", "mi300x"}),
        (OfferFilter(count=1), {"t4"}),
        (OfferFilter(min_memory_bytes=100e9), {"mi300x"}),
        (OfferFilter(max_usd_per_hour=0.5), {"t4"}),
    ],
)
def test_filters(wanted: OfferFilter, found: set[str]) -> None:
    assert {row.accelerator.id for row in select(LISTED, wanted)} == found


def test_price_of_work() -> None:
    (h100,) = select([offer()], OfferFilter())
    a = accelerators()["h100-sxm-80gb"]
    assert h100.usd_per_pflop_hour == pytest.approx(3.0 / (a.peak("bf16") / 1e15)) == pytest.approx(3.033, rel=1e-3)
    assert h100.usd_per_gb_hour == pytest.approx(3.0 / (a.memory_bytes / 1e9))
    (t4,) = select([T4], OfferFilter())
    assert t4.usd_per_pflop_hour is None, "a T4 has no bf16"


def test_orders() -> None:
    rows = select(LISTED, OfferFilter())
    assert [r.accelerator.id for r in sort_offers(rows, "price", DAY)] == ["t4", "h100-sxm-80gb", "mi300x"], "no stock is last"
    assert next(r.accelerator.id for r in sort_offers(rows, "per-pflop", DAY)) == "h100-sxm-80gb"
    old = select([offer(as_of=datetime.date(2026, 1, 1)), offer(provider="new")], OfferFilter())
    assert sort_offers(old, "age", DAY)[0].offer.provider == "new"


@given(
    prices=st.lists(st.floats(0.01, 100), min_size=1, max_size=12),
    kind=st.sampled_from(KINDS),
    order=st.sampled_from(ORDERS),
    limit=st.floats(0.01, 100),
)
def test_a_search_only_drops_and_orders(prices: list[float], kind, order, limit: float) -> None:
    listed = [
        offer(on_demand_usd_per_hour=p, spot_usd_per_hour=p / 2, reserved_usd_per_hour=p / 3, region=str(i))
        for i, p in enumerate(prices)
    ]
    found = sort_offers(select(listed, OfferFilter(kind=kind, max_usd_per_hour=limit)), order, DAY)
    assert {r.offer for r in found} <= set(listed) and all(r.usd_per_hour <= limit for r in found)
    if order != "age":
        assert [r.usd_per_hour for r in found] == sorted(r.usd_per_hour for r in found)


def month(n: int) -> datetime.date:
    return datetime.date(2024 + n // 12, n % 12 + 1, 1)


def test_moves_go_both_ways() -> None:
    down, up = moves([(month(0), 4.0), (month(12), 3.0), (month(21), 2.0), (month(30), 3.0)])
    assert (down.start_usd, down.end_usd, down.months) == (4.0, 2.0, 21)
    assert down.share == -0.5 and down.share_a_year == pytest.approx(0.5 ** (12 / 21) - 1)
    assert up.share == 0.5 and up.share_a_year == pytest.approx(1.5 ** (12 / 9) - 1)


def test_a_short_move_is_not_restated_a_year() -> None:
    (move,) = moves([(month(0), 2.0), (month(2), 3.0)])
    assert move.share_a_year is None and moves([(month(0), 2.0)]) == ()


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=40))
def test_moves_span_the_series_without_gaps(prices: list[float]) -> None:
    found = moves([(month(i), p) for i, p in enumerate(prices)])
    assert found[0].start_usd == prices[0] and found[-1].end_usd == prices[-1]
    assert all(a.end == b.start and a.end_usd == b.start_usd for a, b in itertools.pairwise(found))
    ends = {usd for move in found for usd in (move.start_usd, move.end_usd)}
    assert min(prices) in ends and max(prices) in ends
