"""SkyPilot's files: one price per accelerator, the traps shut, what is left out counted with its reason."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import FieldError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.offers.feeds.skypilot import parse_skypilot
from gpuwise.facts.offers.feeds.tally import ParsedFeed

from .conftest import AWS, AWS_HEAD, AZURE, CATALOGUES, FLUIDSTACK, GCP, LAMBDA, MITHRIL, RUNPOD, VAST, VERDA, info

DAY = datetime.date(2026, 11, 21)


def reasons(parsed: ParsedFeed) -> dict[str, int]:
    return {s.reason: s.count for s in parsed.skipped}


def test_aws_is_priced_per_accelerator_from_the_cheapest_zone() -> None:
    parsed = parse_skypilot(AWS, "aws", DAY)
    p5 = {o.region: o for o in parsed.offers if o.instance == "p5.48xlarge"}
    assert set(p5) == {"us-east-1", "eu-west-2"}
    east = p5["us-east-1"]
    assert (east.accelerator_id, east.count, east.provider, east.kind, east.as_of) == ("h100-sxm-80gb", 8, "aws", "list", DAY)
    assert (east.on_demand_usd_per_hour, east.spot_usd_per_hour, east.spot_kind) == (7.0, 3.6, "market")
    assert p5["eu-west-2"].on_demand_usd_per_hour == 8.0 and p5["eu-west-2"].spot_usd_per_hour is None


def test_regions_of_one_price_are_one_offer_and_spot_at_the_list_price_is_none() -> None:
    parsed = parse_skypilot(AWS, "aws", DAY)
    (p4,) = (o for o in parsed.offers if o.instance == "p4d.24xlarge")
    assert (p4.region, p4.spot_usd_per_hour, p4.spot_kind) == ("us-east-1;us-west-2", None, "")
    assert reasons(parsed)["spot price dropped: not below the on-demand price"] == 2


def test_what_is_left_out_is_counted() -> None:
    parsed = parse_skypilot(AWS, "aws", DAY)
    assert parsed.rows == 9, "machines without accelerators are no prices of accelerators"
    assert reasons(parsed) == {
        "spot price dropped: not below the on-demand price": 2,
        "fraction of an accelerator": 1,
        "accelerator that is not in the catalogue": 1,
        "no on-demand price": 1,
    }
    assert next(s.example for s in parsed.skipped if "fraction" in s.reason) == "L4 (g6f.large)"


def test_azure_with_twelve_accelerators_has_eight() -> None:
    parsed = parse_skypilot(AZURE, "azure", DAY)
    (nd,) = (o for o in parsed.offers if o.instance == "Standard_ND96isr_H100_v5")
    assert (nd.accelerator_id, nd.count, nd.on_demand_usd_per_hour) == ("h100-sxm-80gb", 8, 12.0)
    assert nd.spot_usd_per_hour is None, "its spot price is its list price"
    (nc,) = (o for o in parsed.offers if o.instance == "Standard_NC40ads_H100_v5")
    assert nc.accelerator_id == "h100-nvl-94gb"


def test_gcp_adds_the_machine_and_knows_its_placeholder() -> None:
    parsed = parse_skypilot(GCP, "gcp", DAY)
    found = {(o.instance, o.region): o for o in parsed.offers}
    a3 = found["a3-highgpu-8g", "us-central1"]
    assert a3.on_demand_usd_per_hour == pytest.approx((78.4 + 9.6) / 8)
    assert a3.spot_usd_per_hour == pytest.approx((20.0 + 2.4) / 8)
    assert found["tpu-v6e-8", "us-central1"].on_demand_usd_per_hour == 3.0
    assert ("tpu-v6e-64", "us-central1") not in found, "the smallest slice of a region stands for all"
    v4 = found["tpu-v4-8", "us-central2"]
    assert (v4.count, v4.on_demand_usd_per_hour, v4.spot_usd_per_hour) == (4, 3.2, None)
    assert len(found) == 3
    assert reasons(parsed) == {
        "price of accelerators without their machine": 2,
        "placeholder price of 700": 2,
        "spot price dropped: not below the on-demand price": 1,
    }


def test_lambda_lists_every_region_so_none_is_stated() -> None:
    parsed = parse_skypilot(LAMBDA, "lambda", DAY)
    assert {(o.instance, o.region, o.on_demand_usd_per_hour) for o in parsed.offers} == {
        ("gpu_8x_h100_sxm5", "", 4.0),
        ("gpu_1x_a6000", "", 1.1),
    }
    assert all(o.spot_usd_per_hour is None for o in parsed.offers), "Lambda sells no spot"


def test_vast_is_read_by_its_instance_names_and_total_memory() -> None:
    parsed = parse_skypilot(VAST, "vast", DAY)
    assert {(o.accelerator_id, o.count) for o in parsed.offers} == {
        ("h100-sxm-80gb", 8),
        ("h100-nvl-94gb", 1),
        ("rtx-4090", 1),
        ("rtx-4070-ti-super", 2),
        ("a100-sxm-40gb", 2),
    }
    assert all(o.kind == "marketplace" and o.spot_usd_per_hour is None for o in parsed.offers)
    assert {o.region for o in parsed.offers} >= {"US, NA", "Germany, DE, EU"}
    found = reasons(parsed)
    assert found["memory or form that no such accelerator has"] == 1, "a 4090 of 48 GB is another device"
    assert found["form or memory not stated"] == 1, "a Tesla V100 may be SXM or PCIe"


def test_runpod_writes_gb_under_mib() -> None:
    parsed = parse_skypilot(RUNPOD, "runpod", DAY)
    assert {(o.accelerator_id, o.count, o.region) for o in parsed.offers} == {
        ("a100-pcie-80gb", 1, "CA;IN;JP"),
        ("a100-pcie-80gb", 2, "CA;IN;JP"),
    }
    assert all(o.on_demand_usd_per_hour == pytest.approx(1.4) and o.spot_usd_per_hour is None for o in parsed.offers)


def test_an_equal_share_on_everything_is_a_policy() -> None:
    parsed = parse_skypilot(VERDA, "verda", DAY)
    spots = [o for o in parsed.offers if o.spot_usd_per_hour is not None]
    assert len(spots) == 4 and all(o.spot_kind == "policy" for o in spots)
    assert reasons(parsed) == {"form or memory not stated": 1, "no on-demand price": 1}


def test_a_market_is_no_policy() -> None:
    rows = "".join(
        f"{name},{gpu},1.0,4.0,16.0,{info(gpu, 1, mib)},1.5,{spot},us-east-1,a,x86_64\n"
        for name, gpu, mib, spot in (("g6.x", "L4", 24576, 0.3), ("g5.x", "A10G", 24576, 0.4), ("g6e.x", "L40S", 49152, 0.5))
    )
    assert {o.spot_kind for o in parse_skypilot(AWS_HEAD + rows, "aws", DAY).offers} == {"market"}
    same = rows.replace(",0.4,", ",0.3,").replace(",0.5,", ",0.3,")
    assert {o.spot_kind for o in parse_skypilot(AWS_HEAD + same, "aws", DAY).offers} == {"policy"}


def test_one_price_for_everything_is_no_price() -> None:
    parsed = parse_skypilot(MITHRIL, "mithril", DAY)
    assert parsed.offers == () and reasons(parsed)["the same price for every accelerator is a placeholder"] == 2


def test_a_header_alone_is_no_offer() -> None:
    assert parse_skypilot(FLUIDSTACK, "fluidstack", DAY) == ParsedFeed((), (), 0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("<html></html>\n", "is not a catalogue"),
        ("404: Not Found\n", "is not a catalogue"),
        ("InstanceType,Price\nx,1\n", "no column AcceleratorName"),
        (AWS[: len(AWS) // 2], "cut off"),
        (AWS.rstrip("\n"), "cut off"),
    ],
)
def test_what_is_no_catalogue_is_refused(text: str, what: str) -> None:
    with pytest.raises(FieldError, match=what) as caught:
        parse_skypilot(text, "aws", DAY)
    assert caught.value.hint and caught.value.file == "aws/vms.csv"


def test_damaged_lines_are_counted_and_the_rest_is_read() -> None:
    parsed = parse_skypilot(AWS + "p5.48xlarge,H100,8.0\n", "aws", DAY)
    assert reasons(parsed)["damaged line"] == 1
    assert len(parsed.offers) == len(parse_skypilot(AWS, "aws", DAY).offers)


@pytest.mark.parametrize("bad", ["0", "-1", "nan", "inf", "1e9", "1,5", "free", "0x10", "9" * 400, "700.0"])
def test_a_price_that_is_none_is_left_out(bad: str) -> None:
    text = AWS_HEAD + f'p5.48xlarge,H100,8.0,1,1,,"{bad}",,us-east-1,a,x86_64\n'
    parsed = parse_skypilot(text, "gcp" if bad == "700.0" else "aws", DAY)
    assert parsed.offers == () and len(parsed.skipped) == 1


@given(st.data())
def test_any_damage_yields_possible_prices_or_a_refusal(data: st.DataObject) -> None:
    cloud, text = data.draw(st.sampled_from(sorted(CATALOGUES.items())))
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 30))
    junk = data.draw(st.text(max_size=10) | st.sampled_from(['"', "\x00", "nan", "-1", "\n", ",,", "1e308"]))
    try:
        parsed = parse_skypilot(text[:at] + junk + text[at + cut :], cloud, DAY)
    except FieldError as error:
        assert error.hint
        return
    for o in parsed.offers:
        assert 0 < o.on_demand_usd_per_hour <= 1000 and o.count >= 1 and o.accelerator_id in accelerators()
        assert o.spot_usd_per_hour is None or 0 < o.spot_usd_per_hour < o.on_demand_usd_per_hour
        assert (o.spot_usd_per_hour is None) == (o.spot_kind == "")
    assert all(s.count > 0 and s.reason for s in parsed.skipped)


@given(st.permutations(AWS.splitlines()[1:]))
def test_the_order_of_lines_does_not_matter(rows: list[str]) -> None:
    shuffled = parse_skypilot(AWS_HEAD + "\n".join(rows) + "\n", "aws", DAY)
    assert shuffled.offers == parse_skypilot(AWS, "aws", DAY).offers
