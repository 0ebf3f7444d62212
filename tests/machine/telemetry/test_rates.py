"""Power, energy and shares of time from counters: exact where counters are, honest where they are not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.machine.devices.readings import Health, Sample, State
from gpuwise.machine.telemetry.history import History, Ring
from gpuwise.machine.telemetry.rates import EnergyMeter, HealthTrack, SampleTrack


def sample(at_s: float, **more: Any) -> Sample:
    return Sample(0, at_s, **more)


def test_power_is_the_slope_of_the_energy_counter_not_the_drivers_average() -> None:
    meter = EnergyMeter()
    for t in range(5):
        power = meter.add(sample(float(t), energy_j=1000 + 250.0 * t, power_w=90.0))
    assert power == (250.0, "energy counter") and (meter.energy_j, meter.basis) == (1000.0, "energy counter")


def test_many_refreshes_a_second_still_average_over_a_second() -> None:
    """The counter moves in steps of 0.1 s: at 20 refreshes a second its slope would jump between 0 and twice the power."""
    meter, powers = EnergyMeter(), []
    for n in range(60):
        t = n * 0.05
        powers.append(meter.add(sample(t, energy_j=100.0 * math.floor(t * 10) / 10, power_w=100.0))[0])
    assert all(p == pytest.approx(100, rel=0.12) for p in powers)


def test_without_a_counter_power_is_integrated_and_it_says_so() -> None:
    meter = EnergyMeter()
    for t, power in ((0.0, 100.0), (1.0, 200.0), (3.0, 200.0)):
        meter.add(sample(t, power_w=power))
    assert (meter.energy_j, meter.basis) == (150.0 + 400.0, "integrated power")


def test_a_driver_loaded_anew_starts_its_counter_again_and_nothing_turns_negative() -> None:
    meter = EnergyMeter()
    for t, energy in ((0, 5000.0), (1, 5100.0), (2, 10.0), (3, 110.0)):
        power, _ = meter.add(sample(float(t), energy_j=energy, power_w=100.0))
    assert power == 100.0 and meter.energy_j == pytest.approx(300.0) and meter.basis == "integrated power"


def test_a_lost_card_draws_no_known_power_and_its_time_away_is_not_counted() -> None:
    meter = EnergyMeter()
    meter.add(sample(0.0, power_w=100.0))
    assert meter.add(sample(1.0, state=State.LOST)) == (None, None)
    meter.add(sample(100.0, power_w=100.0))
    meter.add(sample(101.0, power_w=100.0))
    assert meter.energy_j == 100.0


def test_a_clock_that_stands_still_makes_no_rate() -> None:
    meter = EnergyMeter()
    meter.add(sample(1.0, energy_j=10.0, power_w=5.0))
    assert meter.add(sample(1.0, energy_j=20.0, power_w=5.0)) == (5.0, "driver's average")
    assert meter.energy_j is None


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 1000)), min_size=1, max_size=40))
def test_energy_is_the_counters_difference(steps: list[tuple[float, float]]) -> None:
    meter, at_s, energy_j = EnergyMeter(), 0.0, 7.0
    meter.add(sample(at_s, energy_j=energy_j))
    for span_s, used_j in steps:
        at_s, energy_j = at_s + span_s, energy_j + used_j
        power, _ = meter.add(sample(at_s, energy_j=energy_j))
        assert power is None or power >= 0
    assert meter.energy_j == pytest.approx(energy_j - 7.0, abs=1e-6)


def health(at_s: float, held_s: float, **more: Any) -> Health:
    return Health(0, at_s, {"SW_THERMAL": held_s}, **more)


def test_shares_of_windows_come_from_the_counters() -> None:
    track, held = HealthTrack(), 100.0
    for t in range(0, 1000, 5):
        held += 5 * (0.5 if t > 940 else 0.1)
        track.add(health(float(t), held))
    windows = track.windows()
    assert [round(w.length_s) for w in windows] == [60, 300, 900] and {w.basis for w in windows} == {"counters"}
    assert windows[0].shares["SW_THERMAL"] == pytest.approx(0.46, abs=0.05)
    assert windows[2].shares["SW_THERMAL"] == pytest.approx(0.1 + 0.4 * 55 / 900, abs=0.01)


def test_a_young_watch_has_one_window_and_says_how_long() -> None:
    track = HealthTrack()
    assert track.windows() == ()
    track.add(health(10.0, 3.0))
    track.add(health(14.0, 5.0))
    assert [(w.length_s, w.shares["SW_THERMAL"]) for w in track.windows()] == [(4.0, 0.5)]


def test_counters_started_anew_start_the_windows_anew() -> None:
    track = HealthTrack()
    for t, held in ((0.0, 900.0), (10.0, 905.0), (20.0, 1.0), (30.0, 2.0)):
        track.add(health(t, held))
    (window,) = track.windows()
    assert (window.length_s, window.shares["SW_THERMAL"]) == (10.0, 0.1)


def test_counted_errors_are_those_since_the_watch_began() -> None:
    track = HealthTrack()
    for t, errors in ((0.0, 40), (5.0, 40), (10.0, 43), (15.0, 0), (20.0, 2)):
        track.add(health(t, 0.0, pcie_replays=errors))
    assert track.counted["pcie_replays"] == 5


def test_nvlink_rates_are_between_two_readings() -> None:
    track = HealthTrack()
    track.add(health(0.0, 0.0, nvlink_sent_bytes=0, nvlink_received_bytes=None))
    track.add(health(5.0, 0.0, nvlink_sent_bytes=500, nvlink_received_bytes=7))
    assert (track.rates.nvlink_sent_bytes_per_s, track.rates.nvlink_received_bytes_per_s) == (100.0, None)


def test_sampled_shares_say_that_they_are_sampled() -> None:
    track = SampleTrack()
    for t in range(100):
        track.add(sample(float(t), event_reasons=0x20 if t % 4 == 0 else 0, utilization=0.5), 100.0)
    window, recent = track.window(), track.recent()
    assert window is not None and window.basis == "samples" and window.length_s == 60.0
    assert window.shares == {"SW_THERMAL": pytest.approx(0.25, abs=0.02)}
    assert recent is not None and (recent.n_samples, recent.utilization, recent.power_w) == (61, 0.5, 100.0)


# --- history ---


@given(st.lists(st.floats(allow_nan=False)), st.integers(1, 9), st.integers(0, 12))
def test_a_ring_is_the_end_of_a_list(values: list[float], size: int, n: int) -> None:
    ring = Ring(size)
    for v in values:
        ring.append(v)
    kept = values[-size:]
    assert list(ring.last()) == kept and list(ring.last(n)) == (kept[-n:] if n else []) and len(ring) == len(kept)


def test_series_keep_step_with_the_times_even_for_a_card_that_comes_late(made: Any) -> None:
    from dataclasses import replace

    history = History(4)
    for t in range(6):
        cards = [made.card(sample={"temperature_c": float(t)})]
        if t >= 3:
            cards.append(replace(made.card(sample={"temperature_c": 50.0 + t}), number=1))
        history.append(made.frame(*cards, at_s=float(t)))
    assert list(history.times()) == [2.0, 3.0, 4.0, 5.0] and list(history.series(0, "temperature_c")) == [2.0, 3.0, 4.0, 5.0]
    late = list(history.series(1, "temperature_c"))
    assert math.isnan(late[0]) and late[1:] == [53.0, 54.0, 55.0]
    history.append(made.frame(made.card(), at_s=6.0))
    assert math.isnan(history.series(1, "temperature_c")[-1]) and len(history.series(1, "temperature_c", 2)) == 2
    assert len(history.series(7, "power_w")) == 0
    with pytest.raises(KeyError):
        history.series(0, "no such")
