"""The catalogue against published figures, and its own promises."""

import math

import pytest

from gpuwise.errors import FieldError, UnpredictableError
from gpuwise.facts.hardware.accelerators import ACCELERATOR_SCHEMA, DTYPES, accelerator_from_record, accelerators, architectures
from gpuwise.facts.loading import parse_csv, shipped_text
from gpuwise.facts.sources import sources
from gpuwise.units import GIB, MIB

CATALOGUE = accelerators()

# Datasheet figures that public tables often get wrong: (id, what, SI value, source).
PUBLISHED = [
    ("l4", "memory_bandwidth_bytes_per_s", 300e9, "L4 datasheet; PyTorch device_info.py has 3350"),
    ("l4", "compute_units", 58, "7424 lanes; TechPowerUp has 60"),
    ("l40s", "tdp_w", 350, "L40S datasheet; TechPowerUp has 300"),
    ("l40s", "l2_bytes", 96 * MIB, "Ada professional whitepaper; TechPowerUp has 48"),
    ("a100-pcie-80gb", "l2_bytes", 40 * MIB, "A100 whitepaper; TechPowerUp has 80"),
    ("mi300x", "memory_bandwidth_bytes_per_s", 5.3e12, "MI300X datasheet; TechPowerUp has 10.3"),
    ("b200-sxm", "memory_bandwidth_bytes_per_s", 8e12, "HGX B200; TechPowerUp has 4.1"),
    ("v100-sxm-16gb", "memory_bandwidth_bytes_per_s", 900e9, "V100 datasheet; TechPowerUp has 1130"),
    ("v100-sxm-16gb", "tdp_w", 300, "V100 datasheet; TechPowerUp has 250"),
    ("a10g", "compute_units", 80, "deviceQuery; TechPowerUp has 72"),
    ("h100-sxm-80gb", "memory_bytes", 81559 * MIB, "nvidia-smi"),
    ("h200-sxm-141gb", "memory_bytes", 143771 * MIB, "nvidia-smi"),
    ("a100-sxm-80gb", "memory_bytes", 81920 * MIB, "nvidia-smi"),
    ("b200-sxm", "memory_bytes", 183359 * MIB, "nvidia-smi"),
    ("t4", "memory_bytes", 15360 * MIB, "nvidia-smi, ECC on"),
    ("h100-sxm-80gb", "link_bytes_per_s", 450e9, "900 GB/s is both directions"),
    ("a100-sxm-80gb", "link_bytes_per_s", 300e9, "600 GB/s is both directions"),
    ("tpu-v5e", "link_bytes_per_s", 200e9, "Google: 400 GB/s bidirectional"),
    ("mi250x", "memory_bytes", 65520 * MIB, "one of two devices of a 128 GB module"),
    ("p100-sxm-16gb", "link_bytes_per_s", 80e9, "NVLink 1: four links of 20 GB/s"),
]
PUBLISHED_RATES = [
    ("h100-sxm-80gb", "bf16", 989.4e12, "half the sparse 1979"),
    ("a100-sxm-80gb", "bf16", 312e12, ""),
    ("a100-sxm-80gb", "tf32", 156e12, ""),
    ("a10g", "bf16", 70e12, "A10G datasheet; Lightning has 125"),
    ("rtx-4090", "bf16", 165.2e12, "Ada whitepaper, FP32 accumulation; Lightning has 82.6"),
    ("rtx-4090", "fp8", 330.3e12, "Ada whitepaper, FP32 accumulation"),
    ("rtx-4090", "int8", 660.6e12, "Ada whitepaper"),
    ("rtx-3090", "bf16", 71.2e12, "GA102 whitepaper, FP32 accumulation"),
    ("rtx-5090", "bf16", 209.5e12, "RTX Blackwell whitepaper, FP32 accumulation"),
    ("rtx-5090", "nvfp4", 1676e12, "RTX Blackwell whitepaper, dense"),
    ("rtx-2080-ti", "fp16", 53.8e12, "Turing whitepaper, FP32 accumulation"),
    ("b300-sxm", "int8", 153.5e12, "INT8 was all but removed"),
    ("mi300x", "bf16", 1307.4e12, ""),
    ("mi100", "bf16", 92.3e12, "half of fp16 on CDNA 1"),
    ("l40s", "fp8", 733e12, "1466 is sparse"),
    ("t4", "fp16", 65e12, ""),
    ("v100-sxm-32gb", "fp16", 125e12, ""),
]


@pytest.mark.parametrize(("name", "field", "value", "why"), PUBLISHED)
def test_published_figures(name, field, value, why):
    assert getattr(CATALOGUE[name], field) == pytest.approx(value, rel=1e-6), why


@pytest.mark.parametrize(("name", "dtype", "rate", "why"), PUBLISHED_RATES)
def test_published_rates(name, dtype, rate, why):
    assert CATALOGUE[name].peak(dtype) == pytest.approx(rate, rel=0.002), why


def test_the_catalogue_is_large_and_reaches_from_p100_to_gb300_and_phones():
    assert len(CATALOGUE) >= 150
    vendors = {a.vendor for a in CATALOGUE.values()}
    assert {"NVIDIA", "AMD", "Intel", "Google", "AWS", "Apple", "Qualcomm", "MediaTek"} <= vendors
    families = {a.family for a in CATALOGUE.values()}
    assert {
        *(
            "Pascal",
            "Volta",
            "Turing",
            "Ampere-GA100",
            "Ampere",
            "Ada",
            "Hopper",
            "Blackwell",
            "Blackwell-RTX",
        ),
        *("Orin", "CDNA1", "CDNA2", "CDNA3", "CDNA4", "RDNA3", "Xe-HPG", "Xe2-HPG", "Xe-HPC", "TPU"),
    } <= families


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_every_row_is_sound_and_sourced(name):
    a = CATALOGUE[name]
    assert a.source and all(key in sources() for key in a.cell_sources.values())
    assert set(a.peak_flop_per_s) <= set(DTYPES)
    optional = (
        *(a.boost_hz, a.base_hz, a.tensor_hz, a.l2_bytes, a.tdp_w, a.pcie_bytes_per_s, a.link_bytes_per_s),
        *(a.list_price_usd, a.fp16_accumulate_flop_per_s, a.memory_visible_bytes, a.compute_units),
    )
    required = (a.memory_bytes, a.memory_bandwidth_bytes_per_s, *a.peak_flop_per_s.values())
    assert all(math.isfinite(v) and v > 0 for v in (*required, *(v for v in optional if v is not None)))
    assert 2**30 <= a.memory_bytes <= 2**40
    if a.compute_capability:
        assert a.shared_memory_per_unit_bytes and a.registers_per_unit and a.max_warps_per_unit


def test_accumulation_doubles_on_geforce_only():
    for a in CATALOGUE.values():
        if a.fp16_accumulate_flop_per_s and "fp16" in a.peak_flop_per_s:
            ratio = a.fp16_accumulate_flop_per_s / a.peak("fp16")
            geforce = a.name.startswith("RTX ") and a.name[4:6] in ("20", "30", "40", "50") and "Ada" not in a.name
            assert ratio == pytest.approx(2 if geforce else 1, rel=0.03) or a.id in (
                "a10g",
                "l20",
                "l40",
                "l40g",
            )


def test_a_cell_with_a_weaker_source_is_named_weak():
    assert "list_price_usd" in CATALOGUE["h100-sxm-80gb"].weak
    assert "peak_flop_per_s.fp16" not in CATALOGUE["h100-sxm-80gb"].weak
    assert "peak_flop_per_s.bf16" in CATALOGUE["ascend-910b"].weak
    assert CATALOGUE["rtx-4090"].weak == ()


def test_unknown_rate_is_an_error_that_lists_what_is_known():
    with pytest.raises(UnpredictableError, match="no published dense fp8 rate") as caught:
        CATALOGUE["a100-sxm-80gb"].peak("fp8")
    assert "bf16" in (caught.value.hint or "")


def test_nominal_capacity_is_gib():
    a = CATALOGUE["mi50-16gb"]
    assert a.memory_bytes == 16 * GIB and a.memory_nominal_gb == 16


def test_accelerators_can_be_keys():
    assert len(dict.fromkeys(CATALOGUE.values())) == len(CATALOGUE)


def test_a_row_with_an_uncited_source_is_refused():
    text = shipped_text("accelerators.csv").replace(",nvidia-t4-datasheet,", ",nobody,")
    record = next(r for r in parse_csv(text, ACCELERATOR_SCHEMA, "x.csv") if r.text("id") == "t4")
    with pytest.raises(FieldError, match=r"not in sources\.csv"):
        accelerator_from_record(record, architectures())
