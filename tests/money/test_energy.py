from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.operations import sites
from gpuwise.money.energy import energy
from gpuwise.money.power import cluster_power
from gpuwise.predict.estimate import Estimate

NODE = find_cluster("8xH100-SXM")
HOUR = Estimate.from_log_sigma(3600.0, 0.05, "fitted")


def test_a_node_hour_lies_between_idle_and_the_most_it_draws() -> None:
    used = energy(HOUR, NODE)
    assert used is not None
    # a DGX H100 draws at most 10.2 kW (NVIDIA DGX H100 datasheet); cooling comes on top
    assert 5.6 < used.kwh.expected / used.pue < 10.2
    assert used.power_w == pytest.approx(used.kwh.expected * 1000, rel=1e-6)
    assert used.kwh.low < used.kwh.expected < used.kwh.high
    assert 1.2 < used.host_factor < 2.0


def test_energy_is_the_power_budget_over_time() -> None:
    used, budget = energy(HOUR, NODE), cluster_power(NODE)
    assert used is not None and budget is not None
    assert used.power_w == budget.total_w.expected
    assert used.host_factor * used.pue * budget.accelerators_w.expected == pytest.approx(used.power_w)


def test_energy_scales_with_time_and_accelerators() -> None:
    one = energy(HOUR, NODE)
    twice = energy(HOUR.scaled(2.0), NODE)
    nodes, more = energy(HOUR, find_cluster("16xH100-SXM")), energy(HOUR, find_cluster("32xH100-SXM"))
    assert one is not None and twice is not None and nodes is not None and more is not None
    assert twice.kwh.expected == pytest.approx(2 * one.kwh.expected)
    assert more.kwh.expected == pytest.approx(2 * nodes.kwh.expected)
    # the second host brings switches, the first has none
    assert 1.0 < nodes.kwh.expected / (2 * one.kwh.expected) < 1.15


def test_the_site_matters() -> None:
    cloud, room = (energy(HOUR, NODE, site=sites()[key]) for key in ("gcp", "enterprise"))
    assert cloud is not None and room is not None
    assert room.kwh.expected / cloud.kwh.expected == pytest.approx(room.pue / cloud.pue)
    assert room.pue > cloud.pue > 1.0


def test_the_document_keeps_its_keys() -> None:
    used = energy(HOUR, NODE)
    assert used is not None and set(used.as_dict()) == {"kwh", "power_w", "pue", "host_factor"}


def test_unknown_power_is_no_energy() -> None:
    accelerator = replace(NODE.accelerator, tdp_w=None)
    assert energy(HOUR, Cluster(replace(NODE.system, accelerator=accelerator), 8)) is None
