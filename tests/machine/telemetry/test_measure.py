"""The meter for a block of code: by the counter where there is one, and it runs whatever the cards do."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import pytest

from gpuwise import machine
from gpuwise.errors import DeviceError
from gpuwise.machine.devices.null import NullCard, NullDevices
from gpuwise.machine.devices.readings import GpuProcess, State
from gpuwise.machine.telemetry.measure import Measure


def devices(clock: Any, *scripts: Any, health: Mapping[str, Any] | None = None) -> NullDevices:
    return NullDevices([NullCard("rtx-4090", script=s, health=health or {}) for s in scripts], clock=clock)


def block(meter: Measure, clock: Any, seconds: int) -> Measure:
    """A block of ``seconds`` on the test's clock, sampled each second."""
    with meter:
        for _ in range(seconds):
            clock.go(1.0)
            meter._sample()
    return meter


def test_energy_by_the_counter_with_peaks_and_means(clock: Any) -> None:
    def script(t: float) -> Mapping[str, Any]:
        return {
            "energy_j": 5000 + 300 * t,
            "power_w": 100.0 + 50 * t,
            "memory_used_bytes": int(1e9 * (1 + t % 3)),
            "utilization": 0.5,
            "temperature_c": 40 + t,
            "processes": (GpuProcess(os.getpid(), "compute", int(1e8 * t)), GpuProcess(1, "compute", 10**12)),
        }

    m = block(Measure([devices(clock, script)], interval_s=100, clock=clock), clock, 4)
    (card,) = m.cards
    assert (m.wall_s, m.energy_j, m.energy_basis, m.mean_power_w) == (4.0, 1200.0, "energy counter", 300.0)
    assert (card.peak_power_w, card.peak_memory_bytes, card.own_peak_memory_bytes) == (300.0, 3 * 10**9, 4 * 10**8)
    assert (card.mean_utilization, card.peak_temperature_c, card.n_samples) == (0.5, 44.0, 6)


def test_without_a_counter_power_is_integrated_and_it_says_so(clock: Any) -> None:
    m = block(Measure([devices(clock, lambda t: {"power_w": 100.0 + 100 * t})], interval_s=100, clock=clock), clock, 2)
    assert (m.energy_j, m.energy_basis) == (400.0, "integrated power")


def test_one_card_without_power_makes_the_sum_unknown_not_less(clock: Any) -> None:
    m = block(Measure([devices(clock, lambda t: {}, lambda t: {"power_w": None})], interval_s=100, clock=clock), clock, 2)
    assert m.energy_j is None and m.energy_basis is None and m.cards[0].energy_j is not None


def test_held_clocks_by_the_counters_else_by_samples(clock: Any) -> None:
    by_counter = devices(clock, lambda t: {"held_back_s": {"SW_THERMAL": 50 + 0.25 * t}, "event_reasons": 4})
    m = block(Measure([by_counter], interval_s=100, clock=clock), clock, 8)
    assert dict(m.held_back_s) == {"SW_THERMAL": 2.0} and m.cards[0].held_back_basis == "counters"
    sampled = devices(clock, lambda t: {"event_reasons": 0x24 if t % 2 else 0x4})
    m = block(Measure([sampled], interval_s=100, clock=clock), clock, 8)
    assert m.held_back_s["SW_POWER_CAP"] == 8.0 and m.held_back_s["SW_THERMAL"] == 4.0
    assert m.cards[0].held_back_basis == "samples"


def test_an_error_in_the_block_passes_and_nothing_measured_is_lost(clock: Any) -> None:
    meter = Measure([devices(clock, lambda t: {"energy_j": 10 * t})], interval_s=100, clock=clock)
    with pytest.raises(ZeroDivisionError), meter:
        clock.go(3.0)
        _ = 1 / 0
    assert (meter.energy_j, meter.wall_s) == (30.0, 3.0)


def test_a_card_lost_inside_the_block(clock: Any) -> None:
    def script(t: float) -> Mapping[str, Any]:
        return {"state": State.LOST, "error": "GPU is lost", "power_w": None} if t >= 2 else {"power_w": 100.0}

    m = block(Measure([devices(clock, script)], interval_s=100, clock=clock), clock, 4)
    assert m.energy_j == 100.0 and m.cards[0].unknown["card"] == "GPU is lost"


def test_no_card_is_no_error() -> None:
    class Down(NullDevices):
        vendor = "down"

        def identities(self) -> Any:
            raise DeviceError("the driver is not loaded")

    with machine.measure([Down([])]) as m:
        pass
    assert (m.energy_j, m.peak_memory_bytes, m.cards, m.unknown) == (None, None, (), {"down": "the driver is not loaded"})
    with machine.measure([NullDevices([])]) as m:
        pass
    assert m.unknown == {"cards": "no GPU was found"} and m.wall_s >= 0 and dict(m.held_back_s) == {}


def test_only_the_cards_asked_for_and_samples_by_themselves() -> None:
    cards = [NullCard("rtx-4090") for _ in range(3)]
    with machine.measure([NullDevices(cards)], cards=[2], interval_s=0.01) as m:
        deadline = time.monotonic() + 600
        while m.cards[0].n_samples < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [c.number for c in m.cards] == [2] and m.cards[0].n_samples >= 5
