"""Times of collectives: measured on two payloads, predicted, kept in the records, and learnt from them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from gpuwise.calibrate.machine.calibration import corrected_accelerator, fit_device
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.predict.comm.collectives import curve
from gpuwise.records.store import Records
from gpuwise.train.ranks.exchange import BETWEEN, SIZES, check, lines_of, records_of, seconds_of
from gpuwise.train.ranks.launch import RankJournal, RanksResult
from gpuwise.train.ranks.report import RunRecords
from gpuwise.train.tune.peak import Device


def measured(seconds: Callable[[int], float], kind: str = "all-reduce", ranks: int = 8) -> list[dict[str, Any]]:
    return [{"kind": kind, "bytes": b, "ranks": ranks, "seconds": seconds(b)} for b in (*SIZES, BETWEEN)]


def test_a_line_goes_through_two_payloads_and_is_checked_on_a_third() -> None:
    told = measured(lambda b: 20e-6 + b / 1e9)
    lines = lines_of(told)
    assert lines["all-reduce"] == pytest.approx((20e-6, 1e-9))
    assert check(told, lines)["all-reduce"] == pytest.approx(0.0, abs=1e-9)
    assert seconds_of({"all-reduce": (3, 10**6), "send": (1, 5)}, lines) == pytest.approx({"all-reduce": 60e-6 + 1e-3})
    falling = lines_of(measured(lambda b: 1.0 / b))
    assert falling["all-reduce"][1] == 0.0 and math.isfinite(falling["all-reduce"][0])


def test_slower_collectives_are_learnt_from_the_records(tmp_path: Path) -> None:
    """Planted: every all-reduce of eight H100 takes 1.8 times the model's; other operations and groups stay as they were."""
    system = find_cluster("8xH100-SXM").system
    card = system.accelerator
    sizes = [2**n for n in range(16, 29, 2)]
    truth = curve(system, "all_reduce", 8, 8)
    told = [{"kind": "all-reduce", "bytes": b, "ranks": 8, "seconds": 1.8 * float(truth.time_s(b))} for b in sizes]
    device = Device("cuda", card.name, "GPU-1", 8, card.id)
    from gpuwise.records.record import Run

    run = Run("a" * 32, time.time(), "m" * 32)
    with Records(tmp_path / "records.db") as store:
        store.start(run)
        for record in records_of(told, device):
            store.add(run, record)
        learnt = fit_device(store.query(device="GPU-1"), card)
    fit = learnt.families["collective/all_reduce/8"]
    assert fit.bias == pytest.approx(0.8, abs=0.01) and fit.after is not None and fit.after < 0.05 < fit.before
    here = replace(system, accelerator=corrected_accelerator(card, learnt))
    for b in (3 * 2**17, 3 * 2**22):
        assert float(curve(here, "all_reduce", 8, 8).time_s(b)) == pytest.approx(1.8 * float(truth.time_s(b)), rel=0.05)
        assert float(curve(here, "all_gather", 8, 8).time_s(b)) == float(curve(system, "all_gather", 8, 8).time_s(b))
        assert float(curve(here, "all_reduce", 4, 4).time_s(b)) == float(curve(system, "all_reduce", 4, 4).time_s(b))


def test_a_run_is_recorded_and_the_next_is_predicted_from_it(
    ranks: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two gloo ranks. Waiting for the other rank is in what is measured, so a busy machine takes longer than the line."""
    monkeypatch.setenv("GPUWISE_RECORDS", str(tmp_path / "records.db"))
    run = ranks("tokens", 2, steps=8, time_exchanges=True, predicted_step_s=0.5)
    assert run.codes() == [0, 0], run.output
    (told,) = run.lines(0, "exchanges")
    assert [(m["kind"], m["bytes"]) for m in told["measured"]] == [("all-reduce", b) for b in (*SIZES, BETWEEN)]
    assert told["step_s"]["all-reduce"] > 0 and told["off"]["all-reduce"] > -1
    line = run.lines(1)[-1]
    assert line["predicted_s"] == 0.5 and line["waits_s"]["all-reduce"] > 0 and "energy_j" in line
    assert line["wait_s"] == pytest.approx(sum(line["waits_s"].values()))
    journals = tuple(RankJournal(run.out / f"rank-{r}.jsonl") for r in (0, 1))
    for journal in journals:
        journal.read()
    result = RanksResult("done", 0, journals, 1.0)
    times = result.exchange_times["all-reduce"]
    assert times["predicted_s"] == told["step_s"]["all-reduce"] and times["measured_s"] is not None
    from gpuwise.train.ranks.settings import read_settings, write_settings

    write_settings(run.settings, tmp_path / "settings.json")
    settings = read_settings(tmp_path / "settings.json")
    first = RunRecords(settings, None)
    assert first.settings.predicted_step_s is None and first.failed is None
    first.keep(result)
    assert RunRecords(settings, None).settings.predicted_step_s == pytest.approx(result.step_s)
    assert RunRecords(settings, 0.25).settings.predicted_step_s == 0.25
    with Records(tmp_path / "records.db", create=False) as store:
        kept = store.query(family="collective")
    assert [r.time_s for r in kept] == [m["seconds"] for m in told["measured"]] and kept[0].parameters["ranks"] == 2
