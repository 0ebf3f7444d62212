"""A company's own prices: read in any currency and unit, refused with file, line and hint."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import FieldError, InputError
from gpuwise.facts.offers.company_prices import TEMPLATE, import_offers, parse_import
from gpuwise.facts.offers.currency import HOURS_PER_MONTH, UNITS, Quote, parse_quote
from gpuwise.facts.offers.table import format_offers, parse_offers

DAY = datetime.date(2026, 11, 21)


def read(text: str, **more: object):
    return parse_import(text, "c.csv", DAY, **({"provider": "acme"} | more))


def test_the_least_a_file_must_hold() -> None:
    (offer,) = read("accelerator,price\nl4,0.5\n").offers
    assert (offer.provider, offer.accelerator_id, offer.count, offer.on_demand_usd_per_hour) == ("acme", "l4", 1, 0.5)
    assert (offer.kind, offer.as_of, offer.source_key) == ("contract", DAY, "c.csv")


def test_the_template_is_a_file_that_can_be_imported() -> None:
    found = parse_import(TEMPLATE, "template.csv", DAY)
    h100, l40s = found.offers
    assert h100.on_demand_usd_per_hour == pytest.approx(16.8 * 1.08 / 8) and l40s.on_demand_usd_per_hour == 0.92
    assert found.converted == ("EUR at 1.08 US dollars, per instance hour",)


def test_the_columns_of_the_shipped_table_are_taken_too() -> None:
    text = (
        "provider,region,instance,accelerator,count,on_demand_usd_h,spot_usd_h,spot_kind,reserved_usd_h,as_of,kind,source\n"
        "me,here,box,l4,1,0.5,0.2,market,0.3,2026-10-04,list,my-bill\n"
    )
    found = read(text)
    assert found.offers == parse_offers(text, "c.csv") and found.undated == 0
    assert read(format_offers(found.offers)).offers == found.offers


@pytest.mark.parametrize(
    ("unit", "amount"),
    [
        ("per_accelerator_hour", 2.0),
        ("per_instance_hour", 16.0),
        ("per_accelerator_month", 2.0 * 730),
        ("per_instance_month", 16.0 * 730),
    ],
)
def test_units(unit: str, amount: float) -> None:
    (offer,) = read(f"accelerator,count,price,unit\nh100-sxm-80gb,8,{amount},{unit}\n").offers
    assert offer.on_demand_usd_per_hour == pytest.approx(2.0) and HOURS_PER_MONTH == 730


def test_a_rate_for_the_file_and_one_in_the_row() -> None:
    text = "accelerator,price,reserved_price,currency,usd_per_unit,region\n"
    text += "l4,1,0.8,EUR,,a\nl4,1,,GBP,1.3,b\nl4,1,,,,c\nl4,1,,USD,1,d\n"
    found = read(text, usd_per_unit=1.1).offers
    assert [o.on_demand_usd_per_hour for o in found] == [1.1, 1.3, 1.0, 1.0]
    assert found[0].reserved_usd_per_hour == pytest.approx(0.88)


def test_dates() -> None:
    text = "accelerator,price,valid_from,valid_to\n"
    text += "l4,1,2026-01-01,2026-06-30\nl4,2,2026-07-01,\nt4,1,2027-01-01,\nt4,2,,2026-12-31\n"
    found = read(text)
    assert [o.on_demand_usd_per_hour for o in found.expired] == [1.0]
    assert [o.accelerator_id for o in found.to_come] == ["t4"]


def test_accelerators_by_name() -> None:
    assert read("accelerator,price\nRTX 4090,0.4\nA100_SXM,2\n").offers[0].accelerator_id == "rtx-4090"


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("", None, "is empty", "--template"),
        ("accelerator,price\n", None, "holds no prices", "--template"),
        ("accelerator,price\nl4,0\n", 2, "not above zero", ""),
        ("accelerator,price\nl4,-1\n", 2, "not above zero", ""),
        ("accelerator,price\nl4,nan\n", 2, "not a number", ""),
        ("accelerator,price\nl4,inf\n", 2, "not a number", ""),
        ("accelerator,price\nl4,1e999\n", 2, "not a finite number", ""),
        ("accelerator,price\nl4,$1\n", 2, "not a number", ""),
        ("accelerator,price\nl4,\n", 2, "price is empty", "above zero"),
        ('accelerator,price\nl4,"2,5"\n', 2, "not a number", "decimal point"),
        ("accelerator,price\nl4,2,5\n", 2, "3 cells", "decimal point"),
        ("accelerator;price\nl4;2\n", 1, "separated by semicolons", "commas"),
        ("# note\n\naccelerator\tprice\nl4\t2\n", 3, "separated by tabs", "commas"),
        ("accelerator,pirce\nl4,1\n", 1, "unknown column 'pirce'", "'price'"),
        ("price\n1\n", 1, "'accelerator' is missing", ""),
        ("accelerator,price,price\nl4,1,1\n", 1, "appears twice", ""),
        ("accelerator,price,on_demand_usd_h\nl4,1,1\n", 2, "both given", "keep one"),
        ("accelerator,price\nl44,1\n", 2, "unknown accelerator", "L4"),
        ("accelerator,price\nh100,1\n", 2, "h100-pcie-80gb", "one of them"),
        ("accelerator,price,currency\nl4,1,EUR\n", 2, "need a stated rate", "--usd-rate"),
        ("accelerator,price,currency\nl4,1,euros\n", 2, "three letters", "EUR"),
        ("accelerator,price,currency,usd_per_unit\nl4,1,USD,1.1\n", 2, "in USD but", ""),
        ("accelerator,price,usd_per_unit\nl4,1,1.1\n", 2, "in USD but", "currency"),
        ("accelerator,price,currency,usd_per_unit\nl4,1,EUR,0\n", 2, "not above zero", ""),
        ("accelerator,price,unit\nl4,1,per_hour\n", 2, "unknown unit", "per_instance_hour"),
        ("accelerator,count,price\nh100-sxm-80gb,8,21\n", 2, "above every known price", "per_instance_hour"),
        ("accelerator,price\nh100-sxm-80gb,5000\n", 2, "which is not plausible", "unit"),
        ("accelerator,count,price\nl4,0,1\n", 2, "not above zero", ""),
        ("accelerator,price,reserved_price\nl4,1,2\n", 2, "above the on-demand price", ""),
        ("accelerator,price,as_of\nl4,1,2026-11-22\n", 2, "in the future", "valid_from"),
        ("accelerator,price,as_of\nl4,1,22.11.2026\n", 2, "not a date", ""),
        ("accelerator,price,valid_from,valid_to\nl4,1,2026-02-01,2026-01-01\n", 2, "is before", "swap"),
        ("accelerator,price\nl4,1\nt4,1\nl4,2\n", 4, "lines 2 and 4", "end one before"),
        ("accelerator,price,valid_from,valid_to\nl4,1,2026-01-01,2026-06-30\nl4,2,2026-06-30,\n", 3, "lines 2 and 3", ""),
        ("accelerator,price,valid_from,valid_to\nl4,1,2026-05-01,\nl4,2,2026-01-01,2027-01-01\n", 3, "lines 2 and 3", ""),
    ],
)
def test_refusals_name_file_line_and_a_way_out(text: str, line: int | None, message: str, hint: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(text)
    error = caught.value
    assert error.message.startswith("c.csv" + (f":{line}: " if line else ": "))
    assert message in error.message and error.hint and hint in error.hint, str(error)


def test_a_provider_must_come_from_somewhere() -> None:
    with pytest.raises(FieldError, match="provider is empty") as caught:
        parse_import("accelerator,price\nl4,1\n", "c.csv", DAY)
    assert "--provider" in (caught.value.hint or "")


def test_a_rate_that_nothing_needs_is_refused() -> None:
    with pytest.raises(FieldError, match="no price is in another currency"):
        read("accelerator,price\nl4,1\n", usd_per_unit=1.08)


def test_a_stated_unit_is_believed() -> None:
    (offer,) = read("accelerator,count,price,unit\nh100-sxm-80gb,8,21,per_accelerator_hour\n").offers
    assert offer.on_demand_usd_per_hour == 21.0


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    for raw, message in ((b"accelerator,price\nl4,1\xe9\n", "not UTF-8"), ("accelerator,price".encode("utf-16"), "not UTF-8")):
        wrong.write_bytes(raw)
        with pytest.raises(FieldError, match=message):
            import_offers(wrong, DAY, provider="acme")
    with wrong.open("wb") as file:
        file.truncate(50 * 2**20)
    with pytest.raises(FieldError, match="larger than"):
        import_offers(wrong, DAY, provider="acme")
    for path in (tmp_path, tmp_path / "absent.csv"):
        with pytest.raises(InputError):
            import_offers(path, DAY, provider="acme")


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "excel.csv"
    path.write_bytes("\ufeffaccelerator,price\r\nl4,1\r\n".encode())
    assert import_offers(path, DAY, provider="acme").offers


@given(amount=st.floats(1e-3, 1e3), rate=st.floats(0.01, 2.0), count=st.integers(1, 64), unit=st.sampled_from(UNITS))
def test_conversion_is_linear_and_undone_by_arithmetic(amount: float, rate: float, count: int, unit: str) -> None:
    how = parse_quote("EUR", rate, unit)
    usd = how.usd_per_hour(amount, count)
    paid = usd * (count if "instance" in unit else 1) * (HOURS_PER_MONTH if "month" in unit else 1)
    assert paid == pytest.approx(amount * rate)
    assert how.usd_per_hour(2 * amount, count) == pytest.approx(2 * usd)
    assert Quote().usd_per_hour(amount, count) == amount


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), min_size=2, max_size=6))
def test_overlaps_are_found_whatever_the_order(spans: list[tuple[int, int]]) -> None:
    start = datetime.date(2026, 1, 1)
    days = [(start + datetime.timedelta(a), start + datetime.timedelta(a + n)) for a, n in spans]
    text = "accelerator,price,valid_from,valid_to\n" + "".join(f"l4,1,{a},{b}\n" for a, b in days)
    overlap = any(days[i][0] <= days[j][1] and days[j][0] <= days[i][1] for i in range(len(days)) for j in range(i))
    try:
        read(text)
        assert not overlap
    except FieldError as error:
        assert overlap and "same days" in error.message
