"""Metrics of ranks, read by the true client's parser; the dashboard asks only for what is there; what a death cost."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuwise.errors import InputError
from gpuwise.machine.telemetry.outputs.exporter import TextServer
from gpuwise.train.ranks.launch import RankJournal, RanksResult
from gpuwise.train.ranks.metrics import COLLECTED, METRICS, UNITS, dashboard, exposition, otlp, write_dashboard


def step(n: int, at_s: float, wait_s: float = 0.2) -> dict[str, Any]:
    counts = {"all-reduce": [2, 4096]}
    times = {"step_s": 1.0, "data_s": 0.1, "wait_s": wait_s, "queue_s": 0.0, "at_s": at_s}
    return {"event": "step", "step": n, "loss": 3.5, "samples": 4, "memory_bytes": 1 << 20, "collectives": counts, **times}


def journal(path: Path, events: list[dict[str, Any]]) -> RankJournal:
    path.write_text("".join(json.dumps(e) + "\n" for e in events))
    made = RankJournal(path)
    made.read()
    return made


def journals(folder: Path) -> tuple[RankJournal, ...]:
    first = [{"event": "begin", "pid": 1, "attempt": 0}, {"event": "saved", "step": 4, "at_s": 4.0, "block_s": 0.01}]
    return (
        journal(folder / "rank-0.jsonl", first + [step(n, float(n), 0.5) for n in range(1, 8)]),
        journal(folder / "rank-1.jsonl", [step(n, float(n), 0.0) for n in range(1, 8)]),
    )


def samples(text: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_a_scrape_has_every_metric_of_every_rank(tmp_path: Path) -> None:
    found = samples(exposition(journals(tmp_path), "night"))
    assert set(found) == {m.name for m in METRICS} | set(COLLECTED)
    assert [s.labels["rank"] for s in found["gpuwise_rank_steps_total"]] == ["0", "1"]
    assert [s.value for s in found["gpuwise_rank_wait_seconds"]] == [0.5, 0.0]
    assert found["gpuwise_rank_collective_bytes"][0].labels["kind"] == "all-reduce"
    waited = found["gpuwise_run_waited_for_seconds"][0]
    assert waited.labels["rank"] == "1" and waited.value == pytest.approx(0.5) and "computes longer" in waited.labels["cause"]
    assert found["gpuwise_run_saved_step"][0].value == 4.0
    before = samples(exposition((RankJournal(tmp_path / "none"),), "night"))
    assert set(before) == {"gpuwise_run_restarts"}


def test_opentelemetrys_names_become_prometheus_names_again(tmp_path: Path) -> None:
    """By the rule of collectors: dots to underscores, then the unit, then ``_total`` of a counter."""
    data = otlp(journals(tmp_path), "night", 100.0, 90.0)
    (scope,) = data["resourceMetrics"][0]["scopeMetrics"]
    ends = {unit: end for end, unit in UNITS.items()} | {"1": ""}
    values: dict[str, list[float]] = {}
    for metric in scope["metrics"]:
        kind = "sum" if "sum" in metric else "gauge"
        name = metric["name"].replace(".", "_") + ends[metric["unit"]] + ("_total" if kind == "sum" else "")
        values[name] = [p["asDouble"] for p in metric[kind]["dataPoints"]]
        starts = {p.get("startTimeUnixNano") for p in metric[kind]["dataPoints"]}
        assert starts == ({"90000000000"} if kind == "sum" else {None})
    served = samples(exposition(journals(tmp_path), "night"))
    age = "gpuwise_rank_age_seconds"
    assert {k: v for k, v in values.items() if k != age} == {k: [s.value for s in v] for k, v in served.items() if k != age}


def test_the_dashboard_asks_for_what_there_is(tmp_path: Path) -> None:
    write_dashboard(tmp_path / "grafana.json")
    document = json.loads((tmp_path / "grafana.json").read_text())
    asked = [t["expr"] for p in document["panels"] for t in p["targets"]]
    names = {name for text in asked for name in re.findall(r"gpuwise_\w+", text)}
    assert names == {m.name for m in METRICS} | set(COLLECTED) and len({p["id"] for p in document["panels"]}) == len(asked)
    labels = {"run", "rank", "kind", "cause"}
    for panel in document["panels"]:
        assert set(re.findall(r"\{\{(\w+)\}\}", panel["targets"][0]["legendFormat"])) <= labels
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in document["panels"]]
    assert len(set(places)) == len(places) and dashboard() == (tmp_path / "grafana.json").read_text()
    with pytest.raises(InputError, match="cannot be written"):
        write_dashboard(tmp_path / "nowhere" / "grafana.json")


def test_metrics_are_served(tmp_path: Path) -> None:
    now = journals(tmp_path)
    server = TextServer("127.0.0.1", 0, lambda: exposition(now, "night"))
    try:
        with urllib.request.urlopen(server.address, timeout=300) as answer:
            assert samples(answer.read().decode())["gpuwise_rank_loss"][0].value == 3.5
        with pytest.raises(InputError, match="cannot be served"):
            TextServer("127.0.0.1", server.port, lambda: "")
    finally:
        server.close()


def test_a_death_costs_what_was_made_twice_and_the_restart(tmp_path: Path) -> None:
    """Saved at step 4, dead after step 6 at 6 s, the next step begun at 20 s: steps 5 and 6 again, 16 s lost in all."""
    events: list[dict[str, Any]] = [{"event": "begin", "pid": 1, "attempt": 0}, *(step(n, float(n)) for n in range(1, 3))]
    events += [{"event": "saved", "step": 2, "at_s": 2.1, "block_s": 0.1}, *(step(n, float(n)) for n in range(3, 5))]
    events += [{"event": "saved", "step": 4, "at_s": 4.1, "block_s": 0.1}, *(step(n, float(n)) for n in range(5, 7))]
    events += [{"event": "begin", "pid": 2, "attempt": 1}, {"event": "resumed", "step": 4}]
    events += [step(n, 16.0 + n) for n in range(5, 9)]
    result = RanksResult("done", 0, (journal(tmp_path / "rank-0.jsonl", events),), 30.0)
    (loss,) = result.losses
    assert (loss.steps, loss.lost_s, loss.down_s) == (2, 16.0, 14.0)
    assert result.expected_loss_s == pytest.approx(2 * 1.0 / 2 + 14.0)
    assert result.blocked == pytest.approx(0.1 / 2.0)
    assert RanksResult("done", 0, (journal(tmp_path / "rank-1.jsonl", [step(1, 1.0)]),), 1.0).expected_loss_s is None


def test_a_rank_lost_inside_of_a_stage_is_a_rank_lost() -> None:
    """torch's stages raise errors of their own from gloo's: the training has to be started again, not refused."""
    pytest.importorskip("torch")
    from gpuwise.train.ranks.child import is_lost

    lost = RuntimeError("[Stage 0] failed to run forward")
    lost.__cause__ = RuntimeError("pair.cc:553] Connection closed by peer [127.0.0.1]:29860")
    own = RuntimeError("[Stage 0] failed to run forward")
    own.__cause__ = ValueError("Connection closed by peer, says the person's own code")
    assert is_lost(lost) and is_lost(lost.__cause__) and not is_lost(own)
