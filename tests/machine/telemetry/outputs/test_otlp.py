"""OTLP/JSON lines: read by the protocol's own messages, named by the conventions, appended."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import InputError
from gpuwise.machine.telemetry.outputs.otlp import READINGS, STATES, OtlpLog, document


def points(data: dict[str, Any]) -> dict[str, list[tuple[dict[str, str], float, dict[str, Any]]]]:
    (resource,) = data["resourceMetrics"]
    found: dict[str, list[tuple[dict[str, str], float, dict[str, Any]]]] = {}
    for metric in resource["scopeMetrics"][0]["metrics"]:
        for p in metric[next(k for k in ("gauge", "sum") if k in metric)]["dataPoints"]:
            labels = {a["key"]: a["value"]["stringValue"] for a in p["attributes"]}
            found.setdefault(metric["name"], []).append((labels, p["asDouble"], p))
    return found


def test_readings_have_the_names_and_units_of_the_conventions(made: Any) -> None:
    card = made.card(sample={"fan": 0.4, "temperature_c": 66.0}, health={"ecc_corrected": 3})
    frame = made.frame(card)
    found = points(document(frame, (), frame.wall_s - 5.0))
    labels, value, point = found["hw.gpu.memory.usage"][0]
    assert value == card.sample.memory_used_bytes and labels["hw.id"] == "GPU-0" and labels["hw.type"] == "gpu"
    assert point["timeUnixNano"] == str(round(frame.wall_s * 1e9)) and labels["hw.model"] == "RTX 4090"
    heat, degrees, _ = found["hw.temperature"][0]
    assert degrees == 66.0 and heat["hw.parent"] == "GPU-0" and heat["hw.id"] != "GPU-0" and heat["hw.type"] == "temperature"
    assert [(p[0]["error.type"], p[1]) for p in found["hw.errors"]] == [("corrected", 3.0), ("uncorrected", 0.0)]
    assert {p[0]["hw.state"]: p[1] for p in found["hw.status"]} == {"ok": 1.0, "degraded": 0.0, "failed": 0.0}
    assert found["hw.gpu.utilization"][0][0]["hw.gpu.task"] == "general" and found["hw.fan.speed_ratio"][0][1] == 0.4


# other packages share the namespace opentelemetry, so that its import tells nothing
@pytest.mark.skipif(not any(distributions(name="opentelemetry-proto")), reason="opentelemetry-proto is not installed")
def test_the_protocols_own_messages_read_every_line(tmp_path: Path, demo_frames: Callable[..., Any]) -> None:
    from google.protobuf import json_format
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as messages

    log = OtlpLog(str(tmp_path / "a.jsonl"))
    demo_frames(3, sinks=[log])
    log.close()
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert len(lines) == 3
    for line in lines[1:]:  # energy begins with the second
        read = json_format.Parse(line, messages.MetricsData())  # an unknown field is an error
        metrics = {m.name: m for m in read.resource_metrics[0].scope_metrics[0].metrics}
        assert metrics.keys() >= {r.metric.name for r in READINGS} - {"hw.fan.speed_ratio", "hw.errors"}
        assert metrics["hw.energy"].sum.is_monotonic and metrics["hw.energy"].sum.aggregation_temporality == 2
        assert (
            metrics["hw.energy"].sum.data_points[0].start_time_unix_nano <= metrics["hw.energy"].sum.data_points[0].time_unix_nano
        )
        assert len(metrics["hw.status"].sum.data_points) == 8 * len(STATES) and "gpuwise.gpu.cause" in metrics


def test_lines_are_appended_and_a_folder_that_is_missing_is_reported(tmp_path: Path, demo_frames: Callable[..., Any]) -> None:
    for _ in range(2):
        log = OtlpLog(str(tmp_path / "a.jsonl"))
        demo_frames(1, sinks=[log])
        log.close()
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and "failed" in {p[0]["hw.state"] for row in rows for p in points(row)["hw.status"] if p[1]}
    with pytest.raises(InputError, match="cannot be written"):
        OtlpLog(str(tmp_path / "no" / "a.jsonl"))
