import datetime

import pytest

from gpuwise.errors import DataError, FieldError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.loading import shipped_text
from gpuwise.facts.offers import price_history as module
from gpuwise.facts.offers.price_history import MEDIAN, history_of, parse_price_history, price_history, series_of
from gpuwise.facts.sources import sources

HEADER = "month,accelerator,series,usd_h,kind,source\n"
ROW = "2026-01-01,l4,aws,0.8,list,bill\n"


def price(points, year, month):
    return next(p.usd_per_hour for p in points if p.month == datetime.date(year, month, 1))


def test_h100_fell_until_late_2025_and_rose_in_2026():
    points = history_of("h100-sxm-80gb")
    assert {p.series for p in points} == {MEDIAN} and len(points) >= 30
    fall = price(points, 2025, 10) / price(points, 2024, 1)
    assert fall ** (12 / 21) - 1 == pytest.approx(-0.27, abs=0.02)
    assert price(points, 2026, 8) / price(points, 2025, 10) - 1 == pytest.approx(0.39, abs=0.01)


@pytest.mark.parametrize(
    ("name", "months"),
    [("h100-sxm-80gb", 30), ("h200-sxm-141gb", 20), ("b200-sxm", 12), ("a100-sxm-80gb", 30), ("l4", 12), ("a100-sxm-40gb", 30)],
)
def test_the_longest_series(name, months):
    points = history_of(name)
    assert len(points) >= months
    assert points[-1].month >= datetime.date(2026, 7, 1)


def test_every_series_is_monthly_ordered_sourced_and_in_reason():
    assert {"h100-pcie-80gb", "a100-pcie-80gb", "rtx-4090", "v100-sxm-16gb", "t4"} <= set(price_history())
    for name, points in price_history().items():
        assert name in accelerators()
        for series in series_of(name):
            found = history_of(name, series)
            months = [p.month for p in found]
            assert months == sorted(set(months))
            assert len({p.kind for p in found}) == 1
            prices = [p.usd_per_hour for p in found]
            assert max(prices) / min(prices) < 5
        for point in points:
            assert point.month.day == 1
            assert datetime.date(2017, 1, 1) <= point.month <= datetime.date(2026, 11, 1)
            assert 0.05 < point.usd_per_hour < 20
            assert point.source_key in sources()


def test_the_market_comes_first_and_spot_last():
    assert series_of("h100-sxm-80gb")[0] == MEDIAN
    for name in price_history():
        spot = [history_of(name, series)[0].kind == "spot" for series in series_of(name)]
        assert spot == sorted(spot)
        assert not spot[0]


def test_spot_lies_below_the_list_price_of_the_same_month():
    listed = {p.month: p.usd_per_hour for p in history_of("h100-sxm-80gb", "gcp")}
    spot = {p.month: p.usd_per_hour for p in history_of("h100-sxm-80gb", "gcp-spot")}
    shared = set(listed) & set(spot)
    assert len(shared) >= 12
    assert all(spot[month] < listed[month] for month in shared)


def test_unknown_names_say_what_is_known():
    assert series_of("m40-24gb") == ()
    with pytest.raises(UnpredictableError, match="m40-24gb") as caught:
        history_of("m40-24gb")
    assert caught.value.hint
    with pytest.raises(UnpredictableError, match="'moon'") as caught:
        history_of("h100-sxm-80gb", "moon")
    assert caught.value.hint is not None and MEDIAN in caught.value.hint


def test_rows_are_sorted_by_month():
    later = ROW.replace("2026-01", "2025-12").replace("0.8", "0.9")
    points = parse_price_history(HEADER + ROW + later, "h.csv")["l4"]
    assert [p.usd_per_hour for p in points] == [0.9, 0.8]
    assert parse_price_history(HEADER, "h.csv") == {}


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("l4", "l44", "accelerator"),
        ("2026-01-01", "2026-01-15", "month"),
        ("2026-01-01", "2026-01", "month"),
        ("0.8", "0", "usd_h"),
        ("0.8", "inf", "usd_h"),
        ("0.8", "700", "usd_h"),
        ("list", "rumour", "kind"),
        ("aws", "", "series"),
    ],
)
def test_bad_points_are_refused_with_file_line_and_hint(old, new, field):
    with pytest.raises(FieldError) as caught:
        parse_price_history(HEADER + ROW.replace(old, new, 1), "h.csv")
    assert (caught.value.file, caught.value.line, caught.value.field) == ("h.csv", 2, field)
    assert caught.value.hint


def test_two_prices_for_one_month_and_series_are_refused():
    with pytest.raises(FieldError, match="two prices") as caught:
        parse_price_history(HEADER + ROW + ROW.replace("0.8", "0.9"), "h.csv")
    assert caught.value.line == 3
    assert len(parse_price_history(HEADER + ROW + ROW.replace("aws", "gcp"), "h.csv")["l4"]) == 2


def test_a_flipped_digit_in_the_shipped_file_is_noticed(monkeypatch):
    text = shipped_text("price_history.csv").replace("4.78", "4.79", 1)
    monkeypatch.setattr(module, "shipped_text", lambda _name: text)
    with pytest.raises(DataError, match="checksum"):
        module.price_history.__wrapped__()
