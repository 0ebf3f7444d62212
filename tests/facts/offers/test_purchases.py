import datetime
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import DataError, FieldError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.systems import systems
from gpuwise.facts.loading import shipped_text
from gpuwise.facts.offers import purchases as module
from gpuwise.facts.offers.purchases import (
    RECENT_DAYS,
    parse_purchases,
    purchases,
    purchases_for,
    system_purchases,
    typical_purchase_usd,
)
from gpuwise.facts.sources import sources

HEADER = "accelerator,system,product,condition,low_usd,usd,high_usd,count,region,as_of,kind,source\n"
ROW = "rtx-4090,,,used,1500,1700,2000,1,US,2026-01-31,street,shop\n"
RANGE = "h100-sxm-80gb,dgx-h100,node,new,200000,,288000,8,US,2026-01-31,report,paper\n"


def test_the_table_covers_new_and_used_accelerators_and_machines():
    alone = [one for one in purchases() if not one.system_id]
    assert len({one.accelerator_id for one in alone if one.condition == "new"}) >= 60
    assert len({one.accelerator_id for one in alone if one.condition == "used"}) >= 25
    assert {"dgx-h100", "dgx-b200", "gb200-nvl72"} <= {one.system_id for one in purchases()}
    for name in ("p40", "p100-pcie-16gb", "v100-sxm-16gb", "rtx-3060-12gb", "rtx-3090", "rtx-4090", "a100-sxm-80gb", "mi50-16gb"):
        assert purchases_for(name, "used")


def test_every_price_is_dated_sourced_and_in_order():
    for one in purchases():
        assert datetime.date(2016, 1, 1) <= one.as_of <= datetime.date(2026, 11, 21)
        assert 10 < one.low_usd <= one.usd <= one.high_usd
        assert one.source_key in sources()
        assert one.accelerator_id in accelerators()
        if one.system_id:
            system = systems()[one.system_id]
            assert one.count in (system.count, system.domain_size)
        assert one.usd_per_accelerator * one.count == pytest.approx(one.usd)


def test_lookups_split_alone_from_machines_and_sort_by_price():
    for name in accelerators():
        alone, inside = purchases_for(name), system_purchases(name)
        assert all(not one.system_id for one in alone) and all(one.system_id for one in inside)
        prices = [one.usd_per_accelerator for one in alone]
        assert prices == sorted(prices)
        assert set(purchases_for(name, "new")) | set(purchases_for(name, "used")) == set(alone)
    assert [one.system_id for one in system_purchases("b200-sxm")] == ["dgx-b200"]
    assert system_purchases("b200-sxm", "used") == ()


def test_used_h100_and_a100_lie_in_the_reported_ranges():
    h100, a100 = typical_purchase_usd("h100-sxm-80gb", "used"), typical_purchase_usd("a100-sxm-80gb", "used")
    assert (h100.low, h100.high) == (15_000, 28_000)
    assert (a100.low, a100.high) == (4_000, 18_000)
    assert h100.low < h100.median < h100.high and a100.low < a100.median < a100.high
    assert typical_purchase_usd("p40", "used").median < 350 < typical_purchase_usd("p40").median


@pytest.mark.parametrize("condition", ["new", "used"])
def test_a_typical_price_rests_on_recent_observations_only(condition):
    for name in {one.accelerator_id for one in purchases_for_all(condition)}:
        seen = purchases_for(name, condition)
        newest = max(one.as_of for one in seen)
        found = typical_purchase_usd(name, condition)
        assert found.as_of is not None and (newest - found.as_of).days <= RECENT_DAYS
        assert min(one.low_usd / one.count for one in seen) <= found.low <= found.median <= found.high
        assert 1 <= found.observations <= len(seen)


def purchases_for_all(condition):
    return [one for one in purchases() if one.condition == condition and not one.system_id]


def test_a_newer_list_price_supersedes_the_older_one():
    spark = typical_purchase_usd("gb10")
    assert (spark.low, spark.median, spark.high, spark.kind) == (4699, 4699, 4699, "list")
    assert spark.as_of == datetime.date(2026, 2, 1)
    assert len(purchases_for("gb10")) == 2


def test_the_median_is_over_observations(monkeypatch):
    rows = [ROW.replace("1700", str(price)).replace("2000", "2900") for price in (1600, 1700, 2800)]
    listed = parse_purchases(HEADER + "".join(rows), "p.csv")
    monkeypatch.setattr(module, "_by_accelerator", lambda: {"rtx-4090": listed})
    found = typical_purchase_usd("rtx-4090", "used")
    assert (found.low, found.median, found.high) == (1500, statistics.median([1600, 1700, 2800]), 2900)
    monkeypatch.setattr(module, "_by_accelerator", lambda: {"rtx-4090": listed[:2]})
    assert typical_purchase_usd("rtx-4090", "used").median == 1650


def test_without_an_observation_the_catalogue_price_is_used_and_said(monkeypatch):
    monkeypatch.setattr(module, "_by_accelerator", dict)
    found = typical_purchase_usd("rtx-4090")
    assert (found.median, found.as_of, found.kind, found.observations) == (1599, None, "launch", 0)
    with pytest.raises(UnpredictableError, match="no used purchase price") as caught:
        typical_purchase_usd("rtx-4090", "used")
    assert caught.value.hint
    with pytest.raises(UnpredictableError):
        typical_purchase_usd("no-such-card")


def test_a_range_without_a_figure_gets_its_geometric_middle():
    (one,) = parse_purchases(HEADER + RANGE, "p.csv")
    assert one.usd == pytest.approx(240_000)
    assert (one.low_usd, one.high_usd, one.usd_per_accelerator) == (200_000, 288_000, pytest.approx(30_000))
    (exact,) = parse_purchases(HEADER + ROW.replace("1500,1700,2000", ",1700,"), "p.csv")
    assert exact.low_usd == exact.usd == exact.high_usd == 1700
    assert exact.age_days(datetime.date(2026, 3, 2)) == 30


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("rtx-4090", "rtx-4900", "accelerator"),
        ("rtx-4090,,", "rtx-4090,dgx-9000,", "system"),
        ("used", "worn", "condition"),
        ("1700", "0", "usd"),
        ("1700", "nan", "usd"),
        ("1700", "-5", "usd"),
        ("1700", "99999999999", "usd"),
        ("1700", "2100", "usd"),
        ("1700", "1400", "usd"),
        ("1500,1700,2000", ",,", "usd"),
        ("1500,1700,2000", "1500,1700,", "high_usd"),
        ("1500,1700,2000", ",1700,2000", "low_usd"),
        (",1,US", ",0,US", "count"),
        ("US", "", "region"),
        ("2026-01-31", "31.01.2026", "as_of"),
        ("street", "gossip", "kind"),
    ],
)
def test_bad_prices_are_refused_with_file_line_and_hint(old, new, field):
    with pytest.raises(FieldError) as caught:
        parse_purchases(HEADER + ROW.replace(old, new, 1), "p.csv")
    assert (caught.value.file, caught.value.line, caught.value.field) == ("p.csv", 2, field)
    assert caught.value.hint


def test_a_flipped_digit_in_the_shipped_file_is_noticed(monkeypatch):
    text = shipped_text("purchases.csv").replace("1599", "1598", 1)
    monkeypatch.setattr(module, "shipped_text", lambda _name: text)
    with pytest.raises(DataError, match="checksum"):
        module.purchases.__wrapped__()


@given(st.floats(1, 1e6), st.floats(1, 10), st.integers(1, 100))
def test_the_middle_always_lies_in_the_range(low, ratio, count):
    high = low * ratio
    row = f"h100-sxm-80gb,,,used,{low:.6f},,{high:.6f},{count},US,2026-01-31,report,paper\n"
    (one,) = parse_purchases(HEADER + row, "p.csv")
    assert one.low_usd <= one.usd <= one.high_usd
