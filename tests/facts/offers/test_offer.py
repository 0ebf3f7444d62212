import datetime
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import FieldError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.loading import shipped_text
from gpuwise.facts.offers.offer import offers, offers_for, parse_offers, read_offers, typical_price_usd_per_hour

HEADER = (
    "provider,region,instance,accelerator,count,on_demand_usd_h,spot_usd_h,spot_kind,reserved_usd_h,reserved_3y_usd_h,"
    "network,in_stock,as_of,kind,source\n"
)
ROW = "me,here,box,l4,1,0.5,0.2,market,0.3,,,true,2026-10-04,list,my-bill\n"


def test_the_sample_covers_what_is_ranked():
    assert len(offers()) >= 80
    for name in (
        "h100-sxm-80gb",
        "h200-sxm-141gb",
        "b200-sxm",
        "a100-sxm-80gb",
        "l40s",
        "l4",
        "rtx-4090",
        "mi300x",
    ):
        listed = offers_for(name)
        assert listed and all(o.accelerator_id == name for o in listed)
        prices = [o.on_demand_usd_per_hour for o in listed]
        assert prices == sorted(prices)


def test_the_table_spans_providers_regions_and_terms():
    found = offers()
    assert len(found) >= 400
    assert len({o.provider for o in found}) >= 30
    for cloud, regions in (("aws", 5), ("gcp", 5), ("azure", 3)):
        assert len({o.region for o in found if o.provider == cloud}) >= regions
    assert sum(o.reserved_usd_per_hour is not None for o in found) >= 100
    assert sum(o.reserved_3y_usd_per_hour is not None for o in found) >= 50
    assert sum(o.spot_kind == "market" for o in found) >= 40
    assert any(o.spot_kind == "policy" for o in found)
    assert any("efa" in o.network for o in found)
    for name in ("tpu-v5e", "tpu-v5p", "tpu-v6e", "trainium1", "inferentia2", "mi325x", "gb300", "b300-sxm", "v100-sxm-16gb"):
        assert offers_for(name)


def test_every_offer_is_dated_and_priced_per_accelerator():
    for offer in offers():
        assert datetime.date(2024, 12, 1) <= offer.as_of <= datetime.date(2026, 11, 21)
        assert offer.accelerator_id in accelerators()
        assert 0 < offer.on_demand_usd_per_hour < 20
        for less in (offer.spot_usd_per_hour, offer.reserved_usd_per_hour, offer.reserved_3y_usd_per_hour):
            assert less is None or 0.02 * offer.on_demand_usd_per_hour < less <= offer.on_demand_usd_per_hour
        one_year, three_years = offer.reserved_usd_per_hour, offer.reserved_3y_usd_per_hour
        assert one_year is None or three_years is None or three_years < one_year
    p5 = next(o for o in offers() if o.instance == "p5.48xlarge" and o.region == "us-east-1")
    assert (p5.count, p5.on_demand_usd_per_hour) == (8, pytest.approx(6.88))
    nd = next(o for o in offers() if o.instance == "Standard_ND96isr_H100_v5" and o.region == "eastus")
    assert (nd.count, nd.on_demand_usd_per_hour, nd.spot_usd_per_hour) == (8, pytest.approx(12.29), None)


def test_regions_of_one_cloud_differ_in_price():
    by_region = {o.region: o.on_demand_usd_per_hour for o in offers_for("h100-sxm-80gb") if o.instance == "p5.48xlarge"}
    assert by_region["ap-northeast-1"] / by_region["us-east-1"] == pytest.approx(1.25, abs=0.01)


def test_age():
    offer = offers()[0]
    assert offer.age_days(offer.as_of + datetime.timedelta(days=30)) == 30


def test_typical_price_takes_one_price_per_provider():
    low, median, high = typical_price_usd_per_hour("h100-sxm-80gb")
    assert 1.5 < low < median < high < 13
    low, median, high = typical_price_usd_per_hour("mi300x")
    cheapest: dict[str, float] = {}
    for offer in offers_for("mi300x"):
        cheapest[offer.provider] = min(offer.on_demand_usd_per_hour, cheapest.get(offer.provider, 100.0))
    assert len(cheapest) >= 6
    assert (low, high) == (min(cheapest.values()), max(cheapest.values()))
    assert median == pytest.approx(statistics.median(cheapest.values()))
    with pytest.raises(UnpredictableError, match="no rental price"):
        typical_price_usd_per_hour("p100-sxm-16gb")
    assert offers_for("p100-sxm-16gb") == ()


def test_a_persons_own_prices(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(HEADER + ROW)
    (offer,) = read_offers(path)
    assert (offer.accelerator_id, offer.spot_usd_per_hour, offer.source_key) == ("l4", 0.2, "my-bill")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("l4", "l44", "accelerator"),
        ("0.5", "0", "on_demand_usd_h"),
        ("0.5", "nan", "on_demand_usd_h"),
        ("0.5", "inf", "on_demand_usd_h"),
        ("0.5", "-1", "on_demand_usd_h"),
        ("0.5", "99999", "on_demand_usd_h"),
        ("0.2", "0.6", "spot_usd_h"),
        ("0.3", "4.0", "reserved_usd_h"),
        ("2026-10-04", "04.10.2026", "as_of"),
        ("2026-10-04", "", "as_of"),
        (",1,", ",0,", "count"),
        ("list", "rumour", "kind"),
    ],
)
def test_bad_prices_are_refused_with_file_line_and_hint(old, new, field):
    with pytest.raises(FieldError) as caught:
        parse_offers(HEADER + ROW.replace(old, new, 1), "prices.csv")
    assert (caught.value.file, caught.value.line, caught.value.field) == ("prices.csv", 2, field)
    assert caught.value.hint


@given(st.data())
def test_a_corrupted_price_file_never_yields_an_impossible_price(data):
    text = shipped_text("offers.csv")[:3000]
    text = text[: text.rindex("\n") + 1]
    at = data.draw(st.integers(0, len(text) - 1))
    cut = data.draw(st.integers(0, 20))
    junk = data.draw(st.text(max_size=12))
    try:
        found = parse_offers(text[:at] + junk + text[at + cut :], "prices.csv")
    except FieldError:
        return
    for offer in found:
        assert 0 < offer.on_demand_usd_per_hour <= 1000 and offer.count >= 1
        assert offer.accelerator_id in accelerators()
