from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.calibrate import validation
from gpuwise.calibrate.validation import Result

ROWS = [
    Result("gemm", "a table", None, "check", 12, 0.03, 0.05, -0.01, 0.8, 0.2, {"no rate": 2}),
    Result("gemm", "a table", "H100", "check", 12, 0.03, 0.05, -0.01, 0.8, 0.2, {"no rate": 2}),
    Result("attention", "other", None, "fit", 3, None, None, None, None, None, {"too small": 3}),
]


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []

    def score(folder: Path, families: list[str] | None = None, *, all_check: bool = False) -> list[Result]:
        seen.append({"folder": folder, "families": families, "all_check": all_check})
        return ROWS

    monkeypatch.setattr(validation, "validate", score)
    return seen


def test_the_table_has_every_row(gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    ran = gpuwise("validate", "--all")
    assert ran.code == 0
    for part in ("gemm", "a table", "H100", "5.0 %", "-1.0 %", "20.0 %", "a table: no rate: 2"):
        assert part in ran.out


def test_a_narrow_screen_keeps_the_essentials(gpuwise: Callable[..., Any]) -> None:
    out = gpuwise("validate").out
    assert "5.0 %" in out and "gemm, a table" in out and "12" in out


def test_a_summary_leaves_the_gpus_out(gpuwise: Callable[..., Any]) -> None:
    assert "H100" not in gpuwise("validate", "--summary", "--all").out


def test_options_reach_the_scores(gpuwise: Callable[..., Any], rows: list[dict[str, Any]], tmp_path: Path) -> None:
    gpuwise("validate", "--data", str(tmp_path), "--all-check", "--family", "gemm")
    assert rows[-1] == {"folder": tmp_path, "families": ["gemm"], "all_check": True}


def test_json_has_the_fields(gpuwise: Callable[..., Any]) -> None:
    (first, *_) = gpuwise("validate", "--json").document["results"]
    assert set(first) == {
        "family",
        "source",
        "gpu",
        "split",
        "rows",
        "median_ape",
        "mape",
        "bias",
        "coverage80",
        "baseline_mape",
        "unpredicted",
    }


def test_an_unknown_family_names_those_there_are(gpuwise: Callable[..., Any]) -> None:
    asked = gpuwise("validate", "--family", "captured_time")
    assert asked.code == 2
    assert "hint: it is one of gemm, attention" in asked.err and "python -m studies.validate" in asked.err


def test_local_writes_nothing_into_the_current_folder(
    gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gpuwise.machine.bench.local import validation as local

    def run(cases: object, machine: object, record: Path, **_: object) -> list[object]:
        record.write_text("{}")
        return []

    monkeypatch.setattr(local, "find_machine", lambda: local.Machine("cpu", "CPU", 0, "", "2.14.1", (0, 0)))
    monkeypatch.setattr(local, "run", run)
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("GPUWISE_HOME", str(home))
    monkeypatch.delenv("GPUWISE_RECORDS", raising=False)
    record = Path(gpuwise("validate", "--local", "--json").document["record"])
    assert record.parent == home and record.exists() and list(here.iterdir()) == []


def test_local_shows_each_case_and_what_could_not_be_compared(
    gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gpuwise.machine.bench.local import validation as local

    results = [
        local.LocalResult(
            "resnet50 bf16", {"allocated_bytes": 1.1e9, "step_time_s": 0.09}, {"allocated_bytes": 1e9, "step_time_s": 0.1}
        ),
        local.LocalResult("gpt2 bf16", {"allocated_bytes": 2e9}, {"failed": "out of memory"}),
    ]
    monkeypatch.setattr(local, "find_machine", lambda: local.Machine("cuda", "L4", 24 << 30, "580.1", "2.14.1", (8, 9)))
    monkeypatch.setattr(local, "run", lambda *_, **__: results)  # pyright: ignore[reportUnknownLambdaType]
    ran = gpuwise("validate", "--local", "--record", str(tmp_path / "r"))
    words = " ".join(ran.out.split())
    assert ran.code == 0 and " 1 of " in ran.out.splitlines()[0] and f"record: {tmp_path / 'r'}" in ran.err
    for part in ("+10.0 %", "-10.0 %", "resnet50 bf16", "Measuring gpt2 bf16: out of memory", "step time 1 10.0 %"):
        assert part in words, part
    assert ran.out.splitlines()[-1].endswith("gpuwise validate --runs")
