import pytest

from gpuwise.errors import FieldError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.systems import (
    default_system,
    link_generations,
    networks,
    system_with,
    systems,
    systems_of,
    with_count,
)

GBIT = 1e9 / 8


@pytest.mark.parametrize(
    ("name", "count", "domain", "topology", "link", "network"),
    [
        ("dgx-1-v100", 8, 8, "mesh", 150e9, 4 * 100 * GBIT / 8),
        ("dgx-2", 16, 16, "switch", 150e9, 8 * 100 * GBIT / 16),
        ("dgx-a100", 8, 8, "switch", 300e9, 200 * GBIT),
        ("dgx-h100", 8, 8, "switch", 450e9, 400 * GBIT),
        ("dgx-h200", 8, 8, "switch", 450e9, 400 * GBIT),
        ("dgx-b200", 8, 8, "switch", 900e9, 400 * GBIT),
        ("dgx-b300", 8, 8, "switch", 900e9, 800 * GBIT),
        ("gb200-nvl72", 4, 72, "switch", 900e9, 400 * GBIT),
        ("gb300-nvl72", 4, 72, "switch", 900e9, 800 * GBIT),
        ("p4d", 8, 8, "switch", 300e9, 400 * GBIT / 8),
        ("p5", 8, 8, "switch", 450e9, 3200 * GBIT / 8),
        ("mi300x-platform", 8, 8, "mesh", 448e9, 400 * GBIT),
        ("pcie-a100-bridged", 8, 2, "mesh", 300e9, 2 * 200 * GBIT / 8),
        ("tpu-v5p-pod", 4, 8960, "torus", 600e9, 50 * GBIT),
        ("trn1", 16, 16, "torus", 192e9, 800 * GBIT / 16),
    ],
)
def test_published_systems(name, count, domain, topology, link, network):
    system = systems()[name]
    assert (system.count, system.domain_size, system.topology) == (count, domain, topology)
    assert system.link_bytes_per_s == pytest.approx(link)
    assert system.network_bytes_per_s == pytest.approx(network)
    assert system.source


def test_networks_carry_data_rates_one_direction():
    assert networks()["infiniband-ndr"].port_bytes_per_s == 50e9
    assert networks()["infiniband-sdr"].port_bytes_per_s == 1e9  # 10 Gbit/s with 8b/10b coding
    assert networks()["ethernet-10g"].port_bytes_per_s == 1.25e9
    assert {n.kind for n in networks().values()} == {"infiniband", "ethernet", "roce", "efa"}
    assert link_generations()["nvlink4"].most_bytes_per_s == 450e9


@pytest.mark.parametrize("name", list(accelerators()))
def test_every_device_has_a_system(name):
    accelerator = accelerators()[name]
    options = systems_of(accelerator)
    assert options[0] is default_system(accelerator)
    for system in options:
        assert system.accelerator is accelerator
        assert system.count >= 1 and system.link_bytes_per_s > 0 and system.network_bytes_per_s > 0
        assert system.host_memory_bytes > 0


def test_a_bridge_is_never_the_default():
    assert default_system(accelerators()["a100-pcie-80gb"]).topology == "pcie"
    assert "pcie-a100-bridged" in {s.id for s in systems_of(accelerators()["a100-pcie-80gb"])}


def test_a_system_with_another_device():
    assert system_with("dgx-a100", accelerators()["a100-sxm-40gb"]).accelerator.id == "a100-sxm-40gb"
    with pytest.raises(FieldError, match="does not come with"):
        system_with("dgx-a100", accelerators()["rtx-4090"])


def test_a_host_less_full_shares_its_network_up_to_a_port():
    h100 = systems()["dgx-h100"]
    assert with_count(h100, 4).network_bytes_per_s == h100.network_bytes_per_s  # one port per device
    assert with_count(h100, 4).domain_size == 4
    l4 = default_system(accelerators()["l4"])
    assert with_count(l4, 2).network_bytes_per_s == pytest.approx(4 * l4.network_bytes_per_s)
    assert with_count(systems()["gb200-nvl72"], 2).domain_size == 72


def test_assumed_fields_are_named():
    assert "network" in default_system(accelerators()["rtx-4090"]).assumed
    assert systems()["dgx-h100"].assumed == ()
