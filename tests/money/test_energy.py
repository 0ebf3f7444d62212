from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.facts.naming import find_cluster
from gpuwise.facts.systems import Cluster
from gpuwise.money.energy import HOST_FACTOR, PUE, energy
from gpuwise.predict.estimate import Estimate

NODE = find_cluster("8xH100-SXM")
HOUR = Estimate.from_log_sigma(3600.0, 0.05, "fitted")


def test_a_node_hour_lies_between_idle_and_the_most_it_draws() -> None:
    used = energy(HOUR, NODE)
    assert used is not None
    # a DGX H100 draws at most 10.2 kW (NVIDIA DGX H100 datasheet); cooling comes on top
    assert 3.0 < used.kwh.expected / PUE < 10.2
    assert used.power_w == pytest.approx(used.kwh.expected * 1000, rel=1e-6)
    assert used.kwh.low < used.kwh.expected < used.kwh.high
    assert 1.2 < HOST_FACTOR < 1.5


def test_energy_scales_with_time_and_accelerators() -> None:
    one = energy(HOUR, NODE)
    twice = energy(HOUR.scaled(2.0), find_cluster("16xH100-SXM"))
    assert one is not None and twice is not None
    assert twice.kwh.expected == pytest.approx(4 * one.kwh.expected)


def test_unknown_power_is_no_energy() -> None:
    accelerator = replace(NODE.accelerator, tdp_w=None)
    assert energy(HOUR, Cluster(replace(NODE.system, accelerator=accelerator), 8)) is None
