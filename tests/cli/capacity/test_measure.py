"""``gpuwise capacity --measure``: a server with planted latencies beside what is predicted of it, and what is learnt."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from studies.mock_server import Answering, MockServer

FLEET = ("capacity", "llama-3.2-1b", "--on", "l40s", "--workload", "in=200,out=20")
ASK = (*FLEET, "--slo", "ttft_p95=1s,tpot_p50=500ms")
SEND = ("--rate", "20/s", "--seconds", "2s", "--requests", "30", "--stall", "1s")


@pytest.fixture(autouse=True)
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWISE_RECORDS", str(tmp_path / "records.db"))


def test_measured_stands_beside_predicted(gpuwise: Callable[..., Any]) -> None:
    with MockServer(Answering(first_s=0.1, token_s=0.02)) as server:
        ran = gpuwise(*ASK, *SEND, "--measure", server.url, "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    assert document["answered"] == document["requests"] == 30
    rows = {r["latency"]: r for r in document["latency"]}
    # no earlier than the server waits; that they are its own times, late as a busy machine is, is tested in serve/measure
    assert rows["ttft_p50"]["measured_s"] >= 0.1 - 1e-3 and rows["tpot_p50"]["measured_s"] > 0
    assert rows["tpot_p50"]["ratio"] == pytest.approx(rows["tpot_p50"]["measured_s"] / rows["tpot_p50"]["predicted_s"])


@pytest.mark.skipif(not any(distributions(name="opentelemetry-proto")), reason="opentelemetry-proto is not installed")
def test_latencies_are_opentelemetrys_histograms(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    from google.protobuf import json_format
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as messages

    fault = {2: "refuse"}
    with MockServer(Answering(first_s=0.05, token_s=0.001, fault=lambda n: fault.get(n, ""))) as server:
        sent = ("--requests", "10", "--rate", "20/s", "--seconds", "2s", "--measure", server.url, "--no-save")
        ran = gpuwise(*ASK, *sent, "--otlp", str(tmp_path / "load.jsonl"), "--json")
    read = json_format.Parse((tmp_path / "load.jsonl").read_text(), messages.MetricsData())  # an unknown field is an error
    found = {m.name: m for m in read.resource_metrics[0].scope_metrics[0].metrics}
    (first,) = found["gen_ai.client.operation.time_to_first_chunk"].histogram.data_points
    assert first.count == sum(first.bucket_counts) == 9 and len(first.bucket_counts) == len(first.explicit_bounds) + 1
    below = next(i for i, bound in enumerate(first.explicit_bounds) if bound >= 0.05)
    assert sum(first.bucket_counts[:below]) == 0 and first.min >= 0.05 and first.start_time_unix_nano < first.time_unix_nano
    (whole,) = found["gen_ai.client.operation.duration"].histogram.data_points
    assert whole.count == 9 and whole.sum > first.sum
    about = {a.key: a.value.string_value or a.value.int_value for a in first.attributes}
    assert about["gen_ai.operation.name"] == "text_completion" and about["server.port"] == int(
        server.url.split(":")[2].split("/")[0]
    )
    failed = {
        next((a.value.string_value for a in p.attributes if a.key == "error.type"), ""): p.as_double
        for p in found["gpuwise.capacity.requests"].sum.data_points
    }
    assert failed == {"": 9.0, "refused": 1.0}
    shown = {
        next(a.value.string_value for a in p.attributes if a.key == "gpuwise.latency"): p.as_double
        for p in found["gpuwise.capacity.latency.predicted"].gauge.data_points
    }
    assert shown == {r["latency"]: pytest.approx(r["predicted_s"]) for r in ran.document["latency"] if r["predicted_s"]}
    ran = gpuwise(*ASK, *SEND, "--measure", "http://127.0.0.1:1", "--otlp", str(tmp_path / "no" / "a.jsonl"))
    assert ran.code == 2 and "cannot be written" in ran.err


@pytest.mark.thorough
def test_the_predictor_learns_from_what_was_measured(gpuwise: Callable[..., Any]) -> None:
    before = gpuwise(*ASK, "--quick", "--json").document["served"]["requests_per_s_of_a_copy"]["expected"]
    assert gpuwise(*ASK, "--calibrated", "--quick").code == 2
    with MockServer(Answering(first_s=0.1, token_s=0.02)) as server:
        predicted = gpuwise(*ASK, *SEND, "--measure", server.url, "--json").document
    ran = gpuwise(*ASK, "--calibrated", "--quick", "--json")
    ratio = next(r["ratio"] for r in predicted["latency"] if r["latency"] == "tpot_p50")
    factor = float(ran.err.split("times are ")[1].split()[0])
    assert 1 < factor < ratio
    assert factor == pytest.approx(ratio ** (30 / 31), rel=0.02)
    after = ran.document["served"]["requests_per_s_of_a_copy"]["expected"]
    assert after < before / (0.9 * factor)


@pytest.mark.thorough
def test_answers_shorter_than_asked_for_are_said(gpuwise: Callable[..., Any]) -> None:
    with MockServer(Answering(first_s=0.01, token_s=0.001, most_tokens=4)) as server:
        ran = gpuwise(*ASK, *SEND, "--measure", server.url, "--no-save")
    assert "as long as asked for" in ran.out


@pytest.mark.thorough
def test_failures_are_counted_and_what_was_measured_is_shown(gpuwise: Callable[..., Any]) -> None:
    faults = ("", "", "refuse", "error", "half event", "stall")
    with MockServer(Answering(first_s=0.01, fault=lambda n: faults[n] if n < len(faults) else "")) as server:
        ran = gpuwise(*ASK, *SEND, "--measure", server.url, "--no-save")
    assert "26 of 30 requests answered whole" in ran.out and "as long as asked for" not in ran.out
    for words in ("1 refused by the server", "1 answered with an error of the server", "1 cut off", "1 stalled", "out of memory"):
        assert words in ran.out
    assert "Measured beside predicted" in ran.out


@pytest.mark.thorough
def test_a_refused_request_is_sent_again_where_asked(gpuwise: Callable[..., Any]) -> None:
    more = ("--rate", "5/s", "--requests", "5", "--retries", "2", "--no-save", "--json")
    with MockServer(Answering(first_s=0.01, fault=lambda n: "refuse" if n == 3 else "")) as server:
        ran = gpuwise(*ASK, "--seconds", "5s", *more, "--measure", server.url)
    assert ran.document["retries"] == 1 and ran.document["answered"] == 5 and not ran.document["failures"]


def test_a_target_that_is_missed_is_an_exit_code(gpuwise: Callable[..., Any]) -> None:
    sent = ("--slo", "ttft_p95=100ms", "--rate", "5/s", "--seconds", "1s", "--requests", "5")
    with MockServer(Answering(first_s=0.3, token_s=0.001)) as server:
        ran = gpuwise(*FLEET, *sent, "--measure", server.url, "--no-save")
    assert ran.code == 1
    assert "missed" in ran.out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--seconds", "5s"), "an option of --measure without it"),
        (("--measure", "ftp://x"), "not the address"),
        (("--measure", "http://127.0.0.1:1"), "nothing answers"),
        (("--measure", "http://127.0.0.1:1", "--seconds", "3h"), "an hour"),
        (("--measure", "http://127.0.0.1:1", "--retries", "-1"), "from 0 to 20"),
    ],
)
def test_what_cannot_be_measured_is_said(gpuwise: Callable[..., Any], more: tuple[str, ...], words: str) -> None:
    ran = gpuwise(*ASK, *more)
    assert ran.code in (1, 2)
    assert words in ran.err
