"""The shipped facts pass; each famous error of public tables is caught when put back."""

import csv
import datetime
import io
from dataclasses import replace

import pytest

from gpuwise.facts.hardware.accelerators import ACCELERATOR_SCHEMA, accelerators, architectures
from gpuwise.facts.hardware.systems import link_generations, systems
from gpuwise.facts.loading import parse_csv, shipped_text
from gpuwise.facts.offers.offer import Offer, offers
from studies.facts_lint import lint, lint_accelerators, lint_names, lint_offers, lint_systems

TEXT = shipped_text("accelerators.csv")


def changed(device: str, **cells: str):
    """The catalogue's records with some cells of one row replaced."""
    rows = list(csv.DictReader(io.StringIO(TEXT)))
    for row in rows:
        if row["id"] == device:
            row.update(cells)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return parse_csv(out.getvalue(), ACCELERATOR_SCHEMA, "accelerators.csv")


def findings(device: str, **cells: str):
    found = lint_accelerators(changed(device, **cells), architectures(), link_generations())
    assert all(f.where == device for f in found)
    return found


def test_shipped_facts_have_no_finding():
    assert lint() == []


SEEDED = [
    ("h100-sxm-80gb", {"bf16_tflops": "1979"}, "rate", "sparse"),
    ("h100-sxm-80gb", {"fp8_tflops": "3958"}, "rate", "sparse"),
    ("l4", {"bf16_tflops": "242"}, "rate", "sparse"),
    ("l4", {"bf16_tflops": "242"}, "power", "sparse"),
    ("l40s", {"fp8_tflops": "1466"}, "rate", "sparse"),
    ("h100-sxm-80gb", {"tf32_tflops": "156"}, "rate", "arithmetic"),
    ("rtx-4090", {"bf16_tflops": "82.6"}, "rate", "half"),
    ("rtx-4090", {"bf16_tflops": "330.3"}, "rate", "twice the rate with FP32 accumulation"),
    ("a10g", {"bf16_tflops": "125"}, "rate", "arithmetic"),
    ("a10g", {"compute_units": "72"}, "rate", "arithmetic"),
    ("l4", {"compute_units": "60"}, "rate", "arithmetic"),
    ("jetson-agx-thor-t5000", {"boost_mhz": "2525"}, "rate", "arithmetic"),
    ("a100-sxm-80gb", {"fp8_tflops": "624"}, "rate", "no fp8 unit"),
    ("l4", {"bandwidth_gb_s": "3350"}, "bandwidth", "a digit too many"),
    ("mi300x", {"bandwidth_gb_s": "10300"}, "bandwidth", "bus x rate"),
    ("v100-sxm-16gb", {"bandwidth_gb_s": "1130"}, "bandwidth", "bus x rate"),
    ("tpu-v5e", {"bandwidth_gb_s": "81.9"}, "bandwidth", "per GB"),
    ("rtx-3090", {"memory_gbit_s": "195"}, "bandwidth", "per pin"),
    ("h100-sxm-80gb", {"link_gb_s": "900"}, "link", "both directions"),
    ("a100-sxm-80gb", {"link_gb_s": "600"}, "link", "both directions"),
    ("mi300x", {"link_gb_s": "896"}, "link", "carries"),
    ("b200-sxm", {"link_kind": "nvlink9"}, "link", "nvlink9"),
    ("h100-sxm-80gb", {"memory_mib": "76294"}, "memory", "taken for GiB"),
    ("h200-sxm-141gb", {"memory_mib": "134468"}, "memory", "taken for GiB"),
    ("rtx-4090", {"memory_mib": "22888"}, "memory", "taken for GiB"),
    ("b200-sxm", {"memory_gb": "90"}, "memory", "MiB is"),
    ("gb200", {"memory_mib": "81920"}, "memory", "MiB is"),
    ("h100-sxm-80gb", {"visible_mib": "60000"}, "memory", "visible"),
    ("rtx-3090", {"boost_mhz": "1.695"}, "clock", "MHz"),
    ("rtx-3090", {"base_mhz": "1995"}, "clock", "above"),
    ("l40s", {"tdp_w": "35000"}, "power", "W"),
    ("t4", {"family": "Volta"}, "family", "Turing"),
    ("t4", {"compute_capability": "7.9"}, "architecture", "no table"),
    ("t4", {"weak": "boost"}, "source", "no column"),
    ("t4", {"l3_mib": "", "cell_sources": "l3_mib=nvidia-smi"}, "source", "empty"),
    ("rtx-4090", {"list_price_kind": ""}, "price", "together"),
]


@pytest.mark.parametrize(("device", "cells", "rule", "message"), SEEDED)
def test_seeded_errors_are_caught(device, cells, rule, message):
    assert any(f.rule == rule and message in f.message for f in findings(device, **cells))


def test_one_wrong_dtype_breaks_the_ratio_even_within_the_rate_tolerance():
    # 1.029 x one matrix rate and 0.975 x another each pass alone; together they cannot share a clock.
    found = findings("h100-sxm-80gb", fp16_tflops="1018", int8_tops="1930")
    assert [f.rule for f in found] == ["ratio"]


@pytest.mark.parametrize("device", ["h100-sxm-80gb", "rtx-4090", "mi300x", "v100-sxm-32gb", "arc-b580", "l40s"])
@pytest.mark.parametrize("factor", [0.5, 2.0, 10.0])
def test_any_rate_of_a_proved_row_off_by_a_factor_is_caught(device, factor):
    row = next(r for r in csv.DictReader(io.StringIO(TEXT)) if r["id"] == device)
    for column, cell in row.items():
        if column.endswith(("_tflops", "_tops", "bandwidth_gb_s")) and cell:
            assert findings(device, **{column: f"{float(cell) * factor:.6g}"}), column


def test_ids_and_aliases_are_unique():
    records = parse_csv(TEXT, ACCELERATOR_SCHEMA, "accelerators.csv")
    twice = lint_accelerators([*records, records[0]], architectures(), link_generations())
    assert [(f.rule, f.message) for f in twice] == [("id", "appears twice")]
    stolen = changed("t4", aliases="rtx 4090")
    assert any(f.where == "rtx-4090" or "is also" in f.message for f in lint_names(stolen))


def test_systems_are_checked():
    good = systems()["dgx-h100"]
    bad = [
        replace(good, link_bytes_per_s=900e9),
        replace(good, id="other", network_bytes_per_s=400e9),
        replace(good, id="third", domain_size=12),
        replace(good, id="fourth", max_power_w=5600.0),
    ]
    assert {"link", "network", "domain", "power", "name"} <= {f.rule for f in lint_systems(bad, link_generations())}


def test_placeholders_and_inverted_prices_are_caught():
    good = offers()[0]
    h100 = [o for o in offers() if o.accelerator_id == "h100-sxm-80gb"]
    placeholder = replace(h100[0], instance="a3", on_demand_usd_per_hour=700.0)
    assert any("others around" in f.message for f in lint_offers([*h100, placeholder]))
    inverted = replace(good, spot_usd_per_hour=good.on_demand_usd_per_hour * 2)
    assert any("against on-demand" in f.message for f in lint_offers([inverted]))
    assert any(f.message == "appears twice" for f in lint_offers([good, good]))
    uncited = Offer("x", "", "", "t4", 1, 0.5, None, None, datetime.date(2026, 1, 1), "list", "nobody")
    assert any(f.rule == "source" for f in lint_offers([uncited]))


def test_lint_covers_most_rates_by_arithmetic():
    proved = sum(
        1
        for record in parse_csv(TEXT, ACCELERATOR_SCHEMA, "accelerators.csv")
        if record.maybe("compute_units") and record.maybe("boost_mhz")
    )
    assert proved / len(accelerators()) > 0.8
