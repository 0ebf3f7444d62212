"""The exporter read by the true client's parser; the dashboard asks only for what is there."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpuwise.errors import InputError
from gpuwise.machine.devices.readings import GpuProcess, State, Xid
from gpuwise.machine.telemetry.outputs.exporter import OWN, Exporter, exposition, metrics, parse_address, read
from gpuwise.machine.telemetry.outputs.grafana import dashboard, write_dashboard


def parsed(text: str) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            out.setdefault(sample.name, []).append(sample)
            # the parser gives every counter the ending that DCGM's names lack
            if sample.name.endswith("_total") and not sample.name.startswith("gpuwise"):
                out.setdefault(sample.name.removesuffix("_total"), []).append(sample)
    return out


def test_values_in_dcgms_units_with_its_labels(made: Any) -> None:
    card = made.card(
        sample={"energy_j": 1234.5, "memory_reserved_bytes": 2**29, "memory_clock_hz": 10501e6, "fan": 0.4},
        health={"held_back_s": {"SW_POWER_CAP": 12.5}, "pcie_replays": 3},
    )
    frame = made.frame(card, xids=((0, Xid(31, None, None)), (0, Xid(79, None, None))))
    found = parsed(exposition(frame, ()))
    want = {
        "DCGM_FI_DEV_GPU_UTIL": 97,
        "DCGM_FI_DEV_FB_USED": 20480,
        "DCGM_FI_DEV_FB_FREE": 3584,
        "DCGM_FI_DEV_FB_TOTAL": 24576,
        "DCGM_FI_DEV_POWER_USAGE": 380,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1234500,
        "DCGM_FI_DEV_SM_CLOCK": 2745,
        "DCGM_FI_DEV_MEM_CLOCK": 10501,
        "DCGM_FI_DEV_GPU_TEMP": 66,
        "DCGM_FI_DEV_FAN_SPEED": 40,
        "DCGM_FI_DEV_PCIE_LINK_WIDTH": 16,
        "DCGM_FI_DEV_XID_ERRORS": 79,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3,
        "gpuwise_gpu_up": 1,
    }
    assert {name: found[name][0].value for name in want} == pytest.approx(want)
    labels = found["DCGM_FI_DEV_GPU_UTIL"][0].labels
    assert labels == {
        "gpu": "0",
        "UUID": "GPU-0",
        "pci_bus_id": "00000000:01:00.0",
        "device": "null0",
        "modelName": "RTX 4090",
        "Hostname": "",
    }
    held = found["gpuwise_gpu_clocks_held_seconds_total"][0]
    assert (held.labels["reason"], held.value) == ("sw_power_cap", 12.5)


def test_an_unknown_reading_has_no_line_and_a_lost_card_is_down(made: Any) -> None:
    lost = replace(made.card(sample={"state": State.LOST, "utilization": None}), number=0)
    found = parsed(exposition(made.frame(lost), ()))
    assert (
        found["gpuwise_gpu_up"][0].value == 0 and "DCGM_FI_DEV_GPU_UTIL" not in found and "DCGM_FI_DEV_MEMORY_TEMP" not in found
    )


def test_causes_and_processes_are_metrics(demo_frames: Callable[..., Any]) -> None:
    frame, causes = demo_frames(2)[-1]
    found = parsed(exposition(frame, causes))
    named = {(int(s.labels["gpu"]), s.labels["cause"], s.labels["severity"]) for s in found["gpuwise_gpu_cause"]}
    assert named == {(c.number, c.id, c.severity.value) for c in causes if c.number is not None}
    assert found["gpuwise_gpu_process_memory_bytes"][0].labels["user"] == "ada" and found["gpuwise_cards"][0].value == 8


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_name_comes_back_as_it_was(name: str, command: str) -> None:
    from gpuwise.machine.devices.readings import Identity, Sample
    from gpuwise.machine.telemetry.frames import Card, Frame, HostProcess, ProcessRow

    # carriage returns end no line of the format, but the parser splits at them
    name, command = (re.sub(r"[\r\v\f\x1c-\x1e\x85\u2028\u2029]", "?", t) for t in (name, command))
    row = ProcessRow(0, GpuProcess(1, "compute", 5), HostProcess(1, name=command))
    card = Card(0, Identity("null", 0, name), Sample(0, 0.0), processes=(row,))
    found = parsed(exposition(Frame(0, 0.0, 0.0, None, (card,)), ()))
    sample = found["gpuwise_gpu_process_memory_bytes"][0]
    assert (sample.labels["modelName"], sample.labels["process"]) == (name, command)


def test_a_scrape_gives_the_latest_frame(demo_frames: Callable[..., Any]) -> None:
    exporter = Exporter("127.0.0.1", 0)
    try:
        at = f"http://127.0.0.1:{exporter.port}"
        assert urllib.request.urlopen(f"{at}/metrics", timeout=300).read() == b"\n"
        frames = demo_frames(3, sinks=[exporter])
        with urllib.request.urlopen(f"{at}/metrics", timeout=300) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            found = parsed(answer.read().decode())
        temperature = [s.value for s in found["DCGM_FI_DEV_GPU_TEMP"]]
        assert temperature == [c.sample.temperature_c for c in frames[-1][0].cards if c.ok]
        assert found["gpuwise_frame_age_seconds"][0].value >= 0
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{at}/etc/passwd", timeout=300)
        with pytest.raises(InputError, match="cannot be served"):
            Exporter("127.0.0.1", exporter.port)
    finally:
        exporter.close()
        exporter.close()


def test_every_metric_is_a_reading_with_a_source() -> None:
    from gpuwise.facts.sources import sources
    from gpuwise.machine.telemetry.demo import DemoDevices
    from gpuwise.machine.telemetry.monitor import Monitor

    with Monitor([DemoDevices(1)], background=False) as monitor:
        (card,) = monitor.refresh().cards
    for metric in metrics():
        read(card, metric.reading)
        assert metric.name.startswith("gpuwise_") != bool(metric.source), f"{metric.name} needs a source"
        assert not metric.source or metric.source in sources()
        assert metric.name not in OWN
    assert len({m.name for m in metrics()}) == len(metrics())


def test_the_dashboard_asks_only_for_metrics_there_are(tmp_path: Any) -> None:
    write_dashboard(tmp_path / "gpus.json")
    made = json.loads((tmp_path / "gpus.json").read_text())
    known = {m.name for m in metrics()} | set(OWN)
    asked = {n for t in _queries(made) for n in re.findall(r"(?:DCGM_FI|gpuwise)_\w+", t)}
    assert asked <= known and len(asked) >= 12
    assert made["title"] and made["schemaVersion"] >= 36 and len({p["id"] for p in made["panels"]}) == len(made["panels"])
    for a in made["panels"]:
        place = a["gridPos"]
        assert place["x"] + place["w"] <= 24 and a["targets"]
        for b in made["panels"]:
            other = b["gridPos"]
            apart = place["x"] >= other["x"] + other["w"] or other["x"] >= place["x"] + place["w"]
            assert a is b or apart or place["y"] >= other["y"] + other["h"] or other["y"] >= place["y"] + place["h"]
    with pytest.raises(InputError, match="is not a directory"):
        write_dashboard(tmp_path / "no" / "gpus.json")
    assert dashboard().endswith("\n")


def _queries(made: Any) -> list[str]:
    panels = [t["expr"] for p in made["panels"] for t in p["targets"]]
    return panels + [v["definition"] for v in made["templating"]["list"] if "definition" in v]


@pytest.mark.parametrize(
    ("text", "address"),
    [("9400", ("127.0.0.1", 9400)), (":9400", ("127.0.0.1", 9400)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:80", ("::1", 80))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":", "host", "host:http", ":99999", ":-1", "９４００"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_address(text)
