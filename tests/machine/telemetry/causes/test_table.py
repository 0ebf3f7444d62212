"""Every planted cause is named, alone and together; a healthy card is left in peace."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.machine.devices.readings import EventReason, Identity, Sample, State, Xid
from gpuwise.machine.telemetry import alerts
from gpuwise.machine.telemetry.causes import cause
from gpuwise.machine.telemetry.causes.table import find_causes
from gpuwise.machine.telemetry.frames import Card, Frame, Host, Recent, Window

FAULT, SLOWS, NOTE = cause.Severity.FAULT, cause.Severity.SLOWS, cause.Severity.NOTE
MINUTE = Recent(60.0, 60, 0.2)

PLANTED: list[tuple[str, cause.Severity, dict[str, Any], str]] = [
    ("lost", FAULT, {"sample": {"state": State.LOST, "error": "GPU is lost"}, "last_seen_s": 955.0}, "is lost"),
    ("unreachable", FAULT, {"sample": {"state": State.UNREACHABLE, "error": "driver not loaded"}}, "does not answer"),
    ("recovery-action", FAULT, {"health": {"recovery_action": "drain and reset"}}, "asks for a drain and reset"),
    ("ecc-uncorrected", FAULT, {"health": {"ecc_uncorrected": 12}}, "could not be corrected"),
    ("remap-failed", FAULT, {"health": {"remap_failed": True}}, "could not replace a broken row"),
    ("remap-pending", FAULT, {"health": {"remap_pending": True}}, "at the next reset"),
    ("remap-pending", FAULT, {"health": {"retired_pages_pending": True}}, "at the next reset"),
    ("hw-thermal", FAULT, {"sample": {"event_reasons": 0x48, "temperature_c": 95.0}}, "too hot"),
    ("hot", NOTE, {"sample": {"temperature_c": 91.0}}, "as hot as it may be"),
    ("hot", NOTE, {"sample": {"memory_temperature_c": 106.0}}, "its memory is"),
    ("hw-power-brake", FAULT, {"sample": {"event_reasons": 0x88}}, "power brake"),
    ("sw-thermal", SLOWS, {"sample": {"event_reasons": 0x20}}, "is warm"),
    ("sync-boost", SLOWS, {"sample": {"event_reasons": 0x10}}, "slower GPUs"),
    ("reliability", NOTE, {"sample": {"event_reasons": 0x400}}, "reliability"),
    ("board-limit", SLOWS, {"sample": {"event_reasons": 0x200}}, "limited by its board"),
    ("application-clocks", NOTE, {"sample": {"event_reasons": 0x2}}, "application clocks"),
    ("display-clocks", NOTE, {"sample": {"event_reasons": 0x100}}, "display"),
    ("hw-slowdown", FAULT, {"sample": {"event_reasons": 0x8}}, "does not say why"),
    ("sw-power-cap", NOTE, {"sample": {"event_reasons": 0x4, "power_w": 448.0}}, "as GPUs at full load do"),
    ("sw-power-cap", SLOWS, {"sample": {"event_reasons": 0x4, "power_w": 248.0, "power_limit_w": 250.0}}, "limit of 250 W"),
    ("sw-power-cap", SLOWS, {"sample": {"event_reasons": 0x4, "power_w": 120.0}}, "far less than its own"),
    ("low-clock", SLOWS, {"sample": {"sm_clock_hz": 210e6}}, "gives no reason"),
    ("unknown-reason", NOTE, {"sample": {"event_reasons": 0x1000}}, "0x1000"),
    ("pcie-width", SLOWS, {"sample": {"pcie_width": 4}}, "4 PCIe lanes of the 16"),
    ("pcie-generation", SLOWS, {"sample": {"pcie_generation": 1}}, "generation 1"),
    ("pcie-replays", SLOWS, {"counted": {"pcie_replays": 3}}, "repeats PCIe packets"),
    ("nvlink-down", FAULT, {"health": {"nvlinks_active": 3}}, "3 of 4 NVLinks"),
    ("nvlink-errors", SLOWS, {"counted": {"nvlink_errors": 2}}, "errors on its NVLinks"),
    ("memory-full", NOTE, {"sample": {"memory_used_bytes": int(23.9 * 2**30)}}, "of memory left"),
    ("one-thread", SLOWS, {"recent": MINUTE, "host": {"pegged_thread": "pt_main"}}, "one processor thread"),
    ("data-loader", SLOWS, {"recent": MINUTE, "host": {"n_workers": 4, "n_workers_pegged": 4}}, "data loader"),
    ("disk", SLOWS, {"recent": MINUTE, "host": {"n_workers": 4, "n_workers_waiting": 3}}, "waits for the disk"),
    ("disk", SLOWS, {"recent": MINUTE, "host": {"state": "D"}}, "waits for a disk"),
    ("unused", NOTE, {"recent": Recent(60.0, 60, 0.0)}, "does nothing"),
]


@pytest.mark.parametrize(("id", "severity", "change", "said"), PLANTED)
def test_each_planted_cause_is_named_alone(made: Any, id: str, severity: str, change: dict[str, Any], said: str) -> None:
    found = find_causes(made.frame(made.card(**change)))
    assert [(c.id, c.severity) for c in found] == [(id, severity)]
    assert found[0].sentence.startswith("GPU 0") and said in found[0].sentence and found[0].sentence.endswith(".")
    assert found[0].number == 0


def test_every_cause_of_the_source_is_planted_here_and_known_to_alerts() -> None:
    folder = Path(cause.__file__).parent
    named = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Cause", "_Hold"):
                at = 0 if node.func.id == "Cause" else 1
                named |= {n.value for n in ast.walk(node.args[at]) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    assert named == {p[0] for p in PLANTED} | {"xid", "host-memory-full"}
    assert set(alerts.CAUSE_IDS) == named - {"host-memory-full"}


def test_the_scenario_the_peers_do_not_see(made: Any) -> None:
    """95 C, hardware thermal slowdown, PCIe 1.0 x4, 210 of 3105 MHz, 12 uncorrectable errors, remapping failed: all six."""
    card = made.card(
        sample={"event_reasons": 0x48, "temperature_c": 95.0, "sm_clock_hz": 210e6, "pcie_generation": 1, "pcie_width": 4},
        health={"ecc_uncorrected": 12, "remap_failed": True},
    )
    found = {c.id: c for c in find_causes(made.frame(card))}
    assert set(found) == {"hw-thermal", "ecc-uncorrected", "remap-failed", "pcie-width", "pcie-generation"}
    assert "95 °C" in found["hw-thermal"].evidence[0] and "90 °C" in found["hw-thermal"].evidence[0]
    assert found["hw-thermal"].cost == "2895 MHz (93 %) below the highest clock"
    assert "12 since the driver was loaded" in found["ecc-uncorrected"].evidence
    assert found["pcie-width"].cost == "75 % of the speed of copies to and from it"


def test_shares_of_the_counters_are_evidence(made: Any) -> None:
    windows = (Window(60.0, {"SW_THERMAL": 0.12}, "counters"), Window(300.0, {"SW_THERMAL": 0.004}, "counters"))
    held = {"held_back_s": {"SW_THERMAL": 7}}
    (found,) = find_causes(made.frame(made.card(sample={"event_reasons": 0x20}, windows=windows, health=held)))
    assert found.evidence[1:] == (
        "12 % of the last 60 s (driver's counters)",
        "under 1 % of the last 5 min (driver's counters)",
        "7 s since the driver was loaded",
    )


def test_what_is_over_is_told_in_the_past_and_is_no_fault(made: Any) -> None:
    windows = (Window(60.0, {"HW_THERMAL": 0.3}, "counters"),)
    (found,) = find_causes(made.frame(made.card(windows=windows)))
    assert (found.id, found.severity, found.cost) == ("hw-thermal", SLOWS, None) and "was too hot" in found.sentence
    gone = (Window(60.0, {"HW_THERMAL": 0.005}, "counters"),)
    assert find_causes(made.frame(made.card(windows=gone))) == ()


@pytest.mark.parametrize(
    "sample",
    [
        {
            "pcie_generation": 1,
            "utilization": 0.0,
            "performance_state": 8,
            "sm_clock_hz": 210e6,
            "event_reasons": 1,
            "processes": (),
        },
        {"pcie_generation": 1, "performance_state": 8},
        {"event_reasons": 0x8, "utilization": 0.0, "processes": ()},
        {"event_reasons": 0x2, "utilization": 0.1, "processes": ()},
        {"event_reasons": 1, "utilization": 0.0, "processes": ()},
        {"utilization": None},
        {"pcie_width": None, "pcie_generation": None, "performance_state": None},
    ],
)
def test_what_is_normal_is_not_named(made: Any, sample: dict[str, Any]) -> None:
    """An idle card's slow link and clocks, the umbrella bit while the state changes, readings that are not there."""
    assert find_causes(made.frame(made.card(sample=sample))) == ()


def test_a_screen_on_an_idle_card_keeps_nobody_waiting(made: Any) -> None:
    from gpuwise.machine.devices.readings import GpuProcess

    card = made.card(sample={"utilization": 0.01, "processes": (GpuProcess(1, "graphics", 2**28),)})
    assert find_causes(made.frame(card)) == ()


def test_nvlinks_without_a_bridge_are_no_fault(made: Any) -> None:
    assert find_causes(made.frame(made.card(health={"nvlinks_active": 0}))) == ()


def test_worst_first_then_by_card(made: Any) -> None:
    from dataclasses import replace

    warm = made.card(sample={"event_reasons": 0x20})
    broken = replace(made.card(health={"ecc_uncorrected": 1}), number=1)
    found = find_causes(made.frame(warm, broken))
    assert [(c.id, c.number) for c in found] == [("ecc-uncorrected", 1), ("sw-thermal", 0)]


def test_a_machine_out_of_memory_is_named_once(made: Any) -> None:
    host = Host("box", 8, 0.1, 64 * 2**30, 2**30)
    (found,) = find_causes(made.frame(made.card(), host=host))
    assert (found.id, found.number) == ("host-memory-full", None)


def test_busy_cores_are_evidence_for_a_starved_card(made: Any) -> None:
    card = made.card(recent=MINUTE, host={"n_workers": 8, "n_workers_pegged": 8})
    (found,) = find_causes(made.frame(card, host=Host("box", 8, 0.99, None, None)))
    assert "all 8 cores of the machine are in use" in found.evidence


@pytest.mark.parametrize(("code", "severity"), [(79, FAULT), (48, FAULT), (31, NOTE), (13, NOTE), (999, FAULT)])
def test_an_xid_of_an_application_is_a_note(made: Any, code: int, severity: str) -> None:
    frame = made.frame(made.card(), xids=((0, Xid(code, 1.8e9, None)), (1, Xid(79, None, None))))
    (found,) = find_causes(frame)
    assert (found.id, found.severity) == ("xid", severity) and f"Xid {code}" in found.sentence


@given(
    st.builds(
        dict,
        utilization=st.floats(0.5, 1),
        temperature_c=st.floats(20, 80),
        sm_clock_hz=st.floats(1.6e9, 3.2e9),
        power_w=st.floats(10, 450),
        memory_used_bytes=st.integers(0, 23 * 2**30),
        event_reasons=st.sampled_from([0, 1]),
        pcie_generation=st.just(4),
    )
)
def test_no_cause_on_any_healthy_card(made: Any, sample: dict[str, Any]) -> None:
    assert find_causes(made.frame(made.card(sample=sample))) == ()


ALONE = ("hot", "lost", "unreachable", "hw-slowdown", "low-clock", "unused", "one-thread", "data-loader", "disk")
"""Causes that others replace: each of them is told only where nothing else explains it."""
ON_ONE_CARD = [p for p in PLANTED if p[0] not in ALONE]
SAMPLE_FIELDS, IDENTITY_FIELDS = ([f.name for f in fields(kind)][3:] for kind in (Sample, Identity))


@given(st.lists(st.sampled_from(ON_ONE_CARD), min_size=1, max_size=6, unique_by=lambda p: p[0]))
def test_planted_causes_do_not_hide_each_other(made: Any, planted: list[Any]) -> None:
    change: dict[str, Any] = {}
    for _, _, more, _ in planted:
        for part, values in more.items():
            old = change.setdefault(part, {})
            bits = old.get("event_reasons", 0) | values.get("event_reasons", 0)
            old |= values
            if part == "sample" and bits:
                old["event_reasons"] = bits
    found = {c.id for c in find_causes(made.frame(made.card(**change)))}
    assert found == {p[0] for p in planted}


@given(st.integers(0, 2**40))
def test_no_bit_is_dropped(made: Any, bits: int) -> None:
    """Each bit is a known reason that is named, the idle bit, the umbrella over a named one, or printed in hexadecimal."""
    found = {c.id: c for c in find_causes(made.frame(made.card(sample={"event_reasons": bits, "power_w": 449.0})))}
    known = sum(EventReason)
    if bits & ~int(known):
        assert f"{bits & ~int(known):#x}" in found["unknown-reason"].sentence
    names = {
        0x2: "application-clocks",
        0x4: "sw-power-cap",
        0x10: "sync-boost",
        0x20: "sw-thermal",
        0x40: "hw-thermal",
        0x80: "hw-power-brake",
        0x100: "display-clocks",
        0x200: "board-limit",
        0x400: "reliability",
    }
    for bit, name in names.items():
        assert (name in found) == bool(bits & bit)
    assert ("hw-slowdown" in found) == (bool(bits & 0x8) and not bits & 0xC0)


@given(st.sets(st.sampled_from(SAMPLE_FIELDS)), st.sets(st.sampled_from(IDENTITY_FIELDS)))
def test_missing_readings_never_raise(made: Any, sample: set[str], identity: set[str]) -> None:
    gone = {n: None for n in sample if n != "unknown"}
    card: Card = made.card(sample=gone, identity={n: None for n in identity if n != "unknown"})
    frame: Frame = made.frame(card)
    assert all(c.number == 0 for c in find_causes(frame))
