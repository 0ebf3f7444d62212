"""NVIDIA devices against the fake library: what every card tells, and how much it is asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from gpuwise.machine.devices.nvml.backend import NvmlDevices
from gpuwise.machine.devices.nvml.sample import DIVIDED
from gpuwise.machine.devices.readings import GpuProcess, State
from gpuwise.testing.fake_nvml import Card, profile_names

Opened = Any
SLOW_CALLS = (
    "nvmlDeviceGetPcieThroughput",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetSupportedGraphicsClocks",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetSamples",
)
NVITOP_CALLS_A_CARD = 134 / 8
"""NVML calls of nvitop 1.7.2 a second for each of 8 cards at 1 Hz, by the same counter."""
OF_PROCESSES = {f.name for f in fields(GpuProcess)}


def _untold(of: Any) -> set[str]:
    """Readings that are None."""
    return {f.name for f in fields(of) if getattr(of, f.name) is None} - {"error"}


# --- what healthy cards tell ---


@pytest.mark.parametrize("profile", profile_names())
def test_a_healthy_card_tells_all_or_why_not(machine: Callable[..., Opened], profile: str) -> None:
    fake, devices, _ = machine(profile)
    fake.gpu(0).add_process(os.getpid(), memory_bytes=2**30, sm=0.25)
    (identity,) = devices.identities()
    sample, health = devices.sample(0), devices.health(0)
    assert sample.state is State.OK and sample.error is None
    for told in (identity, sample, health):
        assert _untold(told) == set(told.unknown) - OF_PROCESSES - {"sm_utilization"}, told
    assert sample.temperature_c == fake.gpu(0).get("temperature_c")
    assert sample.power_w == pytest.approx(fake.gpu(0).get("power_w"), abs=1e-3)
    assert (sample.utilization, sample.memory_utilization) == (0.0, 0.0)
    assert sample.processes == (GpuProcess(os.getpid(), "compute", 2**30, 0.25, 0.0, 0.0, 0.0),)
    assert identity.compute_capability == tuple(int(fake.gpu(0).get(f"compute_capability_{p}")) for p in ("major", "minor"))


def test_figures_arrive_in_si_units(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("H100-SXM")
    fake.gpu(0).set(
        power_w=651.5,
        energy_j=1234.5,
        utilization=0.87,
        memory_used_bytes=3e9,
        sm_clock_hz=1755e6,
        event_reasons=0x804,
        fan=0.3,
        memory_temperature_c=91,
        pcie_generation=4,
        pcie_width=8,
        encoder_utilization=0.5,
        held_hw_thermal_s=7.5,
        ecc_uncorrected=12,
        remap_failed=1,
        recovery_action=4,
        pcie_sent_bytes_per_s=5e9,
        nvlink_sent_bytes=2**40,
        nvlink_crc_errors=3,
    )
    s, h = devices.sample(0), devices.health(0)
    assert (s.power_w, s.energy_j, s.utilization, s.memory_used_bytes) == (651.5, 1234.5, 0.87, 3_000_000_000)
    assert (s.sm_clock_hz, s.event_reasons, s.fan, s.memory_temperature_c) == (1755e6, 0x804, 0.3, 91.0)
    assert (s.pcie_generation, s.pcie_width, s.encoder_utilization) == (4, 8, 0.5)
    assert h.held_back_s["HW_THERMAL"] == 7.5 and h.held_back_s["SW_POWER_CAP"] == 0.0
    assert (h.ecc_uncorrected, h.remap_failed, h.recovery_action) == (12, True, "drain and reset")
    assert (h.pcie_sent_bytes_per_s, h.nvlink_sent_bytes, h.nvlink_errors, h.nvlinks_active) == (5e9, 2**40, 3, 18)


def test_shared_memory_is_the_processors(machine: Callable[..., Opened]) -> None:
    _, devices, _ = machine("GB10")
    (identity,), sample = devices.identities(), devices.sample(0)
    assert identity.unified_memory and identity.memory_bytes == sample.memory_total_bytes
    assert sample.memory_used_bytes is not None and 0 < sample.memory_used_bytes < (sample.memory_total_bytes or 0)


def test_a_divided_card_says_so(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("A100-SXM")
    parts = tuple(fake.gpu(0).add_mig_device(i, 2**34) for i in (1, 2))
    fake.gpu(0).set(utilization=None, memory_utilization=None)
    (identity,), sample = devices.identities(), devices.sample(0)
    assert identity.mig and identity.mig_uuids == parts
    assert sample.state is State.OK and sample.utilization is None
    assert sample.unknown["utilization"] == sample.unknown["memory_utilization"] == DIVIDED


def test_peers(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("H100-SXM", "H100-SXM", "RTX-4090")
    fake.gpu(0).peer(2, level=30, status=1)
    ab, ac, bc = devices.peers()
    assert (ab.link, ab.n_links, ab.can_read) == ("nvlink", 18, True)
    assert (ac.link, ac.n_links, ac.can_read) == ("pcie host bridge", None, False)
    assert (bc.a, bc.b, bc.link) == (1, 2, "numa node")
    fake.gpu(1).set(nvlinks_active=17)
    assert devices.peers()[0].n_links == 17


def test_nvlinks_that_end_at_cards_are_counted_by_card(machine: Callable[..., Opened]) -> None:
    _, devices, _ = machine("V100", "V100", "V100", "V100")
    assert {(p.link, p.n_links) for p in devices.peers()} == {("nvlink", 2)}


# --- processes ---


def test_a_process_of_both_kinds_is_one(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("RTX-4090")
    fake.gpu(0).add_process(10, "both", memory_bytes=2**28, sm=1.0)
    fake.gpu(0).add_process(11, "graphics", memory_bytes=None)
    first, second = devices.sample(0).processes or ()
    assert (first.kind, first.memory_bytes, first.sm_utilization) == ("both", 2**28, 1.0)
    assert (second.kind, second.memory_bytes) == ("graphics", None)
    assert devices.sample(0, processes=False).processes is None


def test_a_long_list_of_processes_is_read_whole(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("H100-SXM")
    for pid in range(100):
        fake.gpu(0).add_process(1000 + pid, memory_bytes=2**20)
    assert [p.pid for p in devices.sample(0).processes or ()] == list(range(1000, 1100))
    fake.reset_calls()
    devices.sample(0)
    assert fake.calls()["nvmlDeviceGetComputeRunningProcesses_v3"] == 1  # the room is remembered


@pytest.mark.parametrize("function", ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"])
def test_a_list_that_never_fits_is_given_up(machine: Callable[..., Opened], function: str) -> None:
    fake, devices, _ = machine("H100-SXM")
    fake.gpu(0).add_process(5, memory_bytes=2**20)
    fake.fail(function, 7)
    sample = devices.sample(0)
    assert sample.state is State.OK and sample.temperature_c == 30.0
    assert fake.calls()[function] <= 4
    fake.heal()
    assert [p.sm_utilization for p in devices.sample(0).processes or ()] == [0.0]


# --- how much is asked ---


def test_a_refresh_of_eight_cards_asks_no_more_than_nvitop_and_nothing_slow(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine(*["H100-SXM"] * 8)
    for gpu in fake.gpus:
        gpu.add_process(100 + gpu.index, memory_bytes=2**30, sm=0.5)
    for _ in range(2):
        fake.reset_calls()
        for index in range(8):
            devices.sample(index)
    calls = fake.calls()
    assert sum(calls.values()) <= 8 * NVITOP_CALLS_A_CARD
    assert not set(SLOW_CALLS) & set(calls)


def test_what_is_not_supported_is_not_asked_again_until_the_card_came_back(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("T4")
    devices.sample(0)
    fake.reset_calls()
    assert devices.sample(0).unknown["fan"] == "not supported"
    assert "nvmlDeviceGetFanSpeed" not in fake.calls()
    fake.gpu(0).set(fan=0.4)
    assert devices.sample(0).fan is None
    fake.gpu(0).lose()
    devices.sample(0)
    fake.gpu(0).restore()
    assert devices.sample(0).fan == 0.4


def test_a_passing_trouble_is_asked_again(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("T4")
    fake.fail("nvmlDeviceGetPowerUsage", 999)
    fake.fail("nvmlDeviceGetFieldValues", 999)
    assert devices.sample(0).unknown["power_w"] == "unknown error"
    fake.heal()
    assert devices.sample(0).power_w == 12.0


# --- old and odd drivers ---


def test_an_old_driver_is_asked_in_its_own_words(machine: Callable[..., Opened]) -> None:
    fake, _, _ = machine("V100")
    missing = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetFieldValues",
    )
    with fake.change():
        for function in missing:
            fake.fail(function, 13)
        fake.gpu(0).set(event_reasons=4)
        fake.gpu(0).add_process(7, memory_bytes=2**20)
    devices = NvmlDevices()
    s = devices.sample(0)
    assert (s.memory_total_bytes, s.memory_reserved_bytes) == (2**35, None)
    assert (s.event_reasons, s.power_w, s.power_limit_w) == (4, 44.5, 300.0)
    assert [p.pid for p in s.processes or ()] == [7]
    assert s.unknown["memory_temperature_c"] == s.unknown["memory_reserved_bytes"] == "this driver does not have it yet"
    fake.reset_calls()
    devices.sample(0)
    assert not set(missing) - {"nvmlDeviceGetCurrentClocksEventReasons"} & set(fake.calls())
    devices.close()


def test_a_name_that_is_not_utf8_is_still_a_name(machine: Callable[..., Opened]) -> None:
    _, devices, _ = machine(Card("T4", {"name": os.fsdecode(b"T\xff4")}))
    assert devices.identities()[0].name == "T�4"
