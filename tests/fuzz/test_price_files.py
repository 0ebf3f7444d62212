"""A person's price file and a feed's, damaged in every way."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.offers.company_prices import TEMPLATE, import_offers, parse_import
from gpuwise.facts.offers.feeds.skypilot import CLOUDS, parse_skypilot
from gpuwise.facts.offers.table import format_offers, parse_offers

DAY = datetime.date(2026, 11, 21)
NASTY = (
    "",
    " ",
    "nan",
    "inf",
    "-1",
    "0",
    "1e999",
    "1e308",
    "1e-320",
    "2,5",
    "1_000",
    "١٢",
    "$3",
    "EUR",
    "per_instance_hour",
    "2026-02-30",
    "9999-12-31",
    "0001-01-01",
    '"',
    ",",
    ";",
    "#",
    "\x00",
    "\ufeff",
    "\r",
    "\n",
    "h100",
    "H100 SXM",
    "a" * 300,
    "1" * 400,
    "true",
)
CATALOGUE = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
    "p5.48xlarge,H100,8.0,192,2048,\"{'Gpus': [{'Name': 'H100', 'MemoryInfo': {'SizeInMiB': 81920}}]}\",56.0,20.0,us-1,a\n"
    "a3-highgpu-8g,,,208,1872,,9.4,2.8,us-1,a\n"
    ",H100,8,,,,78.5,20.0,us-1,a\n"
    ",tpu-v6e-8,1,,,tpu-v6e-8,21.6,4.3,us-1,a\n"
    "1x-RTX_4090-32-65536,RTX4090,1,32,64,\"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 24564}}]}\",0.4,0.0,\"Germany, DE\",a\n"
)


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """``text`` with up to four cells, lines or stretches spoilt."""
    for _ in range(draw(st.integers(1, 4))):
        lines = text.split("\n")
        i = draw(st.integers(0, len(lines) - 1))
        at = draw(st.integers(0, len(text)))
        kind = draw(st.sampled_from(("cell", "cut", "insert", "drop", "repeat", "end")))
        if kind == "cell":
            cells = lines[i].split(",")
            cells[draw(st.integers(0, len(cells) - 1))] = draw(st.sampled_from(NASTY))
            text = "\n".join([*lines[:i], ",".join(cells), *lines[i + 1 :]])
        elif kind == "cut":
            text = text[:at] + text[at + draw(st.integers(1, 20)) :]
        elif kind == "insert":
            text = text[:at] + draw(st.sampled_from(NASTY) | st.text(max_size=8)) + text[at:]
        elif kind == "end":
            text = text[:at]
        else:
            text = "\n".join(lines[:i] + (2 if kind == "repeat" else 0) * lines[i : i + 1] + lines[i + 1 :])
    return text


def check(offers) -> None:
    for o in offers:
        assert 0 < o.on_demand_usd_per_hour <= 1000 and o.count >= 1 and o.accelerator_id in accelerators()
    assert parse_offers(format_offers(offers), "again.csv") == tuple(offers)


@given(st.data())
def test_a_persons_file(lawful, data: st.DataObject) -> None:
    text = data.draw(damaged(TEMPLATE.split("\n", 7)[-1] if data.draw(st.booleans()) else TEMPLATE) | st.text(max_size=60))
    rate = data.draw(st.none() | st.floats(0.1, 2.0))
    found = lawful(lambda: parse_import(text, "x.csv", DAY, provider="p", usd_per_unit=rate), hint=True)
    if found is not None:
        check(found.offers)


@given(raw=st.binary(max_size=120))
def test_a_file_of_any_bytes(lawful, tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path: Path = tmp_path_factory.mktemp("import") / "own.csv"
    path.write_bytes(raw)
    lawful(lambda: import_offers(path, DAY, provider="p"), hint=True)


@given(st.data())
def test_a_feeds_file(lawful, data: st.DataObject) -> None:
    text = data.draw(damaged(CATALOGUE) | st.text(max_size=60))
    cloud = data.draw(st.sampled_from(CLOUDS))
    parsed = lawful(lambda: parse_skypilot(text, cloud, DAY), hint=True)
    if parsed is not None:
        check(parsed.offers)
        assert all(s.count > 0 for s in parsed.skipped)
