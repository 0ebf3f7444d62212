"""A feed's name means one device or none: nothing is guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.instances import INSTANCE_SCHEMA
from gpuwise.facts.offers.feeds.names import (
    UnclearName,
    instance_rule,
    may_be,
    provider_of,
    resolve,
    rules_of,
)
from gpuwise.facts.offers.feeds.tpu import chips_of
from gpuwise.facts.sources import cited_rows
from gpuwise.units import GIB, MIB


@pytest.mark.parametrize(
    ("name", "gib", "hints", "meant"),
    [
        ("H100", 80, ["gpu_8x_h100_sxm5"], "h100-sxm-80gb"),
        ("H100", 80, ["gpu_1x_h100_pcie"], "h100-pcie-80gb"),
        ("H100", 80, ["gpu-h100-sxm_8gpu-128vcpu-1600gb"], "h100-sxm-80gb"),
        ("H100", 80, ["h100-80gb.sxm.8x"], "h100-sxm-80gb"),
        ("H100", 80, ["NVIDIA H100 80GB HBM3"], "h100-sxm-80gb"),
        ("H100", 80, ["NVIDIA H100 PCIe"], "h100-pcie-80gb"),
        ("H100-80G-SXM5", None, [], "h100-sxm-80gb"),
        ("H100-80G-PCIe-NVLink", None, [], "h100-pcie-80gb"),
        ("H100NVL", 94, [], "h100-nvl-94gb"),
        ("H100_NVL", None, [], "h100-nvl-94gb"),
        ("H200NVL", None, [], "h200-nvl-141gb"),
        ("A100-80GB", 80, ["1x_A100-80GB_SECURE", "A100 PCIe"], "a100-pcie-80gb"),
        ("A100-80GB-SXM", None, [], "a100-sxm-80gb"),
        ("A100", 40, ["1x-A100_SXM4-32-65536"], "a100-sxm-40gb"),
        ("RTX6000-Ada", 48, [], "rtx-6000-ada"),
        ("RTX6000Ada", None, [], "rtx-6000-ada"),
        ("RTXA6000", None, [], "rtx-a6000"),
        ("A6000", None, [], "rtx-a6000"),
        ("RTX 4070S Ti", None, [], "rtx-4070-ti-super"),
        ("RTX4060Ti", 16, [], "rtx-4060-ti-16gb"),
        ("RTX3080", 10, [], "rtx-3080-10gb"),
        ("RTXPRO6000S", None, [], "rtx-pro-6000-blackwell-server"),
        ("Gaudi HL-205", None, [], "gaudi"),
        ("T4g", None, [], "t4g"),
        ("A10G", None, [], "a10g"),
        ("GH200", 96, [], "gh200-96gb"),
        ("B300", 262, [], "b300-sxm"),
        ("MI300X", 192, [], "mi300x"),
    ],
)
def test_names_that_mean_one_device(name, gib, hints, meant) -> None:
    assert resolve(name, memory_bytes=[] if gib is None else [gib * GIB], hints=hints).id == meant


@pytest.mark.parametrize(
    ("name", "gib", "hints", "reason"),
    [
        ("H100", 80, [], "not stated"),
        ("H100", None, ["gpu_8x_h100"], "not stated"),
        ("A100", 80, [], "not stated"),
        ("V100", 16, [], "not stated"),
        ("H200", 141, [], "not stated"),
        ("RTXPRO6000", 96, [], "not stated"),
        ("RTX4090", 48, [], "no such accelerator has"),
        ("MI250", 128, [], "no such accelerator has"),
        ("L4", 3, [], "no such accelerator has"),
        ("H100-PCIe", 80, ["gpu_8x_h100_sxm5"], "contradict"),
        ("Radeon Pro V520", 8, [], "not in the catalogue"),
        ("", 8, [], "not in the catalogue"),
        ("nvidia", 8, [], "not in the catalogue"),
    ],
)
def test_names_that_do_not(name, gib, hints, reason) -> None:
    with pytest.raises(UnclearName, match=reason):
        resolve(name, memory_bytes=[] if gib is None else [gib * GIB], hints=hints)


@pytest.mark.parametrize("mib", [46068, 49152, 45776])
def test_reported_memory_may_fall_short_of_the_label(mib) -> None:
    assert resolve("L40S", memory_bytes=[mib * MIB]).id == "l40s"


def test_every_id_means_itself() -> None:
    for name, accelerator in accelerators().items():
        try:
            found = resolve(name, memory_bytes=[accelerator.memory_bytes]).id
        except UnclearName:
            continue  # other devices share product, form and memory: then nothing is said rather than guessed
        assert found == name


@given(st.text(max_size=40), st.floats(0, 1e13), st.text(max_size=40))
def test_any_text_means_one_device_or_has_a_reason(name: str, memory: float, hint: str) -> None:
    try:
        assert resolve(name, memory_bytes=[memory], hints=[hint]).id in accelerators()
    except UnclearName as reason:
        assert str(reason)


def test_instance_types_settle_what_the_name_leaves_open() -> None:
    for provider, instance, meant, count in [
        ("aws", "p5.48xlarge", "h100-sxm-80gb", 8),
        ("aws", "p4d.24xlarge", "a100-sxm-40gb", 8),
        ("gcp", "a2-ultragpu-4g", "a100-sxm-80gb", 4),
        ("azure", "Standard_ND96isr_H100_v5", "h100-sxm-80gb", 8),
        ("azure", "Standard_NC96ads_A100_v4", "a100-pcie-80gb", 4),
        ("oracle", "BM.GPU.H200.8", "h200-sxm-141gb", 8),
        ("verda", "1H100.80S.32V", "h100-sxm-80gb", None),
    ]:
        rule = instance_rule(provider, instance)
        assert rule is not None and (rule.accelerator_id, rule.count) == (meant, count)
    assert instance_rule("aws", "p5.48xlarge-flex") is None
    assert instance_rule("nobody", "p5.48xlarge") is None


def test_no_instance_type_has_two_rules() -> None:
    rows = [(r.text("provider"), r.text("instance")) for r in cited_rows("instance_accelerators.csv", INSTANCE_SCHEMA)]
    assert len(rows) == len(set(rows)) >= 50
    for rule in rules_of("gcp"):
        if rule.feed_name:
            assert may_be(rule.feed_name.removesuffix("-MEGA"), rule.accelerator_id)


def test_a_name_may_only_be_its_own_product() -> None:
    assert may_be("H100", "h100-sxm-80gb") and not may_be("A100", "h100-sxm-80gb")
    assert may_be("whatever this is", "h100-sxm-80gb")


def test_providers_are_known_by_one_name() -> None:
    assert provider_of("gpuhunt", "lambdalabs").provider == "lambda" == provider_of("skypilot", "lambda").provider
    assert provider_of("gpuhunt", "vastai").kind == "marketplace"
    stranger = provider_of("skypilot", "Stranger")
    assert (stranger.provider, stranger.spot_kind) == ("stranger", "")


@pytest.mark.parametrize(
    ("name", "chips"),
    [
        ("tpu-v2-8", ("tpu-v2", 4)),
        ("tpu-v4-8", ("tpu-v4", 4)),
        ("v5p-8", ("tpu-v5p", 4)),
        ("v5litepod-8", ("tpu-v5e", 8)),
        ("tpu-v6e-1", ("tpu-v6e", 1)),
    ],
)
def test_chips_of_a_tpu_slice(name, chips) -> None:
    assert chips_of(name) == chips


@pytest.mark.parametrize("name", ["tpu-v9-8", "v4-7", "v4-0", "v4", "tpu", "H100", "v4-99999999999"])
def test_slices_that_are_none(name) -> None:
    with pytest.raises(UnclearName):
        chips_of(name)
