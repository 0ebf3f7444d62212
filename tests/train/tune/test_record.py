"""What a tuning and a run leave in the records, and what the next run is predicted from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.app import run as command
from gpuwise.errors import GpuwiseError
from gpuwise.machine.bench.subjects import machine_id
from gpuwise.records.store import Records, records_path
from gpuwise.train.config import TunedSpeed
from gpuwise.train.tune.energy import Energy
from gpuwise.train.tune.facts import Facts
from gpuwise.train.tune.peak import Device
from gpuwise.train.tune.record import RateMeasurement, expected_from, keep, keep_tuning, prediction_errors, script_of
from gpuwise.train.tune.search import CandidateResult, Result
from gpuwise.train.tune.stats import Gain
from gpuwise.train.tune.trial import Trial

CPU, CARD = Device("cpu", "Played Processor"), Device("cuda", "NVIDIA H200", "GPU-1", 1, "h200-sxm")
LEVERS = {"workers": 2, "compile": "whole"}
TUNED = TunedSpeed(100.0, "samples", 0.08, 50.0, 10**9, "cpu", CPU.name)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUWISE_RECORDS", str(tmp_path / "kept" / "records.db"))
    (tmp_path / "secret-name.py").write_text("print()")
    return tmp_path


def measured(kind: str, rate: float, **more: Any) -> RateMeasurement:
    return RateMeasurement(kind, rate, "samples", 8 / rate, LEVERS, **more)


def test_a_script_is_known_by_its_text_and_arguments(home: Path) -> None:
    script = str(home / "secret-name.py")
    one, same = script_of(script, ["--batch", "8"]), script_of(script, ["--batch", "8"])
    assert one == same and one.text == script_of(script, []).text and one.job != script_of(script, ["--batch 8"]).job
    (home / "secret-name.py").write_text("print(1)")
    assert script_of(script, ["--batch", "8"]).text != one.text


def test_the_next_run_is_predicted_from_the_earlier_ones(home: Path) -> None:
    """The tuning's figure first; then the median of the runs of the same script, levers and device."""
    script = script_of(str(home / "secret-name.py"), ())
    assert expected_from(script, CPU, LEVERS, TUNED) == TUNED
    assert not records_path().exists()
    for rate in (80.0, 90.0, 84.0):
        keep(script, CPU, "2.13", [measured("run", rate, predicted_rate=100.0, energy_j=2.0, memory_bytes=7)])
    found = expected_from(script, CPU, LEVERS, TUNED)
    assert found == TunedSpeed(84.0, "samples", 8 / 84.0, 50.0, 7, None, CPU.name, 2.0, "3 earlier runs")
    for other in (
        expected_from(script, replace(CPU, name="Another"), LEVERS, None),
        expected_from(script, CPU, {"workers": 4}, None),
        expected_from(script_of(str(home / "secret-name.py"), ("--x",)), CPU, LEVERS, None),
    ):
        assert other is None


def test_elsewhere_the_tunings_figure_says_nothing(home: Path) -> None:
    script = script_of(str(home / "secret-name.py"), ())
    assert expected_from(script, CARD, LEVERS, TUNED) is None
    keep(script, CARD, None, [measured("tune", 300.0)])
    found = expected_from(script, CARD, LEVERS, TUNED)
    assert found is not None and (found.rate, found.basis) == (300.0, "an earlier tuning")


def tuning() -> Result:
    before = Trial("enough", True, 20, 0.08, 100.0, energy=Energy(3.0, "RAPL"), device=CPU)
    after = replace(before, step_s=0.032, rate=250.0, energy=Energy(1.2, "RAPL"))
    tried = (
        CandidateResult("workers", 2, "workers=2", "kept", "", Gain(1.5, 1.4, 1.6, 4), 1.8),
        CandidateResult("compile", "whole", "compile=whole", "kept", "", Gain(2.0, 1.9, float("inf"), 1)),
        CandidateResult("cache_items", True, "cache_items", "not tried", "hopeless"),
    )
    return Result(Facts("cpu", 2, 2, 0, None), before, after, LEVERS, tried, Gain(2.5, 2.4, 2.6, 4), None, 1.0, False)


def test_a_tuning_keeps_what_it_promised_beside_what_came(home: Path) -> None:
    keep_tuning(tuning(), script_of(str(home / "secret-name.py"), ("--password", "x")), "2.13", (0.1, 0.25))
    with Records(create=False) as records:
        untouched, together = records.query(family="train")
        workers, compiled = records.query(family="train-lever")
    assert (untouched.value, untouched.parameters["levers"]) == (100.0, "{}")
    assert (together.value, together.time_s, together.conditions["predicted_rate"]) == (250.0, 0.032, 300.0)
    assert together.conditions["energy_j_per_sample"] == 1.2 and together.conditions["utilisation"] == 0.25
    assert (workers.value, workers.conditions["most_possible"], compiled.high) == (1.5, 1.8, None)
    assert together.run is not None and together.run.software["torch"] == "2.13" and together.run.machine_id == machine_id()
    kept = records_path().read_bytes() + json.dumps([r.parameters for r in (together, workers)], default=str).encode()
    assert b"secret-name" not in kept and b"password" not in kept
    (tune,) = prediction_errors()
    assert (tune.kind, tune.n, tune.scripts) == ("tune", 1, 1) and tune.bias == pytest.approx(0.2)


def test_validate_counts_own_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["validate", "--runs"]) == 1
    assert "No prediction of a training was recorded" in capsys.readouterr().out
    script = script_of(str(home / "secret-name.py"), ())
    for rate in (80.0, 100.0, 125.0):
        keep(script, CPU, None, [measured("run", rate, predicted_rate=100.0)])
    assert command(["validate", "--runs", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    assert (told["kind"], told["n"], told["bias"]) == ("run", 3, 0.0)
    assert told["worst"] == pytest.approx(0.25) and told["median_error"] == pytest.approx(0.2)
    assert command(["validate", "--runs"]) == 0
    assert "+25.0 %" in capsys.readouterr().out


def test_a_store_that_cannot_be_written_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("no folder")
    monkeypatch.setenv("GPUWISE_RECORDS", str(home / "file" / "records.db"))
    with pytest.raises(GpuwiseError, match="cannot be used"):
        keep(script_of(str(home / "secret-name.py"), ()), CPU, None, [measured("run", 1.0)])
