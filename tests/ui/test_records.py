# pyright: reportMissingImports=false
"""What was measured here, as the pages Machine and Runs show it: in its unit, beside what is expected, with its day."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ui.test_views import at, read

from gpuwise.cli.app import run
from gpuwise.machine.bench.cases import product_case, select_cases
from gpuwise.machine.bench.history import case_of, history
from gpuwise.records.record import Record, Run
from gpuwise.records.store import Records
from gpuwise.ui.views import export, view

DAY_S = 86_400.0
HERE = Run("0" * 32, 1_764_000_000.0, "abc", {"cores": 16})
PRODUCT = product_case("bf16", 8192, 8192, 8192, frozenset({"cuda"}))


def record(day: int, value: float | None, **more: Any) -> Record:
    """A large product on an H100, so many days after the run began."""
    usual: dict[str, Any] = {
        "measurement": PRODUCT.key,
        "family": "matmul",
        "device": "GPU-1",
        "device_name": "NVIDIA H100 80GB HBM3",
        "accelerator": "h100-sxm-80gb",
        "dtype": "bf16",
        "parameters": dict(PRODUCT.parameters),
        "unit": "FLOP/s",
        "run": HERE,
        "failed": "out of memory" if value is None else None,
    }
    return Record(**{**usual, **more, "at_s": HERE.at_s + DAY_S * day, "value": value})


TRAIN: dict[str, Any] = {
    "measurement": "train-0123456789ab",
    "family": "train",
    "accelerator": None,
    "dtype": "",
    "unit": "1/s",
    "parameters": {"kind": "run", "job": "0123456789abcdef", "per": "samples"},
    "conditions": {"predicted_rate": 110.0, "predicted_by": "<b>this script</b>"},
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The document of a command over records of one's own."""
    place = tmp_path / "records.db"
    monkeypatch.setenv("GPUWISE_RECORDS", str(place))

    def ask(rows: list[Record], *words: str) -> Any:
        if rows:
            with Records() as records:
                records.start(HERE)
                for row in rows:
                    records.add(HERE, row)
        run([*words, "--json"])
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return ask


def test_the_newest_value_stands_beside_what_is_expected(asked: Callable[..., Any]) -> None:
    made = asked([record(0, 7.1e14), record(2, 3.0e14), record(1, 7.0e14)], "bench", "--history")
    (row,) = made["devices"][0]["measurements"]
    assert row["newest"] == 3.0e14 and row["median"] == 7.0e14 and row["count"] == 3 and row["on"] == "2025-11-26"
    assert row["verdict"] == "low" and row["expected"]["low"] < row["expected"]["expected"] < row["expected"]["high"]
    body = view("history", made)
    seen = read(body)
    assert "300 TFLOP/s" in body and "low" in body and "years" not in body and not seen.active
    assert all(float(v) == at(made, p) for p, v in seen.numbers.items())
    assert "300 TFLOP/s" in export("history", "html", made, "gpuwise bench --history")


def test_a_failed_one_and_an_unknown_card_are_said(asked: Callable[..., Any]) -> None:
    made = asked([record(0, None), record(0, 1e14, device="GPU-2", accelerator=None)], "bench", "--history")
    body = view("history", made)
    assert ">failed<" in body and "out of memory" in body and "unknown GPU" in body


def test_every_case_is_found_again_by_its_record() -> None:
    for case in select_cases((), quick=False):
        stored = record(0, 1.0, measurement=case.key, family=case.family, dtype=case.dtype, parameters=dict(case.parameters))
        assert (case_of(stored).key, case_of(stored).variant) == (case.key, case.variant)
    assert history([]) == []


def test_predictions_of_trainings_stand_beside_what_came(asked: Callable[..., Any]) -> None:
    made = asked([record(0, 100.0, **TRAIN), record(1, 125.0, **TRAIN)], "validate", "--runs")
    assert [round(e["error"], 3) for e in made["each"]] == [0.1, -0.12] and made["each"][0]["on"] == "2025-11-24"
    body = view("runs", made)
    seen = read(body)
    assert not seen.active and "&lt;b&gt;" in body and "-12.0 %" in body and "110" in body
    assert all(float(v) == at(made, p) for p, v in seen.numbers.items())


@pytest.mark.parametrize(("page", "words"), [("history", ["bench", "--history"]), ("runs", ["validate", "--runs"])])
def test_nothing_yet_says_how_to_come_by_some(asked: Callable[..., Any], page: str, words: list[str]) -> None:
    assert re.search("<(code|pre)>gpuwise ", view(page, asked([], *words)))
